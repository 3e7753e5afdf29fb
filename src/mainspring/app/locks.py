"""Locks with one holder among all processes on a store: `async with ms.lock("name") as guard:`.

Each holder has a fencing token. If the lock is lost, an `async with` block is cancelled. A `with` block in a thread
goes on; its guard tells it of the loss.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import TypeVar

from mainspring.app.blocking import runs_loop
from mainspring.app.engine_host import EngineHost
from mainspring.engine.leader import Leadership, find_leadership
from mainspring.engine.locks.held_lock import HeldLock, LocalWaitQueues
from mainspring.engine.locks.lease_term import LeaseRows, LeaseTerm, TermData, escape_name_part
from mainspring.model.errors import (
    ExecutionTaken,
    InvalidInput,
    LeaseTooShort,
    LockLost,
    LockTaken,
    MainspringError,
    StoreError,
    SyncOnLoop,
)
from mainspring.model.ids import check_name
from mainspring.model.instant import Duration, Ms, duration_ms, format_duration, instant_ms, isoformat
from mainspring.model.lease import Lease
from mainspring.model.policies import check_choice
from mainspring.model.settings import MIN_LEASE_MS
from mainspring.ports.lock import EXECUTION_PREFIX, LOCK_KINDS, LOCK_PREFIX, LockBackend, LockHolder, LockKind
from mainspring.ports.store import Query
from mainspring.ports.store_extras import AdvisoryLockStore
from mainspring.runtime.runtime import Runtime

T = TypeVar("T")

#: Reason in `LockLost` if the store did not find the lease at the release, although it had been renewed in time.
_OVERTAKEN = "its lease ended, and another owner may have acquired it"


class BaseLockGuard:
    """The guard of a lock: the object that a `with` or `async with` block receives.

    `token`: the fencing token. `held` is True while the lock is held; `check()` raises LockLost unless it is.
    """

    def __init__(self, name: str, hold: HeldLock) -> None:
        self.name = name
        #: The fencing token, greater than those of all earlier holders of this name. Send it along with what you write.
        self.token = hold.token
        self._hold = hold

    @property
    def held(self) -> bool:
        """True while no other holder is possible. This machine's clock decides that; the store is not asked."""
        return self._hold.distrust_reason is None

    def check(self) -> None:
        """Raise `LockLost` unless the lock is held; call it before an action that cannot be undone."""
        why = self._hold.distrust_reason
        if why is not None:
            raise LockLost(self.name, self.token, why)


class LockGuard(BaseLockGuard):
    """What the block of `async with ms.lock(…)` receives: when the lock is lost, `lost` is set and the block cancelled.

    `token`: the fencing token. `held` is True while the lock is held; `check()` raises LockLost unless it is.
    """

    def __init__(self, name: str, hold: HeldLock) -> None:
        super().__init__(name, hold)
        self.lost = asyncio.Event()


class SyncLockGuard(BaseLockGuard):
    """What the block of `with ms.sync.lock(…)` receives: `lost` is set when the lock is lost.

    A thread cannot be cancelled: the block should test `lost`, or call `check()` before actions that cannot be undone.
    """

    def __init__(self, name: str, hold: HeldLock, lost: threading.Event) -> None:
        super().__init__(name, hold)
        self.lost = lost


class LockRequest:
    """The parameters of a lock, with methods by which `Lock` and `SyncLock` acquire and release the lock."""

    def __init__(
        self,
        locks: Locks,
        name: str,
        key: str,
        ttl: Ms,
        wait_seconds: float | None,
        kind: LockKind = "lease",
        remember: Ms = 0,
    ) -> None:
        """`name` is the lock's name in errors, `key` the name of its lease in the store.

        Unless it is renewed, the lease ends after `ttl` milliseconds. `wait_seconds` limits the wait for another
        holder; None: no limit. `kind`: "lease", a row in the store, or "advisory", a lock of the database server. After
        a block that ended without an error, the lock stays taken for `remember` milliseconds.
        """
        self.locks = locks
        self.name = name
        self.key = key
        self.ttl = ttl
        self.wait_seconds = wait_seconds
        self.kind = kind
        self.remember = remember

    async def acquire(self, on_lost: Callable[[str], None]) -> HeldLock:
        """Acquire the lock and return it. If it is lost later, the engine's loop calls `on_lost` with the reason.

        Raises: LockTaken, with the holder's name, if the lock is not free within `wait_seconds`; InvalidInput if the
        store has no locks of this kind; StoreError.
        """
        locks, host = self.locks, self.locks.host
        backend, owner = await host.call(lambda runtime: locks.open_backend(runtime, self.kind))
        term = LeaseTerm(backend, HostClock(host), self.key, owner, self.ttl)
        hold = HeldLock(term, locks.queues, host.ids.rng, on_lost)
        try:
            acquired = await host.call(lambda _: hold.acquire(self.wait_seconds))
        except BaseException:
            host.engine.post(hold.abandon)  # the store may have granted the lock before the cancellation arrived
            raise
        if not acquired:
            raise await self.make_taken_error(backend)
        return hold

    async def make_taken_error(self, backend: LockBackend) -> LockTaken:
        """Return the error for a caller that did not get the lock; it has the name of the holder, if that is known."""
        holder = await self._find_holder(backend)
        return LockTaken(self.name, "" if holder is None else holder.owner)

    async def _find_holder(self, backend: LockBackend) -> LockHolder | None:
        """Return the present holder of the lock; None if the lock is free now, or if the store fails."""
        with contextlib.suppress(StoreError):  # the holder only completes the message
            holder = await self.locks.host.call(lambda _: backend.find_holder(self.key))
            return holder if holder is not None and holder.live else None
        return None

    async def release(self, hold: HeldLock, *, succeeded: bool) -> LockLost | None:
        """Release the lock. Return None, or the error to raise if the lock was lost before the block ended.

        `succeeded`: the block ended without an error. The lock then stays taken for `remember` milliseconds.
        """
        lost = hold.lost_reason
        data = TermData(hold.term.since, done=True) if succeeded and self.remember and lost is None else None
        releasing = self.locks.host.call(lambda _: hold.release(data, self.remember))
        # Shielded, so that a release that has begun is completed even if the caller is cancelled meanwhile.
        was_held = await asyncio.shield(asyncio.ensure_future(releasing))
        if lost is None and was_held:
            return None
        return LockLost(self.name, hold.token, lost or hold.distrust_reason or _OVERTAKEN)


class ExecutionRequest(LockRequest):
    """The parameters of a lock on one fire of another scheduler. After success it stays taken for `remember` ms."""

    async def make_taken_error(self, backend: LockBackend) -> LockTaken:
        """Return an `ExecutionTaken`, which states whether the fire is being executed or has been executed."""
        holder = await self._find_holder(backend)
        owner = "" if holder is None else holder.owner
        done = holder is not None and TermData.read(holder.data).done
        what = "has been executed" if done else "is being executed"
        return ExecutionTaken(self.name, owner, f"{self.name} {what}" + (f" by {owner}" if owner else ""), done=done)


class Lock:
    """A lock for one `async with`. When it is lost, the block's task is cancelled and the block ends with `LockLost`.

    It works as `asyncio.timeout()` does: the cancellation arrives at the next await in the block, and does not go
    beyond the block. A block that ends without an error after the loss also ends with `LockLost`; other errors stay.
    """

    def __init__(self, request: LockRequest) -> None:
        self._request = request
        self._guard: LockGuard | None = None
        self._hold: HeldLock | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._cancelled = False

    def blocking(self) -> SyncLock:
        """Return this lock for a `with` block in a thread without an event loop."""
        return SyncLock(self._request)

    async def __aenter__(self) -> LockGuard:
        """Acquire the lock and return its guard.

        Raises: LockTaken; StoreError; MainspringError if this object was used before.
        """
        if self._hold is not None:
            raise MainspringError("this lock object was used already. Call ms.lock(…) for each `async with`")
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()

        def on_lost(_why: str) -> None:
            with contextlib.suppress(RuntimeError):  # the block's loop is closed, so the block has ended
                loop.call_soon_threadsafe(self._cancel_block)

        self._hold = await self._request.acquire(on_lost)
        self._guard = LockGuard(self._request.name, self._hold)
        self._task, self._cancelling = task, task.cancelling()
        if self._hold.lost_reason is not None:  # it was lost before the guard existed
            self._cancel_block()
        return self._guard

    def _cancel_block(self) -> None:
        """Set `guard.lost` and cancel the block's task, once, because the lock is lost. Thread: the block's loop."""
        if self._guard is not None:
            self._guard.lost.set()
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    async def __aexit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Release the lock. Raises: LockLost if it was lost and the block raised no error of its own."""
        task, self._task = self._task, None
        assert task is not None
        assert self._hold is not None
        stopped = self._cancelled and task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError)
        lost = await self._request.release(self._hold, succeeded=error is None)
        _raise_lost(lost, error, stopped=stopped)


class SyncLock:
    """A lock for one `with` in a thread without an event loop. The engine's loop renews it.

    The block is not stopped when the lock is lost; unless it raises an error of its own, it ends with `LockLost`.
    """

    def __init__(self, request: LockRequest) -> None:
        self._request = request
        self._hold: HeldLock | None = None

    def __enter__(self) -> SyncLockGuard:
        """Acquire the lock and return its guard.

        Raises: LockTaken; StoreError; SyncOnLoop on a thread that runs an event loop; MainspringError if this object
        was used before.
        """
        if self._hold is not None:
            raise MainspringError("this lock object was used already. Call ms.sync.lock(…) for each `with`")
        if runs_loop():
            problem = "this thread runs an event loop, a blocking lock would stop it; write: async with ms.lock(…)"
            raise SyncOnLoop(problem)
        lost = threading.Event()
        block_on = self._request.locks.host.block_on
        self._hold = block_on(self._request.acquire(lambda _why: lost.set()), "")
        return SyncLockGuard(self._request.name, self._hold, lost)

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Release the lock. Raises: LockLost if it was lost and the block raised no error of its own."""
        assert self._hold is not None
        block_on = self._request.locks.host.block_on
        _raise_lost(block_on(self._request.release(self._hold, succeeded=error is None), ""), error)


def _raise_lost(lost: LockLost | None, error: BaseException | None, *, stopped: bool = False) -> None:
    """At the end of a block, raise `lost`, the error for the loss of its lock; None: the lock was not lost.

    If the block itself raised `error`, do not raise, but add the text of `lost` to `error` as a note, unless `error` is
    a LockLost, too. `stopped`: `error` is the cancellation by which the loss stopped the block; raise `lost` then.
    """
    if lost is None:
        return
    if stopped or error is None:
        raise lost from error
    if not isinstance(error, LockLost):
        error.add_note(str(lost))


class Locks:
    """Makes the locks and execution leases of `ms.lock` and `ms.execution_lease`, and finds the leader."""

    def __init__(self, host: EngineHost) -> None:
        self.host = host
        #: Callers of this process that wait for one lock form a queue here; only its first asks the store.
        self.queues = LocalWaitQueues()
        self._acquisitions = itertools.count(1)

    def lock(self, name: str, ttl: Duration, wait: bool | Duration, kind: LockKind) -> Lock:
        """Return the lock `name` of the app's namespace; nothing is acquired yet. Raises: InvalidInput.

        `ttl`: after a crash, the lock is free within this time. `wait`: the longest wait for another holder; True: no
        limit; False: none. `kind`: "lease", a row in the store, or "advisory", a lock of the database server.
        """
        check_name(name)
        check_choice(kind, LOCK_KINDS, field="kind")
        key = f"{LOCK_PREFIX}{escape_name_part(self.host.settings.namespace)}:{name}"
        return Lock(LockRequest(self, name, key, _parse_ttl(ttl), _parse_wait(wait), kind))

    def execution_lease(self, schedule: str, fire_time: datetime, ttl: Duration, remember: Duration) -> Lock:
        """Return a lock on the fire of another scheduler's `schedule` at `fire_time`. Raises: InvalidInput.

        Nothing is acquired yet. `ttl`: after a crash, the fire is free within this time. After success it stays taken
        for `remember`.
        """
        check_name(schedule, field="schedule")
        at = instant_ms(fire_time, field="fire_time")
        key = f"{EXECUTION_PREFIX}{escape_name_part(self.host.settings.namespace)}:{escape_name_part(schedule)}:{at}"
        remember_ms = duration_ms(remember, field="remember")
        name = f"{schedule} at {isoformat(at)}"
        return Lock(ExecutionRequest(self, name, key, _parse_ttl(ttl), 0.0, remember=remember_ms))

    async def leader(self) -> Leadership | None:
        """Return the present or last leader of the app's instances; None if there never was one."""
        return await self.host.call(lambda runtime: find_leadership(runtime.store, self.host.settings))

    async def open_backend(self, runtime: Runtime, kind: LockKind) -> tuple[LockBackend, str]:
        """Return the part of the store that holds locks of this kind, and a new owner name for one acquisition.

        Raises: InvalidInput if the store has no locks of this kind.
        """
        owner = f"{runtime.owner}/{next(self._acquisitions)}"
        if kind == "lease":
            return LeaseRows(HostStore(self.host)), owner
        store = runtime.store
        if not isinstance(store, AdvisoryLockStore):
            raise InvalidInput("kind", "this store has no advisory locks", 'Use kind="lease", which every store has')
        return store.advisory(), owner


class HostStore:
    """The lease methods of an app's store. Each call opens the store if it is closed: a lock may outlive `run()`."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host

    async def lease(
        self, name: str, owner: str, ttl: Ms, *, epoch: int | None = None, data: str | None = None
    ) -> Lease | None:
        return await self._host.call(lambda runtime: runtime.store.lease(name, owner, ttl, epoch=epoch, data=data))

    async def release(self, name: str, owner: str, epoch: int) -> bool:
        return await self._host.call(lambda runtime: runtime.store.release(name, owner, epoch))

    async def find(self, query: Query[T]) -> list[T]:
        return await self._host.call(lambda runtime: runtime.store.find(query))


class HostClock:
    """The clock of an app for leases: `now` is the store's time, `boot` and `monotonic` are this machine's."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host

    def now(self) -> Ms:
        return self._host.now()

    def boot(self) -> Ms:
        return self._host.clock.boot()

    def monotonic(self) -> float:
        return self._host.clock.monotonic()


def _parse_wait(wait: bool | Duration) -> float | None:
    """Return how long to wait for another holder, in seconds: None (no limit) for True, 0 for False.

    Raises: InvalidInput for anything else that is no duration.
    """
    if wait is True:
        return None
    return 0.0 if wait is False else duration_ms(wait, field="wait") / 1000


def _parse_ttl(value: Duration) -> Ms:
    """Return the length of a lease in milliseconds. Raises: LeaseTooShort if it is below `MIN_LEASE_MS`."""
    ttl = duration_ms(value, field="ttl")
    if ttl < MIN_LEASE_MS:
        fix = f"Use at least {format_duration(MIN_LEASE_MS)}; 30s is the default"
        raise LeaseTooShort("ttl", f"{format_duration(ttl)} is too short", fix)
    return ttl
