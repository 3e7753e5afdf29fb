"""What the server must be, what it should be, and how much of its memory is left."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mainspring.model.change import Change, RunAbsent, ScheduleAbsent
from mainspring.model.errors import StoreError, StoreFull, StoreNearlyFull, StoreReadOnly, StoreUnavailable
from mainspring.stores.redis.errors import Broken

if TYPE_CHECKING:
    from mainspring.stores.redis.database import Database

OLDEST = (6, 2)
#: Of `maxmemory`: from here on nobody enqueues; from there on nobody plans. What runs may end in the rest.
ENQUEUE, PLAN = 0.90, 0.95
#: How old, in seconds, what we know about the memory may be.
_FRESH = 1.0
_CONFIG = ("save", "appendfsync", "min-replicas-to-write")


def parsed(told: bytes) -> dict[str, str]:
    """INFO as pairs."""
    return dict(re.findall(r"^(\w+):(.*?)\r?$", told.decode("utf-8", "replace"), re.MULTILINE))


def refuse(info: dict[str, str], mode: str, where: str) -> StoreError | None:
    """Why this server cannot be used at all, or not yet."""
    if info.get("loading", "0") != "0":  # it answers this one question meanwhile, and no other
        return StoreUnavailable(f"{where} is loading its data")
    kind = info.get("redis_mode", info.get("server_mode", "standalone"))
    if kind == "sentinel":
        return StoreError(f"{where} is a Sentinel. Write redis+sentinel://host:26379/service")
    if kind == "cluster" and mode != "cluster":
        return StoreError(f"{where} is a node of a cluster. Write redis+cluster://host:6379")
    if kind != "cluster" and mode == "cluster":
        return StoreError(f"{where} is not a cluster. Write redis://host:6379/0")
    version = info.get("redis_version", "0")
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST:
        return StoreError(f"{where} is version {version}; Mainspring needs Redis 6.2 or newer, or Valkey 7.2 or newer")
    if info.get("role") == "slave":
        return StoreReadOnly(
            f"{where} is a read-only replica of {info.get('master_host')}:{info.get('master_port')}. "
            "Give the primary's address, or a Sentinel's"
        )
    policy = info.get("maxmemory_policy", "noeviction")
    if int(info.get("maxmemory", 0)) and policy.startswith("allkeys"):
        return StoreError(
            f"{where} evicts with maxmemory-policy {policy}: at maxmemory it would throw away runs and schedules. "
            "Set it on the server: CONFIG SET maxmemory-policy noeviction, and the same in its configuration file"
        )
    return None


async def look(db: Database, info: dict[str, str]) -> tuple[str, ...]:
    """What works, but not as well as it should: a sentence each, with the fix."""
    config = await _config(db)
    said = []
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        said.append(
            f"maxmemory-policy is {policy}, which throws data away when memory is short. "
            "Set maxmemory-policy noeviction"
        )
    if info.get("aof_enabled") != "1":
        if "save" not in config:
            said.append(
                "persistence is off, or by snapshots only: a crash of the server loses data. Set appendonly yes"
            )
        elif config["save"] == "":
            said.append("persistence is off: a restart of the server loses everything. Set appendonly yes")
        else:
            said.append(
                "persistence is by snapshots only: a crash of the server loses what came since the last one. "
                "Set appendonly yes"
            )
    elif config.get("appendfsync") == "no":
        said.append("appendfsync is no: a power cut loses up to half a minute. Set appendfsync everysec or always")
    if int(info.get("connected_slaves", 0)) and config.get("min-replicas-to-write") == "0":
        said.append(
            "it has replicas and min-replicas-to-write is 0: a primary cut off from them goes on taking writes that "
            "a failover throws away. Set min-replicas-to-write 1"
        )
    return tuple(said)


async def _config(db: Database) -> dict[str, str]:
    """Settings INFO does not tell; empty where the server keeps them to itself, as managed ones do."""
    found: dict[str, str] = {}
    try:
        for name, value in await db.read(*(("CONFIG", "GET", name) for name in _CONFIG)):
            found[name.decode()] = value.decode()
    except (StoreUnavailable, Broken):
        raise
    except (StoreError, ValueError):
        return {}
    return found


class Memory:
    """Keeps the last tenth of the server's memory for what is under way."""

    def __init__(self) -> None:
        self._used = 0
        self._most = 0
        self._asked = float("-inf")

    async def admit(self, db: Database, changes: Sequence[Change]) -> None:
        """`StoreNearlyFull` for what would be new work, when little is left; everything else goes on."""
        new = any(isinstance(change.guard, RunAbsent | ScheduleAbsent) for change in changes)
        plan = not new and any(change.runs for change in changes)
        if not new and not plan:
            return
        now = asyncio.get_running_loop().time()
        if now - self._asked > _FRESH:
            self._asked = now
            info = parsed((await db.read(("INFO", "memory")))[0])
            self._used, self._most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
        if not self._most or self._used < (ENQUEUE if new else PLAN) * self._most:
            return
        told = (
            f"{db.settings.where} uses {self._used / self._most:.0%} of its maxmemory ({self._used >> 20} of "
            f"{self._most >> 20} MiB): what runs may end, nothing new is taken. Raise maxmemory, or keep less history"
        )
        raise StoreNearlyFull(told) if new else StoreFull(told)
