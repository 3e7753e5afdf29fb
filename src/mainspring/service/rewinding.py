"""Rewinding: set a schedule that was planned ahead of the clock back to the present. Thread: engine loop."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from mainspring.engine.store_clock import StoreClock
from mainspring.model.change import Result
from mainspring.model.errors import StoreError, UnknownSchedule
from mainspring.model.events import Event
from mainspring.model.ids import first_id_at
from mainspring.model.instant import Ms, isoformat
from mainspring.model.revisions import fold_definitions
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule
from mainspring.ports.paging import iterate_rows, iterate_spans
from mainspring.ports.store import Events, Runs, Schedules, Store
from mainspring.rules.rewind import is_ahead, rewind
from mainspring.rules.schedule_draft import ScheduleDraft

log = logging.getLogger("mainspring")
_DEFINING_TYPES = ("ScheduleCreated", "ScheduleUpdated", "ScheduleFinished", "ScheduleRewound", "ScheduleSnapshot")


async def rewind_schedule(
    store: Store,
    time: StoreClock,
    write: Callable[[ScheduleDraft], Awaitable[Result]],
    schedule: Schedule,
    attempts: int,
) -> Schedule:
    """Rewind a schedule and return its new row; return it unchanged if it is not ahead. `write` commits a draft.

    If another write changes the schedule first, decide again on the new row, at most `attempts` times. Raises:
    UnknownSchedule if the schedule was deleted; StoreError.
    """
    row = schedule
    for _ in range(attempts):
        if row.state == "deleted":
            raise UnknownSchedule(f"the schedule {row.name!r} was deleted")
        draft = await _draft_rewind(store, row, await time.read())
        if not draft.changed:
            return row
        if (await write(draft)).ok:
            log.info("schedule %r was rewound from %s to now", row.name, isoformat(row.cursor))
            return draft.schedule
        row = (await store.find(Schedules(id=row.id, limit=1)))[0]
    raise StoreError(f"schedule {row.name!r} kept changing while it was rewound")


async def _draft_rewind(store: Store, schedule: Schedule, now: Ms) -> ScheduleDraft:
    """Return the draft that sets the schedule's cursor back to `now`; it is empty if the schedule is not ahead."""
    if not is_ahead(schedule, now):
        return ScheduleDraft(schedule)
    spans = [span async for span in iterate_spans(store, schedule.id, now - 1)]
    fires = Runs(
        schedule_id=schedule.id, origin="fire", fired_since=now, oldest_first=True, after=first_id_at(now), limit=1_000
    )
    runs = 0
    async for _ in iterate_rows(store, fires, _run_id):
        runs += 1
    stream = [e async for e in iterate_rows(store, Events(schedule_id=schedule.id, types=_DEFINING_TYPES), _seq)]
    return rewind(schedule, now, spans, runs, fold_definitions(stream))


def _run_id(run: Run) -> str:
    return run.id


def _seq(event: Event) -> str:
    return str(event.seq)
