"""The memory store: dictionaries under the port's rules, the reference for every other store."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from mainspring.backends.memory.apply import MemoryApply
from mainspring.backends.memory.due import MemoryDue
from mainspring.backends.memory.find import MemoryFind
from mainspring.backends.memory.purge import MemoryPurge
from mainspring.model.instant import Ms
from mainspring.model.keyvalue import KeyValue
from mainspring.model.lease import Lease
from mainspring.model.run_log import LogEntry
from mainspring.ports.store import Capabilities
from mainspring.rules.retention import is_keyvalue_expired
from mainspring.rules.run_logs import MAX_REMOVED_LOGS, LogSize, admit_lines, logs_to_remove


class MemoryStore(MemoryApply, MemoryDue, MemoryFind, MemoryPurge):
    """A store whose data is lost with the object. For tests, and for programs that need no durable state."""

    capabilities = Capabilities(durable=False, multi_process=False, logs_limit=64 << 20)

    async def open(self) -> None:
        """Do nothing: there is nothing to prepare."""

    async def close(self) -> None:
        """Wake the callers of `wait`; the data stays with the object."""
        self._hints.notify()

    async def wait(self, timeout: float) -> bool:
        return await self._hints.wait(timeout)

    # ── run logs ───────────────────────────────────────────────────────────

    async def append_log(self, entries: Sequence[LogEntry], limit: int) -> None:
        known = {run_id for entry in entries if (run_id := entry.run_id) in self._runs}
        stored, grown = admit_lines(entries, {run_id: self._log_sizes.get(run_id, LogSize()) for run_id in known})
        if not stored:
            return
        for entry in stored:
            self._last_line += 1
            self._logs.setdefault(entry.run_id, []).append(structs.replace(entry, n=self._last_line))
        self._log_sizes.update(grown)
        excess = sum(size.bytes for size in self._log_sizes.values()) - limit
        oldest = [(run_id, self._log_sizes[run_id].bytes) for run_id in sorted(self._log_sizes)]
        for run_id, _ in logs_to_remove(oldest[:MAX_REMOVED_LOGS], excess):
            del self._logs[run_id], self._log_sizes[run_id]

    # ── named leases ───────────────────────────────────────────────────────

    async def lease(
        self,
        name: str,
        owner: str,
        ttl: Ms,
        *,
        epoch: int | None = None,
        data: str | None = None,
        now: Ms | None = None,
    ) -> Lease | None:
        wall, lease_now = self._clocks(now)
        old = self._leases.get(name)
        live = old is not None and old.live and old.expires_at > lease_now
        if epoch is None:
            if live:
                return None
            epoch = 1 if old is None else old.epoch + 1
        elif old is None or not live or (old.owner, old.epoch) != (owner, epoch):
            return None
        else:
            data = old.data if data is None else data
        self._leases[name] = Lease(name, owner, epoch, lease_now + ttl, wall, data)
        return self._leases[name]

    async def release(self, name: str, owner: str, epoch: int, *, now: Ms | None = None) -> bool:
        old = self._leases.get(name)
        if old is None or not old.live or (old.owner, old.epoch) != (owner, epoch):
            return False
        self._leases[name] = structs.replace(old, live=False)
        return True

    # ── key-value entries ──────────────────────────────────────────────────

    async def put(self, items: Sequence[KeyValue], *, replace: bool = False, now: Ms | None = None) -> list[bool]:
        wall, _ = self._clocks(now)
        answers = []
        for item in items:
            old = self._kept.get((item.kind, item.id))
            free = replace or old is None or is_keyvalue_expired(old, wall)
            answers.append(free)
            if free:
                self._kept[item.kind, item.id] = item if item.created_at else structs.replace(item, created_at=wall)
        return answers

    async def remove(self, kind: str, ids: Sequence[str]) -> int:
        return sum(self._kept.pop((kind, name), None) is not None for name in ids)
