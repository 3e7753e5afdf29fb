"""Leases on runs: taking due ones through their gates, keeping them, and un-parking what waits at a gate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from mainspring.model.gate import OWN, Gate, admit, may_be_early
from mainspring.model.ids import RunId
from mainspring.model.instant import Ms
from mainspring.model.run import Run
from mainspring.ports.store import Claim, Claimed, Offer, Renewed
from mainspring.stores.sqlite.database import Database
from mainspring.stores.sqlite.rows import GIVEN, RUN_JSON, item, pack, read_runs, run_json

_CLAIMABLE = "c.state IN ('waiting', 'retrying') AND c.parked_on IS NULL"
_OFFERED = "c.task IN (SELECT value FROM json_each(?2))"
_PRIORITIES = "(SELECT 0 AS p UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3)"

#: lanes, tasks → the first instant at which one of them is or becomes claimable.
_NEXT_READY = f"""
SELECT min((SELECT c.ready_at FROM run c INDEXED BY run_claim
            WHERE {_CLAIMABLE} AND c.lane = l.value AND c.priority = q.p AND {_OFFERED}
            ORDER BY c.ready_at, c.id LIMIT 1))
FROM json_each(?1) l CROSS JOIN {_PRIORITIES} q
"""  # noqa: S608

#: lanes, tasks, now, limit → the head of each lane and priority: one index range each, however long the queue.
_HEADS = f"""
SELECT json_group_array(json(head)) FROM (
    SELECT (SELECT json_group_array(json_array(x.priority, x.ready_at, x.id, x.rid, x.crashes, json(x.gates))) FROM (
                SELECT c.priority, c.ready_at, c.id, c.rid, c.crashes, c.gates FROM run c INDEXED BY run_claim
                WHERE {_CLAIMABLE} AND c.lane = l.value AND c.priority = q.p AND c.ready_at <= ?3 AND {_OFFERED}
                ORDER BY c.ready_at, c.id LIMIT ?4) x) AS head
    FROM json_each(?1) l CROSS JOIN {_PRIORITIES} q)
"""  # noqa: S608

#: lanes, tasks, now, ids → those of the named runs that can be claimed.
_NAMED = f"""
SELECT json_array(json_group_array(json_array(c.priority, c.ready_at, c.id, c.rid, c.crashes, json(c.gates))))
FROM (SELECT DISTINCT value AS id FROM json_each(?4)) i CROSS JOIN run c
WHERE c.id = i.id AND {_CLAIMABLE} AND c.ready_at <= ?3 AND {_OFFERED}
  AND c.lane IN (SELECT value FROM json_each(?1)) AND c.priority BETWEEN 0 AND 3
"""  # noqa: S608

_START = """
UPDATE run SET state = 'running', n = n + 1, epoch = epoch + 1, attempt = attempt + 1,
               owner = ?2, lease_until = ?3, started_at = max(?4, ready_at)
WHERE rid IN (SELECT value FROM json_each(?1))
"""
_STARTED = """
INSERT INTO event (at, ns, schedule_id, rid, n, type, v, epoch, attempt, owner)
SELECT r.started_at, r.ns, r.schedule_id, r.rid, r.n, 'RunStarted', 1, r.epoch, r.attempt, r.owner
FROM json_each(?1) j CROSS JOIN run r WHERE r.rid = j.value
"""
_TAKEN = f"""
SELECT json_group_array({RUN_JSON}) FROM json_each(?1) j CROSS JOIN run r WHERE r.rid = j.value
"""  # noqa: S608
#: What `_START` makes of a row.
_STARTED_AS = run_json(
    state="'running'",
    n="r.n + 1",
    epoch="r.epoch + 1",
    attempt="r.attempt + 1",
    owner="?5",
    lease_until="?6",
    started_at="max(?7, r.ready_at)",
)
_HEAD = f"""
SELECT * FROM (
    SELECT c.rid FROM run c INDEXED BY run_claim
    WHERE {_CLAIMABLE} AND c.lane = ?1 AND c.priority = %s AND c.ready_at <= ?3 AND {_OFFERED}
    ORDER BY c.ready_at, c.id LIMIT ?4)
"""  # noqa: S608
#: lane, tasks, now, limit, owner, lease, wall → the first of a lane in the order of claims, as if they had started.
_FIRST = f"""
SELECT json_group_array({_STARTED_AS}), json_group_array(r.rid)
FROM ({" UNION ALL ".join(_HEAD % priority for priority in range(4))} LIMIT ?4) h CROSS JOIN run r WHERE r.rid = h.rid
"""  # noqa: S608
_BODIES = (
    "SELECT json_group_array(json_array(b.id, b.data)) FROM json_each(?1) j CROSS JOIN body b WHERE b.id = j.value"
)
#: gate names → each that exists, and the place of the first run parked at each.
_GATES = """
SELECT json_group_array(json_array(j.value, g.max, g.held, g.closed_until,
    (SELECT json_array(f.priority, f.ready_at, f.id) FROM run f INDEXED BY run_parked
     WHERE f.parked_on = j.value AND f.parked_on IS NOT NULL ORDER BY f.priority, f.ready_at, f.id LIMIT 1)))
FROM json_each(?1) j LEFT JOIN gate g ON g.name = j.value
"""
#: gate names, now → how many of them let one more run pass at once, with nobody in line before it. A schedule has its
#: own gate as long as it has runs; one that nobody holds lets one pass unless it is known to be shut.
_PASSABLE = f"""
SELECT count(*) FROM json_each(?1) j
WHERE NOT EXISTS (SELECT 1 FROM run f INDEXED BY run_parked WHERE f.parked_on = j.value AND f.parked_on IS NOT NULL)
  AND CASE WHEN j.value >= '{OWN}' AND j.value < '{OWN[:-1]};' AND j.value NOT IN (SELECT h.name FROM gate_held h)
      THEN NOT EXISTS (SELECT 1 FROM gate_limit s INDEXED BY gate_shut
                       WHERE s.name = j.value AND (s.closed_until > 0 OR s.max < 1))
      ELSE EXISTS (SELECT 1 FROM gate_limit g WHERE g.name = j.value AND g.closed_until <= ?2
                   AND g.max > ifnull((SELECT h.held FROM gate_held h WHERE h.name = g.name), 0)) END
"""  # noqa: S608
_HELD_MORE = "ON CONFLICT (name) DO UPDATE SET held = held + excluded.held"
_PASS = f"INSERT INTO gate_held (name, held) SELECT value, 1 FROM json_each(?1) WHERE true {_HELD_MORE}"  # noqa: S608
_PARK = f"{GIVEN} UPDATE run AS r SET parked_on = {item(1)} FROM j WHERE r.rid = {item(0)}"  # noqa: S608
_HOLD = f"{GIVEN} INSERT INTO gate_held (name, held) SELECT {item(0)}, {item(1)} FROM j WHERE true {_HELD_MORE}"  # noqa: S608


#: More than any worker holds.
MOST_CLAIMED = 20_000


class _Candidate(Struct, array_like=True, frozen=True, order=True):
    """A run that could be claimed; in the order of claims."""

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
    """Due runs in the offered lanes, by priority then time, through their gates."""
    wall, lease_now = db.granting(now)
    lanes, tasks = pack(list(dict.fromkeys(offer.lanes))), pack(offer.tasks)
    with db.read():
        next_at = next_ready(db, lanes, tasks)
    if limit <= 0 or next_at is None or next_at > wall + offer.ahead:
        return Claimed(wall, [], next_at)
    with db.write("claim"):
        return claim_here(db, offer, limit, ids, wall, lease_now)


def claim_here(db: Database, offer: Offer, limit: int, ids: Sequence[RunId], wall: Ms, lease_now: Ms) -> Claimed:
    """The same inside a transaction that is open."""
    lanes, tasks = pack(list(dict.fromkeys(offer.lanes))), pack(offer.tasks)
    db.reach("claim:begin")
    named = pack(ids) if ids else None
    claims = None
    if named is None and not db.refused and len(offer.lanes) == 1:
        claims = _claim_plain(db, offer, tasks, limit, wall, lease_now)
    if claims is None:
        claims = _claim_any(db, offer, lanes, tasks, limit, named, wall, lease_now)
    return Claimed(wall, claims, next_ready(db, lanes, tasks))


def next_ready(db: Database, lanes: str, tasks: str) -> Ms | None:
    """When the first of these becomes claimable, or did."""
    found: Ms | None = db.value(_NEXT_READY, lanes, tasks)
    return found


def _claim_plain(db: Database, offer: Offer, tasks: str, limit: int, wall: Ms, lease_now: Ms) -> list[Claim] | None:
    """Runs that nothing keeps back, in one look at each; None if there is another one among them."""
    given = (offer.lanes[0], tasks, wall + offer.ahead, limit, offer.owner, lease_now + offer.ttl, wall)
    text, numbers = db.run(_FIRST, *given).fetchone()
    runs = read_runs(text)
    names: list[str] = []
    for run in runs:
        if run.crashes or not (run.ready_at <= wall or may_be_early(run.gates, 0)):
            return None
        names += run.gates
    if names and not pass_gates(db, names, wall):
        return None
    if runs:
        _start(db, numbers, offer, wall, lease_now)
    return claims_of(db, runs, _numbers.decode(numbers))


def pass_gates(db: Database, names: list[str], wall: Ms) -> bool:
    """Take a slot in each of these gates, if each is named once and lets one pass; else nothing is changed."""
    packed = pack(names)
    if len(set(names)) < len(names) or db.value(_PASSABLE, packed, wall) < len(names):
        return False
    db.run(_PASS, packed)
    return True


def _claim_any(
    db: Database, offer: Offer, lanes: str, tasks: str, limit: int, named: str | None, wall: Ms, lease_now: Ms
) -> list[Claim]:
    found = _candidates(db, lanes, tasks, wall, offer.ahead, limit, named)
    if not found:
        return []
    chosen = found[:limit]
    db.refused = False
    if any(candidate.gates or candidate.crashes for candidate in chosen):
        if len(found) >= limit and named is None:
            found = _candidates(db, lanes, tasks, wall, offer.ahead, 4 * limit, named)
        chosen = _through_gates(db, _considered(found, limit), limit, wall)
    if not chosen:
        return []
    rids = pack([candidate.rid for candidate in chosen])
    _start(db, rids, offer, wall, lease_now)
    return claims_of(db, read_runs(db.value(_TAKEN, rids)), [candidate.rid for candidate in chosen])


def _candidates(
    db: Database, lanes: str, tasks: str, wall: Ms, ahead: Ms, depth: int, named: str | None
) -> list[_Candidate]:
    if named is not None:
        text = db.value(_NAMED, lanes, tasks, wall + ahead, named)
    else:
        text = db.value(_HEADS, lanes, tasks, wall + ahead, depth)
    heads = [head for head in _heads.decode(text) if head]
    if ahead:
        heads = [[c for c in head if c.ready_at <= wall or may_be_early(c.gates, c.crashes)] for head in heads]
    if len(heads) == 1 and named is None:
        return heads[0]
    return sorted(candidate for head in heads for candidate in head)


def _considered(candidates: list[_Candidate], limit: int) -> list[_Candidate]:
    """No further priority once there are 4 × limit."""
    found: list[_Candidate] = []
    for priority in range(4):
        found += [c for c in candidates if c.priority == priority]
        if len(found) >= 4 * limit:
            break
    return found


def _through_gates(db: Database, candidates: list[_Candidate], limit: int, wall: Ms) -> list[_Candidate]:
    names = sorted({name for candidate in candidates for name in candidate.gates or ()})
    gates: dict[str, Gate] = {}
    first: dict[str, tuple[int, Ms, RunId]] = {}
    for name, most, held, closed_until, place in _gate_rows.decode(db.value(_GATES, pack(names))):
        if most is not None:
            gates[name] = Gate(name, most, held or 0, closed_until or 0)
        if place is not None:
            first[name] = place
    by_id = {candidate.id: candidate for candidate in candidates}
    runs = (
        Run(id=c.id, task="", gates=c.gates or (), priority=c.priority, ready_at=c.ready_at, crashes=c.crashes)
        for c in candidates
    )
    verdict = admit(runs, gates, limit, wall, first)
    shared = any(count > 1 for count in verdict.slots.values())
    db.refused = shared or bool(verdict.parked) or any(run.crashes for run in verdict.taken)
    if verdict.parked:
        db.run(_PARK, pack([(by_id[run.id].rid, gate) for run, gate in verdict.parked]))
    if verdict.slots:
        db.run(_HOLD, pack(list(verdict.slots.items())))
    return [by_id[run.id] for run in verdict.taken]


def _start(db: Database, rids: str, offer: Offer, wall: Ms, lease_now: Ms) -> None:
    db.run(_START, rids, offer.owner, lease_now + offer.ttl, wall)
    write_started(db, rids)


def write_started(db: Database, rids: str) -> None:
    """The event of each run that was started."""
    db.reach("claim:after_update")
    db.run(_STARTED, rids)
    db.reach("claim:after_events")


def claims_of(db: Database, runs: list[Run], rids: list[int]) -> list[Claim]:
    """Runs that were started, with their bodies; the store remembers where their rows are."""
    if len(db.claimed) > MOST_CLAIMED:  # of leases that were lost
        db.claimed.clear()
    db.claimed.update((run.id, (rid, run)) for run, rid in zip(runs, rids, strict=True))
    wanted = {run.body for run in runs if run.body is not None}
    if not wanted:
        return [Claim(run, None) for run in runs]
    bodies = dict(_body_rows.decode(db.value(_BODIES, pack(list(wanted)))))
    return [Claim(run, bodies.get(run.body) if run.body is not None else None) for run in runs]


# ── keeping ─────────────────────────────────────────────────────────────────

#: [run, epoch] pairs, owner, now → which still hold, and which of them are asked to stop.
_KEPT = f"""
{GIVEN}
SELECT json_group_array(json_array(r.id, r.cancel, r.rid)) FROM j CROSS JOIN run r
WHERE r.id = {item(0)} AND r.state = 'running' AND r.epoch = {item(1)} AND r.owner = ?2
  AND ifnull(r.lease_until, 0) > ?3
"""  # noqa: S608
_EXTEND = "UPDATE run SET lease_until = ?2 WHERE rid IN (SELECT value FROM json_each(?1))"
_STRAYS = f"""
SELECT json_group_array({RUN_JSON}) FROM (
    SELECT * FROM run o INDEXED BY run_lease
    WHERE o.state = 'running' AND o.owner = ?1 AND o.id NOT IN (SELECT value FROM json_each(?2))
    ORDER BY o.started_at, o.rid) r
"""  # noqa: S608
_kept_rows = msgspec.json.Decoder(list[tuple[str, str | None, int]])


def renew(db: Database, owner: str, leases: Sequence[tuple[RunId, int]], ttl: Ms, now: Ms | None) -> Renewed:
    """Extend leases that still hold; an expired one is lost even if nobody took it yet."""
    wall, lease_now = db.clocks(now)
    db.reach("renew:begin")
    named = [rid for rid, _ in leases]
    kept: list[tuple[str, str | None, int]] = []
    if leases:
        with db.write("renew"):
            kept = _kept_rows.decode(db.value(_KEPT, pack(leases), owner, lease_now))
            if kept:
                db.run(_EXTEND, pack([row[2] for row in kept]), db.granting(now)[1] + ttl)
            strays = read_runs(db.value(_STRAYS, owner, pack(named)))
    else:
        with db.read():
            strays = read_runs(db.value(_STRAYS, owner, "[]"))
    holding = frozenset(row[0] for row in kept)
    cancel = {row[0]: row[1] for row in kept if row[1] is not None}
    return Renewed(wall, holding, frozenset(named) - holding, cancel, tuple(strays))


def progress(db: Database, run_id: RunId, epoch: int, text: str) -> bool:
    """Keep a run's progress line, if the lease still holds."""
    with db.read():
        changed = db.run(
            "UPDATE run SET progress = ?3 WHERE id = ?1 AND state = 'running' AND epoch = ?2", run_id, epoch, text
        ).rowcount
    return changed == 1


# ── un-parking ──────────────────────────────────────────────────────────────

#: limit → the gates that runs wait at (found by skipping through the index), and how many wait, counted up to limit.
_WAITED_AT = """
WITH RECURSIVE waited(name) AS (
    SELECT min(parked_on) FROM run WHERE parked_on IS NOT NULL
    UNION ALL
    SELECT (SELECT min(parked_on) FROM run WHERE parked_on > waited.name AND parked_on IS NOT NULL)
    FROM waited WHERE waited.name IS NOT NULL)
SELECT json_group_array(json_array(w.name,
    (SELECT count(*) FROM (SELECT 1 FROM run p WHERE p.parked_on = w.name AND p.parked_on IS NOT NULL LIMIT ?1)),
    g.max, g.held, g.closed_until))
FROM waited w LEFT JOIN gate g ON g.name = w.name WHERE w.name IS NOT NULL
"""

#: [gate, count] pairs, the greatest count: lets the first `count` of each gate go, in the order of claims.
_UNPARK = f"""
{GIVEN}
UPDATE run SET parked_on = NULL WHERE rid IN (
    SELECT x.value FROM (
        SELECT {item(1)} AS room, (
            SELECT json_group_array(h.rid) FROM (
                SELECT p.rid FROM run p INDEXED BY run_parked
                WHERE p.parked_on = {item(0)} AND p.parked_on IS NOT NULL
                ORDER BY p.priority, p.ready_at, p.id LIMIT ?2) h) AS head
        FROM j) q CROSS JOIN json_each(q.head) x
    WHERE x.key < q.room)
"""  # noqa: S608
_waited_rows = msgspec.json.Decoder(list[tuple[str, int, int | None, int | None, int | None]])


def unpark(db: Database, limit: int, wall: Ms) -> int:
    """Put parked runs whose gate has room back among the claimable ones."""
    with db.read():
        going = _going(db.value(_WAITED_AT, limit), limit, wall)
    if not going:
        return 0
    with db.write("due"):
        going = _going(db.value(_WAITED_AT, limit), limit, wall)
        if going:
            db.run(_UNPARK, pack(going), max(count for _, count in going))
    return sum(count for _, count in going)


def _going(text: str, limit: int, wall: Ms) -> list[tuple[str, int]]:
    going: list[tuple[str, int]] = []
    left = limit
    for name, waiting, *row in _waited_rows.decode(text):
        count = min(waiting, _room(name, row, limit, wall), left)
        if count > 0:
            going.append((name, count))
            left -= count
    return going


def _room(name: str, row: Iterable[Any], limit: int, wall: Ms) -> int:
    most, held, closed_until = row
    return limit if most is None else Gate(name, most, held, closed_until).room(wall)
