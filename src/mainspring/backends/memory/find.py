"""The memory store's `find` and `tail`. Rows are filtered and sorted as the query's fields demand."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast

from mainspring.backends.memory.tables import MemoryTables, is_claimable
from mainspring.model.change import Body
from mainspring.model.events import Event, ScheduleEvent
from mainspring.model.gate import Gate
from mainspring.model.keyvalue import KeyValue
from mainspring.model.lease import Lease
from mainspring.model.retention import Tally
from mainspring.model.run import Run
from mainspring.model.run_log import LogEntry
from mainspring.model.schedule import Schedule, Span
from mainspring.ports.store import (
    Bodies,
    Events,
    Gates,
    KeyValues,
    LaneCount,
    Lanes,
    LastRuns,
    Leases,
    LoggedRuns,
    Query,
    RunLogs,
    Runs,
    Schedules,
    Spans,
    Tallies,
)
from mainspring.rules.retention import is_keyvalue_expired

T = TypeVar("T")
#: Name of a query's field → a function of a row and the field's value, which returns True if the row matches.
_Filters = Mapping[str, Callable[[Any, Any], bool]]
_SCHEDULE_EVENT_TYPES = frozenset(cls.__name__ for cls in ScheduleEvent.__subclasses__())

_RUN_FILTERS: _Filters = {
    "ns": lambda run, ns: run.ns == ns,
    "schedule_id": lambda run, schedule_id: run.schedule_id == schedule_id,
    "task": lambda run, task: run.task == task,
    "states": lambda run, states: run.state in states,
    "origin": lambda run, origin: run.origin == origin,
    "fire_time": lambda run, at: run.fire_time == at,
    "fired_since": lambda run, since: run.fire_time is not None and run.fire_time > since,
    "created_since": lambda run, since: run.created_at >= since,
    "due_before": lambda run, until: run.ready_at <= until,
    "dead": lambda run, dead: run.dead == dead,
    "unique_key": lambda run, key: run.unique_key == key,
}
_SCHEDULE_FILTERS: _Filters = {
    "id": lambda schedule, schedule_id: schedule.id == schedule_id,
    "ids": lambda schedule, ids: schedule.id in ids,
    "ns": lambda schedule, ns: schedule.ns == ns,
    "name": lambda schedule, name: schedule.name == name,
    "states": lambda schedule, states: schedule.state in states,
    "app": lambda schedule, app: schedule.app == app,
    "due_before": lambda schedule, until: schedule.next_at is not None and schedule.next_at <= until,
    "planned_after": lambda schedule, after: schedule.cursor > after,
    "after": lambda schedule, after: schedule.id > after,
}
_EVENT_FILTERS: _Filters = {
    "ns": lambda event, ns: event.ns == ns,
    "schedule_id": lambda event, schedule_id: event.schedule_id == schedule_id,
    "types": lambda event, types: type(event).__name__ in types,
    "since": lambda event, since: event.at >= since,
    "until": lambda event, until: event.at < until,
}


def _filtered(rows: Iterable[T], query: Any, filters: _Filters) -> Iterable[T]:
    """Return the rows that pass the test of each field that `filters` names and that is not None in the query.

    `filters`: name of a field → its test.
    """
    wanted = [(test, value) for name, test in filters.items() if (value := getattr(query, name)) is not None]
    return (row for row in rows if all(test(row, value) for test, value in wanted))


class MemoryFind(MemoryTables):
    """The part of `MemoryStore` that implements the port's `find` and `tail`."""

    async def find(self, query: Query[T]) -> list[T]:
        answer = self._FIND[type(query)](self, query)
        return cast("list[T]", answer)

    async def tail(self, after: int, limit: int) -> list[Event]:
        start = bisect.bisect_right(self._log, after, key=lambda event: event.seq)
        return self._log[start : start + limit]

    def _find_runs(self, q: Runs) -> list[Run]:
        found = list(_filtered(self._run_rows(q), q, _RUN_FILTERS))
        if q.after is not None:
            after = q.after
            found = [run for run in found if (run.id > after if q.oldest_first else run.id < after)]
        found.sort(key=lambda run: run.id, reverse=not q.oldest_first)
        return found[: q.limit]

    def _run_rows(self, q: Runs) -> Iterable[Run]:
        """Return the runs to filter: those that an index finds by the query's ids or schedule, else all."""
        if q.id is None and q.ids is None and q.schedule_id is None:
            return self._runs.values()
        ids: Iterable[str]
        if q.id is not None:
            ids = (q.id,)
        elif q.ids is not None:
            ids = q.ids
        else:
            ids = self._of_schedule.get(q.schedule_id or "", ())
        return [self._runs[run_id] for run_id in ids if run_id in self._runs]

    def _find_last_runs(self, q: LastRuns) -> list[Run]:
        of_each = (self._of_schedule.get(one) for one in q.ids)
        return [self._runs[max(ids)] for ids in of_each if ids]

    def _find_schedules(self, q: Schedules) -> list[Schedule]:
        rows = _filtered(self._schedules.values(), q, _SCHEDULE_FILTERS)
        if q.states is None and q.id is None and q.ids is None:
            rows = (row for row in rows if row.state != "deleted")
        if q.unplanned:
            rows = (row for row in rows if row.state == "active" and row.next_at is None)
        return sorted(rows, key=lambda row: row.id)[: q.limit]

    def _find_spans(self, q: Spans) -> list[Span]:
        rows = [
            s
            for s in self._spans
            if (q.schedule_id is None or s.schedule_id == q.schedule_id) and (q.since is None or s.through > q.since)
        ]
        rows.sort(key=lambda s: (s.schedule_id, s.through, s.after))
        start = int(q.after) if q.after else 0
        return rows[start : start + q.limit]

    def _find_events(self, q: Events) -> list[Event]:
        after = int(q.after) if q.after else 0
        rows = (event for event in self._event_rows(q) if event.seq > after)
        return [event for _, event in zip(range(q.limit), _filtered(rows, q, _EVENT_FILTERS), strict=False)]

    def _event_rows(self, q: Events) -> Iterable[Event]:
        """Return the events to filter: those of one run or schedule if no other event can match, else the whole log."""
        if q.run_id is not None:
            return self._run_events.get(q.run_id, [])
        if q.schedule_id is not None and q.types is not None and _SCHEDULE_EVENT_TYPES.issuperset(q.types):
            return self._schedule_events.get(q.schedule_id, [])
        return self._log

    def _find_bodies(self, q: Bodies) -> list[Body]:
        return [Body(i, self._bodies[i]) for i in q.ids if i in self._bodies]

    def _find_gates(self, q: Gates) -> list[Gate]:
        rows = (g for g in self._gates.values() if q.names is None or g.name in q.names)
        return [g for g in sorted(rows, key=lambda g: g.name) if q.after is None or g.name > q.after][: q.limit]

    def _find_lanes(self, q: Lanes) -> list[LaneCount]:
        counts: dict[tuple[str, int], int] = defaultdict(int)
        for run in self._runs.values():
            if is_claimable(run):
                counts[run.lane, run.priority] += 1
        return [LaneCount(lane, priority, n) for (lane, priority), n in sorted(counts.items())]

    def _find_leases(self, q: Leases) -> list[Lease]:
        _, lease_now = self._clocks(None)
        names = sorted(name for name in self._leases if name.startswith(q.prefix) and name > (q.after or ""))
        rows = (self._leases[name] for name in names[: q.limit])
        return [row.at(lease_now) for row in rows]

    def _find_tallies(self, q: Tallies) -> list[Tally]:
        return [
            Tally(sid, day, outcome, count)
            for (sid, day, outcome), count in sorted(self._tallies.items(), key=lambda kv: (kv[0][0] or "", *kv[0][1:]))
            if q.schedule_id is None or q.schedule_id == sid
        ]

    def _find_kept(self, q: KeyValues) -> list[KeyValue]:
        now, _ = self._clocks(None)
        wanted = None if q.ids is None else frozenset(q.ids)
        rows = (
            one
            for (kind, name), one in sorted(self._kept.items())
            if kind == q.kind
            and name > (q.after or "")
            and (wanted is None or name in wanted)
            and not is_keyvalue_expired(one, now)
        )
        return [one for _, one in zip(range(q.limit), rows, strict=False)]

    def _find_logs(self, q: RunLogs) -> list[LogEntry]:
        after = int(q.after) if q.after else 0
        rows = (x for x in self._logs.get(q.run_id, ()) if x.n > after and q.attempt in (None, x.attempt))
        return [one for _, one in zip(range(q.limit), rows, strict=False)]

    def _find_logged_runs(self, q: LoggedRuns) -> list[str]:
        return sorted(run_id for run_id in self._logs if run_id > (q.after or ""))[: q.limit]

    _FIND: ClassVar[dict[type, Callable[..., Sequence[Any]]]] = {
        Runs: _find_runs,
        LastRuns: _find_last_runs,
        Schedules: _find_schedules,
        Spans: _find_spans,
        Events: _find_events,
        Bodies: _find_bodies,
        Gates: _find_gates,
        Lanes: _find_lanes,
        Leases: _find_leases,
        Tallies: _find_tallies,
        KeyValues: _find_kept,
        RunLogs: _find_logs,
        LoggedRuns: _find_logged_runs,
    }
