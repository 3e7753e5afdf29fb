"""Retention."""

from __future__ import annotations
from mainspring.model.instant import Ms
from mainspring.ports.store import Purged, Retention
from mainspring.stores.redis.database import Database


async def purge(db: Database, policy: Retention, limit: int, now: Ms | None) -> Purged:
    raise NotImplementedError
