"""The store's `find` and `tail`. Most queries are one SELECT whose answer is one row of JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import msgspec

from mainspring.backends.sqlite import keyvalue, run_logs
from mainspring.backends.sqlite.database import Database
from mainspring.backends.sqlite.rows import (
    EVENT_JSON,
    RUN_JSON,
    SCHEDULE_JSON,
    pack,
    read_events,
    read_runs,
    read_schedules,
)
from mainspring.model.change import Body
from mainspring.model.errors import StoreError
from mainspring.model.events import Event
from mainspring.model.gate import Gate
from mainspring.model.lease import Lease
from mainspring.model.retention import Tally
from mainspring.model.run import ENDED_UNSUCCESSFULLY, OPEN, Run, State
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

T = TypeVar("T")
_rows = msgspec.json.Decoder(list[list[Any]])


class _Where:
    """The conditions of a WHERE clause, with their values. Only values come from callers, never SQL."""

    def __init__(self) -> None:
        self.terms = ["true"]
        self.values: list[Any] = []

    def add(self, term: str, value: Any) -> None:
        """Add an SQL condition with `?` for its value. A tuple becomes a JSON list. For None as value, add nothing."""
        if value is not None:
            self.terms.append(term)
            self.values.append(pack(list(value)) if isinstance(value, tuple) else value)

    def __str__(self) -> str:
        return " AND ".join(self.terms)


def find(db: Database, query: Query[T]) -> list[T]:
    """Return the rows that a query of the store port asks for. Raises: `StoreError` for an unknown kind of query."""
    answer = _FIND.get(type(query))
    if answer is None:
        raise StoreError(f"this store cannot answer the query {type(query).__name__}")
    with db.read():
        return cast("list[T]", answer(db, query))


def tail(db: Database, after: int, limit: int) -> list[Event]:
    """Return up to `limit` events with numbers greater than `after`, in the order of the log."""
    with db.read():
        return _select_events(db, "SELECT * FROM event WHERE seq > ? ORDER BY seq LIMIT ?", after, limit)


def _select_events(db: Database, rows: str, *values: Any) -> list[Event]:
    """Return the events that `rows` finds, a SELECT of all columns of the table event. `values`: its parameters."""
    sql = f"SELECT json_group_array({EVENT_JSON}) FROM ({rows}) e LEFT JOIN run r ON r.rid = e.rid"  # noqa: S608
    return read_events(db.value(sql, *values))


def _find_runs(db: Database, q: Runs) -> list[Run]:
    where = _Where()
    where.add("r.id = ?", q.id)
    where.add("r.id IN (SELECT value FROM json_each(?))", q.ids if q.id is None else None)
    where.add("r.id > ?" if q.oldest_first else "r.id < ?", q.after)
    where.add("r.ns = ?", q.ns)
    where.add("r.schedule_id = ? AND r.schedule_id IS NOT NULL", q.schedule_id)
    where.add("r.task = ?", q.task)
    where.add("r.state IN (SELECT value FROM json_each(?))", q.states)
    where.add("r.origin = ?", q.origin)
    where.add("r.fire_time = ?", q.fire_time)
    where.add("r.fire_time > ?", q.fired_since)
    where.add("r.created_at >= ?", q.created_since)
    where.add("r.ready_at <= ?", q.due_before)
    where.add("r.dead = 1 AND ?" if q.dead else "r.dead = 0 AND NOT ?", q.dead)
    where.add("r.unique_key = ? AND r.unique_key IS NOT NULL", q.unique_key)
    index = _index_of_runs(q, where)
    order = "ASC" if q.oldest_first else "DESC"
    text = db.value(
        f"SELECT json_group_array({RUN_JSON}) FROM (SELECT r.rid FROM run r {index} WHERE {where} "  # noqa: S608
        f"ORDER BY r.id {order} LIMIT ?) f CROSS JOIN run r WHERE r.rid = f.rid",
        *where.values,
        q.limit,
    )
    return read_runs(text)


def _index_of_runs(q: Runs, where: _Where) -> str:
    """Return the INDEXED BY clause for a query of runs, empty if SQLite may choose the index.

    If the query can use a partial index, the condition of this index is added to `where`: SQLite requires it.
    """
    if q.states is None:
        return ""
    is_by_id = q.id is not None or q.ids is not None
    if OPEN.issuperset(q.states):
        where.terms.append("r.ended_at IS NULL")
        if is_by_id or q.unique_key is not None:
            return ""
        if q.states == (State.RUNNING,):
            where.terms.append("r.state = 'running'")
            return "INDEXED BY run_lease"
        return "INDEXED BY run_open" if q.schedule_id is None else "INDEXED BY run_open_of_schedule"
    if is_by_id or not ENDED_UNSUCCESSFULLY.issuperset(q.states):
        return ""
    where.terms.append("r.ended_at IS NOT NULL AND r.state <> 'succeeded'")
    return "INDEXED BY run_unhappy" if q.schedule_id is None else ""


def _find_last_runs(db: Database, q: LastRuns) -> list[Run]:
    text = db.value(
        f"SELECT json_group_array({RUN_JSON}) FROM json_each(?) j CROSS JOIN run r WHERE r.rid = "  # noqa: S608
        "(SELECT x.rid FROM run x INDEXED BY run_of_schedule WHERE x.schedule_id = j.value "
        "AND x.schedule_id IS NOT NULL ORDER BY x.id DESC LIMIT 1)",
        pack(q.ids),
    )
    return read_runs(text)


def _find_schedules(db: Database, q: Schedules) -> list[Schedule]:
    where = _Where()
    where.add("s.id = ?", q.id)
    where.add("s.id IN (SELECT value FROM json_each(?))", q.ids if q.id is None else None)
    where.add("s.ns = ?", q.ns)
    where.add("s.name = ?", q.name)
    where.add("s.state IN (SELECT value FROM json_each(?))", q.states)
    where.add("s.app = ? AND s.app <> ''", q.app)
    where.add("s.next_at <= ? AND s.next_at IS NOT NULL AND s.state NOT IN ('finished', 'deleted')", q.due_before)
    where.add("s.cursor > ?", q.planned_after)
    where.add("s.id > ?", q.after)
    index = "INDEXED BY schedule_unplanned" if q.unplanned else ""
    if q.unplanned:
        where.terms.append("s.state = 'active' AND s.next_at IS NULL")
    if q.states is None and q.id is None and q.ids is None:
        where.terms.append("s.state <> 'deleted'")
    text = db.value(
        f"SELECT json_group_array({SCHEDULE_JSON}) FROM "  # noqa: S608
        f"(SELECT * FROM schedule s {index} WHERE {where} ORDER BY s.id LIMIT ?) s",
        *where.values,
        q.limit,
    )
    return read_schedules(text)


def _find_spans(db: Database, q: Spans) -> list[Span]:
    where = _Where()
    where.add("schedule_id = ?", q.schedule_id)
    where.add("through > ?", q.since)
    text = db.value(
        'SELECT json_group_array(json_array(schedule_id, revision, "after", through, count, reason, ns)) FROM '  # noqa: S608
        f'(SELECT * FROM span WHERE {where} ORDER BY schedule_id, through, "after", rowid LIMIT ? OFFSET ?)',
        *where.values,
        q.limit,
        int(q.after) if q.after else 0,
    )
    return [Span(*row) for row in _rows.decode(text)]


def _find_events(db: Database, q: Events) -> list[Event]:
    where = _Where()
    where.add("e.seq > ?", int(q.after) if q.after else 0)
    where.add("e.ns = ?", q.ns)
    where.add("e.type IN (SELECT value FROM json_each(?))", q.types)
    where.add("e.at >= ?", q.since)
    where.add("e.at < ?", q.until)
    where.add("e.schedule_id = ?", q.schedule_id)
    if q.run_id is not None:
        rid = db.value("SELECT rid FROM run WHERE id = ?", q.run_id)
        if rid is not None:
            where.add("e.rid = ? AND e.rid IS NOT NULL", rid)
        else:
            where.add("e.rid IS NULL AND e.run_ref = ? AND e.run_ref IS NOT NULL", q.run_id)
        rows = f"SELECT e.* FROM event e WHERE {where} ORDER BY e.seq LIMIT ?"  # noqa: S608
        return _select_events(db, rows, *where.values, q.limit)
    if q.schedule_id is None:
        rows = f"SELECT e.* FROM event e WHERE {where} ORDER BY e.seq LIMIT ?"  # noqa: S608
        return _select_events(db, rows, *where.values, q.limit)
    # The events of the schedule without a run, and the events of its runs: each part is read by its own index.
    rows = f"""
        SELECT * FROM (
            SELECT e.* FROM event e WHERE {where} AND e.rid IS NULL AND e.schedule_id IS NOT NULL
            UNION ALL
            SELECT e.* FROM run o CROSS JOIN event e
            WHERE o.schedule_id = ? AND o.schedule_id IS NOT NULL AND e.rid = o.rid AND e.rid IS NOT NULL AND {where})
        ORDER BY seq LIMIT ?"""  # noqa: S608
    return _select_events(db, rows, *where.values, q.schedule_id, *where.values, q.limit)


def _find_bodies(db: Database, q: Bodies) -> list[Body]:
    text = db.value(
        "SELECT json_group_array(json_array(b.id, b.data)) FROM json_each(?) j CROSS JOIN body b WHERE b.id = j.value",
        pack(q.ids),
    )
    return [Body(*row) for row in _rows.decode(text)]


def _find_gates(db: Database, q: Gates) -> list[Gate]:
    where = _Where()
    where.add("name IN (SELECT value FROM json_each(?))", q.names)
    where.add("name > ?", q.after)
    text = db.value(
        "SELECT json_group_array(json_array(name, max, held, closed_until)) FROM "  # noqa: S608
        f"(SELECT * FROM gate WHERE {where} ORDER BY name LIMIT ?)",
        *where.values,
        q.limit,
    )
    return [Gate(*row) for row in _rows.decode(text)]


def _find_lanes(db: Database, q: Lanes) -> list[LaneCount]:
    text = db.value(
        "SELECT json_group_array(json_array(lane, priority, waiting)) FROM (SELECT lane, priority, count(*) AS waiting "
        "FROM run INDEXED BY run_claim WHERE state IN ('waiting', 'retrying') AND parked_on IS NULL "
        "GROUP BY lane, priority ORDER BY lane, priority)"
    )
    return [LaneCount(*row) for row in _rows.decode(text)]


#: Condition: the name begins with ?1. The first test is the upper bound of a range of the primary key, the second test
#: is exact. The query adds the lower bound.
HAS_PREFIX = "name <= ?1 || char(1114111) AND substr(name, 1, length(?1)) = ?1"
LEASE_JSON = "json_array(name, owner, epoch, expires_at, renewed_at, data, live)"


def read_leases(text: str) -> list[Lease]:
    """Return the leases in a JSON text that a query with `json_group_array` of `LEASE_JSON` has returned."""
    return [
        Lease(name, owner, epoch, expires_at, renewed_at, data, live == 1)
        for name, owner, epoch, expires_at, renewed_at, data, live in _rows.decode(text)
    ]


def _find_leases(db: Database, q: Leases) -> list[Lease]:
    _, lease_now = db.clocks(None)
    text = db.value(
        f"SELECT json_group_array({LEASE_JSON}) FROM "  # noqa: S608
        f"(SELECT * FROM lease WHERE name >= ?2 AND name <> ?3 AND {HAS_PREFIX} ORDER BY name LIMIT ?4)",
        q.prefix,
        max(q.prefix, q.after or ""),
        q.after or "",
        q.limit,
    )
    return [lease.at(lease_now) for lease in read_leases(text)]


def _find_tallies(db: Database, q: Tallies) -> list[Tally]:
    where = _Where()
    where.add("schedule_id = ?", q.schedule_id)
    text = db.value(
        "SELECT json_group_array(json_array(nullif(schedule_id, ''), day, outcome, count)) FROM "  # noqa: S608
        f"(SELECT * FROM tally WHERE {where} ORDER BY schedule_id, day, outcome)",
        *where.values,
    )
    return [Tally(*row) for row in _rows.decode(text)]


_FIND: dict[type, Callable[..., Sequence[Any]]] = {
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
    KeyValues: keyvalue.find,
    RunLogs: run_logs.find,
    LoggedRuns: run_logs.find_logged_runs,
}
