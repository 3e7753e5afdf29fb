"""Presence: a row that says this instance lives, what it runs and what it declares."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct

from mainspring.engine.service import Service
from mainspring.model.instant import Ms
from mainspring.model.settings import Settings
from mainspring.paging import all_rows
from mainspring.ports.store import Lease, Leases, Store

PREFIX = "instance:"
#: Rows in a page: a pool that grows and shrinks leaves many until retention takes them.
PAGE = 1_000


class Instance(Struct, frozen=True, omit_defaults=True):
    """What an instance tells the others."""

    app: str
    version: str = ""
    tasks: tuple[str, ...] = ()
    declares: dict[str, str] = {}  # schedule name → digest
    running: int = 0
    concurrency: int = 0
    abandoned: int = 0  # attempts that did not stop after their time-out, since the start
    pid: int = 0
    host: str = ""
    role: str = "all"  # or "worker": plans nothing; or "planner": works on nothing
    queues: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    since: Ms = 0  # when it started, in its own store's time


class Presence(Service):
    """Renews the instance's row every heartbeat; releases it when the instance stops in order."""

    name = "presence"

    def __init__(self, store: Store, settings: Settings, owner: str, describe: Callable[[], Instance]) -> None:
        super().__init__(settings.heartbeat / 1000)
        self._store = store
        self._ttl: Ms = settings.lease_ttl
        self._owner = owner
        self._describe = describe
        self._epoch: int | None = None

    async def run_once(self) -> float:
        """Take or renew the row."""
        data = msgspec.json.encode(self._describe()).decode()
        name = PREFIX + self._owner
        lease: Lease | None = None
        if self._epoch is not None:
            lease = await self._store.lease(name, self._owner, self._ttl, epoch=self._epoch, data=data)
        if lease is None:
            lease = await self._store.lease(name, self._owner, self._ttl, data=data)
        self._epoch = None if lease is None else lease.epoch
        return self.poll

    async def leave(self) -> None:
        """Say that the instance stops; its row stays a while so that others see what it declared."""
        if self._epoch is not None:
            await self._store.release(PREFIX + self._owner, self._owner, self._epoch)
            self._epoch = None


async def instances(store: Store) -> list[tuple[Lease, Instance]]:
    """Every instance seen lately, living or not."""
    rows = [row async for row in all_rows(store, Leases(prefix=PREFIX, limit=PAGE), lambda lease: lease.name)]
    return [(lease, msgspec.json.decode(lease.data, type=Instance)) for lease in rows if lease.data]
