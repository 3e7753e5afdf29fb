"""Restore."""

from __future__ import annotations
from mainspring.ports.store import Page
from mainspring.stores.redis.database import Database


async def restore(db: Database, page: Page) -> bool:
    raise NotImplementedError
