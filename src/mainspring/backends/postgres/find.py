"""Queries of the store port. Each type of query is one SELECT over an index, most of them with keyset paging.

In this file, `db` is the database, `q` the query, and `session` the connection to read from.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from mainspring.backends.postgres import keyvalue as kept
from mainspring.backends.postgres import run_logs
from mainspring.backends.postgres.database import Database, Session
from mainspring.backends.postgres.leases import HIGHEST_CHARACTER, LEASE_COLUMNS
from mainspring.backends.postgres.rows import (
    CLAIMABLE_STATES,
    NOW_SQL,
    event_columns,
    read_event,
    read_run,
    read_schedule,
    run_columns,
    schedule_columns,
    storable_text,
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


class _Where:
    """A WHERE clause with its parameters. Conditions are constant SQL; values from callers are sent as parameters."""

    def __init__(self) -> None:
        self.terms = ["true"]
        self.values: list[Any] = []

    def add(self, term: str, value: Any) -> None:
        """Add the condition `term`, in which `?` stands for the value.

        Add nothing if the value is None: the query does not set this condition.
        """
        if value is not None:
            self.terms.append(term.replace("?", self.bind(value)))

    def bind(self, value: Any) -> str:
        """Add a parameter to the statement and return its placeholder, such as `$2`.

        A tuple becomes an array of texts.
        """
        if isinstance(value, tuple):
            value = [storable_text(str(item)) for item in value]
        elif isinstance(value, str):
            value = storable_text(value)
        self.values.append(value)
        return f"${len(self.values)}"

    def __str__(self) -> str:
        return " AND ".join(self.terms)


async def find(db: Database, query: Query[T]) -> list[T]:
    """Return the rows that match one of the store port's queries, in the order that the query defines.

    Raises: `StoreError` for a query of an unknown type.
    """
    answer = _FIND.get(type(query))
    if answer is None:
        raise StoreError(f"this store cannot answer the query {type(query).__name__}")
    async with db.read_only() as session:
        found = await answer(db, session, query)
    return cast("list[T]", found)


async def tail(db: Database, after: int, limit: int) -> list[Event]:
    """Return up to `limit` events of the log whose number (`seq`) is greater than `after`, in the order of numbers."""
    async with db.read_only() as session:
        records = await session.fetch(
            f"SELECT {event_columns('e')} FROM §event e WHERE e.seq > $1 ORDER BY e.seq LIMIT $2",  # noqa: S608
            after,
            limit,
        )
    return [read_event(record) for record in records]


async def _find_runs(db: Database, session: Session, q: Runs) -> list[Run]:
    """Return the runs that match a query, newest first unless `q.oldest_first`.

    Why some conditions repeat what follows from `q.states`: the server's query planner uses a partial index only for a
    statement that has the index's own condition.
    """
    where = _Where()
    where.add("r.id = ?", q.id)
    where.add("r.id = ANY (?::text[])", q.ids if q.id is None else None)
    where.add("r.id > ?" if q.oldest_first else "r.id < ?", q.after)
    where.add("r.ns = ?", q.ns)
    where.add("r.schedule_id = ? AND r.schedule_id IS NOT NULL", q.schedule_id)
    where.add("r.task = ?", q.task)
    where.add("r.state = ANY (?::text[])", q.states)
    where.add("r.origin = ?", q.origin)
    where.add("r.fire_time = ?", q.fire_time)
    where.add("r.fire_time > ?", q.fired_since)
    where.add("r.created_at >= ?", q.created_since)
    where.add("r.ready_at <= ?", q.due_before)
    where.add("r.unique_key = ? AND r.unique_key IS NOT NULL", q.unique_key)
    if q.dead is not None:
        where.terms.append("r.dead" if q.dead else "NOT r.dead")
    if q.states is not None and OPEN.issuperset(q.states):
        where.terms.append("r.ended_at IS NULL")
        if q.states == (State.RUNNING,):
            where.terms.append("r.state = 'running'")
    elif q.states is not None and ENDED_UNSUCCESSFULLY.issuperset(q.states):
        where.terms.append("r.state IN ('failed', 'lost', 'cancelled', 'skipped')")
    order = "ASC" if q.oldest_first else "DESC"
    records = await session.fetch(
        f"SELECT {run_columns('r')} FROM §run r WHERE {where} ORDER BY r.id {order} LIMIT {where.bind(q.limit)}",  # noqa: S608
        *where.values,
    )
    return [read_run(record) for record in records]


async def _find_last_runs(db: Database, session: Session, q: LastRuns) -> list[Run]:
    """Return the newest run of each schedule in `q.ids`, in any order; `after` and `limit` are not applied."""
    records = await session.fetch(
        f"SELECT {run_columns('r')} FROM unnest($1::text[]) AS wanted(id) CROSS JOIN LATERAL "  # noqa: S608
        "(SELECT x.* FROM §run x WHERE x.schedule_id = wanted.id AND x.schedule_id IS NOT NULL "
        "ORDER BY x.id DESC LIMIT 1) r",
        list(q.ids),
    )
    return [read_run(record) for record in records]


async def _find_schedules(db: Database, session: Session, q: Schedules) -> list[Schedule]:
    """Return the schedules that match a query, in the order of ids.

    A query without `states` matches no deleted schedule, unless it has an id or ids.
    """
    where = _Where()
    where.add("s.id = ?", q.id)
    where.add("s.id = ANY (?::text[])", q.ids if q.id is None else None)
    where.add("s.ns = ?", q.ns)
    where.add("s.name = ?", q.name)
    where.add("s.state = ANY (?::text[])", q.states)
    where.add("s.app = ? AND s.app <> ''", q.app)
    where.add("s.next_at <= ? AND s.next_at IS NOT NULL AND s.state NOT IN ('finished', 'deleted')", q.due_before)
    where.add("s.cursor > ?", q.planned_after)
    where.add("s.id > ?", q.after)
    if q.unplanned:
        where.terms.append("s.state = 'active' AND s.next_at IS NULL")
    if q.states is None and q.id is None and q.ids is None:
        where.terms.append("s.state <> 'deleted'")
    # Few schedules are due. Ordered by this expression, no plan reads all schedules in the order of their ids.
    order = "s.id" if q.due_before is None else "s.id || ''"
    records = await session.fetch(
        f"SELECT {schedule_columns('s')} FROM §schedule s WHERE {where} ORDER BY {order} LIMIT {where.bind(q.limit)}",  # noqa: S608
        *where.values,
    )
    return [read_schedule(record) for record in records]


async def _find_spans(db: Database, session: Session, q: Spans) -> list[Span]:
    """Return the spans that match a query, by schedule and then by their end.

    `q.after`: the number of spans to skip, as a text; None: 0.
    """
    where = _Where()
    where.add("s.schedule_id = ?", q.schedule_id)
    where.add("s.through > ?", q.since)
    records = await session.fetch(
        "SELECT s.schedule_id, s.revision, s.after, s.through, s.count, s.reason, s.ns FROM §span s "  # noqa: S608
        f"WHERE {where} ORDER BY s.schedule_id, s.through, s.after, s.sid "
        f"LIMIT {where.bind(q.limit)} OFFSET {where.bind(int(q.after) if q.after else 0)}",
        *where.values,
    )
    return [Span(*record) for record in records]


async def _find_events(db: Database, session: Session, q: Events) -> list[Event]:
    """Return the events that match a query, in the order of the log.

    If the query names a schedule and no run, the events of this schedule's runs match, too.
    """
    where = _Where()
    where.add("e.seq > ?", int(q.after) if q.after else 0)
    where.add("e.ns = ?", q.ns)
    where.add("e.type = ANY (?::text[])", q.types)
    where.add("e.at >= ?", q.since)
    where.add("e.at < ?", q.until)
    where.add("e.run_id = ? AND e.run_id IS NOT NULL", q.run_id)
    where.add("e.schedule_id = ?", q.schedule_id)
    rows = f"SELECT {event_columns('e')} FROM §event e WHERE {where}"  # noqa: S608
    if q.schedule_id is not None and q.run_id is None:
        # Two parts, so that each uses an index: the schedule's own events, and the events of its runs.
        mine = where.bind(q.schedule_id)
        rows = f"""
            SELECT * FROM (
                {rows} AND e.run_id IS NULL AND e.schedule_id IS NOT NULL
                UNION ALL
                SELECT {event_columns("e")} FROM §run o JOIN §event e ON e.run_id = o.id AND e.run_id IS NOT NULL
                WHERE o.schedule_id = {mine} AND o.schedule_id IS NOT NULL AND {where}) e"""  # noqa: S608
    records = await session.fetch(f"{rows} ORDER BY e.seq LIMIT {where.bind(q.limit)}", *where.values)
    return [read_event(record) for record in records]


async def _find_bodies(db: Database, session: Session, q: Bodies) -> list[Body]:
    """Return the payloads with the ids `q.ids`, in any order; an id without a payload is skipped.

    `after` and `limit` of the query are not applied.
    """
    records = await session.fetch("SELECT id, data FROM §body WHERE id = ANY ($1::text[])", list(q.ids))
    return [Body(*record) for record in records]


async def _find_gates(db: Database, session: Session, q: Gates) -> list[Gate]:
    """Return the gates with the names in `q.names`, or all gates if it is None, in the order of names.

    Return only names that come after `q.after`, and at most `q.limit` gates.
    """
    where = _Where()
    where.add("g.name = ANY (?::text[])", q.names)
    where.add("g.name > ?", q.after)
    records = await session.fetch(
        f"SELECT g.name, g.max, g.held, g.closed_until FROM §gate g WHERE {where} ORDER BY g.name "  # noqa: S608
        f"LIMIT {where.bind(q.limit)}",
        *where.values,
    )
    return [Gate(*record) for record in records]


async def _find_lanes(db: Database, session: Session, q: Lanes) -> list[LaneCount]:
    """Return by lane and priority how many runs wait to be claimed, due or not; parked runs do not count.

    `after` and `limit` of the query are not applied.
    """
    records = await session.fetch(
        f"SELECT lane, priority, count(*) FROM §run WHERE state IN {CLAIMABLE_STATES} AND parked_on IS NULL "  # noqa: S608
        "GROUP BY lane, priority ORDER BY lane, priority"
    )
    return [LaneCount(*record) for record in records]


async def _find_leases(db: Database, session: Session, q: Leases) -> list[Lease]:
    """Return the named leases that match a query, in the order of names.

    `live` is False for a released and for an expired lease.
    """
    prefix, after = storable_text(q.prefix) or "", storable_text(q.after) or ""
    records = await session.fetch(
        f"SELECT t.now, {LEASE_COLUMNS} FROM §lease, (SELECT {NOW_SQL} AS now) t "  # noqa: S608
        "WHERE name >= $3 AND name <> $4 AND name <= $5 AND starts_with(name, $2) ORDER BY name LIMIT $6",
        db.now(None),
        prefix,
        max(prefix, after),
        after,
        prefix + HIGHEST_CHARACTER,
        q.limit,
    )
    return [Lease(*row).at(now) for now, *row in records]


async def _find_tallies(db: Database, session: Session, q: Tallies) -> list[Tally]:
    """Return the tallies (counts of removed runs and fires) of the schedule `q.schedule_id`; if None, all tallies.

    `after` and `limit` of the query are not applied.
    """
    where = _Where()
    where.add("schedule_id = ?", q.schedule_id)
    records = await session.fetch(
        f"SELECT nullif(schedule_id, ''), day, outcome, count FROM §tally WHERE {where} "  # noqa: S608
        "ORDER BY schedule_id, day, outcome",
        *where.values,
    )
    return [Tally(*record) for record in records]


#: By type of query: the function that answers it.
_FIND: dict[type, Callable[..., Awaitable[Sequence[Any]]]] = {
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
    RunLogs: run_logs.find,
    LoggedRuns: run_logs.find_logged_runs,
    KeyValues: kept.find,
}
