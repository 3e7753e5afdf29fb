"""Checks of the server: can it be used, are its settings safe, and does it have memory for new work?

Near the server's limit of memory (`maxmemory`), new work is refused, so that work under way can end.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mainspring.backends.remote.failures import ConnectionLost
from mainspring.model.change import Change, RunAbsent, ScheduleAbsent
from mainspring.model.errors import StoreError, StoreFull, StoreNearlyFull, StoreReadOnly, StoreUnavailable

if TYPE_CHECKING:
    from mainspring.backends.redis.database import Database

MIN_REDIS_VERSION = (6, 2)
#: Shares of `maxmemory`. From the first share on, single new runs and new schedules are refused. From the second share
#: on, planned runs, and changes with many new runs, are refused as well. Runs under way may use all memory.
ENQUEUE_MEMORY_RATIO, PLAN_MEMORY_RATIO = 0.90, 0.95
#: Read the memory figures again when they are older than one second.
_MEMORY_INFO_MAX_AGE_SECONDS = 1.0
#: Settings to read by CONFIG GET.
_CONFIG_NAMES = ("save", "appendfsync", "min-replicas-to-write")


def parse_info(answer: bytes) -> dict[str, str]:
    """Return the fields in the server's answer to INFO: field name → value."""
    return dict(re.findall(r"^(\w+):(.*?)\r?$", answer.decode("utf-8", "replace"), re.MULTILINE))


def find_refusal(info: dict[str, str], mode: str, where: str) -> StoreError | None:
    """Return an error if the server cannot be used, or not yet because it is loading its data; None if it can be used.

    It cannot be used if it is of another kind than the URL names, older than MIN_REDIS_VERSION, a read-only replica, or
    set to evict any key at `maxmemory`. `info`: the server's answer to INFO, field → value. `mode`: the kind that the
    URL names, "server", "sentinel" or "cluster". `where`: the server's name in error texts.
    """
    if info.get("loading", "0") != "0":  # while it loads, it answers INFO and nothing else
        return StoreUnavailable(f"{where} is loading its data")
    wrong_kind = _find_wrong_kind(info, mode, where)
    if wrong_kind is not None:
        return wrong_kind
    version = info.get("redis_version", "0")
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < MIN_REDIS_VERSION:
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


def _find_wrong_kind(info: dict[str, str], mode: str, where: str) -> StoreError | None:
    """Return an error if the server is of another kind than the URL names; None if it is of this kind.

    `info`: the server's answer to INFO, field → value. `mode`: the kind that the URL names: "cluster", or "server" or
    "sentinel", which both mean a primary outside a cluster. `where`: the server's name in error texts.
    """
    kind = info.get("redis_mode", info.get("server_mode", "standalone"))
    if kind == "sentinel":
        return StoreError(f"{where} is a Sentinel. Write redis+sentinel://host:26379/service")
    if kind == "cluster" and mode != "cluster":
        return StoreError(f"{where} is a node of a cluster. Write redis+cluster://host:6379")
    if kind != "cluster" and mode == "cluster":
        return StoreError(f"{where} is not a cluster. Write redis://host:6379/0")
    return None


async def find_warnings(db: Database, info: dict[str, str]) -> tuple[str, ...]:
    """Return a sentence, with the fix, for each setting of the server that endangers data; () if there is none.

    `info`: the server's answer to INFO, field → value.
    """
    config = await _read_config(db)
    warnings = []
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        warnings.append(
            f"maxmemory-policy is {policy}, which throws data away when memory is short. "
            "Set maxmemory-policy noeviction"
        )
    if info.get("aof_enabled") != "1":
        if "save" not in config:
            warnings.append(
                "persistence is off, or by snapshots only: a crash of the server loses data. Set appendonly yes"
            )
        elif config["save"] == "":
            warnings.append("persistence is off: a restart of the server loses everything. Set appendonly yes")
        else:
            warnings.append(
                "persistence is by snapshots only: a crash of the server loses what came since the last one. "
                "Set appendonly yes"
            )
    elif config.get("appendfsync") == "no":
        warnings.append("appendfsync is no: a power cut loses up to half a minute. Set appendfsync everysec or always")
    if int(info.get("connected_slaves", 0)) and config.get("min-replicas-to-write") == "0":
        warnings.append(
            "it has replicas and min-replicas-to-write is 0: a primary cut off from them goes on taking writes that "
            "a failover throws away. Set min-replicas-to-write 1"
        )
    return tuple(warnings)


async def _read_config(db: Database) -> dict[str, str]:
    """Return the server's settings named in `_CONFIG_NAMES`: name → value.

    Return {} if the server refuses CONFIG, as managed servers do. Raises: StoreUnavailable, ConnectionLost.
    """
    found: dict[str, str] = {}
    try:
        for name, value in await db.run_commands(*(("CONFIG", "GET", name) for name in _CONFIG_NAMES)):
            found[name.decode()] = value.decode()
    except (StoreUnavailable, ConnectionLost):
        raise
    except (StoreError, ValueError):
        return {}
    return found


class MemoryGuard:
    """Refuses new work when the server's memory is nearly used up, so that work under way can end.

    It keeps the server's last memory figures. A check reads them again when they are older than one second.
    """

    def __init__(self) -> None:
        self._used = 0
        self._max_memory = 0
        self._read_at = float("-inf")

    async def check_room(self, db: Database, changes: Sequence[Change]) -> None:
        """Raise an error if the server lacks memory for a batch of changes.

        The error is StoreNearlyFull from 90 % of `maxmemory` on, if a guard of the batch demands that a run or schedule
        does not exist yet (a single new run, a new schedule). It is StoreFull from 95 % on, if the batch has no such
        guard and inserts runs. All other batches pass, so that work under way can end. Without `maxmemory`, every batch
        passes. The memory figures may be a second old. If they cannot be read, StoreError or ConnectionLost is raised.
        """
        limit = _memory_limit(changes)
        if limit is not None:
            await self._check_ratio(db, limit)

    async def check_room_for_logs(self, db: Database) -> None:
        """Raise StoreNearlyFull from 90 % of `maxmemory` on: the rest is reserved for work under way, not for logs."""
        await self._check_ratio(db, ENQUEUE_MEMORY_RATIO)

    async def _check_ratio(self, db: Database, limit: float) -> None:
        """Raise StoreNearlyFull or StoreFull if the server uses more than this share of `maxmemory`."""
        now = asyncio.get_running_loop().time()
        if now - self._read_at > _MEMORY_INFO_MAX_AGE_SECONDS:
            self._read_at = now
            info = parse_info((await db.run_commands(("INFO", "memory")))[0])
            self._used, self._max_memory = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
        if not self._max_memory or self._used < limit * self._max_memory:
            return
        problem = (
            f"{db.settings.where} uses {self._used / self._max_memory:.0%} of its maxmemory ({self._used >> 20} of "
            f"{self._max_memory >> 20} MiB): runs under way can finish; new runs and schedules are refused. "
            "Raise maxmemory, or keep less history"
        )
        raise StoreNearlyFull(problem) if limit == ENQUEUE_MEMORY_RATIO else StoreFull(problem)


def _memory_limit(changes: Sequence[Change]) -> float | None:
    """Return the share of `maxmemory` from which on a batch is refused; None for a batch without new work.

    It is ENQUEUE_MEMORY_RATIO if a guard of the batch demands that a run or schedule does not exist yet, else
    PLAN_MEMORY_RATIO if a change inserts runs.
    """
    if any(isinstance(change.guard, RunAbsent | ScheduleAbsent) for change in changes):
        return ENQUEUE_MEMORY_RATIO
    if any(change.runs for change in changes):
        return PLAN_MEMORY_RATIO
    return None
