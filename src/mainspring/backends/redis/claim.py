"""The store's methods for workers: claim runs, renew their leases, store their progress lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mainspring.backends.redis.database import Database
from mainspring.backends.redis.rows import encode, read_run
from mainspring.backends.redis.scripts import load
from mainspring.model.ids import RunId
from mainspring.model.instant import Ms
from mainspring.ports.store import Claim, Claimed, Offer, Renewed

CLAIM = load("claim", "common", "claim_runs", "claim")
RENEW = load("renew", "common", "renew")
PROGRESS = load("progress", "common", "progress")


async def claim(db: Database, offer: Offer, limit: int, ids: Sequence[RunId], now: Ms | None) -> Claimed:
    """Claim at most `limit` due runs of an offer, by priority, then time; return them, and when to claim again.

    With `ids`, only runs with these ids may be claimed. A run whose gate does not admit it is parked instead. With a
    limit of 0, nothing is claimed. `now`: the instant of a test; None: the server's time.
    """
    db.reach("claim:begin")
    return read_claimed(await db.run_write(CLAIM, db.now(now), encode((pack_offer(offer), limit, ids))))


def pack_offer(offer: Offer) -> tuple[Any, ...]:
    """Return the fields of an offer in the order in which lua/claim_runs.lua reads them."""
    return offer.owner, offer.lanes, offer.tasks, offer.ttl, offer.ahead


def read_claimed(answer: list[Any]) -> Claimed:
    """Return the claim in an answer of lua/claim_runs.lua.

    `answer`: the time, the instant at which to claim again or None, then for each claimed run its row and its payload.
    """
    claims = [
        Claim(read_run(row), None if body is None else body.decode())
        for row, body in zip(answer[2::2], answer[3::2], strict=True)
    ]
    return Claimed(answer[0], claims, answer[1])


async def renew(db: Database, owner: str, leases: Sequence[tuple[RunId, int]], ttl: Ms, now: Ms | None) -> Renewed:
    """Renew leases, given as (run id, epoch), of an owner for `ttl` milliseconds; return which are kept and which lost.

    An expired lease is lost, even if its run has not been claimed again. The answer also has the requests to cancel the
    kept runs, and the strays: running runs of the owner that are not in `leases`. `now`: the instant of a test; None:
    the server's time.
    """
    db.reach("renew:begin")
    named = dict(leases)
    request = encode((owner, ttl, list(named), list(named.values())))
    store_now, answers, rows = await db.run_write(RENEW, db.now(now), request)
    kept = {run_id.decode(): reason for run_id, reason in zip(answers[::2], answers[1::2], strict=True)}
    cancel = {run_id: reason.decode() for run_id, reason in kept.items() if reason is not None}
    strays = sorted(map(read_run, rows), key=lambda run: (run.started_at or 0, run.id))
    return Renewed(store_now, frozenset(kept), frozenset(named).difference(kept), cancel, tuple(strays))


async def progress(db: Database, run_id: RunId, epoch: int, text: str) -> bool:
    """Store a run's progress line; return False if the run is not running under the lease `epoch`."""
    return bool(await db.run_write(PROGRESS, run_id, epoch, text))
