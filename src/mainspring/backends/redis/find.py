"""The store's methods `find` and `tail`: read rows that may match (candidates) by an index, and filter them in Python.

docs/redis.md lists the indexes. In this file, `q` is the query, and `db` the database to read from. Most indexes are
sorted sets of ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import islice
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct

from mainspring.backends.redis import keyvalue, leases, run_logs
from mainspring.backends.redis.database import Argument, Database
from mainspring.backends.redis.rows import read_event, read_run, read_schedule, read_span
from mainspring.backends.redis.scripts import load
from mainspring.model.change import Body
from mainspring.model.events import Event, ScheduleEvent
from mainspring.model.gate import Gate
from mainspring.model.retention import Tally
from mainspring.model.run import ENDED, Run, State
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
_FIND_RUNS = load("find_runs", "common", "find_runs")
_FIND_OPEN = load("find_open", "common", "find_open")
_TAIL = load("tail", "common", "tail")
_FIND_STREAM_EVENTS = load("find_stream_events", "common", "find_stream_events")
_SCHEDULE_EVENTS = frozenset(cls.__name__ for cls in ScheduleEvent.__subclasses__())
#: How many rows are read in one call.
_PAGE_ROWS = 500
#: Up to this number, the ids of runs in the wanted states are collected and sorted. If there are more, the runs are
#: scanned in the order of their ids.
_MAX_INDEXED_IDS = 100_000
#: How many events one block of the log has, as in lua/common.lua.
_LOG_BLOCK_EVENTS = 256
#: Fields of a query whose values a row must have, unless they are None.
_RUN_FILTER_FIELDS = ("ns", "schedule_id", "task", "origin", "fire_time", "dead", "unique_key")
_SCHEDULE_FILTER_FIELDS = ("ns", "name", "app")
#: By state: the name under which lua/find_open.lua knows the index of the runs in it. Succeeded runs have no index.
_INDEXES: dict[State, str] = {
    State.WAITING: "waiting",
    State.RETRYING: "waiting",
    State.RUNNING: "running",
    State.BLOCKED: "blocked",
    **{state: "unhappy" for state in ENDED if state is not State.SUCCEEDED},
}


class _EventHead(Struct, array_like=True, gc=False):
    """The first fields of an event's row in Redis, up to the last field by which a query filters."""

    at: int
    n: int | None
    change: str | None
    type: str
    v: int
    actor: str | None
    run_id: str | None
    ns: str
    schedule_id: str | None


_decode_event_head = msgspec.msgpack.Decoder(_EventHead).decode
_decode_gate = msgspec.msgpack.Decoder(tuple[int, int, int]).decode
_ARRAY_OF_13, _ARRAY_OF_3 = b"\x9d", b"\x93"


async def find(db: Database, query: Query[T]) -> list[T]:
    """Return the rows that match one of the store port's queries, in the order that the query defines.

    Raises: KeyError for a query of an unknown type; StoreError; ConnectionLost.
    """
    answer = await _FIND[type(query)](db, query)
    return cast("list[T]", answer)


# ── runs ────────────────────────────────────────────────────────────────────


async def _find_runs(db: Database, q: Runs) -> list[Run]:
    """Return the runs that match a query, newest first unless `q.oldest_first`.

    The candidates are read by an index that holds few ids, else by a scan along an index of all runs of a schedule or
    a namespace.
    """
    ids = await _candidate_ids(db, q)
    if ids is not None:
        wanted = sorted({one for one in ids if _is_after_cursor(one, q)}, reverse=not q.oldest_first)
        return await _load_runs(db, q, wanted)
    if q.schedule_id is not None:
        return await _scan_runs(db, q, f"of:{q.schedule_id}", q.limit)
    if q.ns is not None:
        return await _scan_runs(db, q, f"runs:{q.ns}", q.limit)
    (names,) = await db.run_commands(("SMEMBERS", f"{db.key_prefix}namespaces"))
    found = [run for name in names for run in await _scan_runs(db, q, f"runs:{name.decode()}", q.limit)]
    found.sort(key=lambda run: run.id, reverse=not q.oldest_first)
    return found[: q.limit]


async def _candidate_ids(db: Database, q: Runs) -> Sequence[str] | None:
    """Return ids of runs in no order, among them the ids of all runs that match a query.

    Return None if no index with few ids covers the query: then the runs have to be scanned.
    """
    if q.id is not None:
        return (q.id,)
    if q.ids is not None:
        return q.ids
    states = None if q.states is None else set(q.states)
    only_open = states is not None and states.isdisjoint(ENDED)
    if q.schedule_id is not None:
        return await _open_ids_of_schedule(db, q.schedule_id) if only_open else None
    if only_open and q.unique_key is not None and q.ns is not None:
        (holder,) = await db.run_commands(("HGET", f"{db.key_prefix}unique", f"{q.ns}\0{q.unique_key}"))
        return () if holder is None else (holder.decode(),)
    return await _ids_by_state(db, q, states)


async def _open_ids_of_schedule(db: Database, schedule_id: str) -> list[str]:
    (found,) = await db.run_commands(("ZRANGE", f"{db.key_prefix}open:{schedule_id}", 0, -1))
    return [one.decode() for one in found]


async def _ids_by_state(db: Database, q: Runs, states: set[State] | None) -> list[str] | None:
    """Return ids of runs in no order, among them the ids of all runs in these states, or all dead letters if `q.dead`.

    Some indexes hold several states. Return None if there is no index (for `states` None, or for succeeded runs), or if
    the indexes hold more than `_MAX_INDEXED_IDS` ids.
    """
    if q.dead:
        names = {"dead"}
    elif states is None or State.SUCCEEDED in states:
        return None
    else:
        names = {_INDEXES[state] for state in states}
    found = await db.run_script(_FIND_OPEN, _MAX_INDEXED_IDS, *sorted(names))
    return None if found is None else [one.decode() for one in found]


async def _load_runs(db: Database, q: Runs, ids: Sequence[str]) -> list[Run]:
    """Load the runs with these ids; return up to `q.limit` of them that match the query, in the order of `ids`."""
    found: list[Run] = []
    for start in range(0, len(ids), _PAGE_ROWS):
        (rows,) = await db.run_commands(("HMGET", f"{db.key_prefix}run", *ids[start : start + _PAGE_ROWS]))
        found += (run for run in map(read_run, filter(None, rows)) if _run_matches(run, q))
        if len(found) >= q.limit:
            break
    return found[: q.limit]


async def _scan_runs(db: Database, q: Runs, index: str, limit: int) -> list[Run]:
    """Read runs along an index, newest first unless `q.oldest_first`; return the first `limit` that match the query.

    `index`: the name of a sorted set of run ids, without the prefix of the keys.
    """
    found: list[Run] = []
    after, page = q.after or "", limit
    while len(found) < limit:
        rows = await db.run_script(_FIND_RUNS, index, int(q.oldest_first), after, page)
        runs = [read_run(row) for row in rows if row is not None]
        found += (run for run in runs if _run_matches(run, q))
        if len(rows) < page or not runs:
            break
        after, page = runs[-1].id, max(limit, _PAGE_ROWS)
    return found[:limit]


async def _find_last_runs(db: Database, q: LastRuns) -> list[Run]:
    """Return the newest run of each schedule in `q.ids`, in any order; `after` and `limit` are not applied."""
    if not q.ids:
        return []
    newest = await db.run_commands(
        *(("ZREVRANGEBYLEX", f"{db.key_prefix}of:{one}", "+", "-", "LIMIT", 0, 1) for one in q.ids)
    )
    ids = [one.decode() for found in newest for one in found]
    return await _load_runs(db, Runs(limit=len(ids)), ids)


def _is_after_cursor(run_id: str, q: Runs) -> bool:
    """Return True if a run with this id comes behind the run `q.after`, in the order of the query."""
    return q.after is None or (run_id > q.after if q.oldest_first else run_id < q.after)


def _run_matches(run: Run, q: Runs) -> bool:
    return (
        _is_after_cursor(run.id, q)
        and _has_wanted_values(run, q, _RUN_FILTER_FIELDS)
        and (q.states is None or run.state in q.states)
        and _is_in_time_range(run, q)
    )


def _is_in_time_range(run: Run, q: Runs) -> bool:
    return (
        (q.fired_since is None or (run.fire_time is not None and run.fire_time > q.fired_since))
        and (q.created_since is None or run.created_at >= q.created_since)
        and (q.due_before is None or run.ready_at <= q.due_before)
    )


def _has_wanted_values(row: Run | Schedule, q: Runs | Schedules, fields: Sequence[str]) -> bool:
    """Return True if row and query are equal in these fields. A field that is None in the query matches any value."""
    for field in fields:
        wanted = getattr(q, field)
        if wanted is not None and getattr(row, field) != wanted:
            return False
    return True


# ── schedules and their spans ───────────────────────────────────────────────


async def _find_schedules(db: Database, q: Schedules) -> list[Schedule]:
    """Return the schedules that match a query, in the order of ids.

    The candidates are read by an index that holds few ids, else by a scan along an index of many schedules.
    """
    ids = await _candidate_schedule_ids(db, q)
    if ids is not None:
        return await _load_schedules(db, q, sorted(ids))
    index = "unplanned" if q.unplanned else "schedules" if q.app is None else f"app:{q.app}"
    return await _scan_schedules(db, q, index)


async def _candidate_schedule_ids(db: Database, q: Schedules) -> Collection[str] | None:
    """Return ids of schedules in no order, among them the ids of all schedules that match a query.

    Return None if no index with few ids covers the query: then the schedules have to be scanned.
    """
    if q.id is not None:
        return (q.id,)
    if q.ids is not None:
        return frozenset(q.ids)
    if q.name is not None and q.ns is not None and (q.states is None or "deleted" not in q.states):
        (found,) = await db.run_commands(("HGET", f"{db.key_prefix}names", f"{q.ns}\0{q.name}"))
        return () if found is None else (found.decode(),)
    if q.due_before is not None:
        due, held = await db.run_commands(
            ("ZRANGEBYSCORE", f"{db.key_prefix}due", "-inf", q.due_before), ("ZRANGE", f"{db.key_prefix}held", 0, -1)
        )
        return {one.decode() for one in (*due, *held)}  # in the index `due`, a held schedule has a later time
    return None


async def _scan_schedules(db: Database, q: Schedules, index: str) -> list[Schedule]:
    """Read schedules along an index, in the order of their ids; return the first `q.limit` that match the query.

    `index`: the name of a sorted set of schedule ids, without the prefix of the keys.
    """
    found: list[Schedule] = []
    first = "-" if q.after is None else f"({q.after}"
    while len(found) < q.limit:
        page = max(q.limit, _PAGE_ROWS)
        (ids,) = await db.run_commands(("ZRANGEBYLEX", f"{db.key_prefix}{index}", first, "+", "LIMIT", 0, page))
        if not ids:
            break
        found += await _load_schedules(db, q, [one.decode() for one in ids])
        first = f"({ids[-1].decode()}"
    return found[: q.limit]


async def _load_schedules(db: Database, q: Schedules, ids: Sequence[str]) -> list[Schedule]:
    """Load the schedules with these ids; return up to `q.limit` of them that match the query, in the order of `ids`."""
    found: list[Schedule] = []
    for start in range(0, len(ids), _PAGE_ROWS):
        (rows,) = await db.run_commands(("HMGET", f"{db.key_prefix}schedule", *ids[start : start + _PAGE_ROWS]))
        found += (row for row in map(read_schedule, filter(None, rows)) if _schedule_matches(row, q))
        if len(found) >= q.limit:
            break
    return found[: q.limit]


def _schedule_matches(row: Schedule, q: Schedules) -> bool:
    return (
        (q.after is None or row.id > q.after)
        and _has_wanted_values(row, q, _SCHEDULE_FILTER_FIELDS)
        and _is_wanted_state(row, q)
        and (q.due_before is None or (row.next_at is not None and row.next_at <= q.due_before))
        and (q.planned_after is None or row.cursor > q.planned_after)
        and not (q.unplanned and (row.state != "active" or row.next_at is not None))
    )


def _is_wanted_state(row: Schedule, q: Schedules) -> bool:
    """Return True if the schedule's state is one of those that the query asks for.

    A query without `states` asks for every state but "deleted"; if it names an id or ids, for every state.
    """
    if q.states is not None:
        return row.state in q.states
    return row.state != "deleted" or q.id is not None or q.ids is not None


async def _find_spans(db: Database, q: Spans) -> list[Span]:
    """Return the spans that match a query, by schedule and then by their end.

    `q.after`: the number of spans to skip, as a text; None: 0.
    """
    if q.schedule_id is None:
        (names,) = await db.run_commands(("SMEMBERS", f"{db.key_prefix}spanned"))
        ids = sorted(name.decode() for name in names)
    else:
        ids = [q.schedule_id]
    skip, found = int(q.after or 0), list[Span]()
    since = "-inf" if q.since is None else f"({q.since}"
    for one in ids:
        key = f"{db.key_prefix}span:{one}"
        left = q.limit - len(found)
        count, rows = await db.run_commands(
            ("ZCOUNT", key, since, "+inf"), ("ZRANGEBYSCORE", key, since, "+inf", "LIMIT", skip, left)
        )
        found += map(read_span, rows)
        skip = max(0, skip - count)
        if len(found) >= q.limit:
            break
    return found


# ── events ──────────────────────────────────────────────────────────────────


async def tail(db: Database, after: int, limit: int) -> list[Event]:
    """Return up to `limit` events whose number in the log is greater than `after`, in the order of the log."""
    found = _sort_by_seq(await db.run_script(_TAIL, after, limit))
    return [read_event(seq, row) for seq, row in found[:limit]]


async def _find_events(db: Database, q: Events) -> list[Event]:
    """Return the events that match a query, in the order of the log.

    A query that names a run, or names a schedule and only types of schedule events, reads the list of events of this
    run or schedule. Any other query scans the log.
    """
    after = int(q.after or 0)
    if q.run_id is not None:
        rows = await db.run_script(_FIND_STREAM_EVENTS, "run", q.run_id)
    elif q.schedule_id is not None and q.types is not None and _SCHEDULE_EVENTS.issuperset(q.types):
        rows = await db.run_script(_FIND_STREAM_EVENTS, "schedule", q.schedule_id)
    else:
        return await _scan_log(db, q, after)
    matching = (pair for pair in _sort_by_seq(rows) if pair[0] > after and _event_matches(pair[1], q))
    return [read_event(seq, row) for seq, row in islice(matching, q.limit)]


async def _scan_log(db: Database, q: Events, after: int) -> list[Event]:
    """Read the log behind the event number `after`; return the first `q.limit` events that match the query."""
    found: list[Event] = []
    is_unfiltered = all(value is None for value in (q.ns, q.schedule_id, q.types, q.since, q.until))
    page = q.limit if is_unfiltered else max(q.limit, 8 * _LOG_BLOCK_EVENTS)
    while len(found) < q.limit:
        rows = _sort_by_seq(await db.run_script(_TAIL, after, page))
        found += (read_event(seq, row) for seq, row in rows if is_unfiltered or _event_matches(row, q))
        if len(rows) < page:
            break
        after = rows[-1][0]
    return found[: q.limit]


def _sort_by_seq(rows: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """Return a list of pairs (number, row) of events in the order of the log.

    `rows`: a script's answer, in which each event's number is followed by its row.
    """
    return sorted(zip(map(int, rows[::2]), rows[1::2], strict=True))


def _event_matches(row: bytes, q: Events) -> bool:
    """Return True if an event's row in Redis matches the query in namespace, schedule, type and time.

    Only the first fields of the row are decoded, because most rows of a scan do not match.
    """
    head = _decode_event_head(_ARRAY_OF_13 + row)
    return (
        (q.ns is None or head.ns == q.ns)
        and (q.schedule_id is None or head.schedule_id == q.schedule_id)
        and (q.types is None or head.type in q.types)
        and (q.since is None or head.at >= q.since)
        and (q.until is None or head.at < q.until)
    )


# ── the rest ────────────────────────────────────────────────────────────────


async def _find_bodies(db: Database, q: Bodies) -> list[Body]:
    """Return the payloads with the ids `q.ids`, in that order; an id without a payload is skipped.

    `after` and `limit` of the query are not applied.
    """
    if not q.ids:
        return []
    (found,) = await db.run_commands(("HMGET", f"{db.key_prefix}body", *q.ids))
    return [Body(name, data.decode()) for name, data in zip(q.ids, found, strict=True) if data is not None]


async def _find_gates(db: Database, q: Gates) -> list[Gate]:
    """Return the gates with the names in `q.names`, or all gates if it is None, in the order of names.

    Return only names that come after `q.after`, and at most `q.limit` gates.
    """
    if q.names is None:
        first = "-" if q.after is None else f"({q.after}"
        (found,) = await db.run_commands(("ZRANGEBYLEX", f"{db.key_prefix}gates", first, "+", "LIMIT", 0, q.limit))
        names = [name.decode() for name in found]
    else:
        names = sorted({name for name in q.names if q.after is None or name > q.after})
    if not names:
        return []
    (rows,) = await db.run_commands(("HMGET", f"{db.key_prefix}gate", *names))
    gates = [
        Gate(name, *_decode_gate(_ARRAY_OF_3 + row)) for name, row in zip(names, rows, strict=True) if row is not None
    ]
    return gates[: q.limit]


async def _find_lanes(db: Database, q: Lanes) -> list[LaneCount]:
    """Return by lane and priority how many runs wait to be claimed, due or not; parked runs do not count.

    `after` and `limit` of the query are not applied.
    """
    (names,) = await db.run_commands(("SMEMBERS", f"{db.key_prefix}queues"))
    counts: Counter[tuple[str, int]] = Counter()
    if names:
        key = f"{db.key_prefix}queue:".encode()
        for name, count in zip(names, await db.run_commands(*(("ZCARD", key + name) for name in names)), strict=True):
            lane, priority, _ = name.decode().split("\0", 2)
            counts[lane, int(priority)] += count
    return [LaneCount(lane, priority, n) for (lane, priority), n in sorted(counts.items()) if n]


async def _find_tallies(db: Database, q: Tallies) -> list[Tally]:
    """Return the tallies (counts of removed runs and fires) of the schedule `q.schedule_id`; if None, all tallies.

    Tallies of runs without a schedule come first. In Redis, each schedule has a hash: day NUL outcome → count. `after`
    and `limit` of the query are not applied.
    """
    names = [q.schedule_id]
    if q.schedule_id is None:
        (found,) = await db.run_commands(("SMEMBERS", f"{db.key_prefix}tallied"))
        names = [name.decode() for name in sorted(found)]
    commands: list[Sequence[Argument]] = [("HGETALL", f"{db.key_prefix}tally:{name}") for name in names]
    rows: list[Tally] = []
    for name, flat in zip(names, await db.run_commands(*commands) if commands else [], strict=True):
        of_schedule = []
        for field, count in zip(flat[::2], flat[1::2], strict=True):
            day, _, outcome = field.decode().partition("\0")
            of_schedule.append(Tally(name or None, int(day), outcome, int(count)))
        rows += sorted(of_schedule, key=lambda row: (row.day, row.outcome))
    return rows


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
    Leases: leases.find,
    Tallies: _find_tallies,
    KeyValues: keyvalue.find,
    RunLogs: run_logs.find,
    LoggedRuns: run_logs.find_logged_runs,
}
