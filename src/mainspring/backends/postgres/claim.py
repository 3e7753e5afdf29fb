"""The store's method `claim`: give due runs whose gates have room to a worker, and start their leases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mainspring.backends.postgres import claim_sql as sql
from mainspring.backends.postgres.claim_low_water import NO_LOW_WATER
from mainspring.backends.postgres.database import Database, GateMode, Session
from mainspring.backends.postgres.rows import NOW_SQL, RUN_FIELDS, read_run, storable_text
from mainspring.model.gate import Gate, admit
from mainspring.model.ids import RunId
from mainspring.model.instant import Ms
from mainspring.model.run import Run
from mainspring.ports.store import Claim, Claimed, ClaimRequest, Offer

#: If other claimers hold locks on the first due runs, a claim by scans reads SCAN_GROWTH times as many runs, up to
#: MAX_SCAN_DEPTH. A claim by several statements then reads MAX_SCAN_DEPTH runs or more.
SCAN_GROWTH, MAX_SCAN_DEPTH = 8, 5_000
#: Milliseconds after which to claim again when other claimers hold locks on due runs.
RECHECK_MS = 50
#: The statement of a claim in each gate mode; a contended claim takes several statements.
_CLAIM_BY_GATE_MODE = {GateMode.UNGATED: sql.CLAIM, GateMode.OPEN: sql.CLAIM_THROUGH_GATES}
#: In a record of a claim statement: the index of the run's first column, and the index of the payload, which follows
#: the run.
_RUN_START = 6
_RUN_END = _RUN_START + len(RUN_FIELDS)


async def claim(db: Database, offer: Offer, limit: int, ids: Sequence[RunId], now: Ms | None) -> Claimed:
    """Claim at most `limit` due runs of an offer, by priority and time; return them, and when to claim again.

    With `ids`, only runs with these ids may be claimed. With a limit of 0, nothing is claimed, and only the time of the
    next claim is read. A run that a gate refuses is parked at the gate. `now`: the instant of a test, else None.
    """
    if limit <= 0:
        async with db.read_only() as session:
            lanes, tasks, *_ = _claim_parameters(offer, limit)
            row = await session.row(sql.FIND_FIRST_READY, db.now(now), lanes, tasks)
        return Claimed(row["now"], [], row["next_at"])
    if ids:
        return await _claim_named(db, offer, limit, ids, now)
    if db.gate_mode == GateMode.CONTENDED:
        return await claim_contended(db, offer, limit, ids, now)
    if offer.ahead:
        db.reach("claim:begin")
        async with db.single_statement("claim") as session:
            claimed = await _claim_ahead(db, session, offer, limit, db.now(now))
        return claimed if claimed is not None else await claim_contended(db, offer, limit, ids, now)
    return await _claim_by_scans(db, offer, limit, now)


async def _claim_by_scans(db: Database, offer: Offer, limit: int, now: Ms | None) -> Claimed:
    """Claim at most `limit` runs by one statement, or by several if it claims too few. Each commits by itself.

    A statement claims nothing if its gate mode is too low for one of the runs that it finds. The next gate mode is then
    tried. In the mode CONTENDED, `claim_contended` claims, unless a statement has claimed some runs before.

    A statement does not find due runs with a ready time below the low-water marks (the ready times, by priority, from
    which it reads). Nor does it find runs that come after those that other claimers have locked. If it claimed too few,
    the next statement reads from the beginning, or reads more runs. `now`: the instant of a test, else None.
    """
    found: list[Claim] = []
    depth = db.low_water.scan_depth(limit)
    lows = db.low_water.start(offer)
    mode: GateMode = db.gate_mode  # a local copy: concurrent claims change it
    while True:
        db.reach("claim:begin")
        wanted = limit - len(found)
        async with db.single_statement("claim") as session:
            parameters = _claim_parameters(offer, wanted, depth, lows)
            records = await session.fetch(_CLAIM_BY_GATE_MODE[mode], db.now(now), *parameters)
        about, claims = _read_claims(records)
        db.remember_claims(claims)
        db.low_water.observe_claims(lows, about["now"], claims, wanted)
        if about["hard"]:
            db.gate_mode = mode = GateMode(mode + 1)
            if mode != GateMode.CONTENDED:
                continue
            if not found:
                return await claim_contended(db, offer, limit, (), now)
            return Claimed(about["now"], found, about["now"])
        _relax_gate_mode(db, claims)
        found += claims
        contended = about["got"] < min(wanted, about["due"])
        db.low_water.observe_contention(about["now"], contended)
        if lows != NO_LOW_WATER and len(found) < limit:
            lows = NO_LOW_WATER
            continue
        if not contended:
            return Claimed(about["now"], found, about["next_at"])
        # Another claimer holds locks on the first runs. It may stand still, so read behind them, and do not spin.
        if depth >= MAX_SCAN_DEPTH:
            return Claimed(about["now"], found, about["now"] + RECHECK_MS)
        depth = min(SCAN_GROWTH * depth, MAX_SCAN_DEPTH)


async def _claim_ahead(db: Database, session: Session, offer: Offer, limit: int, now: Ms | None) -> Claimed | None:
    """Claim due runs, and runs that become due within `offer.ahead` milliseconds, by one statement.

    Only runs that `can_claim_ahead` allows are claimed before their time. Return None, with nothing claimed, if one of
    the runs crashed before or may have a full gate, or if other claimers hold locks on all of the runs. The caller then
    has to claim by several statements. `now`: the claim's instant; None: the server's time.
    """
    about, claims = _read_claims(
        await session.fetch(sql.CLAIM_AHEAD, now, *_claim_parameters(offer, limit), offer.ahead)
    )
    db.remember_claims(claims)
    if about["hard"]:
        return None
    if about["got"] < min(limit, about["due"]):  # other claimers hold locks on some
        return Claimed(about["now"], claims, about["now"] + RECHECK_MS) if claims else None
    return Claimed(about["now"], claims, about["next_at"])


async def _claim_named(db: Database, offer: Offer, limit: int, ids: Sequence[RunId], now: Ms | None) -> Claimed:
    """Claim at most `limit` of the due runs with these ids; return them, and when to claim again.

    In the gate mode UNGATED, one statement claims, unless it meets a run that has gates or crashed before. In that
    case, and in the other gate modes, `claim_contended` claims. `now`: the instant of a test, else None.
    """
    if db.gate_mode == GateMode.UNGATED:
        db.reach("claim:begin")
        async with db.single_statement("claim") as session:
            parameters = _claim_parameters(offer, limit, limit, list(ids))
            records = await session.fetch(sql.CLAIM_NAMED, db.now(now), *parameters)
        about, claims = _read_claims(records)
        db.remember_claims(claims)
        if not about["hard"]:
            return Claimed(about["now"], claims, about["next_at"])
    return await claim_contended(db, offer, limit, ids, now)


async def claim_with_successes(
    db: Database, claim_request: ClaimRequest, done: list[Any], now: Ms | None
) -> tuple[Ms, list[str] | None, Claimed | None]:
    """Complete runs and claim others in one statement; `done`: the parameters of `complete_runs_ctes`.

    Returns the instant of the statement; the ids of the runs that were completed because their lease held, None if
    there are none; and the claim. The claim is None, with nothing claimed, if one of the runs to claim has gates or
    crashed before. The caller then claims by another statement. `now`: the instant of the statement; None: the server's
    time.
    """
    offer, limit = claim_request.offer, claim_request.limit
    lows = db.low_water.start(offer)
    async with db.single_statement("apply") as session:
        parameters = _claim_parameters(offer, limit, db.low_water.scan_depth(limit), lows)
        records = await session.fetch(sql.COMPLETE_AND_CLAIM, now, *parameters, *done)
    about, claims = _read_claims(records)
    db.remember_claims(claims)
    db.low_water.observe_claims(lows, about["now"], claims, limit)
    if about["hard"]:
        db.gate_mode = GateMode.OPEN
        return about["now"], about["ids"], None
    contended = about["got"] < min(limit, about["due"])
    db.low_water.observe_contention(about["now"], contended)
    more = contended or (lows != NO_LOW_WATER and about["got"] < limit)
    return about["now"], about["ids"], Claimed(about["now"], claims, about["now"] if more else about["next_at"])


async def claim_contended(db: Database, offer: Offer, limit: int, ids: Sequence[RunId], now: Ms | None) -> Claimed:
    """Claim in a transaction of several statements; between them the rule `admit` decides which runs start.

    Only such a claim handles runs at full gates and runs that crashed before. `ids`: the only runs that may be claimed;
    (): any due run. `now`: the instant of a test, else None.
    """
    async with db.transaction("claim") as session:
        wall = await session.value(f"SELECT {NOW_SQL}", db.now(now))
        return await claim_in_transaction(db, session, offer, limit, ids, wall)


async def claim_in_transaction(
    db: Database, session: Session, offer: Offer, limit: int, ids: Sequence[RunId], wall: Ms
) -> Claimed:
    """Claim at most `limit` due runs of an offer inside an open transaction; return them, and when to claim again.

    Runs that the transaction itself wrote can be claimed, too. `ids`: the only runs that may be claimed; (): any due
    run. `wall`: the transaction's instant.
    """
    db.reach("claim:begin")
    if limit > 0 and not ids and db.gate_mode != GateMode.CONTENDED:
        claimed = await _claim_in_statement(db, session, offer, limit, wall)
        if claimed is not None:
            return claimed
    candidates = await _lock_candidates(session, offer, limit, ids, wall)
    chosen, entered, refused = await _admit_through_gates(session, candidates, limit, wall)
    if not ids:
        db.gate_mode = _needed_gate_mode(candidates, refused)
    claims = []
    if chosen:
        ids_taken, gates, times = [run.id for run in chosen], list(entered), list(entered.values())
        parameters = (ids_taken, storable_text(offer.owner), wall + offer.ttl, gates, times)
        records = await session.fetch(sql.START_RUNS, wall, *parameters)
        db.reach("claim:after_update")
        claims = sorted((Claim(read_run(record), record["data"]) for record in records), key=_claim_order)
        db.remember_claims(claims)
        db.reach("claim:after_events")
    lanes, tasks, *_ = _claim_parameters(offer, limit)
    next_at: Ms | None = (await session.row(sql.FIND_FIRST_READY_AT, wall, lanes, tasks))["next_at"]
    if next_at is not None and next_at <= wall and not candidates and not ids and limit > 0:
        next_at = wall + RECHECK_MS  # other claimers hold locks on all due runs
    return Claimed(wall, claims, next_at)


async def _claim_in_statement(db: Database, session: Session, offer: Offer, limit: int, wall: Ms) -> Claimed | None:
    """Claim by one statement inside an open transaction; `wall`: the transaction's instant.

    Return None, with nothing claimed, if one of the runs crashed before or one of their gates may be full, or if other
    claimers hold locks on all runs of a claim ahead. The caller then lets the rule `admit` decide which runs start.
    Unless it claims ahead, this sets `db.gate_mode` to the mode that the runs need.
    """
    if offer.ahead:
        claimed = await _claim_ahead(db, session, offer, limit, wall)
        if claimed is not None:
            db.reach("claim:after_events")
        return claimed
    mode: GateMode = db.gate_mode
    while mode != GateMode.CONTENDED:
        about, claims = _read_claims(
            await session.fetch(_CLAIM_BY_GATE_MODE[mode], wall, *_claim_parameters(offer, limit))
        )
        if not about["hard"]:
            db.reach("claim:after_events")
            db.remember_claims(claims)
            _relax_gate_mode(db, claims)
            contended = about["got"] < min(limit, about["due"])
            return Claimed(wall, claims, wall if contended else about["next_at"])
        db.gate_mode = mode = GateMode(mode + 1)
    return None


async def _lock_candidates(session: Session, offer: Offer, limit: int, ids: Sequence[RunId], wall: Ms) -> list[Run]:
    """Lock and return the runs that a claim may take (its candidates), by priority, ready time and id.

    With `ids`, the candidates are the due runs among them. Otherwise they are due runs, and runs that may be claimed
    ahead and fall due within `offer.ahead` milliseconds. Runs that others have locked are left out. There may be more
    than `limit` candidates, because gates may refuse some; with a limit of 0 there are none. `wall`: the transaction's
    instant.
    """
    if limit <= 0:
        return []
    lanes, tasks, *_ = _claim_parameters(offer, limit)
    if ids:
        rows = await session.fetch(sql.LOCK_NAMED, wall, lanes, tasks, list(ids))
    else:
        rows = await session.fetch(sql.LOCK_CANDIDATES, wall, lanes, tasks, 4 * limit, offer.ahead)
        if not rows:  # other claimers may hold locks on all of the first runs
            depth = max(SCAN_GROWTH * limit, MAX_SCAN_DEPTH)
            rows = await session.fetch(sql.LOCK_CANDIDATES, wall, lanes, tasks, depth, offer.ahead)
    return [read_run(row) for row in rows]


async def _admit_through_gates(
    session: Session, candidates: list[Run], limit: int, wall: Ms
) -> tuple[list[Run], Mapping[str, int], bool]:
    """Decide by the rule `admit` which candidates start, and park those that a gate refuses.

    `wall`: the transaction's instant. Returns the admitted runs; by gate name, how many of them enter the gate; and
    whether a run was parked. The gates stay locked until the transaction ends. The caller starts the runs and enters
    the gates.
    """
    names = sorted({name for run in candidates for name in run.gates})
    gates: dict[str, Gate] = {}
    first: dict[str, tuple[int, Ms, str]] = {}
    if names:
        gates = {row["name"]: Gate(*row) for row in await session.fetch(sql.LOCK_GATES, names)}
        first = {
            row["name"]: (row["priority"], row["ready_at"], row["id"])
            for row in await session.fetch(sql.FIND_FIRST_PARKED, names)
        }
    verdict = admit(candidates, gates, limit, wall, first)
    if verdict.parked:
        parked = [(run.id, gate) for run, gate in verdict.parked]
        await session.fetch(sql.PARK, [run_id for run_id, _ in parked], [gate for _, gate in parked])
    return verdict.taken, verdict.slots, bool(verdict.parked)


def _needed_gate_mode(candidates: list[Run], refused: bool) -> GateMode:
    """Return the gate mode in which the next claim begins, judged by the last claim.

    `candidates`: the runs that the claim could have taken. It is CONTENDED if a gate refused one of them (`refused`) or
    one of them crashed before, else OPEN if one has gates, else UNGATED.
    """
    if refused or any(run.crashes for run in candidates):
        return GateMode.CONTENDED
    return GateMode.OPEN if any(run.gates for run in candidates) else GateMode.UNGATED


def _relax_gate_mode(db: Database, claims: list[Claim]) -> None:
    """Set `db.gate_mode` to UNGATED if the last claim took at least one run (`claims`), and none of them has gates."""
    if claims and not any(claim.run.gates for claim in claims):
        db.gate_mode = GateMode.UNGATED


def _claim_parameters(
    offer: Offer, limit: int, depth: int = 0, lows: Sequence[Ms | RunId] = NO_LOW_WATER
) -> tuple[Any, ...]:
    """Return the parameters $2 to $8 of the claim statements.

    `depth`: how many due runs to read; 0: as many as `limit`. `lows`: for each priority, the ready time from which to
    read; for a claim of named runs, their ids.
    """
    lanes = list(dict.fromkeys(offer.lanes))
    return lanes, list(offer.tasks), limit, storable_text(offer.owner), offer.ttl, depth or limit, lows


def _read_claims(records: list[Any]) -> tuple[Any, list[Claim]]:
    """Return two values from the records of a claim statement: the record about the whole claim, and the claimed runs.

    The record has the columns `now`, `hard`, `got`, `due`, `next_at` and `ids` of `_claim_sql`. The runs are ordered by
    priority, ready time and id.
    """
    about: Any = None
    claims: list[Claim] = []
    for record in records:
        if record[0] is not None:
            about = record
        else:
            claims.append(Claim(read_run(record[_RUN_START:_RUN_END]), record[_RUN_END]))
    claims.sort(key=_claim_order)
    return about, claims


def _claim_order(claim: Claim) -> tuple[int, Ms, str]:
    """Return the sort key of the claim order: priority, ready time, id."""
    run = claim.run
    return run.priority, run.ready_at, run.id
