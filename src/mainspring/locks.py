"""Locks: `async with ms.lock("name") as guard:`. One holder at a time, a token that grows, loss told in the block."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from types import TracebackType
from typing import TypeVar

from mainspring import sync  # its block_on is another under test
from mainspring.engine.hold import Hold, Lines
from mainspring.engine.leader import Leadership, leadership
from mainspring.engine.runtime import Runtime
from mainspring.engine.term import LeaseRows, Said, Term, part
from mainspring.host import EngineHost
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
from mainspring.model.policies import choice
from mainspring.model.settings import MIN_LEASE
from mainspring.ports.lock import EXECUTION, LOCK, LOCK_KINDS, Holder, Locker, LockKind
from mainspring.ports.store import Lease, Query

T = TypeVar("T")


class Guard:
    """What the block of a lock is given."""

    def __init__(self, name: str, hold: Hold) -> None:
        self.name = name
        #: Greater than that of every earlier holder of this name: send it along with what you write.
        self.token = hold.token
        self._hold = hold

    @property
    def held(self) -> bool:
        """True while nobody else can hold the lock, by this machine's clock and without asking the store."""
        return self._hold.doubt is None

    def check(self) -> None:
        """`LockLost` unless the lock is held; call it before what cannot be undone."""
        why = self._hold.doubt
        if why is not None:
            raise LockLost(self.name, self.token, why)


class LockGuard(Guard):
    """In `async with`; `lost` is set, and the block's task cancelled, when the lock is lost."""

    def __init__(self, name: str, hold: Hold) -> None:
        super().__init__(name, hold)
        self.lost = asyncio.Event()


class SyncLockGuard(Guard):
    """In `with`; `lost` is set when the lock is lost. A thread cannot be stopped: look at it, or call `check()`."""

    def __init__(self, name: str, hold: Hold, lost: threading.Event) -> None:
        super().__init__(name, hold)
        self.lost = lost


class _Asked:
    """A lock as it was asked for: the part that the async and the blocking door share."""

    #: After a block that ended well, how long the name stays taken.
    keep: Ms = 0

    def __init__(self, host: Coordination, name: str, key: str, ttl: Ms, patience: float | None, kind: LockKind):
        self._host = host
        self.name = name
        self.key = key
        self.ttl = ttl
        self.patience = patience
        self.kind = kind

    async def enter(self, lost: Callable[[str], None]) -> Hold:
        """Get it, or say who has it."""
        host = self._host
        locker, owner = await host.call(lambda runtime: host._locker(runtime, self.kind))
        term = Term(locker, HostClock(host), self.key, owner, self.ttl)
        hold = Hold(term, host._lines, host._rng, lost)
        try:
            got = await host.call(lambda _: hold.acquire(self.patience))
        except BaseException:
            host._engine.post(hold.give_up)  # the answer may have crossed with a cancellation
            raise
        if not got:
            raise await self.taken(locker)
        return hold

    async def taken(self, locker: Locker) -> LockTaken:
        """The error for somebody who did not get it."""
        holder = await self._holder(locker)
        return LockTaken(self.name, "" if holder is None else holder.owner)

    async def _holder(self, locker: Locker) -> Holder | None:
        with contextlib.suppress(StoreError):  # only for the message
            holder = await self._host.call(lambda _: locker.holder(self.key))
            return holder if holder is not None and holder.live else None
        return None

    async def leave(self, hold: Hold, *, well: bool) -> LockLost | None:
        """Let go; the error if the block was not protected to its end."""
        lost = hold.why
        said = Said(hold.term.since, done=True) if well and self.keep and lost is None else None
        # What began is ended, also for somebody who is cancelled meanwhile.
        kept = await asyncio.shield(asyncio.ensure_future(self._host.call(lambda _: hold.let_go(said, self.keep))))
        if lost is None and kept:
            return None
        return LockLost(self.name, hold.token, lost or hold.doubt or "another took it")


class _Execution(_Asked):
    """A lock on one fire of a schedule, which stays taken after it was executed."""

    async def taken(self, locker: Locker) -> LockTaken:
        holder = await self._holder(locker)
        owner = "" if holder is None else holder.owner
        done = holder is not None and Said.read(holder.data).done
        what = "has been executed" if done else "is being executed"
        return ExecutionTaken(self.name, owner, f"{self.name} {what}" + (f" by {owner}" if owner else ""), done=done)


class Lock:
    """For one `async with`. When the lock is lost its task is cancelled, and the block ends with `LockLost`.

    It works as `asyncio.timeout()` does: the cancellation comes at the block's next await and does not leave the block.
    A block that ends by itself after the loss ends with `LockLost`, too; an error of its own stays what it is.
    """

    def __init__(self, asked: _Asked) -> None:
        self._asked = asked
        self._guard: LockGuard | None = None
        self._hold: Hold | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._cancelled = False

    def blocking(self) -> SyncLock:
        """The same for a thread without a loop."""
        return SyncLock(self._asked)

    async def __aenter__(self) -> LockGuard:
        if self._hold is not None:
            raise MainspringError("a lock is for one block: call ms.lock() again")
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()

        def lost(_why: str) -> None:
            with contextlib.suppress(RuntimeError):  # the block's loop is closed: nobody is left to be told
                loop.call_soon_threadsafe(self._lost)

        self._hold = await self._asked.enter(lost)
        self._guard = LockGuard(self._asked.name, self._hold)
        self._task, self._cancelling = task, task.cancelling()
        if self._hold.why is not None:  # told before there was anybody to tell
            self._lost()
        return self._guard

    def _lost(self) -> None:
        if self._guard is not None:
            self._guard.lost.set()
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    async def __aexit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        assert task is not None
        assert self._hold is not None
        stopped = self._cancelled and task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError)
        lost = await self._asked.leave(self._hold, well=error is None)
        _tell(lost, error, stopped=stopped)


class SyncLock:
    """For one `with`, in a thread without an event loop; renewed in the background all the same."""

    def __init__(self, asked: _Asked) -> None:
        self._asked = asked
        self._hold: Hold | None = None

    def __enter__(self) -> SyncLockGuard:
        if self._hold is not None:
            raise MainspringError("a lock is for one block: call ms.sync.lock() again")
        try:
            sync.refuse_on_loop("")
        except SyncOnLoop:
            what = "this thread runs an event loop, a blocking lock would stop it; write: async with ms.lock(…)"
            raise SyncOnLoop(what) from None
        lost = threading.Event()
        self._hold = sync.block_on(self._asked.enter(lambda _why: lost.set()), "")
        return SyncLockGuard(self._asked.name, self._hold, lost)

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        assert self._hold is not None
        _tell(sync.block_on(self._asked.leave(self._hold, well=error is None), ""), error)


def _tell(lost: LockLost | None, error: BaseException | None, *, stopped: bool = False) -> None:
    """Raise the loss, unless the block has an error of its own: that one then says so, too."""
    if lost is None:
        return
    if stopped or error is None:
        raise lost from error
    if not isinstance(error, LockLost):
        error.add_note(str(lost))


class Coordination(EngineHost):
    """What instances agree on beside runs: locks, who executes a fire, who leads."""

    def lock(self, name: str, *, ttl: Duration = "30s", wait: bool | Duration = True, kind: LockKind = "lease") -> Lock:
        """One holder at a time in all processes on this store: `async with ms.lock("import", ttl="30s") as guard:`.

        Renewed by itself until the block ends. `wait`: as long as it takes (True), not at all (False: `LockTaken` at
        once), or at most so long. `guard.token` grows with every holder of the name.
        """
        check_name(name)
        choice(kind, LOCK_KINDS, field="kind")
        patience = None if wait is True else 0.0 if wait is False else duration_ms(wait, field="wait") / 1000
        key = f"{LOCK}{part(self.settings.namespace)}:{name}"
        return Lock(_Asked(self, name, key, _ttl(ttl), patience, kind))

    def execution_lease(
        self, schedule: str, fire_time: datetime, *, ttl: Duration = "30s", remember: Duration = "1d"
    ) -> Lock:
        """One executor of a fire: `ExecutionTaken` at once when another executes it or did so.

        For work that Mainspring does not run itself; its own runs have this always. After a block that ended well the
        fire stays taken for `remember`; after one that failed it is free at once, after a crash within `ttl`.
        """
        check_name(schedule, field="schedule")
        at = instant_ms(fire_time, field="fire_time")
        key = f"{EXECUTION}{part(self.settings.namespace)}:{part(schedule)}:{at}"
        asked = _Execution(self, f"{schedule} at {isoformat(at)}", key, _ttl(ttl), 0.0, "lease")
        asked.keep = duration_ms(remember, field="remember")
        return Lock(asked)

    async def leader(self) -> Leadership | None:
        """Who keeps house for this app, since when, in which term; None when nobody ever did."""
        return await self.call(lambda runtime: leadership(runtime.store, self.settings))

    @functools.cached_property
    def _lines(self) -> Lines:
        return Lines()

    @functools.cached_property
    def _holds(self) -> Iterator[int]:
        return itertools.count(1)

    async def _locker(self, runtime: Runtime, kind: LockKind) -> tuple[Locker, str]:
        """How to hold a name, and the name of the one who does: another for each acquisition."""
        owner = f"{runtime.owner}/{next(self._holds)}"
        if kind == "lease":
            return LeaseRows(HostStore(self)), owner
        advisory: Callable[[], Locker] | None = getattr(runtime.store, "advisory", None)
        if advisory is None:
            raise InvalidInput("kind", "this store has no advisory locks", 'Use kind="lease", which every store has')
        return advisory(), owner


class HostStore:
    """Lease verbs on the store of an app, whichever is open at the time: a lock may outlive `run()`."""

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
    """An app's clocks, with the store's time on the wall."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host

    def now(self) -> Ms:
        return self._host.now()

    def boot(self) -> Ms:
        return self._host.clock.boot()

    def monotonic(self) -> float:
        return self._host.clock.monotonic()


def _ttl(given: Duration) -> Ms:
    ttl = duration_ms(given, field="ttl")
    if ttl < MIN_LEASE:
        raise LeaseTooShort("ttl", f"{format_duration(ttl)} is too short", "Use at least 300ms; 30s is the default")
    return ttl
