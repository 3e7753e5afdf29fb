"""The store's `claim`: lease due runs that pass their gates.

There are two algorithms with one result. `_claim_uncontended` takes the first runs of a lane with few statements, but
only if all of them pass their gates. Otherwise `_claim_contended` tests run by run, and parks runs at full gates.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from mainspring.backends.sqlite.database import Database
from mainspring.backends.sqlite.rows import RUN_JSON, WITH_ROWS, item, pack, read_runs, run_json
from mainspring.model.gate import SCHEDULE_GATE_PREFIX, Gate, admit, can_claim_ahead
from mainspring.model.ids import RunId
from mainspring.model.instant import Ms
from mainspring.model.run import Run
from mainspring.ports.store import Claim, Claimed, Offer

_IS_CLAIMABLE_SQL = "c.state IN ('waiting', 'retrying') AND c.parked_on IS NULL"
_OFFERED = "c.task IN (SELECT value FROM json_each(?2))"
_PRIORITIES = "(SELECT 0 AS p UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3)"

#: Parameters: lanes, tasks. Returns the first instant at which a run of theirs is or becomes claimable.
_NEXT_READY = f"""
SELECT min((SELECT c.ready_at FROM run c INDEXED BY run_claim
            WHERE {_IS_CLAIMABLE_SQL} AND c.lane = l.value AND c.priority = q.p AND {_OFFERED}
            ORDER BY c.ready_at, c.id LIMIT 1))
FROM json_each(?1) l CROSS JOIN {_PRIORITIES} q
"""  # noqa: S608

#: Parameters: lanes, tasks, until when due, limit. Returns, for each lane and priority, the first due runs as rows of
#: `_Candidate`. Each list is read from one index range, so the number of waiting runs does not matter.
_HEADS = f"""
SELECT json_group_array(json(head)) FROM (
    SELECT (SELECT json_group_array(json_array(x.priority, x.ready_at, x.id, x.rid, x.crashes, json(x.gates))) FROM (
                SELECT c.priority, c.ready_at, c.id, c.rid, c.crashes, c.gates FROM run c INDEXED BY run_claim
                WHERE {_IS_CLAIMABLE_SQL} AND c.lane = l.value AND c.priority = q.p AND c.ready_at <= ?3 AND {_OFFERED}
                ORDER BY c.ready_at, c.id LIMIT ?4) x) AS head
    FROM json_each(?1) l CROSS JOIN {_PRIORITIES} q)
"""  # noqa: S608

#: Parameters: lanes, tasks, until when due, run ids. Returns those of the named runs that can be claimed.
_NAMED = f"""
SELECT json_array(json_group_array(json_array(c.priority, c.ready_at, c.id, c.rid, c.crashes, json(c.gates))))
FROM (SELECT DISTINCT value AS id FROM json_each(?4)) i CROSS JOIN run c
WHERE c.id = i.id AND {_IS_CLAIMABLE_SQL} AND c.ready_at <= ?3 AND {_OFFERED}
  AND c.lane IN (SELECT value FROM json_each(?1)) AND c.priority BETWEEN 0 AND 3
"""  # noqa: S608

#: Parameters: row numbers, owner, end of the lease, now. A run claimed ahead of its time starts at that time.
_START = """
UPDATE run SET state = 'running', n = n + 1, epoch = epoch + 1, attempt = attempt + 1,
               owner = ?2, lease_until = ?3, started_at = max(?4, ready_at)
WHERE rid IN (SELECT value FROM json_each(?1))
"""
#: Parameter: row numbers.
_INSERT_STARTED_EVENTS = """
INSERT INTO event (at, ns, schedule_id, rid, n, type, v, epoch, attempt, owner)
SELECT r.started_at, r.ns, r.schedule_id, r.rid, r.n, 'RunStarted', 1, r.epoch, r.attempt, r.owner
FROM json_each(?1) j CROSS JOIN run r WHERE r.rid = j.value
"""
_RUNS_BY_ROW = f"""
SELECT json_group_array({RUN_JSON}) FROM json_each(?1) j CROSS JOIN run r WHERE r.rid = j.value
"""  # noqa: S608
#: A run of alias `r` as `_START` will write it; parameters as in `_FIRST_STARTED`.
_STARTED_RUN_JSON = run_json(
    state="'running'",
    n="r.n + 1",
    epoch="r.epoch + 1",
    attempt="r.attempt + 1",
    owner="?5",
    lease_until="?6",
    started_at="max(?7, r.ready_at)",
)
#: The part of `_FIRST_STARTED` for one priority, which takes the place of `%s`.
_HEAD_OF_PRIORITY = f"""
SELECT * FROM (
    SELECT c.rid FROM run c INDEXED BY run_claim
    WHERE {_IS_CLAIMABLE_SQL} AND c.lane = ?1 AND c.priority = %s AND c.ready_at <= ?3 AND {_OFFERED}
    ORDER BY c.ready_at, c.id LIMIT ?4)
"""  # noqa: S608
#: Parameters: lane, tasks, until when due, limit, owner, end of the lease, now. Returns the first runs of the lane in
#: the order of claims, as `_START` will write them, and their row numbers.
_FIRST_STARTED = f"""
SELECT json_group_array({_STARTED_RUN_JSON}), json_group_array(r.rid)
FROM ({" UNION ALL ".join(_HEAD_OF_PRIORITY % priority for priority in range(4))} LIMIT ?4) h
CROSS JOIN run r WHERE r.rid = h.rid
"""  # noqa: S608
#: Parameter: payload ids. Returns [id, data] of each.
_BODIES = (
    "SELECT json_group_array(json_array(b.id, b.data)) FROM json_each(?1) j CROSS JOIN body b WHERE b.id = j.value"
)
#: Parameter: gate names. Returns [name, max, held, closed_until, [priority, ready_at, id] of the first run parked there
#: or NULL] for each gate.
_GATES = """
SELECT json_group_array(json_array(j.value, g.max, g.held, g.closed_until,
    (SELECT json_array(f.priority, f.ready_at, f.id) FROM run f INDEXED BY run_parked
     WHERE f.parked_on = j.value AND f.parked_on IS NOT NULL ORDER BY f.priority, f.ready_at, f.id LIMIT 1)))
FROM json_each(?1) j LEFT JOIN gate g ON g.name = j.value
"""
#: Parameters: gate names, now. Returns how many of the gates have room for one more run and no run parked at them. For
#: a schedule's own gate that no run holds, the limit is not read: it has room unless the index of shut gates names it.
_COUNT_PASSABLE = f"""
SELECT count(*) FROM json_each(?1) j
WHERE NOT EXISTS (SELECT 1 FROM run f INDEXED BY run_parked WHERE f.parked_on = j.value AND f.parked_on IS NOT NULL)
  AND CASE WHEN j.value >= '{SCHEDULE_GATE_PREFIX}' AND j.value < '{SCHEDULE_GATE_PREFIX[:-1]};'
            AND j.value NOT IN (SELECT h.name FROM gate_held h)
      THEN NOT EXISTS (SELECT 1 FROM gate_limit s INDEXED BY gate_shut
                       WHERE s.name = j.value AND (s.closed_until > 0 OR s.max < 1))
      ELSE EXISTS (SELECT 1 FROM gate_limit g WHERE g.name = j.value AND g.closed_until <= ?2
                   AND g.max > ifnull((SELECT h.held FROM gate_held h WHERE h.name = g.name), 0)) END
"""  # noqa: S608
_ADD_HELD = "ON CONFLICT (name) DO UPDATE SET held = held + excluded.held"
#: Parameter: gate names, each of which gets one more holder.
_HOLD_ONCE = f"INSERT INTO gate_held (name, held) SELECT value, 1 FROM json_each(?1) WHERE true {_ADD_HELD}"  # noqa: S608
#: Rows: [gate, further holders].
_HOLD = f"{WITH_ROWS} INSERT INTO gate_held (name, held) SELECT {item(0)}, {item(1)} FROM j WHERE true {_ADD_HELD}"  # noqa: S608
#: Rows: [row number, gate].
_PARK = f"{WITH_ROWS} UPDATE run AS r SET parked_on = {item(1)} FROM j WHERE r.rid = {item(0)}"  # noqa: S608

#: `Database.claimed_runs` is emptied when it has more entries: far more than the runs that a worker holds at once.
MAX_REMEMBERED_CLAIMS = 20_000


class _Candidate(Struct, array_like=True, frozen=True, order=True):
    """A run that may be claimed, with the values that gates need. Sorted, candidates are in the order of claims.

    That order is: priority, then due time, then id, that is, age.
    """

    priority: int
    ready_at: Ms
    id: RunId
    rid: int
    crashes: int
    gates: tuple[str, ...] | None


_heads = msgspec.json.Decoder(list[list[_Candidate]])
_gate_rows = msgspec.json.Decoder(list[tuple[str, int | None, int | None, Ms | None, tuple[int, Ms, RunId] | None]])
_body_rows = msgspec.json.Decoder(list[tuple[str, str]])
_numbers = msgspec.json.Decoder(list[int])


def claim(db: Database, offer: Offer, limit: int, ids: Sequence[RunId], now: Ms | None) -> Claimed:
    """Lease up to `limit` due runs that the offer covers and that pass their gates, by priority, then by time.

    Return their claims, and when the next run becomes claimable. A run that a gate refuses is parked. If no run is due
    or `limit` is 0, begin no transaction. `ids`: consider only these runs; empty: all. `now`: the time to use, for
    tests; None: what the clock shows.
    """
    wall, lease_now = db.lease_clocks(now)
    lanes, tasks = pack(list(dict.fromkeys(offer.lanes))), pack(offer.tasks)
    with db.read():
        next_at = next_ready(db, lanes, tasks)
    if limit <= 0 or next_at is None or next_at > wall + offer.ahead:
        return Claimed(wall, [], next_at)
    with db.write("claim"):
        return claim_in_transaction(db, offer, limit, ids, wall, lease_now)


def claim_in_transaction(
    db: Database, offer: Offer, limit: int, ids: Sequence[RunId], wall: Ms, lease_now: Ms
) -> Claimed:
    """Lease up to `limit` due runs inside a write transaction that the caller has begun. Otherwise like `claim`.

    `ids`: consider only these runs; empty: all. `wall`: the present time. `lease_now`: the present time by the clock of
    leases. Return the claims, and when the next run becomes claimable.
    """
    lanes, tasks = pack(list(dict.fromkeys(offer.lanes))), pack(offer.tasks)
    db.reach("claim:begin")
    named = pack(ids) if ids else None
    claims = None
    if named is None and not db.gates_refused and len(offer.lanes) == 1:
        claims = _claim_uncontended(db, offer, tasks, limit, wall, lease_now)
    if claims is None:
        claims = _claim_contended(db, offer, lanes, tasks, limit, named, wall, lease_now)
    return Claimed(wall, claims, next_ready(db, lanes, tasks))


def next_ready(db: Database, lanes: str, tasks: str) -> Ms | None:
    """Return when the first run of these lanes and tasks becomes claimable; None: there is no such run.

    It is a past instant if a run is due already. `lanes` and `tasks`: JSON lists.
    """
    found: Ms | None = db.value(_NEXT_READY, lanes, tasks)
    return found


def _claim_uncontended(
    db: Database, offer: Offer, tasks: str, limit: int, wall: Ms, lease_now: Ms
) -> list[Claim] | None:
    """Lease the first runs of the offer's only lane, if all of them pass their gates, and return their claims.

    Otherwise change nothing and return None. Also return None if one of these runs crashed before, because such a run
    is claimed alone, or if one is not due yet and must not be claimed ahead. `tasks`: the offer's, as a JSON list.
    `wall`: the present time. `lease_now`: the present time by the clock of leases.
    """
    given = (offer.lanes[0], tasks, wall + offer.ahead, limit, offer.owner, lease_now + offer.ttl, wall)
    text, numbers = db.run(_FIRST_STARTED, *given).fetchone()
    runs = read_runs(text)
    names: list[str] = []
    for run in runs:
        if run.crashes or not (run.ready_at <= wall or can_claim_ahead(run.gates, 0)):
            return None
        names += run.gates
    if names and not enter_gates(db, names, wall):
        return None
    if runs:
        _start(db, numbers, offer, wall, lease_now)
    return make_claims(db, runs, _numbers.decode(numbers))


def enter_gates(db: Database, names: list[str], wall: Ms) -> bool:
    """Take one slot of each gate in `names` and return True, if every gate has a slot for a new run.

    Else change nothing and return False. Also do so if a gate is named twice, or if runs are parked at one of the
    gates, because parked runs come first. `wall`: the present time.
    """
    packed = pack(names)
    if len(set(names)) < len(names) or db.value(_COUNT_PASSABLE, packed, wall) < len(names):
        return False
    db.run(_HOLD_ONCE, packed)
    return True


def _claim_contended(
    db: Database, offer: Offer, lanes: str, tasks: str, limit: int, named: str | None, wall: Ms, lease_now: Ms
) -> list[Claim]:
    """Lease up to `limit` due runs that pass their gates and return their claims; park runs that a gate refuses.

    `lanes` and `tasks`: the offer's, as JSON lists. `named`: a JSON list of run ids, to consider only those of them
    that the offer covers; None: consider all runs. If one of the first `limit` runs has gates or crashed before, up to
    four times as many runs of each lane and priority are read. If a run is due, `db.gates_refused` becomes True if the
    next claim should not try `_claim_uncontended`, else False. `wall`: the present time. `lease_now`: the present time
    by the clock of leases.
    """
    found = _candidates(db, lanes, tasks, wall, offer.ahead, limit, named)
    if not found:
        return []
    chosen = found[:limit]
    db.gates_refused = False
    if any(candidate.gates or candidate.crashes for candidate in chosen):
        if len(found) >= limit and named is None:
            found = _candidates(db, lanes, tasks, wall, offer.ahead, 4 * limit, named)
        chosen = _admit(db, _cut_priorities(found, limit), limit, wall)
    if not chosen:
        return []
    rids = pack([candidate.rid for candidate in chosen])
    _start(db, rids, offer, wall, lease_now)
    return make_claims(db, read_runs(db.value(_RUNS_BY_ROW, rids)), [candidate.rid for candidate in chosen])


def _candidates(
    db: Database, lanes: str, tasks: str, wall: Ms, ahead: Ms, depth: int, named: str | None
) -> list[_Candidate]:
    """Return due runs in the order of claims: those in `named`; if it is None, the first `depth` per lane and priority.

    Runs that fall due within `ahead` ms are among them if they may be claimed ahead. `lanes` and `tasks`: only runs of
    these, as JSON lists. `named`: a JSON list of run ids. `wall`: the present time.
    """
    if named is not None:
        text = db.value(_NAMED, lanes, tasks, wall + ahead, named)
    else:
        text = db.value(_HEADS, lanes, tasks, wall + ahead, depth)
    heads = [head for head in _heads.decode(text) if head]
    if ahead:
        heads = [[c for c in head if c.ready_at <= wall or can_claim_ahead(c.gates, c.crashes)] for head in heads]
    if len(heads) == 1 and named is None:
        return heads[0]
    return sorted(candidate for head in heads for candidate in head)


def _cut_priorities(candidates: list[_Candidate], limit: int) -> list[_Candidate]:
    """Return all candidates of the most urgent priority, then of the next ones until there are `4 * limit` or more.

    Candidates of the remaining priorities are left out, so that the number of runs to test against gates stays small.
    """
    found: list[_Candidate] = []
    for priority in range(4):
        found += [c for c in candidates if c.priority == priority]
        if len(found) >= 4 * limit:
            break
    return found


def _admit(db: Database, candidates: list[_Candidate], limit: int, wall: Ms) -> list[_Candidate]:
    """Return up to `limit` candidates that pass their gates, and take their slots; park the runs that a gate refuses.

    The rules are those of `model.gate.admit`. `db.gates_refused` becomes True if a run was parked, if several of the
    returned runs share a gate, or if one of them crashed before; else False. `wall`: the present time.
    """
    gates, first = _read_gates(db, candidates)
    runs = (
        Run(id=c.id, task="", gates=c.gates or (), priority=c.priority, ready_at=c.ready_at, crashes=c.crashes)
        for c in candidates
    )
    verdict = admit(runs, gates, limit, wall, first)
    is_shared = any(count > 1 for count in verdict.slots.values())
    db.gates_refused = is_shared or bool(verdict.parked) or any(run.crashes for run in verdict.taken)
    by_id = {candidate.id: candidate for candidate in candidates}
    if verdict.parked:
        db.run(_PARK, pack([(by_id[run.id].rid, gate) for run, gate in verdict.parked]))
    if verdict.slots:
        db.run(_HOLD, pack(list(verdict.slots.items())))
    return [by_id[run.id] for run in verdict.taken]


def _read_gates(db: Database, candidates: list[_Candidate]) -> tuple[dict[str, Gate], dict[str, tuple[int, Ms, RunId]]]:
    """Return gate name → gate, and gate name → (priority, ready_at, id) of the first run that is parked at the gate.

    Only gates of the candidates are included.
    """
    names = sorted({name for candidate in candidates for name in candidate.gates or ()})
    gates: dict[str, Gate] = {}
    first: dict[str, tuple[int, Ms, RunId]] = {}
    for name, most, held, closed_until, place in _gate_rows.decode(db.value(_GATES, pack(names))):
        if most is not None:
            gates[name] = Gate(name, most, held or 0, closed_until or 0)
        if place is not None:
            first[name] = place
    return gates, first


def _start(db: Database, rids: str, offer: Offer, wall: Ms, lease_now: Ms) -> None:
    """Write runs as running under a new lease, and append their RunStarted events. `rids`: row numbers, a JSON list.

    `wall`: the present time. `lease_now`: the present time by the clock of leases.
    """
    db.run(_START, rids, offer.owner, lease_now + offer.ttl, wall)
    append_started(db, rids)


def append_started(db: Database, rids: str) -> None:
    """Append a RunStarted event for each run whose row number is in the JSON list `rids`."""
    db.reach("claim:after_update")
    db.run(_INSERT_STARTED_EVENTS, rids)
    db.reach("claim:after_events")


def make_claims(db: Database, runs: list[Run], rids: list[int]) -> list[Claim]:
    """Return the claims of started runs, each with its payload; `rids`: their row numbers, in the order of `runs`.

    Runs and row numbers are kept in `db.claimed_runs` for `complete_runs`, the fast path for successes. If there are
    more than `MAX_REMEMBERED_CLAIMS`, older ones are forgotten; their successes are then written by general statements.
    """
    if len(db.claimed_runs) > MAX_REMEMBERED_CLAIMS:  # left over from leases that were lost
        db.claimed_runs.clear()
    db.claimed_runs.update((run.id, (rid, run)) for run, rid in zip(runs, rids, strict=True))
    wanted = {run.body for run in runs if run.body is not None}
    if not wanted:
        return [Claim(run, None) for run in runs]
    bodies = dict(_body_rows.decode(db.value(_BODIES, pack(list(wanted)))))
    return [Claim(run, bodies.get(run.body) if run.body is not None else None) for run in runs]
