"""Where an app lives during a test: memory, a clock that stands still, and the engine on whatever loop the test has.

A plain test has no loop: the home makes one and drives it inside each call, in the test's own thread; blocking handlers
are called between two turns of it, so they see the test's thread, its transactions, and no running loop. In an async
test the engine lives on the test's loop, and blocking handlers run in a thread while time stands still.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from msgspec.structs import replace

from mainspring import sync
from mainspring.app import Mainspring
from mainspring.engine.runtime import Runtime
from mainspring.executors.thread import ThreadExecutor
from mainspring.model.errors import MainspringError
from mainspring.model.instant import Ms
from mainspring.model.policies import Role
from mainspring.model.run import OPEN
from mainspring.ports.executor import Attempt
from mainspring.ports.store import Claimed, Offer, Runs
from mainspring.ports.threads import SystemThreads
from mainspring.service import NewRun
from mainspring.signals import Stopper
from mainspring.stores.memory import MemoryStore
from mainspring.testing.travel import NO_POLLING
from mainspring.testing.virtual import VirtualClock, VirtualTime

T = TypeVar("T")

DAY: Ms = 86_400_000
#: Set in whatever runs because a step is under way: handlers, most of all.
_stepping: ContextVar[bool] = ContextVar("mainspring_stepping", default=False)


class EveryQueue(MemoryStore):
    """In a test there is one worker, so it takes the queues that other workers take elsewhere."""

    def _claim(self, offer: Offer, limit: int, ids: Sequence[str], wall: Ms, lease_now: Ms) -> Claimed:
        known = sorted({*offer.lanes, *(lane for lane, _ in self._queues)})
        return super()._claim(replace(offer, lanes=tuple(known)), limit, ids, wall, lease_now)


class Home:
    """Takes the place of an app's engine loop between `enter` and `leave`."""

    def __init__(self, app: Mainspring, clock: VirtualClock) -> None:
        self.app = app
        self.clock = clock
        self.store = EveryQueue(clock)
        self._thread = self._driver = threading.get_ident()
        self._one_at_a_time = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._own: list[asyncio.AbstractEventLoop] = []
        self._driven = False  # by us, from plain code
        self._outside = False  # a blocking handler is being called in the test's thread
        self._calls: deque[tuple[BlockingCalls, Attempt]] = deque()
        self._declared = 0

    @property
    def begun(self) -> bool:
        """True once the engine has been used."""
        return self._loop is not None

    # ── taking over ────────────────────────────────────────────────────────

    def enter(self) -> None:
        """Put the app on the memory store and the virtual clock."""
        app = self.app
        if app._runtime is not None:
            raise MainspringError("this Mainspring is in use already: close() it before a test takes it over")
        tables: tuple[dict[str, Any], ...] = (app.tasks, app._handlers, app._declared)
        self._before = (app.clock, app._engine, app.settings, app._given_store, app.broker)
        self._tables = [(table, dict(table)) for table in tables]
        self._subscriptions = list(app._bus._subscriptions)
        app.clock, app._engine, app._given_store, app.broker = self.clock, self, self.store, None
        own = app.settings
        app.settings = replace(
            own,
            poll=max(own.poll, NO_POLLING),
            pace=0,
            lease_ttl=max(own.lease_ttl, DAY),
            heartbeat=max(own.heartbeat, DAY // 4),
            history=max(own.history or 0, 36_500 * DAY),
        )
        app._start = self._started  # type: ignore[method-assign]  # lifespan() and running() find it running
        app._stop = self._stay  # type: ignore[method-assign]  # and leave it so
        app._at_hand = lambda: None  # type: ignore[method-assign]  # no short cut past `call`
        app.enqueue_many = self._enqueue_many  # type: ignore[method-assign]  # all are undone below
        self._block_on = sync.block_on
        sync.block_on = self._block

    def leave(self) -> None:
        """Stop, and give the app back what it had."""
        app = self.app
        try:
            self._shut()
        finally:
            sync.block_on = self._block_on
            del app._start, app._stop, app._at_hand, app.enqueue_many
            app.clock, app._engine, app.settings, app._given_store, app.broker = self._before
            app._runtime = app._opening = None
            for table, before in self._tables:
                table.clear()
                table.update(before)
            app._bus._subscriptions[:] = self._subscriptions
            app._bus.bind(None, None)
            for loop in self._own:
                loop.close()

    def _shut(self) -> None:
        loop = self._loop
        if loop is None or loop.is_closed() or loop.is_running():
            return  # it went away with its loop, which cancelled what was left
        loop.run_until_complete(self._end())

    async def _end(self) -> None:
        """Stop at once; what still runs is handed back."""
        runtime = self.app._runtime
        if runtime is not None:

            async def stop() -> None:
                await runtime.stop_now()
                await runtime.stop(0)
                await self.app._bus.settle()
                await runtime.close()

            stopping = asyncio.ensure_future(stop())
            while not stopping.done():
                await self._time.advance(0.01)
            await stopping
        self.app._runtime = None
        self._time.detach()

    async def _started(self, role: Role = "all") -> None:
        """What `lifespan()` calls at its beginning."""
        await self.call(asyncio.sleep(0))

    async def _stay(self, stopper: Stopper) -> None:
        """What `lifespan()` calls at its end."""

    async def _enqueue_many(self, many: Iterable[NewRun]) -> list[str]:
        return await self.call(Mainspring.enqueue_many(self.app, list(many)))

    # ── the engine's loop ──────────────────────────────────────────────────

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The engine's work: here, or where the engine lives when another thread asks."""
        if threading.get_ident() == self._thread or asyncio.get_running_loop() is self._loop:
            await self._ready()
            return await work
        if self._loop is not None and self._loop.is_running():
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        return await asyncio.get_running_loop().run_in_executor(None, self.run, self._ready_for(work))

    async def _ready_for(self, work: Coroutine[Any, Any, T]) -> T:
        await self._ready()
        return await work

    def post(self, callback: Any, *args: Any) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *args)

    async def rest(self, unused: Callable[[], bool]) -> None:
        """The loop is the test's, or closed when we leave."""

    async def _ready(self) -> None:
        """The engine runs on this loop; from another one it moves here, the store stays."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            before, self._loop = self._loop, loop
            self._beginning = loop.create_task(self._begin(before))
        await asyncio.shield(self._beginning)

    async def _begin(self, before: asyncio.AbstractEventLoop | None) -> None:
        if before is not None and not before.is_closed():
            await asyncio.to_thread(before.run_until_complete, self._end())
        app = self.app
        app._runtime = app._opening = None
        self._turn = asyncio.Lock()
        self._time = VirtualTime(self.clock)
        self._time.attach()
        runtime = await app._opened()
        await self._declare(runtime)
        loop = asyncio.get_running_loop()
        await runtime.start(loop, inline=True)
        assert runtime.worker is not None
        await runtime.worker.stop()
        blocking = BlockingCalls(self, runtime, loop)
        runtime.executors |= {"thread": blocking, "process": blocking}
        self._wait_for_end = runtime.wait_for_end
        runtime.wait_for_end = self._wait  # the runtime ends with us

    async def _declare(self, runtime: Runtime) -> None:
        if len(self.app._declared) != self._declared:
            self._declared = len(self.app._declared)
            await self.app._declare_all(runtime)

    # ── steps ──────────────────────────────────────────────────────────────

    @contextlib.asynccontextmanager
    async def _step(self) -> AsyncIterator[VirtualTime]:
        """The worker works only in here, so nothing happens that the test did not ask for."""
        if _stepping.get() or self._outside:
            raise MainspringError("a handler cannot move the time it runs in: let the test do it")
        await self._ready()
        async with self._turn:
            runtime = self.app._runtime
            assert runtime is not None
            assert runtime.worker is not None
            before = _stepping.set(True)
            try:
                await self._declare(runtime)
                runtime.worker.start()
                yield self._time
            finally:
                await runtime.worker.stop()
                _stepping.reset(before)

    async def advance(self, by: Ms) -> None:
        """Let time pass; everything that falls due happens on the way."""
        async with self._step() as time:
            await time.advance(by / 1000)

    async def settle(self) -> None:
        """Let everything happen that is due now."""
        async with self._step() as time:
            await time.settle()

    async def drain(self, within: Ms) -> None:
        """Let time pass until no run is open."""
        limit = self.clock.now() + within
        async with self._step() as time:
            while True:
                await time.settle()
                left = await self.store.find(Runs(states=tuple(sorted(OPEN)), limit=5, oldest_first=True))
                if not left:
                    return
                if self.clock.now() >= limit or not await time.step():
                    shown = "; ".join(f"{run.task} is {run.state} (attempt {run.attempt})" for run in left)
                    raise AssertionError(f"there are open runs after {within / 1000:g} s of virtual time: {shown}")

    async def _wait(self, run_id: str, timeout: float) -> None:
        """A test that waits for a run lets time pass until it has ended; a handler waits like everybody else."""
        if self._outside:
            raise MainspringError("a blocking handler waits for a run that cannot begin before it has ended itself")
        if _stepping.get():
            return await self._wait_for_end(run_id, timeout)
        waiting = asyncio.ensure_future(self._wait_for_end(run_id, timeout))
        try:
            while not waiting.done():
                async with self._step() as time:
                    await time.settle()
                    if not waiting.done():
                        await time.step()
        finally:
            waiting.cancel()
        return None

    # ── from plain code ────────────────────────────────────────────────────

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Drive the engine's loop here until this is done; blocking handlers are called between its turns."""
        with self._one_at_a_time:
            self._driver = threading.get_ident()
            return self._run(work)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        loop = self._loop
        if loop is None or loop.is_closed() or loop.is_running():
            loop = asyncio.new_event_loop()
            self._own.append(loop)
        if self._outside:
            return loop.run_until_complete(work)
        self._called = asyncio.Event()
        self._driven = True
        task = loop.create_task(work)
        try:
            while not task.done():
                loop.run_until_complete(self._until(task))
                self._called.clear()
                self._outside = True
                while self._calls:
                    blocking, attempt = self._calls.popleft()
                    blocking.carry_out(attempt)
                    self._time.release()
                self._outside = False
            return task.result()
        finally:
            self._driven = self._outside = False

    async def _until(self, task: asyncio.Task[Any]) -> None:
        """Return when the task is done or a blocking handler wants to be called."""
        called = asyncio.ensure_future(self._called.wait())
        await asyncio.wait([task, called], return_when=asyncio.FIRST_COMPLETED)
        called.cancel()

    def _block(self, work: Coroutine[Any, Any, T], instead: str) -> T:
        """What the blocking doors call."""
        if threading.get_ident() in (self._thread, self._driver) and not on_a_loop():
            return self.run(work)
        return self._block_on(work, instead)

    def wanted(self, blocking: BlockingCalls, attempt: Attempt) -> bool:
        """Call a handler from plain code, if that drives the loop."""
        if self._driven:
            self._time.hold()
            self._calls.append((blocking, attempt))
            self._called.set()
        return self._driven


def on_a_loop() -> bool:
    """True when this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class BlockingCalls(ThreadExecutor):
    """Blocking handlers while the clock stands still: in the test's thread, or in one beside its loop."""

    def __init__(self, home: Home, runtime: Runtime, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(SystemThreads(), home.clock, runtime._finished, loop)
        self._home = home
        self._loop = loop

    def start(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            attempt.hop = self._hop
            if not self._home.wanted(self, attempt):
                self._loop.run_in_executor(None, self.carry_out, attempt)

    def carry_out(self, attempt: Attempt) -> None:
        """Call the handler to its end."""
        self._done(attempt, self._outcome(attempt))

    def _hop(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._home.run(coroutine) if not self._loop.is_running() else super()._hop(coroutine)
