"""The harness that replaces an app's store, clock and engine thread during a test, for the fixture `mainspring`.

A plain test has no event loop: the harness creates one and drives it inside each call, in the test's own thread.
Blocking handlers are called between two turns of that loop, in the test's thread and outside any running loop. So they
see the test's open transaction. In an async test, the engine runs on the test's loop, and blocking handlers run in
another thread while virtual time stands still.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from msgspec.structs import replace

from mainspring.app.blocking import runs_loop
from mainspring.app.engine_host import HostEnvironment
from mainspring.app.internals import host_of, registry_of, runner_of
from mainspring.app.mainspring import Mainspring
from mainspring.backends.memory.store import MemoryStore
from mainspring.engine.work.worker import Worker
from mainspring.executors.thread import ThreadExecutor
from mainspring.model.errors import MainspringError
from mainspring.model.instant import DAY_MS, Ms
from mainspring.model.run import OPEN
from mainspring.ports.executor import HeldRun
from mainspring.ports.store import Claimed, Offer, Runs
from mainspring.ports.threads import SystemThreads
from mainspring.runtime.runtime import Runtime
from mainspring.testing.time_travel import VIRTUAL_POLL_MS
from mainspring.testing.virtual_time import VirtualClock, VirtualTime

T = TypeVar("T")

#: True in every task that was started inside a step of virtual time, above all in handlers: they must not start a step.
_stepping: ContextVar[bool] = ContextVar("mainspring_stepping", default=False)


class AllQueuesStore(MemoryStore):
    """A memory store whose claims take every queue: the one worker of a test stands for all workers."""

    def _claim(self, offer: Offer, limit: int, ids: Sequence[str], wall: Ms, lease_now: Ms) -> Claimed:
        known = sorted({*offer.lanes, *(lane for lane, _ in self._queues)})
        return super()._claim(replace(offer, lanes=tuple(known)), limit, ids, wall, lease_now)


class AppHarness:
    """Replaces an app's engine thread, store, clock and broker between `enter` and `leave`."""

    def __init__(self, app: Mainspring, clock: VirtualClock) -> None:
        self.app = app
        self._host = host_of(app)
        self.clock = clock
        self.store = AllQueuesStore(clock)
        self._thread = self._driver = threading.get_ident()
        self._one_at_a_time = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._own: list[asyncio.AbstractEventLoop] = []
        self._is_driven = False  # True while a plain test, in `run`, drives the loop
        self._in_blocking_call = False  # True while a blocking handler is called in the test's thread, outside the loop
        self._calls: deque[tuple[BlockingExecutor, HeldRun]] = deque()
        self._declared = 0

    @property
    def begun(self) -> bool:
        """True once a call needed the engine, even if the engine is still starting or its start failed."""
        return self._loop is not None

    # ── taking over ────────────────────────────────────────────────────────

    def enter(self) -> None:
        """Save the app's parts, then give it the memory store, the virtual clock and this harness as its engine.

        Raises: MainspringError if the app is in use.
        """
        host, registry = self._host, registry_of(self.app)
        if host.runtime is not None:
            raise MainspringError("this Mainspring is in use already: close() it before a test takes it over")
        self._tables = registry.copy_tables()
        self._subscriptions = list(host.bus._subscriptions)
        self._block_on = host.block_on
        own = host.settings
        settings = replace(
            own,
            poll=max(own.poll, VIRTUAL_POLL_MS),
            pace=0,
            lease_ttl=max(own.lease_ttl, DAY_MS),
            heartbeat=max(own.heartbeat, DAY_MS // 4),
            history=max(own.history or 0, 36_500 * DAY_MS),
        )
        environment = HostEnvironment(
            clock=self.clock,
            engine=self,
            settings=settings,
            store=self.store,
            block_on=self._block,
            direct_writes=False,
            is_engine_managed=True,
        )
        self._before = host.move_to(environment)

    def leave(self) -> None:
        """Stop the engine, and restore everything that `enter` saved, even if stopping fails."""
        host = self._host
        try:
            self._shut()
        finally:
            host.move_to(self._before)
            host.forget_runtime()
            registry_of(self.app).restore_tables(self._tables)
            host.bus._subscriptions[:] = self._subscriptions
            host.bus.bind(None, None)
            for loop in self._own:
                loop.close()

    def _shut(self) -> None:
        """Stop the engine if its loop can still be driven: it is open, and not running."""
        loop = self._loop
        if loop is None or loop.is_closed() or loop.is_running():
            return  # the engine ended with its loop, which cancelled all of its tasks
        loop.run_until_complete(self._end())

    async def _end(self) -> None:
        """Stop the engine without waiting for handlers: the runs of running attempts are handed back.

        A begun run of a task with `recovery="fail"` ends as lost instead.
        """
        runtime = self._host.runtime
        if runtime is not None:

            async def stop() -> None:
                await runtime.stop_now()
                await runtime.stop(0)
                await self._host.bus.settle()
                await runtime.close()

            stopping = asyncio.ensure_future(stop())
            while not stopping.done():
                await self._time.advance(0.01)
            await stopping
        self._host.forget_runtime()
        self._time.detach()

    # ── the engine's loop ──────────────────────────────────────────────────

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the engine's loop and return its result; the caller may be on another loop or thread."""
        if threading.get_ident() == self._thread or asyncio.get_running_loop() is self._loop:
            await self._ready()
            return await work
        if self._loop is not None and self._loop.is_running():
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        return await asyncio.get_running_loop().run_in_executor(None, self.run, self._ready_for(work))

    async def _ready_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Start the engine on the running loop if needed, then run `work`."""
        await self._ready()
        return await work

    def post(self, callback: Any, *args: Any) -> None:
        """Call `callback(*args)` soon on the engine's loop; do nothing if there is no open loop. Thread: any."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *args)

    async def stop_when_idle(self, is_unused: Callable[[], bool]) -> None:
        """Do nothing. In an async test the loop belongs to the test; in a plain test, `leave` closes it."""

    async def _ready(self) -> None:
        """Start the engine on the running loop, unless it is there already.

        If the engine is on another loop, it is stopped there first. The store and its rows are kept.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            before, self._loop = self._loop, loop
            self._beginning = loop.create_task(self._begin(before))
        await asyncio.shield(self._beginning)

    async def _begin(self, before: asyncio.AbstractEventLoop | None) -> None:
        """End the engine on the loop `before`, if any; then start it on the running loop, with the worker stopped."""
        if before is not None and not before.is_closed():
            await asyncio.to_thread(before.run_until_complete, self._end())
        self._host.forget_runtime()
        self._turn = asyncio.Lock()
        self._time = VirtualTime(self.clock)
        self._time.attach()
        runtime = await self._host.open_here()
        await self._declare(runtime)
        loop = asyncio.get_running_loop()
        await runtime.start(loop, inline=True)
        assert runtime.worker is not None
        await runtime.worker.stop()
        blocking = BlockingExecutor(self, runtime.worker, loop)
        runtime.workers.executors.update({"thread": blocking, "process": blocking})
        self._wait_for_end = runtime.wait_for_end
        runtime.wait_for_end = self._wait  # never restored: the runtime lives no longer than the harness

    async def _declare(self, runtime: Runtime) -> None:
        """Store the declared schedules, if their number has changed since the last call."""
        if len(self.app.declared) != self._declared:
            self._declared = len(self.app.declared)
            await runner_of(self.app).declare(runtime)

    # ── steps ──────────────────────────────────────────────────────────────

    @contextlib.asynccontextmanager
    async def _step(self) -> AsyncIterator[VirtualTime]:
        """Run the worker inside the block, and yield the virtual time, for the block to move.

        Schedules that were declared since the last step are stored first. Between two steps no run can begin. Raises:
        MainspringError if a handler begins a step.
        """
        if _stepping.get() or self._in_blocking_call:
            raise MainspringError("a handler cannot move the clock of its test: call this method in the test instead")
        await self._ready()
        async with self._turn:
            runtime = self._host.runtime
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
        """Move virtual time forward by `by` milliseconds; fires and runs that fall due on the way are carried out."""
        async with self._step() as time:
            await time.advance(by / 1000)

    async def settle(self) -> None:
        """Carry out what is due now, without moving time."""
        async with self._step() as time:
            await time.settle()

    async def drain(self, within: Ms) -> None:
        """Move time forward until no run is open. Raises: AssertionError if one is open after `within` milliseconds."""
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
        """Wait for a run to end, at most `timeout` seconds. Replaces the runtime's `wait_for_end`.

        If a test waits, time is moved until the run ends. If an async handler waits, time is not moved here. Raises:
        MainspringError in a blocking handler, during whose call no other run can begin.
        """
        if self._in_blocking_call:
            raise MainspringError(
                "a blocking handler cannot wait for another run in a test. Make the handler async, or wait in the test"
            )
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
        """Drive the engine's loop in this thread until `work` is done, and return its result.

        Blocking handlers are called between two turns of the loop.
        """
        with self._one_at_a_time:
            self._driver = threading.get_ident()
            return self._run(work)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Drive a loop until `work` is done, and return its result. Between turns, call the queued blocking handlers.

        The loop is the engine's, or a new one if the engine's is closed, is running, or does not exist yet. If a
        blocking handler calls this, no other handler is called.
        """
        loop = self._loop
        if loop is None or loop.is_closed() or loop.is_running():
            loop = asyncio.new_event_loop()
            self._own.append(loop)
        if self._in_blocking_call:
            return loop.run_until_complete(work)
        self._called = asyncio.Event()
        self._is_driven = True
        task = loop.create_task(work)
        try:
            while not task.done():
                loop.run_until_complete(self._until(task))
                self._called.clear()
                self._in_blocking_call = True
                while self._calls:
                    blocking, held = self._calls.popleft()
                    blocking.carry_out(held)
                    self._time.release()
                self._in_blocking_call = False
            return task.result()
        finally:
            self._is_driven = self._in_blocking_call = False

    async def _until(self, task: asyncio.Task[Any]) -> None:
        """Return once the task is done or a blocking handler is queued."""
        called = asyncio.ensure_future(self._called.wait())
        await asyncio.wait([task, called], return_when=asyncio.FIRST_COMPLETED)
        called.cancel()

    def _block(self, work: Coroutine[Any, Any, T], instead: str) -> T:
        """Run `work` to its end and return its result. During a test this replaces the app's `block_on`.

        In the test's thread, or in the thread that last drove the engine's loop, drive that loop until `work` is done.
        In any other thread, and in one that already runs an event loop, call the original `block_on`. If an event loop
        runs, that raises SyncOnLoop, which tells the user to await `instead`.
        """
        if threading.get_ident() in (self._thread, self._driver) and not runs_loop():
            return self.run(work)
        return self._block_on(work, instead)

    def queue_for_driver(self, blocking: BlockingExecutor, held: HeldRun) -> bool:
        """Queue a blocking handler for the plain test that drives the loop, and return True.

        Time stands still until the handler has returned. In an async test, queue nothing and return False: no code
        outside the loop drives the loop.
        """
        if self._is_driven:
            self._time.hold()
            self._calls.append((blocking, held))
            self._called.set()
        return self._is_driven


class BlockingExecutor(ThreadExecutor):
    """Executor of blocking handlers during a test; virtual time stands still while a handler is called.

    In a plain test, handlers run in the test's thread, in an async test in a thread pool.
    """

    def __init__(self, home: AppHarness, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(SystemThreads(), home.clock, worker.outcomes.put, loop)
        self._harness = home
        self._loop = loop

    def start(self, held_runs: Sequence[HeldRun]) -> None:
        for held in held_runs:
            held.execution.run_on_loop = self._run_on_loop
            if not self._harness.queue_for_driver(self, held):
                self._loop.run_in_executor(None, self.carry_out, held)

    def carry_out(self, held: HeldRun) -> None:
        """Call the handler and queue its outcome for the worker.

        Thread: the test's in a plain test, else one of a thread pool.
        """
        self._done(held, self._outcome(held))

    def _run_on_loop(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._harness.run(coroutine) if not self._loop.is_running() else super()._run_on_loop(coroutine)
