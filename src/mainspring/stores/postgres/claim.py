"""Leases on runs: taking due ones through their gates, and keeping them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mainspring.model.gate import Gate, admit
from mainspring.model.ids import RunId
from mainspring.model.instant import Ms
from mainspring.model.run import Run
from mainspring.ports.store import Claim, Claimed, Offer, Renewed, Wish
from mainspring.stores.postgres.apply_sql import successes
from mainspring.stores.postgres.database import Database, Gated, Session
from mainspring.stores.postgres.marks import BEGINNING
from mainspring.stores.postgres.parked import HOLD_COLUMNS
from mainspring.stores.postgres.rows import (
    CLAIMABLE,
    NOW,
    RUN_COLUMNS,
    RUN_FIELDS,
    STILL_RUNNING,
    given,
    plain_text,
    read_run,
    run_columns,
)

_WAITS = f"c.state IN {CLAIMABLE} AND c.parked_on IS NULL"
#: The same of rows found by their id: see `STILL_RUNNING`.
_STILL_WAITS = f"(c.state || '') IN {CLAIMABLE} AND c.parked_on IS NULL"
#: One index range for each lane and priority, however long the queue. Lanes are $2, tasks $3.
_RANGES = "unnest($2::text[]) AS l(lane) CROSS JOIN (VALUES (0), (1), (2), (3)) AS p(p)"
#: So many future runs of tasks that are not offered are passed in each range.
_PASSED = 100
_IN_RANGE = f"{_WAITS} AND c.lane = l.lane AND c.priority = p.p AND c.task = ANY($3::text[])"


#: `may_be_early`: its own schedule's gate is the only one that a run of a schedule may have to pass.
_MAY_BE_EARLY = """c.crashes = 0 AND (c.gates IS NULL OR c.gates = '["schedule:' || c.schedule_id || '"]')"""


def _heads(depth: str, now: str, lows: str = "", ahead: str = "") -> str:
    low = f"AND c.ready_at >= ({lows})[p.p + 1]" if lows else ""
    due = f"c.ready_at <= {now}"
    if ahead:
        due = f"c.ready_at <= {now} + {ahead} AND ({due} OR {_MAY_BE_EARLY})"
    return f"""
    SELECT x.id, x.priority, x.ready_at FROM {_RANGES} CROSS JOIN LATERAL (
        SELECT c.id, c.priority, c.ready_at FROM §run c WHERE {_IN_RANGE} AND {due} {low}
        ORDER BY c.ready_at, c.id LIMIT {depth}) x
    ORDER BY x.priority, x.ready_at, x.id LIMIT {depth}"""  # noqa: S608 - column names, no input


def _next(now: str) -> str:
    """SQL: the next instant after now at which an offered run becomes claimable.

    Or an earlier one, to look again: of runs whose task is not offered only so many are passed.
    """
    ahead = f"""FROM §run c WHERE {_WAITS} AND c.lane = l.lane AND c.priority = p.p AND c.ready_at > {now}
        ORDER BY c.ready_at, c.id"""
    return f"""
    SELECT min(coalesce(
        (SELECT y.ready_at FROM (SELECT c.ready_at, c.task {ahead} LIMIT {_PASSED}) y
         WHERE y.task = ANY($3::text[]) LIMIT 1),
        (SELECT c.ready_at {ahead} OFFSET {_PASSED - 1} LIMIT 1)))
    FROM {_RANGES}"""  # noqa: S608


def _next_early(now: str, ahead: str) -> str:
    """SQL: the same after a claim that looked ahead: one that must wait for its time, or the first beyond."""
    return f"""
    SELECT least(({_next(f"{now} + {ahead}")}), (SELECT min(x.ready_at) FROM {_RANGES} CROSS JOIN LATERAL (
        SELECT c.ready_at FROM §run c
        WHERE {_IN_RANGE} AND c.ready_at > {now} AND c.ready_at <= {now} + {ahead} AND ({_MAY_BE_EARLY}) IS NOT TRUE
        ORDER BY c.ready_at, c.id LIMIT 1) x))"""  # noqa: S608


def _first(now: str, but: str = "") -> str:
    """SQL: the same, from the beginning on: an instant that has passed when one is claimable now, `but` for these."""
    others = f"AND NOT (c.id = ANY ({but}))" if but else ""
    return f"""
    SELECT least(({_next(now)}), (SELECT min(x.ready_at) FROM {_RANGES} CROSS JOIN LATERAL (
        SELECT c.ready_at FROM §run c WHERE {_IN_RANGE} AND c.ready_at <= {now} {others}
        ORDER BY c.ready_at, c.id LIMIT 1) x))"""  # noqa: S608


_T = "(SELECT now FROM t)"
_NO_CLAIM = ", ".join(f"NULL::{RUN_COLUMNS[name]}" for name in RUN_FIELDS)
#: In the order of claims, whatever plan the server has for the update.
_STARTED = """
    INSERT INTO §event (at, ns, schedule_id, run_id, n, type, v, epoch, attempt, owner)
    SELECT u.started_at, u.ns, u.schedule_id, u.id, u.n, 'RunStarted', 1, u.epoch, u.attempt, u.owner FROM u
    ORDER BY u.priority, u.ready_at, u.id"""
_START = """
    SET state = 'running', n = r.n + 1, epoch = r.epoch + 1, attempt = r.attempt + 1, held_until = 0,"""


#: The gates of what may be taken: how many would enter each, which are locked now and have room for them. Behind a gate
#: that changed since this statement began, somebody may wait whom it cannot see.
_ENTERED = f"""
w AS MATERIALIZED (
    SELECT y.gate, count(*) AS times FROM c CROSS JOIN LATERAL json_array_elements_text(c.gates::json) AS y(gate)
    GROUP BY y.gate),
seen AS MATERIALIZED (
    SELECT g.name, g.ctid AS place FROM §gate g WHERE g.name = ANY (ARRAY(SELECT w.gate FROM w))),
m AS MATERIALIZED (
    SELECT g.name, g.ctid AS place, CASE WHEN g.closed_until > {_T} THEN 0 ELSE g.max - g.held END AS room
    FROM §gate g WHERE g.name = ANY (ARRAY(SELECT w.gate FROM w)) ORDER BY g.name FOR UPDATE SKIP LOCKED),
full_ AS MATERIALIZED (
    SELECT EXISTS (
        SELECT 1 FROM w JOIN seen ON seen.name = w.gate LEFT JOIN m ON m.name = w.gate
        WHERE m.name IS NULL OR m.place <> seen.place OR m.room < w.times)
     OR EXISTS (SELECT 1 FROM w JOIN §run p ON p.parked_on = w.gate WHERE p.parked_on IS NOT NULL) AS yes),"""  # noqa: S608
_ENTER = """
en AS (
    UPDATE §gate g SET held = g.held + w.times::integer FROM w, m
    WHERE g.name = m.name AND m.name = w.gate AND NOT (SELECT h.hard FROM h)),"""


#: Named runs ($8) that can be claimed now.
_NAMED_HEADS = f"""
    SELECT c.id, c.priority, c.ready_at FROM §run c
    WHERE c.id = ANY ($8::text[]) AND {_STILL_WAITS} AND c.ready_at <= {_T}
      AND c.lane = ANY ($2::text[]) AND c.task = ANY ($3::text[]) AND c.priority BETWEEN 0 AND 3
    ORDER BY c.priority, c.ready_at, c.id LIMIT $7::integer + 1"""  # noqa: S608


def _quick(also: str, ids: str, *, gated: bool = False, named: bool = False, ahead: str = "") -> str:
    """SQL: a claim in one statement. What it cannot decide it leaves as it is, and says that it is hard."""
    hard = "c.crashes > 0" if gated else "c.gates IS NOT NULL OR c.crashes > 0"
    or_full = " OR (SELECT yes FROM full_)" if gated else ""
    heads = _NAMED_HEADS if named else _heads("$7::integer + 1", _T, "$8::bigint[]", ahead)
    then = _next_early(_T, ahead) if ahead else _next(_T)
    if named:  # beside them others may be due
        then = _first(_T, "ARRAY(SELECT m.id FROM c m)")
    starts = "greatest(t.now, r.ready_at)" if ahead else "t.now"
    return f"""
WITH t AS MATERIALIZED (SELECT {NOW} AS now),{also}
heads AS MATERIALIZED ({heads}),
c AS MATERIALIZED (
    SELECT c.id, c.gates, {hard} AS hard FROM §run c
    WHERE c.id = ANY (ARRAY(SELECT h.id FROM heads h LIMIT $7::integer)) AND {_STILL_WAITS}
    ORDER BY c.priority, c.ready_at, c.id LIMIT $4::integer FOR UPDATE SKIP LOCKED),{_ENTERED if gated else ""}
h AS MATERIALIZED (
    SELECT coalesce(bool_or(c.hard), false){or_full} AS hard, count(*) AS got, (SELECT count(*) FROM heads) AS due
    FROM c),
u AS (
    UPDATE §run r {_START} owner = $5, lease_until = t.now + $6::bigint, started_at = {starts}
    FROM t, c WHERE r.id = c.id AND NOT (SELECT h.hard FROM h)
    RETURNING {run_columns("r")}),{_ENTER if gated else ""}
e AS ({_STARTED})
SELECT t.now, h.hard, h.got, h.due,
       CASE WHEN h.due > $4 THEN t.now ELSE ({then}) END AS next_at,
       {ids} AS ids, {_NO_CLAIM}, NULL::text AS data
FROM t, h
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, {run_columns("u")}, b.data FROM u LEFT JOIN §body b ON b.id = u.body
"""  # noqa: S608


#: now, lanes, tasks, limit, owner, ttl, depth, from where (`Marks`) → a row about the claim, then the claims, none if
#: one of them needs a second look
_CLAIM = _quick("", "NULL::text[]")
#: The same of named runs: their ids in place of the marks.
_CLAIM_NAMED = _quick("", "NULL::text[]", named=True)
#: The same through gates: all of them or, if one is refused by any, none.
_CLAIM_THROUGH = _quick("", "NULL::text[]", gated=True)
#: The same, a little ahead of their time ($9).
_CLAIM_EARLY = _quick("", "NULL::text[]", gated=True, ahead="$9::bigint")
#: The same, then the plain successes that come before it in the same commit.
_FINISH_AND_CLAIM = _quick(f"{successes(9)},", "(SELECT array_agg(s.id) FROM s)")
#: now, lanes, tasks → the time, and when there is something to claim.
_LOOK = f"WITH t AS MATERIALIZED (SELECT {NOW} AS now) SELECT t.now, ({_first(_T)}) AS next_at FROM t"  # noqa: S608
_META = 6
_END = _META + len(RUN_FIELDS)


#: How far a claim looks past runs that others have a hand on, and when it comes back if there are no others.
DEEPER, DEEPEST, LATER = 8, 5_000, 50


def _args(offer: Offer, limit: int, depth: int = 0, lows: Sequence[Ms | RunId] = BEGINNING) -> tuple[Any, ...]:
    lanes = list(dict.fromkeys(offer.lanes))
    return lanes, list(offer.tasks), limit, plain_text(offer.owner), offer.ttl, depth or limit, lows


def _read(records: list[Any]) -> tuple[Any, list[Claim]]:
    """What the statement says of itself, and the claims in their order."""
    about: Any = None
    claims: list[Claim] = []
    for record in records:
        if record[0] is not None:
            about = record
        else:
            claims.append(Claim(read_run(record[_META:_END]), record[_END]))
    claims.sort(key=_place)
    return about, claims


#: By what the last claims met.
_SHORT = {Gated.NONE: _CLAIM, Gated.PASS: _CLAIM_THROUGH}


def _ease(db: Database, claims: list[Claim]) -> None:
    if claims and not any(claim.run.gates for claim in claims):
        db.gated = Gated.NONE


def _place(claim: Claim) -> tuple[int, Ms, str]:
    run = claim.run
    return run.priority, run.ready_at, run.id


async def claim(db: Database, offer: Offer, limit: int, ids: Sequence[RunId], now: Ms | None) -> Claimed:
    """Due runs in the offered lanes, by priority then time, through their gates."""
    if limit <= 0:
        async with db.reading() as session:
            lanes, tasks, *_ = _args(offer, limit)
            row = await session.row(_LOOK, db.now(now), lanes, tasks)
        return Claimed(row["now"], [], row["next_at"])
    if ids:
        return await _claim_named(db, offer, limit, ids, now)
    if db.gated == Gated.HARD:
        return await hard_way(db, offer, limit, ids, now)
    if offer.ahead:
        db.reach("claim:begin")
        async with db.single("claim") as session:
            claimed = await _early(db, session, offer, limit, db.now(now))
        return claimed if claimed is not None else await hard_way(db, offer, limit, ids, now)
    found: list[Claim] = []
    depth = db.marks.depth(limit)
    lows = db.marks.begin(offer)
    way: Gated = db.gated  # others claim meanwhile
    while True:
        db.reach("claim:begin")
        wanted = limit - len(found)
        async with db.single("claim") as session:
            records = await session.fetch(_SHORT[way], db.now(now), *_args(offer, wanted, depth, lows))
        about, claims = _read(records)
        db.remember(claims)
        db.marks.seen(lows, about["now"], claims, wanted)
        if about["hard"]:
            db.gated = way = Gated(way + 1)
            if way != Gated.HARD:
                continue
            if not found:
                return await hard_way(db, offer, limit, ids, now)
            return Claimed(about["now"], found, about["now"])
        _ease(db, claims)
        found += claims
        others = about["got"] < min(wanted, about["due"])
        db.marks.met(about["now"], others)
        if lows != BEGINNING and len(found) < limit:
            lows = BEGINNING
            continue
        if not others:
            return Claimed(about["now"], found, about["next_at"])
        # Another claimer has a hand on the first of them; it may be stopped, so look behind, and do not spin.
        if depth >= DEEPEST:
            return Claimed(about["now"], found, about["now"] + LATER)
        depth = min(DEEPER * depth, DEEPEST)


async def _early(db: Database, session: Session, offer: Offer, limit: int, now: Ms | None) -> Claimed | None:
    """A claim that looks ahead; None, and nothing done, when it is not simple."""
    about, claims = _read(await session.fetch(_CLAIM_EARLY, now, *_args(offer, limit), offer.ahead))
    db.remember(claims)
    if about["hard"]:
        return None
    if about["got"] < min(limit, about["due"]):  # others have a hand on some
        return Claimed(about["now"], claims, about["now"] + LATER) if claims else None
    return Claimed(about["now"], claims, about["next_at"])


async def _claim_named(db: Database, offer: Offer, limit: int, ids: Sequence[RunId], now: Ms | None) -> Claimed:
    """Those of the named runs that are due; with gates, or a crash behind them, the long way."""
    if db.gated == Gated.NONE:
        db.reach("claim:begin")
        async with db.single("claim") as session:
            records = await session.fetch(_CLAIM_NAMED, db.now(now), *_args(offer, limit, limit, list(ids)))
        about, claims = _read(records)
        db.remember(claims)
        if not about["hard"]:
            return Claimed(about["now"], claims, about["next_at"])
    return await hard_way(db, offer, limit, ids, now)


async def claim_with_successes(
    db: Database, wish: Wish, done: list[Any], now: Ms | None
) -> tuple[Ms, list[str] | None, Claimed | None]:
    """Plain successes and the next claim in one statement: the time, which held, and an easy claim."""
    lows = db.marks.begin(wish.offer)
    async with db.single("apply") as session:
        asked = _args(wish.offer, wish.limit, db.marks.depth(wish.limit), lows)
        records = await session.fetch(_FINISH_AND_CLAIM, now, *asked, *done)
    about, claims = _read(records)
    db.remember(claims)
    db.marks.seen(lows, about["now"], claims, wish.limit)
    if about["hard"]:
        db.gated = Gated.PASS
        return about["now"], about["ids"], None
    others = about["got"] < min(wish.limit, about["due"])
    db.marks.met(about["now"], others)
    more = others or (lows != BEGINNING and about["got"] < wish.limit)
    return about["now"], about["ids"], Claimed(about["now"], claims, about["now"] if more else about["next_at"])


async def hard_way(db: Database, offer: Offer, limit: int, ids: Sequence[RunId], now: Ms | None) -> Claimed:
    """A claim in a transaction of its own, in which the gates are asked."""
    async with db.transaction("claim") as session:
        wall = await session.value(f"SELECT {NOW}", db.now(now))
        return await claim_here(db, session, offer, limit, ids, wall)


#: now, lanes, tasks, depth, ahead → the heads, locked; another claimer's are left alone.
_CANDIDATES = f"""
SELECT {run_columns("c")} FROM §run c
WHERE c.id = ANY (ARRAY(SELECT h.id FROM ({_heads("$4::integer", "$1::bigint", ahead="$5::bigint")}) h))
  AND {_STILL_WAITS} AND c.ready_at <= $1::bigint + $5::bigint
ORDER BY c.priority, c.ready_at, c.id FOR UPDATE SKIP LOCKED
"""  # noqa: S608
#: now, lanes, tasks, ids
_NAMED = f"""
SELECT {run_columns("c")} FROM §run c
WHERE c.id = ANY ($4::text[]) AND {_STILL_WAITS} AND c.ready_at <= $1::bigint
  AND c.lane = ANY ($2::text[]) AND c.task = ANY ($3::text[]) AND c.priority BETWEEN 0 AND 3
ORDER BY c.priority, c.ready_at, c.id FOR UPDATE SKIP LOCKED
"""  # noqa: S608
#: In the order of names, as everybody takes them.
_GATES = "SELECT name, max, held, closed_until FROM §gate WHERE name = ANY($1::text[]) ORDER BY name FOR UPDATE"
#: gate names → the place of the first run parked at each.
_FIRST_PARKED = """
SELECT n.name, f.priority, f.ready_at, f.id FROM unnest($1::text[]) AS n(name) CROSS JOIN LATERAL (
    SELECT r.priority, r.ready_at, r.id FROM §run r WHERE r.parked_on = n.name AND r.parked_on IS NOT NULL
    ORDER BY r.priority, r.ready_at, r.id LIMIT 1) f
"""
_PARK_COLUMNS = {"id": "text", "gate": "text"}
_PARK = f"UPDATE §run r SET parked_on = i.gate FROM {given(_PARK_COLUMNS)} WHERE r.id = i.id"  # noqa: S608
#: now, ids, owner, lease, gates that are locked and how often they are entered
_TAKE = f"""
WITH h AS (
    UPDATE §gate g SET held = g.held + i.times FROM {given(HOLD_COLUMNS, 5)} WHERE g.name = i.name),
u AS (
    UPDATE §run r {_START} owner = $3, lease_until = $4::bigint, started_at = greatest($1::bigint, r.ready_at)
    WHERE r.id = ANY ($2::text[]) RETURNING {run_columns("r")}),
e AS ({_STARTED})
SELECT {run_columns("u")}, b.data FROM u LEFT JOIN §body b ON b.id = u.body
"""  # noqa: S608
_NEXT_READY = f"SELECT $1::bigint AS now, ({_first('$1::bigint')}) AS next_at"


async def claim_here(
    db: Database, session: Session, offer: Offer, limit: int, ids: Sequence[RunId], wall: Ms
) -> Claimed:
    """The same inside a transaction that is open, which sees what it wrote itself."""
    db.reach("claim:begin")
    lanes, tasks, *_ = _args(offer, limit)
    way: Gated = db.gated
    if offer.ahead and limit > 0 and not ids and way != Gated.HARD:
        early = await _early(db, session, offer, limit, wall)
        if early is not None:
            db.reach("claim:after_events")
            return early
        way = Gated.HARD
    while limit > 0 and not ids and way != Gated.HARD:
        about, claims = _read(await session.fetch(_SHORT[way], wall, *_args(offer, limit)))
        if not about["hard"]:
            db.reach("claim:after_events")
            db.remember(claims)
            _ease(db, claims)
            more = about["got"] < min(limit, about["due"])
            return Claimed(wall, claims, wall if more else about["next_at"])
        db.gated = way = Gated(way + 1)
    if limit > 0 and ids:
        rows = await session.fetch(_NAMED, wall, lanes, tasks, list(ids))
    elif limit > 0:
        seen = (wall, lanes, tasks)
        rows = await session.fetch(_CANDIDATES, *seen, 4 * limit, offer.ahead)  # some may not pass: look deeper
        if not rows:
            rows = await session.fetch(_CANDIDATES, *seen, max(DEEPER * limit, DEEPEST), offer.ahead)
    else:
        rows = []
    candidates = [read_run(row) for row in rows]
    chosen, slots, refused = await _through_gates(session, candidates, limit, wall)
    if not ids:
        hard = refused or any(run.crashes for run in candidates)
        db.gated = Gated.HARD if hard else Gated.PASS if any(run.gates for run in candidates) else Gated.NONE
    claims = []
    if chosen:
        ids_taken, gates, times = [run.id for run in chosen], list(slots), list(slots.values())
        records = await session.fetch(_TAKE, wall, ids_taken, plain_text(offer.owner), wall + offer.ttl, gates, times)
        db.reach("claim:after_update")
        claims = sorted((Claim(read_run(record), record["data"]) for record in records), key=_place)
        db.remember(claims)
        db.reach("claim:after_events")
    next_at: Ms | None = (await session.row(_NEXT_READY, wall, lanes, tasks))["next_at"]
    if next_at is not None and next_at <= wall and not rows and not ids and limit > 0:
        next_at = wall + LATER  # others have a hand on all there is
    return Claimed(wall, claims, next_at)


async def _through_gates(
    session: Session, candidates: list[Run], limit: int, wall: Ms
) -> tuple[list[Run], Mapping[str, int], bool]:
    """Who is taken, what that takes of each gate, and whether anybody was refused."""
    names = sorted({name for run in candidates for name in run.gates})
    gates: dict[str, Gate] = {}
    first: dict[str, tuple[int, Ms, str]] = {}
    if names:
        gates = {row["name"]: Gate(*row) for row in await session.fetch(_GATES, names)}
        first = {
            row["name"]: (row["priority"], row["ready_at"], row["id"])
            for row in await session.fetch(_FIRST_PARKED, names)
        }
    verdict = admit(candidates, gates, limit, wall, first)
    if verdict.parked:
        parked = [(run.id, gate) for run, gate in verdict.parked]
        await session.fetch(_PARK, [run_id for run_id, _ in parked], [gate for _, gate in parked])
    return verdict.taken, verdict.slots, bool(verdict.parked)


# ── keeping ─────────────────────────────────────────────────────────────────

_LEASE_COLUMNS = {"id": "text", "epoch": "integer"}
_KEPT = ", ".join(f"k.{name}" if name in ("id", "cancel") else f"NULL::{RUN_COLUMNS[name]}" for name in RUN_FIELDS)
#: now, owner, ttl, ids and epochs in the order of ids → the time, then what is kept, then what was not named.
_RENEW = f"""
WITH t AS MATERIALIZED (SELECT {NOW} AS now),
k AS (
    UPDATE §run r SET lease_until = t.now + $3::bigint FROM t, {given(_LEASE_COLUMNS, 4)}
    WHERE r.id = i.id AND {STILL_RUNNING} AND r.epoch = i.epoch AND r.owner = $2 AND r.lease_until > t.now
    RETURNING r.id, r.cancel)
SELECT 't' AS what, t.now, {_NO_CLAIM} FROM t
UNION ALL
SELECT 'k', NULL, {_KEPT} FROM k
UNION ALL
SELECT 's', NULL, {run_columns("r")} FROM §run r
WHERE r.state = 'running' AND r.owner = $2 AND NOT (r.id = ANY ($4::text[]))
"""  # noqa: S608
_ID, _CANCEL = 2 + RUN_FIELDS.index("id"), 2 + RUN_FIELDS.index("cancel")


async def renew(db: Database, owner: str, leases: Sequence[tuple[RunId, int]], ttl: Ms, now: Ms | None) -> Renewed:
    """Extend leases that still hold; an expired one is lost even if nobody took it yet."""
    db.reach("renew:begin")
    named = dict(sorted(leases))
    async with db.single("renew") as session:
        records = await session.fetch(_RENEW, db.now(now), plain_text(owner), ttl, list(named), list(named.values()))
    wall = next(record["now"] for record in records if record["what"] == "t")
    kept = {record[_ID]: record[_CANCEL] for record in records if record["what"] == "k"}
    strays = [read_run(record[2:]) for record in records if record["what"] == "s"]
    strays.sort(key=lambda run: (run.started_at or 0, run.id))
    cancel = {run_id: reason for run_id, reason in kept.items() if reason is not None}
    return Renewed(wall, frozenset(kept), frozenset(named).difference(kept), cancel, tuple(strays))


async def progress(db: Database, run_id: RunId, epoch: int, text: str) -> bool:
    """Keep a run's progress line, if the lease still holds."""
    async with db.single("progress") as session:
        found = await session.fetch(
            "UPDATE §run SET progress = $3 WHERE id = $1 AND state = 'running' AND epoch = $2 RETURNING id",
            plain_text(run_id),
            epoch,
            plain_text(text),
        )
    return bool(found)
