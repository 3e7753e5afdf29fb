"""The memory store's `apply`: write those changes of a batch whose guards hold."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from mainspring.backends.memory.claim import MemoryClaim
from mainspring.model.change import (
    RUN_VALUES,
    Change,
    Result,
    RunAbsent,
    RunAt,
    RunLease,
    ScheduleAbsent,
    ScheduleAt,
)
from mainspring.model.events import Event, RunEvent, ScheduleEvent
from mainspring.model.instant import Ms
from mainspring.model.run import ENDED, OPEN, Run, State
from mainspring.model.schedule import Schedule
from mainspring.ports.store import Applied, ClaimRequest

_ACCEPTED = Result("accepted")
#: Whether a guard holds, and the row that decided it: the guarded row, or the row that has the unique key or the name
#: already. None if there is no such row.
_Verdict = tuple[bool, Run | Schedule | None]


class MemoryApply(MemoryClaim):
    """The part of `MemoryStore` that implements the port's `apply`."""

    async def apply(
        self, changes: Sequence[Change], *, claim_request: ClaimRequest | None = None, now: Ms | None = None
    ) -> Applied:
        wall, lease_now = self._clocks(now)
        results = [self._apply_one(change, wall) for change in changes]
        self._hints.notify()
        claimed = None
        if claim_request is not None:
            claimed = self._claim(claim_request.offer, claim_request.limit, (), wall, lease_now)
        return Applied(wall, results, claimed)

    def _write_success(self, change: Change, wall: Ms) -> bool:
        """Write a success that releases no gate and return True; write nothing and return False for any other change.

        Also return False if the run is not running under the change's epoch any more. Why this fast path: this is by
        far the most frequent change, and it needs none of the general steps. `wall`: the present time.
        """
        run = change.run
        if change.kind != "success" or change.releases or run is None:
            return False
        old = self._runs.get(run.id)
        if old is None or old.state is not State.RUNNING or old.epoch != run.epoch:
            return False
        self._put_run(
            replace(
                old,
                n=old.n + 1,
                state=run.state,
                reason=None,
                result=run.result,
                error=None,
                began_at=run.began_at,
                ms=run.ms,
                dead=False,
                ended_at=wall,
                owner=None,
                lease_until=None,
                parked_on=None,
                progress=None,
            )
        )
        self._record(change.events[0], wall, old.n + 1, change.id)
        return True

    def _apply_one(self, change: Change, wall: Ms) -> Result:
        """Write all of the change, or nothing if its guard does not hold; return the change's result.

        `wall`: the present time.
        """
        if self._write_success(change, wall):
            return _ACCEPTED
        refused = self._check_guard(change)
        if refused is not None:
            return refused
        guard = change.guard
        n = 0
        if isinstance(guard, RunLease | RunAt):
            n = self._update_run(change, wall)
        elif isinstance(guard, ScheduleAt | ScheduleAbsent):
            n = self._write_schedule(change, wall)
        inserted = self._insert_runs(change, wall)
        if isinstance(guard, RunAbsent):
            n = inserted[guard.id]
        self._write_extras(change)
        self._append_events(change, n, inserted, wall)
        return Result("accepted", 0 if isinstance(guard, RunLease) else n)

    def _insert_runs(self, change: Change, wall: Ms) -> dict[str, int]:
        """Insert the change's new runs; return run id → `n`, the number of the run's events, for each inserted run.

        A run of `change.runs` whose id or fire has a row already is skipped. `wall`: the present time.
        """
        new: dict[str, Run] = {}
        if isinstance(change.guard, RunAbsent):
            assert change.run is not None
            new[change.guard.id] = change.run
        for run in change.runs:
            if run.id not in self._runs and (run.schedule_id, run.fire_key) not in self._fire_keys:
                new[run.id] = run
        event_counts = Counter(event.run_id for event in change.events if isinstance(event, RunEvent))
        for run in new.values():
            ended = wall if run.state in ENDED else None
            self._put_run(replace(run, n=event_counts[run.id], created_at=wall, ended_at=ended))
        return {run.id: event_counts[run.id] for run in new.values()}

    def _write_extras(self, change: Change) -> None:
        """Write the change's payloads, gates, spans and touches, and give back the slots of gates that it releases.

        A payload that exists stays as it is; of a gate that exists, only `max` is changed.
        """
        for body in change.bodies:
            self._bodies.setdefault(body.id, body.data)
        for gate in change.gates:
            known = self._gates.get(gate.name)
            self._gates[gate.name] = gate if known is None else replace(known, max=gate.max)
        if change.cut_spans is not None and change.schedule is not None:
            self._cut_spans(change.schedule.id, change.cut_spans)
        self._spans.extend(change.spans)
        for sid in change.touches:
            if sid in self._schedules:
                self._touched[sid] = self._touched.get(sid, 0) + 1
        for name in change.releases:
            held = self._gates.get(name)
            if held is not None:
                self._gates[name] = replace(held, held=max(0, held.held - 1))

    # ── guards ─────────────────────────────────────────────────────────────

    def _check_guard(self, change: Change) -> Result | None:
        """Return None if the guard holds, else the result "refused" or "repeated", with the row that decided it."""
        holds, current = self._judge_guard(change)
        if holds:
            return None
        if current is not None and self._is_repeated(change, current):
            return Result("repeated", current.n, current)
        return Result("refused", current.n if current is not None else 0, current)

    def _judge_guard(self, change: Change) -> _Verdict:
        """Return (whether the change's guard holds, the row that decided it); (True, None) without a guard.

        The row is the guarded row, or the row that has the unique key or the name already. It is None if there is no
        such row.
        """
        guard = change.guard
        if isinstance(guard, RunLease):
            return self._judge_run_lease(guard)
        if isinstance(guard, RunAt):
            return self._judge_run_at(guard, change.run)
        if isinstance(guard, RunAbsent):
            return self._judge_run_absent(guard, change.run)
        if isinstance(guard, ScheduleAt):
            return self._judge_schedule_at(guard, change.schedule)
        if isinstance(guard, ScheduleAbsent):
            return self._judge_schedule_absent(guard)
        return True, None

    def _judge_run_lease(self, guard: RunLease) -> _Verdict:
        run = self._runs.get(guard.id)
        if run is not None and run.state is State.RUNNING and run.epoch == guard.epoch:
            return True, run
        return False, run

    def _judge_run_at(self, guard: RunAt, new: Run | None) -> _Verdict:
        run = self._runs.get(guard.id)
        return run is not None and run.n == guard.n and not self._is_unique_key_taken(new, run), run

    def _judge_run_absent(self, guard: RunAbsent, new: Run | None) -> _Verdict:
        assert new is not None
        other = self._unique.get((new.ns, guard.unique_key)) if guard.unique_key is not None else None
        if guard.id not in self._runs and other is None:
            return True, None
        return False, self._runs.get(guard.id) or self._runs[other or ""]

    def _judge_schedule_at(self, guard: ScheduleAt, new: Schedule | None) -> _Verdict:
        row = self._schedules.get(guard.id)
        seen = (guard.revision, guard.cursor, guard.n)
        if row is None or (row.revision, row.cursor, row.n) != seen:
            return False, row
        return guard.old_name is None or new is None or (new.ns, new.name) not in self._names, row

    def _judge_schedule_absent(self, guard: ScheduleAbsent) -> _Verdict:
        other = self._names.get((guard.ns, guard.name))
        if guard.id not in self._schedules and other is None:
            return True, None
        return False, self._schedules.get(guard.id) or self._schedules[other or ""]

    def _is_unique_key_taken(self, new: Run | None, old: Run) -> bool:
        """Return True if the change re-opens the ended run `old`, and another open run has its unique key by now.

        `new`: the run as the change writes it.
        """
        if new is None or new.unique_key is None or new.state not in OPEN or old.state in OPEN:
            return False
        return (new.ns, new.unique_key) in self._unique

    def _is_repeated(self, change: Change, row: Run | Schedule) -> bool:
        """Return True if an event of `row`, or of a run that the change inserts, has the change's id.

        Then the change was accepted before, and its caller has sent it again. `row`: the row because of which the guard
        does not hold.
        """
        own = self._run_events if isinstance(row, Run) else self._schedule_events
        found = [own.get(row.id, []), *(self._run_events.get(run.id, []) for run in change.runs)]
        return any(event.change == change.id for stream in found for event in stream)

    # ── rows and events ────────────────────────────────────────────────────

    def _update_run(self, change: Change, wall: Ms) -> int:
        """Write the change's values into the row of the guarded run; return its new `n`. `wall`: the present time."""
        assert change.run is not None
        old = self._runs[change.run.id]
        event_count = sum(e.run_id == old.id and isinstance(e, RunEvent) for e in change.events)
        values: dict[str, Any] = {name: getattr(change.run, name) for name in RUN_VALUES}
        if isinstance(change.guard, RunAt):
            values |= {"cancel": change.run.cancel, "body": change.run.body}
        if change.run.state is not State.RUNNING:
            values |= {"owner": None, "lease_until": None, "parked_on": None, "progress": None}
        if change.run.state in ENDED:
            values["ended_at"] = wall if old.state in OPEN else old.ended_at
        else:
            values["ended_at"] = None
        self._put_run(replace(old, n=old.n + event_count, **values))
        return old.n + event_count

    def _write_schedule(self, change: Change, wall: Ms) -> int:
        """Insert or replace the guarded schedule and end its hold; return its new `n`. `wall`: the present time.

        If the guard names the schedule's present number of touches, the schedule is no longer touched.
        """
        assert change.schedule is not None
        new = change.schedule
        old = self._schedules.get(new.id)
        event_count = sum(e.schedule_id == new.id and isinstance(e, ScheduleEvent) for e in change.events)
        if old is None:
            n, created_at, updated_at = event_count, wall, wall
        else:
            n, created_at, updated_at = old.n + event_count, old.created_at, wall if event_count else old.updated_at
        self._schedules[new.id] = replace(new, n=n, created_at=created_at, updated_at=updated_at)
        self._index_name(new, old)
        self._held.pop(new.id, None)
        if isinstance(change.guard, ScheduleAt) and self._touched.get(new.id) == change.guard.touched:
            self._touched.pop(new.id, None)
        if new.next_at is not None:
            heapq.heappush(self._agenda, (new.next_at, new.id))
        return n

    def _append_events(self, change: Change, n: int, inserted: dict[str, int], wall: Ms) -> None:
        """Append the change's events to the log, numbered run by run and schedule by schedule.

        `n`: the guarded row's number of events after the change. `inserted`: ids of the runs that the change has
        inserted, as keys; events of new runs that existed already are left out. An event that belongs to no run and no
        schedule gets no number. `wall`: the present time.
        """
        guarded = getattr(change.guard, "id", None)
        own = sum(_is_event_of(event, guarded) for event in change.events)
        numbers: dict[str | None, int] = defaultdict(int)
        numbers[guarded] = n - own if guarded not in inserted else 0
        for event in change.events:
            number: int | None = None
            if isinstance(event, RunEvent):
                if event.run_id != guarded and event.run_id not in inserted:
                    continue
                numbers[event.run_id] += 1
                number = numbers[event.run_id]
            elif isinstance(event, ScheduleEvent):
                numbers[event.schedule_id] += 1
                number = numbers[event.schedule_id]
            self._record(event, wall, number, change.id)


def _is_event_of(event: Event, row_id: str | None) -> bool:
    """Return True if the event belongs to the run or schedule with this id."""
    return (isinstance(event, RunEvent) and event.run_id == row_id) or (
        isinstance(event, ScheduleEvent) and event.schedule_id == row_id
    )
