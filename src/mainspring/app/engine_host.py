"""Engine host: opens the store of an app at the first call, and runs coroutines on the engine's event loop.

Tasks, queries, locks and the engine runner of a `Mainspring` reach the store through the engine host.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from msgspec import UNSET, Struct, UnsetType

from mainspring.app.blocking import BlockOn, block_on
from mainspring.app.progress_writer import ProgressWriter
from mainspring.engine.events.bus import Bus, Subscriber
from mainspring.model.change import Change, Result
from mainspring.model.errors import StoreUnavailable
from mainspring.model.events import Event
from mainspring.model.http import AgentSettings
from mainspring.model.ids import IdFactory
from mainspring.model.instant import Ms
from mainspring.model.run import Run
from mainspring.model.settings import Settings
from mainspring.ports.broker import Broker
from mainspring.ports.clock import Clock, SystemClock
from mainspring.ports.executor import Handler, HeldRun, end_of_loading
from mainspring.ports.store import Capabilities, Store
from mainspring.ports.threads import Threads
from mainspring.runtime.engine_thread import EngineLoop, ThreadLoop
from mainspring.runtime.lazy_backends import open_broker, open_store
from mainspring.runtime.runtime import Runtime
from mainspring.service.commands import MAX_ROWS_PER_COMMIT, stored_run
from mainspring.service.requests import NewRun

T = TypeVar("T")

#: Commits of one bulk enqueue, each of up to `MAX_ROWS_PER_COMMIT` runs, that may wait for the store at a time.
MAX_CHUNKS_IN_FLIGHT = 2


class HostEnvironment(Struct, frozen=True, kw_only=True):
    """Parts of an engine host that a test kit may exchange, by `EngineHost.move_to`: clock, store and so on."""

    clock: Clock
    #: The event loop on which the engine runs.
    engine: EngineLoop
    settings: Settings
    #: A store object to use; None opens the store that the app's URL names.
    store: Store | None = None
    #: The broker or its URL; None: no broker.
    broker: str | Broker | None = None
    #: Runs a coroutine to its end for the blocking methods: `ms.sync`, `task.sync`, `with ms.sync.lock(…)`.
    block_on: BlockOn = block_on
    #: True: threads of callers may write to the store themselves. False: every use of the store runs by `engine.call`.
    direct_writes: bool = True
    #: True if the environment starts and stops the engine: `running()` and `lifespan()` then leave that to it.
    is_engine_managed: bool = False


class RunIds:
    """Source of time-ordered run ids that stays unique in forked children. Thread: any."""

    def __init__(self, rng: random.Random | None) -> None:
        """Draw ids from `rng`, or if it is None from a new generator, which is seeded anew in a forked child."""
        self._reseed = rng is None
        self.rng = rng or random.Random()  # noqa: S311 - jitter and ids, not secrets
        self._renew()

    def new(self, now: Ms) -> str:
        """Return a run id of the time `now`."""
        self.check_fork()
        with self._lock:
            return self._ids.uuid7(now)

    def new_many(self, now: Ms, count: int) -> list[str]:
        """Return `count` run ids of the time `now`, in ascending order."""
        self.check_fork()
        with self._lock:
            return self._ids.uuid7s(now, count)

    def check_fork(self) -> None:
        """Seed the generator anew and replace the lock, once in each forked child; in other processes do nothing.

        Why: with the random state of their parent, several children would make equal ids. A generator that the caller
        gave is not seeded.
        """
        if self._pid != os.getpid():
            if self._reseed:
                self.rng.seed()
            self._renew()

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._ids, self._lock = IdFactory(self.rng), threading.Lock()


class EngineHost:
    """Owner of an app's runtime: opens it at the first `call`, closes it, and opens it again after a fork or a close.

    The runtime is the open store with the parts of the engine. `call` runs coroutines on the engine's loop. `enqueue`
    can store new runs on the caller's own thread.
    """

    def __init__(
        self,
        url: str,
        environment: HostEnvironment,
        *,
        threads: Threads,
        rng: random.Random | None = None,
        agents: AgentSettings | None = None,
    ) -> None:
        """Check `url` (unless the environment has a store) and the broker's URL; nothing is opened.

        `rng` makes run ids and random delays; None: a new generator. `agents` None: no HTTP agent is called until
        `enable_agents` was called. Raises: InvalidInput for a URL that no backend knows; MissingExtra if a backend's
        package is not installed.
        """
        if environment.store is None:
            open_store(url, SystemClock())
        _check_broker(environment.broker)
        self.url = url
        #: Settings for calls of HTTP agents; `enable_agents` sets them. None: no agent is called.
        self.agents = agents
        self.threads = threads
        self.ids = RunIds(rng)
        self.bus = Bus()
        #: Handlers by task name; the registry fills this table.
        self.handlers: dict[str, Handler] = {}
        self._runtime: Runtime | None = None
        self._runtime_pid = 0
        self._opening: asyncio.Task[Runtime] | None = None
        self._progress = ProgressWriter(lambda: None if self._runtime is None else self._runtime.store)
        self._adopt(environment)

    # ── environment ────────────────────────────────────────────────────────

    def _adopt(self, environment: HostEnvironment) -> None:
        """Use the parts of `environment` from now on."""
        self.clock = environment.clock
        self.engine = environment.engine
        self.settings = environment.settings
        self.store = environment.store
        self.broker = environment.broker
        self.block_on = environment.block_on
        self._direct_writes = environment.direct_writes
        self.is_engine_managed = environment.is_engine_managed

    @property
    def environment(self) -> HostEnvironment:
        """The environment in use; it includes a store or broker that exists in memory only, once that was opened."""
        return HostEnvironment(
            clock=self.clock,
            engine=self.engine,
            settings=self.settings,
            store=self.store,
            broker=self.broker,
            block_on=self.block_on,
            direct_writes=self._direct_writes,
            is_engine_managed=self.is_engine_managed,
        )

    def move_to(self, environment: HostEnvironment) -> HostEnvironment:
        """Use another environment from the next call on, and return the former one. The runtime must be closed.

        Test kits use this for virtual time, a store in memory, and an engine on the test's own loop.
        """
        before = self.environment
        self._adopt(environment)
        return before

    def configure(
        self,
        *,
        url: str | None = None,
        broker: str | Broker | UnsetType | None = UNSET,
        settings: Settings | None = None,
    ) -> None:
        """Use another store URL, broker or settings from the next opening of the store on; what is not given stays.

        The commands `run`, `worker` and `serve` call this with their options. `broker` None: no broker. Raises:
        InvalidInput for a broker's URL that no backend knows.
        """
        if broker is not UNSET:
            _check_broker(broker)
            self.broker = broker
        self.url = url or self.url
        self.settings = settings or self.settings

    def enable_agents(self, settings: AgentSettings | None = None) -> None:
        """Let the engine call HTTP agents from its next start on.

        `settings` None: keep the settings in `agents`; if there are none, use the defaults.
        """
        self.agents = settings or self.agents or AgentSettings()

    @property
    def capabilities(self) -> Capabilities:
        """What the app's store can do, for example whether its data outlive the process. The store is not opened."""
        return (self.store or open_store(self.url, self.clock)).capabilities

    # ── calls ──────────────────────────────────────────────────────────────

    async def call(self, work: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
        """Open the store if it is not open, run `work(runtime)` on the engine's loop, and return its result.

        Raises: StoreError if the store cannot be opened; ProgramLoaded in a handlers' child process that imports the
        program only to find its functions.
        """
        if self._runtime is None:
            end_of_loading()
        return await self.engine.call(self._with_runtime(work))

    async def open_runtime(self) -> Runtime:
        """Return the runtime, after opening it if it is not open. Thread: any with an event loop.

        The caller must know which methods of the runtime may be used outside the engine's loop.
        """
        runtime = self._direct_runtime()
        return runtime if runtime is not None else await self.call(_return_runtime)

    @property
    def runtime(self) -> Runtime | None:
        """The runtime while the store is open in this process, else None; in a forked child, not that of its parent."""
        return self._runtime if self._runtime_pid == os.getpid() else None

    def _direct_runtime(self) -> Runtime | None:
        """Return the runtime if it is open in this process and threads of callers may write to its store, else None."""
        runtime = self._runtime
        if runtime is None or self._runtime_pid != os.getpid():
            return None
        return runtime if self._direct_writes and runtime.is_open else None

    # ── runs ───────────────────────────────────────────────────────────────

    async def enqueue(self, new: NewRun) -> tuple[Run, bool]:
        """Store a run and return it with True; if an open run has its unique key, return the open run with False.

        If the store is not open, or threads of callers may not write to it, the engine's loop stores the run. Otherwise
        the runtime's quickest writer stores the run, possibly on this thread.
        """
        runtime = self._direct_runtime()
        if runtime is None:
            return await self.call(lambda opened: opened.commands.enqueue(new))
        run, change = runtime.commands.make_run_and_change(new)
        return stored_run(run, await runtime.writer().apply(change))

    def enqueue_blocking(self, new: NewRun) -> tuple[Run, bool] | None:
        """Store a run on this thread, which runs no event loop, and return it with True.

        If an open run has its unique key, return the open run with False. If the store is not open, or threads of
        callers may not write to it, store nothing and return None: the caller then awaits `enqueue`.
        """
        runtime = self._direct_runtime()
        if runtime is None:
            return None
        run, change = runtime.commands.make_run_and_change(new)
        return stored_run(run, runtime.writer().apply_blocking(change))

    async def enqueue_many(self, many: Iterable[NewRun]) -> list[str]:
        """Store runs without unique keys in commits of up to `MAX_ROWS_PER_COMMIT`, and return the runs' ids.

        The runs of the next commit are made while a commit is stored. After an error, earlier commits stay.
        """
        runtime = await self.open_runtime()
        if runtime.store.capabilities.remote:
            # If this thread made the next chunk, it would hold the interpreter while the last chunk waits to be sent.
            return await self.engine.call(self._store_chunks(runtime, many, runtime.batcher.apply_beside))
        if self._direct_writes:
            return await self._store_chunks(runtime, many, runtime.submitter.apply)
        return await self.engine.call(self._store_chunks(runtime, list(many), runtime.submitter.apply))

    async def _store_chunks(
        self, runtime: Runtime, many: Iterable[NewRun], apply: Callable[[Change], Coroutine[Any, Any, Result]]
    ) -> list[str]:
        """Store runs in chunks of `MAX_ROWS_PER_COMMIT`, and return the runs' ids; stop at the first error.

        `apply` stores the change of one chunk; up to `MAX_CHUNKS_IN_FLIGHT` calls of it are under way at a time.
        """
        ids: list[str] = []
        pending: list[asyncio.Task[Result]] = []
        left = iter(many)
        try:
            while chunk := list(itertools.islice(left, MAX_ROWS_PER_COMMIT)):
                ids += [new.event.run_id or "" for new in chunk]
                change = runtime.commands.make_insert_change(chunk)
                if len(pending) >= MAX_CHUNKS_IN_FLIGHT:  # with a server, each chunk in flight uses a connection
                    await pending.pop(0)
                pending.append(asyncio.ensure_future(apply(change)))
                await asyncio.sleep(0)
            while pending:
                await pending.pop(0)
        finally:
            await asyncio.gather(*pending, return_exceptions=True)
        return ids

    def now(self) -> Ms:
        """Return the store's time, as this process estimates it; if the store is not open, this machine's time."""
        return self.clock.now() if self._runtime is None else self._runtime.time.now()

    def report_progress(self, held: HeldRun, text: str) -> None:
        """Let the engine's loop store `text` as the progress line of an attempt soon; do not wait. Thread: any.

        If the loop does not run, the line is dropped.
        """
        self.engine.post(self._progress.put, held, text)

    def write_line(self, held: HeldRun, level: str, source: str, text: str) -> None:
        """Store a line in the log of a run soon; do not wait. Thread: any.

        `level`, `source` and `text` are those of `LogEntry`. In a child process, the parent stores the line.
        """
        if held.execution.relay_line is not None:
            held.execution.relay_line(level, source, text)
        elif self._runtime is not None:
            self._runtime.workers.log_writer.put(held, level, source, text)

    def schedule_name(self, held: HeldRun) -> str | None:
        """Return the name of a run's schedule if this process knows it, else None. Thread: any."""
        if self._runtime is None:
            return held.execution.schedule
        return self._runtime.workers.run_logger.schedule_name(held.attempt.run)

    def look_up_schedule_soon(self, held: HeldRun) -> None:
        """Let the engine's loop learn the name of the run's schedule soon, if it is not known. Thread: any."""
        if self._runtime is not None and self.schedule_name(held) is None:
            self.engine.post(self._runtime.workers.run_logger.look_up_soon, held.attempt.run)

    def subscribe(self, types: tuple[type[Event], ...], subscriber: Subscriber, *, everywhere: bool) -> None:
        """While the engine runs, call `subscriber` with events of these types that this process commits.

        With `everywhere`, call it with those that any instance in the app's namespace commits.
        """
        self.bus.subscribe(types, subscriber, everywhere=everywhere)
        if self._runtime is not None:
            self._runtime.follow_log_if_needed()

    # ── opening and closing ────────────────────────────────────────────────

    async def _with_runtime(self, work: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
        """Run `work` with the runtime, which is opened if needed, and return its result. Thread: engine loop."""
        return await work(await self.open_here())

    async def open_here(self) -> Runtime:
        """Return the runtime of this process, opened if needed; a forked child opens its own. Thread: engine loop.

        Concurrent callers share one attempt to open it, which goes on when a caller is cancelled. Raises: StoreError if
        the attempt fails; StoreUnavailable if `close` cancels it.
        """
        if self._runtime is not None and self._runtime_pid == os.getpid():
            return self._runtime
        if self._opening is None or self._opening.get_loop() is not asyncio.get_running_loop():
            self._opening = asyncio.get_running_loop().create_task(self._open())
        opening = self._opening
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if opening.cancelled() and caller is not None and not caller.cancelling():
                raise StoreUnavailable("the store was closed before it was open; nothing was stored") from None
            raise
        finally:
            if self._opening is not None and self._opening.done():
                self._opening = None

    async def _open(self) -> Runtime:
        """Make a runtime, open it and keep it; if opening fails, close the store and raise the error.

        A store or broker that lives only in memory is kept as an object, so that the next opening uses it again.
        """
        self.ids.check_fork()
        is_own_store = self.store is None
        store = self.store or open_store(self.url, self.clock)
        if not store.capabilities.durable:
            self.store = store  # a store in memory must keep its data after run() and close()
        broker = open_broker(self.broker, self.clock) if isinstance(self.broker, str) else self.broker
        if isinstance(self.broker, str) and self.broker.startswith("memory:"):
            self.broker = broker  # opened by its URL again, it would be another, empty broker
        runtime = Runtime(
            store,
            self.clock,
            self.ids.rng,
            self.settings,
            self.handlers,
            self.bus,
            self.threads,
            broker,
            open_another=(lambda: open_store(self.url, self.clock)) if is_own_store else None,
            may_close=lambda: self._runtime is None or self._runtime.store is not store,
            is_sole_process=not isinstance(self.engine, ThreadLoop),  # a test drives the engine
        )
        try:
            await runtime.open()
        except BaseException:  # nothing else closes a store that did not open
            await store.close()
            raise
        self._runtime, self._runtime_pid = runtime, os.getpid()
        return runtime

    async def close(self) -> None:
        """Close the store, even while it is being opened, and end the engine's thread. The next call starts both again.

        Progress lines that are not written yet are dropped.
        """
        if self.engine.begun:
            await self.engine.call(self._cancel_opening())
        runtime, self._runtime = self._runtime, None
        if runtime is not None and self._runtime_pid == os.getpid():
            try:
                await runtime.close_caller_writer()
            finally:
                await self.engine.call(runtime.close())
        await self.engine.stop_when_idle(lambda: self._runtime is None)  # another thread may have opened it again

    def forget_runtime(self) -> None:
        """Drop the runtime without closing it: the caller has closed or abandoned it. The next call opens a new one.

        Test kits call this after they have closed the runtime themselves, or when its event loop is gone.
        """
        self._runtime = self._opening = None

    async def _cancel_opening(self) -> None:
        """Cancel the opening of the store, if it is under way, and drop unwritten progress lines. Thread: engine loop.

        Why: `close`, which calls this, must not wait for a server that does not answer.
        """
        self._progress.cancel()
        opening, self._opening = self._opening, None
        if opening is not None and opening.get_loop() is asyncio.get_running_loop():
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)


async def _return_runtime(runtime: Runtime) -> Runtime:
    return runtime


def _check_broker(broker: str | Broker | None) -> None:
    """Raise InvalidInput for a broker's URL that no backend knows. Nothing is opened."""
    if isinstance(broker, str) and broker:
        open_broker(broker, SystemClock())
