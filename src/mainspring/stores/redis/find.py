"""Answers to the port's queries: an index gives ids in order, the rest is looked at here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct

from mainspring.model.change import Body
from mainspring.model.events import Event, ScheduleEvent
from mainspring.model.gate import Gate
from mainspring.model.run import ENDED, Run, State
from mainspring.model.schedule import Schedule, Span
from mainspring.ports.store import (
    Bodies,
    Events,
    Gates,
    KeptOnes,
    LaneCount,
    Lanes,
    Leases,
    Query,
    Runs,
    Schedules,
    Spans,
    Tallies,
    Tally,
)
from mainspring.stores.redis import kept, leases
from mainspring.stores.redis.database import Database, Word
from mainspring.stores.redis.rows import read_event, read_run, read_schedule, read_span
from mainspring.stores.redis.scripts import load

T = TypeVar("T")
_RUNS = load("find_runs", "common", "find_runs")
_OPEN = load("find_open", "common", "find_open")
_TAIL = load("tail", "common", "tail")
_STREAM = load("stream", "common", "stream")
_MOVES = frozenset(cls.__name__ for cls in ScheduleEvent.__subclasses__())
#: So many rows are looked at in one call, and so many of a state are worth to be gathered before they are sorted.
_PAGE, _FEW = 500, 100_000
_BLOCK = 256
#: The states an index of their own has, by the index's name.
_INDEXES: dict[State, str] = {
    State.WAITING: "waiting",
    State.RETRYING: "waiting",
    State.RUNNING: "running",
    State.BLOCKED: "blocked",
    **{state: "unhappy" for state in ENDED if state is not State.SUCCEEDED},
}


class _Head(Struct, array_like=True, gc=False):
    """As much of an event as a query may ask about; see rows.py."""

    at: int
    n: int | None
    change: str | None
    type: str
    v: int
    actor: str | None
    run_id: str | None
    ns: str
    schedule_id: str | None


_head = msgspec.msgpack.Decoder(_Head).decode
_gate = msgspec.msgpack.Decoder(tuple[int, int, int]).decode
_ARRAY_13, _ARRAY_3 = b"\x9d", b"\x93"


async def find(db: Database, query: Query[T]) -> list[T]:
    """Answer one of the port's queries."""
    answer = await _FIND[type(query)](db, query)
    return cast("list[T]", answer)


# ── runs ────────────────────────────────────────────────────────────────────


async def _runs(db: Database, q: Runs) -> list[Run]:
    ids = await _ids(db, q)
    if ids is not None:
        wanted = sorted({one for one in ids if _beyond(one, q)}, reverse=not q.oldest_first)
        return await _filtered(db, q, wanted)
    if q.schedule_id is not None:
        return await _walk(db, q, f"of:{q.schedule_id}", q.limit)
    if q.ns is not None:
        return await _walk(db, q, f"runs:{q.ns}", q.limit)
    (names,) = await db.read(("SMEMBERS", f"{db.marker}namespaces"))
    found = [run for name in names for run in await _walk(db, q, f"runs:{name.decode()}", q.limit)]
    found.sort(key=lambda run: run.id, reverse=not q.oldest_first)
    return found[: q.limit]


async def _ids(db: Database, q: Runs) -> Sequence[str] | None:
    """The ids of all that can match, where an index has few of them."""
    if q.id is not None:
        return (q.id,)
    if q.ids is not None:
        return q.ids
    states = None if q.states is None else set(q.states)
    if q.schedule_id is not None:
        if states is None or not states.isdisjoint(ENDED):
            return None
        (found,) = await db.read(("ZRANGE", f"{db.marker}open:{q.schedule_id}", 0, -1))
        return [one.decode() for one in found]
    if q.unique_key is not None and q.ns is not None and states is not None and states.isdisjoint(ENDED):
        (holder,) = await db.read(("HGET", f"{db.marker}unique", f"{q.ns}\0{q.unique_key}"))
        return () if holder is None else (holder.decode(),)
    if q.dead:
        names = {"dead"}
    elif states is None or State.SUCCEEDED in states:
        return None
    else:
        names = {_INDEXES[state] for state in states}
    found = await db.call(_OPEN, _FEW, *sorted(names))
    return None if found is None else [one.decode() for one in found]


async def _filtered(db: Database, q: Runs, ids: Sequence[str]) -> list[Run]:
    found: list[Run] = []
    for start in range(0, len(ids), _PAGE):
        (rows,) = await db.read(("HMGET", f"{db.marker}run", *ids[start : start + _PAGE]))
        found += (run for run in map(read_run, filter(None, rows)) if _matches(run, q))
        if len(found) >= q.limit:
            break
    return found[: q.limit]


async def _walk(db: Database, q: Runs, index: str, limit: int) -> list[Run]:
    """Along an index that has them all, until there are enough."""
    found: list[Run] = []
    after, many = q.after or "", limit
    while len(found) < limit:
        rows = await db.call(_RUNS, index, int(q.oldest_first), after, many)
        runs = [read_run(row) for row in rows if row is not None]
        found += (run for run in runs if _matches(run, q))
        if len(rows) < many or not runs:
            break
        after, many = runs[-1].id, max(limit, _PAGE)
    return found[:limit]


def _beyond(one: str, q: Runs) -> bool:
    return q.after is None or (one > q.after if q.oldest_first else one < q.after)


def _matches(run: Run, q: Runs) -> bool:
    return (
        _beyond(run.id, q)
        and (q.ns is None or run.ns == q.ns)
        and (q.schedule_id is None or run.schedule_id == q.schedule_id)
        and (q.task is None or run.task == q.task)
        and (q.states is None or run.state in q.states)
        and (q.origin is None or run.origin == q.origin)
        and (q.fire_time is None or run.fire_time == q.fire_time)
        and (q.fired_since is None or (run.fire_time is not None and run.fire_time > q.fired_since))
        and (q.created_since is None or run.created_at >= q.created_since)
        and (q.due_before is None or run.ready_at <= q.due_before)
        and (q.dead is None or run.dead == q.dead)
        and (q.unique_key is None or run.unique_key == q.unique_key)
    )


# ── schedules and their spans ───────────────────────────────────────────────


async def _schedules(db: Database, q: Schedules) -> list[Schedule]:
    ids: Iterable[str]
    if q.id is not None:
        ids = (q.id,)
    elif q.name is not None and q.ns is not None and (q.states is None or "deleted" not in q.states):
        (found,) = await db.read(("HGET", f"{db.marker}names", f"{q.ns}\0{q.name}"))
        ids = () if found is None else (found.decode(),)
    elif q.due_before is not None:
        soon, held = await db.read(
            ("ZRANGEBYSCORE", f"{db.marker}due", "-inf", q.due_before), ("ZRANGE", f"{db.marker}held", 0, -1)
        )
        ids = {one.decode() for one in (*soon, *held)}  # who is held has a later time in the index
    else:
        index = "unplanned" if q.unplanned else "schedules" if q.app is None else f"app:{q.app}"
        return await _along(db, q, index)
    return await _those(db, q, sorted(ids))


async def _along(db: Database, q: Schedules, index: str) -> list[Schedule]:
    found: list[Schedule] = []
    first = "-" if q.after is None else f"({q.after}"
    while len(found) < q.limit:
        (ids,) = await db.read(("ZRANGEBYLEX", f"{db.marker}{index}", first, "+", "LIMIT", 0, max(q.limit, _PAGE)))
        if not ids:
            break
        found += await _those(db, q, [one.decode() for one in ids])
        first = f"({ids[-1].decode()}"
    return found[: q.limit]


async def _those(db: Database, q: Schedules, ids: Sequence[str]) -> list[Schedule]:
    found: list[Schedule] = []
    for start in range(0, len(ids), _PAGE):
        (rows,) = await db.read(("HMGET", f"{db.marker}schedule", *ids[start : start + _PAGE]))
        found += (row for row in map(read_schedule, filter(None, rows)) if _fits(row, q))
        if len(found) >= q.limit:
            break
    return found[: q.limit]


def _fits(row: Schedule, q: Schedules) -> bool:
    return (
        (q.after is None or row.id > q.after)
        and (q.ns is None or row.ns == q.ns)
        and (q.name is None or row.name == q.name)
        and (row.state in q.states if q.states is not None else row.state != "deleted" or q.id is not None)
        and (q.app is None or row.app == q.app)
        and (q.due_before is None or (row.next_at is not None and row.next_at <= q.due_before))
        and not (q.unplanned and (row.state != "active" or row.next_at is not None))
    )


async def _spans(db: Database, q: Spans) -> list[Span]:
    """`after` is how many came before."""
    if q.schedule_id is None:
        (names,) = await db.read(("SMEMBERS", f"{db.marker}spanned"))
        ids = sorted(name.decode() for name in names)
    else:
        ids = [q.schedule_id]
    skip, found = int(q.after or 0), list[Span]()
    since = "-inf" if q.since is None else f"({q.since}"
    for one in ids:
        key = f"{db.marker}span:{one}"
        left = q.limit - len(found)
        count, rows = await db.read(
            ("ZCOUNT", key, since, "+inf"), ("ZRANGEBYSCORE", key, since, "+inf", "LIMIT", skip, left)
        )
        found += map(read_span, rows)
        skip = max(0, skip - count)
        if len(found) >= q.limit:
            break
    return found


# ── events ──────────────────────────────────────────────────────────────────


async def tail(db: Database, after: int, limit: int) -> list[Event]:
    """Events with a greater seq, in order."""
    found = _in_order(await db.call(_TAIL, after, limit))
    return [read_event(seq, row) for seq, row in found[:limit]]


async def _events(db: Database, q: Events) -> list[Event]:
    after = int(q.after or 0)
    if q.run_id is not None:
        rows = await db.call(_STREAM, "run", q.run_id)
    elif q.schedule_id is not None and q.types is not None and _MOVES.issuperset(q.types):
        rows = await db.call(_STREAM, "schedule", q.schedule_id)
    else:
        return await _along_the_log(db, q, after)
    told = (pair for pair in _in_order(rows) if pair[0] > after and _told(pair[1], q))
    return [read_event(seq, row) for seq, row in islice(told, q.limit)]


async def _along_the_log(db: Database, q: Events, after: int) -> list[Event]:
    found: list[Event] = []
    plain = q.schedule_id is None and q.types is None and q.since is None and q.until is None
    many = q.limit if plain else max(q.limit, 8 * _BLOCK)
    while len(found) < q.limit:
        rows = _in_order(await db.call(_TAIL, after, many))
        found += (read_event(seq, row) for seq, row in rows if plain or _told(row, q))
        if len(rows) < many:
            break
        after = rows[-1][0]
    return found[: q.limit]


def _in_order(rows: Sequence[bytes]) -> list[tuple[int, bytes]]:
    return sorted(zip(map(int, rows[::2]), rows[1::2], strict=True))


def _told(row: bytes, q: Events) -> bool:
    head = _head(_ARRAY_13 + row)
    return (
        (q.schedule_id is None or head.schedule_id == q.schedule_id)
        and (q.types is None or head.type in q.types)
        and (q.since is None or head.at >= q.since)
        and (q.until is None or head.at < q.until)
    )


# ── the rest ────────────────────────────────────────────────────────────────


async def _bodies(db: Database, q: Bodies) -> list[Body]:
    if not q.ids:
        return []
    (found,) = await db.read(("HMGET", f"{db.marker}body", *q.ids))
    return [Body(name, data.decode()) for name, data in zip(q.ids, found, strict=True) if data is not None]


async def _gates(db: Database, q: Gates) -> list[Gate]:
    if q.names is None:
        first = "-" if q.after is None else f"({q.after}"
        (found,) = await db.read(("ZRANGEBYLEX", f"{db.marker}gates", first, "+", "LIMIT", 0, q.limit))
        names = [name.decode() for name in found]
    else:
        names = sorted({name for name in q.names if q.after is None or name > q.after})
    if not names:
        return []
    (rows,) = await db.read(("HMGET", f"{db.marker}gate", *names))
    gates = [Gate(name, *_gate(_ARRAY_3 + row)) for name, row in zip(names, rows, strict=True) if row is not None]
    return gates[: q.limit]


async def _lanes(db: Database, q: Lanes) -> list[LaneCount]:
    (names,) = await db.read(("SMEMBERS", f"{db.marker}queues"))
    counts: Counter[tuple[str, int]] = Counter()
    if names:
        key = f"{db.marker}queue:".encode()
        for name, count in zip(names, await db.read(*(("ZCARD", key + name) for name in names)), strict=True):
            lane, priority, _ = name.decode().split("\0", 2)
            counts[lane, int(priority)] += count
    return [LaneCount(lane, priority, n) for (lane, priority), n in sorted(counts.items()) if n]


async def _tallies(db: Database, q: Tallies) -> list[Tally]:
    """A hash for each schedule: day and outcome → count; those of nobody come first."""
    names = [q.schedule_id]
    if q.schedule_id is None:
        (found,) = await db.read(("SMEMBERS", f"{db.marker}tallied"))
        names = [name.decode() for name in sorted(found)]
    commands: list[Sequence[Word]] = [("HGETALL", f"{db.marker}tally:{name}") for name in names]
    rows: list[Tally] = []
    for name, flat in zip(names, await db.read(*commands) if commands else [], strict=True):
        mine = []
        for field, count in zip(flat[::2], flat[1::2], strict=True):
            day, _, outcome = field.decode().partition("\0")
            mine.append(Tally(name or None, int(day), outcome, int(count)))
        rows += sorted(mine, key=lambda row: (row.day, row.outcome))
    return rows


_FIND: dict[type, Callable[..., Awaitable[Sequence[Any]]]] = {
    Runs: _runs,
    Schedules: _schedules,
    Spans: _spans,
    Events: _events,
    Bodies: _bodies,
    Gates: _gates,
    Lanes: _lanes,
    Leases: leases.find,
    Tallies: _tallies,
    KeptOnes: kept.find,
}
