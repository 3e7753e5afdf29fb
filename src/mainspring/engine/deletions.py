"""Deletions: cancel the waiting runs of deleted schedules, in batches, so that a deletion is answered at once.

The change that deletes a schedule also touches it, so the store remembers that runs may be left. The touch is cleared
when none is left. If the instance that cancels them crashes, another one finds the touch and continues.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from mainspring.model.change import Change, RunAt
from mainspring.model.instant import Ms
from mainspring.model.run import State
from mainspring.model.schedule import Schedule
from mainspring.ports.store import DueSchedule, Runs, Store
from mainspring.rules.lanes import schedules_to_touch
from mainspring.rules.lifecycle import decide, evolve
from mainspring.rules.run_commands import RequestCancel
from mainspring.rules.schedule_draft import ScheduleDraft

#: The most runs that are cancelled at once. Between two batches, the settler does its other work.
BATCH_RUNS = 500
_WAITING = (State.WAITING, State.RETRYING, State.BLOCKED)


async def cancel_waiting_runs(
    store: Store,
    apply_all: Callable[[list[Change]], Awaitable[Any]],
    change_id: Callable[[], str],
    schedule: Schedule,
    now: Ms,
) -> bool:
    """Cancel the oldest waiting runs of a deleted schedule, at most `BATCH_RUNS`. Return False if there are none.

    `apply_all` applies changes, and `change_id` returns a new id for a change. A run that changed meanwhile is left for
    the next batch. `now`: the store's time. Raises: StoreError.
    """
    query = Runs(schedule_id=schedule.id, states=_WAITING, limit=BATCH_RUNS, oldest_first=True)
    runs = await store.find(query)
    command = RequestCancel("the schedule was deleted", schedule.reason or "")
    changes: list[Change] = []
    for run in runs:
        events = decide(run, command, now)
        after = evolve(run, events[0])
        touches = schedules_to_touch(after)
        changes.append(Change(id=change_id(), guard=RunAt(run.id, run.n), run=after, events=events, touches=touches))
    if changes:
        await apply_all(changes)
    return bool(changes)


class Deletions:
    """The deleted schedules whose waiting runs this instance cancels. Thread: engine loop."""

    def __init__(
        self, store: Store, apply_all: Callable[[list[Change]], Awaitable[Any]], change_id: Callable[[], str]
    ) -> None:
        """Cancel the runs by `apply_all`; `change_id` returns a new id for a change."""
        self._store = store
        self._apply_all = apply_all
        self._change_id = change_id
        #: Schedule id → the deleted schedule, with the touch that was read.
        self._rows: dict[str, DueSchedule] = {}

    def add(self, row: DueSchedule) -> None:
        """Cancel the waiting runs of a touched schedule that is deleted, from the next step on."""
        self._rows[row.schedule.id] = row

    async def step(self, now: Ms) -> bool:
        """Cancel one batch of runs of each schedule; clear the touch where none is left. Return True if more remain.

        `now`: the store's time. Raises: StoreError; the schedules are then tried again.
        """
        for id_, row in list(self._rows.items()):
            if not await cancel_waiting_runs(self._store, self._apply_all, self._change_id, row.schedule, now):
                await self._apply_all([ScheduleDraft(row.schedule).change(self._change_id(), touched=row.touched)])
                del self._rows[id_]
        return bool(self._rows)
