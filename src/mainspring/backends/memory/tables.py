"""The memory store's tables and indexes, and the writes that keep them consistent."""

from __future__ import annotations

import heapq
from collections import defaultdict

from msgspec.structs import replace

from mainspring.aio.wakeup import Wakeup
from mainspring.model.events import Event, ScheduleEvent
from mainspring.model.gate import Gate
from mainspring.model.instant import Ms
from mainspring.model.keyvalue import KeyValue
from mainspring.model.lease import Lease
from mainspring.model.run import CLAIMABLE, OPEN, Run, State
from mainspring.model.run_log import LogEntry
from mainspring.model.schedule import Schedule, Span
from mainspring.ports.clock import Clock, SystemClock
from mainspring.ports.store import Page
from mainspring.rules.retention import TallyKey
from mainspring.rules.run_logs import LogSize


class _Queue:
    """Claimable runs of one lane and priority, as a heap of (ready_at, run id). Runs that are not due yet are included.

    An entry is stale if its run cannot be claimed any more or has another `ready_at` now. A stale entry is removed when
    it reaches the head of the heap.
    """

    def __init__(self) -> None:
        self.heap: list[tuple[Ms, str]] = []


class MemoryTables:
    """Holds the rows, event log and indexes of a `MemoryStore`, and keeps the indexes up to date with the rows.

    Of the store port (`ports.store`) it implements `restore`, which writes these tables directly; subclasses do the
    rest.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        #: Wakes the callers of `wait`.
        self._hints = Wakeup()
        #: Number of the last event in the log.
        self._seq = 0
        self._runs: dict[str, Run] = {}
        self._schedules: dict[str, Schedule] = {}
        #: (namespace, name) → id of the schedule that is not deleted.
        self._names: dict[tuple[str, str], str] = {}
        self._log: list[Event] = []
        #: The events of the log that have no `n`, because they change no row.
        self._notes: list[Event] = []
        self._run_events: dict[str, list[Event]] = defaultdict(list)
        self._schedule_events: dict[str, list[Event]] = defaultdict(list)
        #: (schedule id, fire key) → run id.
        self._fire_keys: dict[tuple[str | None, str | None], str] = {}
        #: (namespace, unique key) → id of the open run with this key.
        self._unique: dict[tuple[str, str], str] = {}
        self._bodies: dict[str, str] = {}
        self._spans: list[Span] = []
        self._gates: dict[str, Gate] = {}
        self._leases: dict[str, Lease] = {}
        self._tallies: dict[TallyKey, int] = defaultdict(int)
        self._kept: dict[tuple[str, str], KeyValue] = {}
        #: Run id → lines of its log, and their size.
        self._logs: dict[str, list[LogEntry]] = {}
        self._log_sizes: dict[str, LogSize] = {}
        #: Number of the last line of any log.
        self._last_line = 0
        # Indexes over the rows above. A dictionary with None as values is an ordered set.
        #: Schedule id → ids of its runs, and ids of its open runs.
        self._of_schedule: dict[str, dict[str, None]] = defaultdict(dict)
        self._open: dict[str, dict[str, None]] = defaultdict(dict)
        #: Ids of the running runs.
        self._running: dict[str, None] = {}
        #: A heap of (ended_at, run id); its head shows whether retention has work.
        self._ended: list[tuple[Ms, str]] = []
        #: (lane, priority) → claimable runs.
        self._queues: dict[tuple[str, int], _Queue] = defaultdict(_Queue)
        #: Gate name → ids of the runs parked at the gate.
        self._parked: dict[str, dict[str, None]] = defaultdict(dict)
        #: A heap of (time to settle, schedule id). Entries may be stale.
        self._agenda: list[tuple[Ms, str]] = []
        #: Id of a schedule or run that `due` returned → end of its hold.
        self._held: dict[str, Ms] = {}
        #: Id of a touched schedule → its number of touches.
        self._touched: dict[str, int] = {}

    def _clocks(self, now: Ms | None) -> tuple[Ms, Ms]:
        """Return (present time, present time by the clock of leases) in ms; `now` for both if a test gave it.

        The clock of leases counts from the start of the machine, so it does not jump when the machine's time is set.
        """
        return (self._clock.now(), self._clock.boot()) if now is None else (now, now)

    def _record(self, event: Event, at: Ms, n: int | None, change: str | None) -> None:
        """Append a new event to the log under the next number, with the values of the other arguments.

        `at`: the event's time. `n`: its number among the events of its run or schedule; None for an event that changes
        no run and no schedule. `change`: the id of the event's change; None for an event that the store itself writes.
        """
        self._seq += 1
        self._add_event(replace(event, seq=self._seq, at=at, n=n, change=change))

    def _add_event(self, event: Event) -> None:
        """Append an event that has its number already to the log and to the lists of its run and its schedule."""
        self._log.append(event)
        if event.n is None:
            self._notes.append(event)
        if event.run_id is not None:
            self._run_events[event.run_id].append(event)
        if isinstance(event, ScheduleEvent) and event.schedule_id is not None:
            self._schedule_events[event.schedule_id].append(event)

    def _put_run(self, run: Run) -> None:
        """Insert or replace a run's row, and update every index of runs.

        If the run is not running, end the hold that `due` has put on it.
        """
        before = self._runs.get(run.id)
        if run.ended_at is not None and (before is None or before.ended_at != run.ended_at):
            heapq.heappush(self._ended, (run.ended_at, run.id))
        self._runs[run.id] = run
        is_open = run.state in OPEN
        if run.schedule_id is not None:
            if before is None:
                self._of_schedule[run.schedule_id][run.id] = None
            if run.fire_key is not None:
                self._fire_keys[run.schedule_id, run.fire_key] = run.id
            if is_open:
                self._open[run.schedule_id][run.id] = None
            elif run.schedule_id in self._open:
                self._open[run.schedule_id].pop(run.id, None)
                if not self._open[run.schedule_id]:
                    del self._open[run.schedule_id]
        if run.unique_key is not None:
            key = (run.ns, run.unique_key)
            if is_open:
                self._unique[key] = run.id
            elif self._unique.get(key) == run.id:
                del self._unique[key]
        if run.state is State.RUNNING:
            self._running[run.id] = None
        else:
            self._running.pop(run.id, None)
            self._held.pop(run.id, None)
        for gate in run.gates:
            if gate in self._parked:
                self._parked[gate].pop(run.id, None)
        if run.state in CLAIMABLE:
            if run.parked_on is not None:
                self._parked[run.parked_on][run.id] = None
            else:
                heapq.heappush(self._queues[run.lane, run.priority].heap, (run.ready_at, run.id))

    def _cut_spans(self, schedule_id: str, at: Ms) -> None:
        """Remove the spans of a schedule that end at `at` or later."""
        self._spans = [s for s in self._spans if s.schedule_id != schedule_id or s.through < at]

    # ── restore ────────────────────────────────────────────────────────────

    async def restore(self, page: Page) -> bool:
        if (self._log[-1].seq if self._log else 0) != page.after:
            return False
        self._bodies.update({body.id: body.data for body in page.bodies})
        for run in page.runs:
            self._put_run(run)
        for schedule in page.schedules:
            self._put_schedule(schedule, page.touched.get(schedule.id, 0))
        for schedule_id, at in page.cuts:
            self._cut_spans(schedule_id, at)
        self._spans.extend(page.spans)
        self._gates.update({gate.name: gate for gate in page.gates})
        self._tallies.update({(row.schedule_id, row.day, row.outcome): row.count for row in page.tallies})
        _, lease_now = self._clocks(None)
        for lease in page.leases:
            self._leases[lease.name] = replace(lease, expires_at=lease_now + lease.left, live=lease.left > 0, left=0)
        for event in page.events:
            self._add_event(event)
            self._seq = max(self._seq, event.seq)
        self._hints.notify()
        return True

    def _put_schedule(self, schedule: Schedule, touched: int) -> None:
        """Insert or replace a schedule's row and update the indexes. `touched`: its number of touches, 0 for none."""
        self._index_name(schedule, self._schedules.get(schedule.id))
        self._schedules[schedule.id] = schedule
        self._touched.pop(schedule.id, None)
        if touched:
            self._touched[schedule.id] = touched
        if schedule.next_at is not None:
            heapq.heappush(self._agenda, (schedule.next_at, schedule.id))

    def _index_name(self, new: Schedule, old: Schedule | None) -> None:
        """Update the index of names for a schedule that is written as `new`. `old`: its row before; None if new."""
        for row in (old, new):
            if row is not None and self._names.get((row.ns, row.name)) == new.id:
                del self._names[row.ns, row.name]
        if new.state != "deleted":
            self._names[new.ns, new.name] = new.id


def is_claimable(run: Run) -> bool:
    """Return True if a worker may claim the run once it is due: waiting or retrying, and not parked at a gate."""
    return run.state in CLAIMABLE and run.parked_on is None


def claim_order(run: Run) -> tuple[int, Ms, str]:
    """Return the run's sort key in the order of claims: priority, then `ready_at`, then id, that is, age."""
    return (run.priority, run.ready_at, run.id)
