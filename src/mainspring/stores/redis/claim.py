"""Giving runs to workers, and keeping them there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mainspring.model.ids import RunId
from mainspring.model.instant import Ms
from mainspring.ports.store import Claim, Claimed, Offer, Renewed
from mainspring.stores.redis.database import Database
from mainspring.stores.redis.rows import encode, read_run
from mainspring.stores.redis.scripts import load

CLAIM = load("claim", "common", "claiming", "claim")
RENEW = load("renew", "common", "renew")
PROGRESS = load("progress", "common", "progress")


async def claim(db: Database, offer: Offer, limit: int, ids: Sequence[RunId], now: Ms | None) -> Claimed:
    """Due runs in the offered lanes, by priority then time, through their gates."""
    db.reach("claim:begin")
    return read_claimed(await db.write(CLAIM, db.now(now), encode((pack_offer(offer), limit, ids))))


def pack_offer(offer: Offer) -> tuple[Any, ...]:
    """An offer as lua/claiming.lua reads it."""
    return offer.owner, offer.lanes, offer.tasks, offer.ttl, offer.ahead


def read_claimed(answer: list[Any]) -> Claimed:
    """What lua/claiming.lua answers: the time, the next time, then rows and payloads in turn."""
    claims = [
        Claim(read_run(row), None if body is None else body.decode())
        for row, body in zip(answer[2::2], answer[3::2], strict=True)
    ]
    return Claimed(answer[0], claims, answer[1])


async def renew(db: Database, owner: str, leases: Sequence[tuple[RunId, int]], ttl: Ms, now: Ms | None) -> Renewed:
    """Extend leases that still hold; an expired one is lost even if nobody took it yet."""
    db.reach("renew:begin")
    named = dict(leases)
    wanted = encode((owner, ttl, list(named), list(named.values())))
    wall, kept, rows = await db.write(RENEW, db.now(now), wanted)
    keeps = {run_id.decode(): why for run_id, why in zip(kept[::2], kept[1::2], strict=True)}
    cancel = {run_id: why.decode() for run_id, why in keeps.items() if why is not None}
    strays = sorted(map(read_run, rows), key=lambda run: (run.started_at or 0, run.id))
    return Renewed(wall, frozenset(keeps), frozenset(named).difference(keeps), cancel, tuple(strays))


async def progress(db: Database, run_id: RunId, epoch: int, text: str) -> bool:
    """Keep a run's progress line, if the lease still holds."""
    return bool(await db.write(PROGRESS, run_id, epoch, text))
