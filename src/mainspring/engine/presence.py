"""Presence: the lease row by which each instance tells other instances what it runs and which schedules it declares."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.engine.loop import Loop
from mainspring.model.instant import Ms
from mainspring.model.lease import Lease
from mainspring.model.settings import Settings
from mainspring.ports.paging import iterate_rows
from mainspring.ports.store import Leases, Store

#: The beginning of the name of every presence row; the instance's owner name follows.
INSTANCE_PREFIX = "instance:"
#: The most presence rows read in one page. A pool that grows and shrinks leaves many rows until retention removes them.
INSTANCE_PAGE_ROWS = 1_000


class Instance(Struct, frozen=True, omit_defaults=True):
    """The content of a presence row, stored as JSON: an instance's app, tasks, declared schedules and state."""

    app: str
    version: str = ""
    tasks: tuple[str, ...] = ()
    declares: dict[str, str] = {}  # schedule name → digest of its definition
    running: int = 0
    concurrency: int = 0
    abandoned: int = 0  # attempts that did not stop after their time-out, since the start
    pid: int = 0
    host: str = ""
    role: str = "all"  # "worker": plans no schedules; "planner": runs nothing; "all": does both
    queues: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    since: Ms = 0  # when it started, in store time
    namespace: str = ""  # "" in rows of earlier versions
    task_origins: dict[str, str] = {}  # task name → origin of its function (`rules/origins.py`)
    schedule_origins: dict[str, str] = {}  # schedule name → origin of its task's function
    stopped: bool = False  # True once the instance has stopped in order; a killed one never says so


class Presence(Loop):
    """Acquires this instance's presence row and renews it once per heartbeat interval. Thread: engine loop."""

    name = "presence"

    def __init__(self, store: Store, settings: Settings, owner: str, describe: Callable[[], Instance]) -> None:
        """Keep the presence row of the instance `owner` in `store`. `describe` returns what the row should say now."""
        super().__init__(settings.heartbeat / 1000)
        self._store = store
        self._ttl: Ms = settings.lease_ttl
        self._owner = owner
        self._describe = describe
        self._epoch: int | None = None

    async def run_once(self) -> float:
        """Acquire or renew the row, with its present content. Return the seconds to wait. Raises: StoreError."""
        data = msgspec.json.encode(self._describe()).decode()
        name = INSTANCE_PREFIX + self._owner
        lease: Lease | None = None
        if self._epoch is not None:
            lease = await self._store.lease(name, self._owner, self._ttl, epoch=self._epoch, data=data)
        if lease is None:
            lease = await self._store.lease(name, self._owner, self._ttl, data=data)
        self._epoch = None if lease is None else lease.epoch
        return self.poll

    async def leave(self) -> None:
        """Write that this instance stopped in order, and release the row. Raises: StoreError.

        The row is not removed at once, so that other instances still see what this instance declared.
        """
        if self._epoch is not None:
            last = replace(self._describe(), stopped=True, running=0)
            data = msgspec.json.encode(last).decode()
            await self._store.lease(INSTANCE_PREFIX + self._owner, self._owner, self._ttl, epoch=self._epoch, data=data)
            await self._store.release(INSTANCE_PREFIX + self._owner, self._owner, self._epoch)
            self._epoch = None


async def list_instances(store: Store) -> list[tuple[Lease, Instance]]:
    """Return the lease and the content of every presence row, of instances that run and of those that ended lately.

    Raises: StoreError.
    """
    query = Leases(prefix=INSTANCE_PREFIX, limit=INSTANCE_PAGE_ROWS)
    rows = [row async for row in iterate_rows(store, query, lambda lease: lease.name)]
    return [(lease, msgspec.json.decode(lease.data, type=Instance)) for lease in rows if lease.data]
