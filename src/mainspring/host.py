"""Where an app's engine lives: settings, clock, store and the loop of its own, opened at the first call."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from mainspring.engine.bus import Bus
from mainspring.engine.direct import Direct
from mainspring.engine.inline import Inline
from mainspring.engine.loop import EngineLoop, ThreadLoop
from mainspring.engine.runtime import Runtime, open_broker, open_store
from mainspring.model.change import Change, Result
from mainspring.model.errors import StoreError, StoreUnavailable
from mainspring.model.http import AgentSettings
from mainspring.model.ids import IdFactory
from mainspring.model.instant import Duration, Ms, zone
from mainspring.model.policies import choice
from mainspring.model.run import Run
from mainspring.model.settings import Settings, make_settings
from mainspring.ports.broker import Broker
from mainspring.ports.clock import Clock, SystemClock
from mainspring.ports.executor import Attempt, Handler, end_of_loading
from mainspring.ports.inline import Inlines
from mainspring.ports.store import Capabilities, Store
from mainspring.ports.threads import SystemThreads, Threads
from mainspring.service import CHUNK, NewRun, created

if TYPE_CHECKING:
    from mainspring.task import BaseTask

T = TypeVar("T")

#: Progress is for people: a line is written at most so often.
PROGRESS_SECONDS = 0.5

#: Chunks of a bulk enqueue that may wait for the store at once.
AHEAD = 2

DEFAULT_URL = "sqlite:///mainspring.db"


class EngineHost:
    """Everything that runs on the engine's loop goes through `call`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        store: Store | None = None,
        broker: str | Broker | None = None,
        name: str = "mainspring",
        version: str = "",
        namespace: str = "default",
        tz: str = "UTC",
        queues: Iterable[str] = ("default",),
        concurrency: int = 10,
        lease_ttl: Duration = "30s",
        heartbeat: Duration | None = None,
        poll_interval: Duration = "1s",
        shutdown_timeout: Duration = "30s",
        history: Duration | None = None,
        payload_limit: int = 64 * 1024,
        labels: Mapping[str, str] | None = None,
        deps: Any = None,
        agents: AgentSettings | None = None,
        on_drift: Literal["keep", "code"] = "keep",
        clock: Clock | None = None,
        rng: random.Random | None = None,
        threads: Threads | None = None,
    ) -> None:
        self.url = url or os.environ.get("MAINSPRING_URL") or DEFAULT_URL
        self.settings: Settings = make_settings(
            app=name,
            version=version,
            namespace=namespace,
            queues=tuple(queues),
            concurrency=concurrency,
            lease_ttl=lease_ttl,
            heartbeat=heartbeat,
            poll_interval=poll_interval,
            shutdown_timeout=shutdown_timeout,
            history=history,
            payload_limit=payload_limit,
            labels=labels,
        )
        if store is None:
            open_store(self.url, SystemClock())  # a wrong URL is refused here, not at the first call
        self.broker: str | Broker | None = None
        self.use_broker(broker or os.environ.get("MAINSPRING_BROKER"))
        zone(tz, field="tz")
        self.tz = tz
        self.deps = deps
        #: How HTTP agents are called; None as long as this program names none, and then it calls none.
        self.agents: AgentSettings | None = agents
        choice(on_drift, ("keep", "code"), field="on_drift")
        self.on_drift: Literal["keep", "code"] = on_drift
        self.clock: Clock = clock or SystemClock()
        self._own_rng = rng is None
        self._rng = rng or random.Random()  # noqa: S311 - jitter and ids, not secrets
        self._pid = os.getpid()
        self._threads: Threads = threads or SystemThreads()
        self._given_store = store
        self._ids = IdFactory(self._rng)
        self._ids_lock = threading.Lock()
        self._bus = Bus()
        self.tasks: dict[str, BaseTask[Any, Any]] = {}
        self._handlers: dict[str, Handler] = {}
        self._declared: dict[str, dict[str, Any]] = {}
        self._engine: EngineLoop = ThreadLoop(self._threads)
        self._runtime: Runtime | None = None
        self._runtime_pid = 0
        self._progress: dict[Attempt, str] = {}
        self._progressing: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[Runtime] | None = None

    def use_broker(self, broker: str | Broker | None) -> None:
        """Have hints of work travel by this broker from the next start on; None or nothing changes nothing."""
        if isinstance(broker, str) and broker:
            open_broker(broker, SystemClock())  # a wrong URL is refused here, not at the first call
        self.broker = broker or self.broker

    # ── the engine ─────────────────────────────────────────────────────────

    async def call(self, work: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
        """Run something on the engine's loop, with the store open."""
        if self._runtime is None:
            end_of_loading()
        return await self._engine.call(self._with_runtime(work))

    def capabilities(self) -> Capabilities:
        """What its store can do; nothing is opened for it."""
        return (self._given_store or open_store(self.url, self.clock)).capabilities

    def _at_hand(self) -> Runtime | None:
        """The runtime if it is open in this process already, and its loop with it."""
        runtime = self._runtime
        return runtime if runtime is not None and self._runtime_pid == os.getpid() and runtime.is_open else None

    async def opened(self) -> Runtime:
        """The runtime, from any loop; it is for those who know what they may do outside the engine's."""
        runtime = self._at_hand()
        return runtime if runtime is not None else await self.call(_itself)

    async def enqueue(self, new: NewRun) -> tuple[Run, bool]:
        """Store a run: the run, and whether it is new."""
        runtime = self._at_hand()
        if runtime is None:
            return await self.call(lambda opened: opened.commands.enqueue(new))
        run, change = runtime.commands.birth(new)
        return created(run, await runtime.way().apply(change))

    async def enqueue_many(self, many: Iterable[NewRun]) -> list[str]:
        """Their ids. One commit for up to a thousand, beyond that in chunks; while one is stored the next is made."""
        runtime = await self.opened()
        if runtime.store.capabilities.remote:
            # Made here, the next chunk would hold the interpreter while the last one waits for it to be sent.
            return await self._engine.call(self._in_chunks(runtime, many, runtime.batcher.apply_beside))
        return await self._in_chunks(runtime, many, runtime.crossing.apply)

    async def _in_chunks(
        self, runtime: Runtime, many: Iterable[NewRun], store: Callable[[Change], Coroutine[Any, Any, Result]]
    ) -> list[str]:
        """`AHEAD` of them are under way at once; a server has a connection for each."""
        ids: list[str] = []
        pending: list[asyncio.Task[Result]] = []
        left = iter(many)
        try:
            while chunk := list(itertools.islice(left, CHUNK)):
                ids += [new.event.run_id or "" for new in chunk]
                change = runtime.commands.births(chunk)
                if len(pending) >= AHEAD:
                    await pending.pop(0)
                pending.append(asyncio.ensure_future(store(change)))
                await asyncio.sleep(0)
            while pending:
                await pending.pop(0)
        finally:
            await asyncio.gather(*pending, return_exceptions=True)
        return ids

    def enqueue_blocking(self, new: NewRun) -> tuple[Run, bool] | None:
        """The same from a thread without a loop; None when the engine is not open yet."""
        runtime = self._at_hand()
        if runtime is None:
            return None
        run, change = runtime.commands.birth(new)
        return created(run, runtime.way().apply_blocking(change))

    async def _with_runtime(self, work: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
        return await work(await self._opened())

    async def _opened(self) -> Runtime:
        """The runtime of this process, opened once; a forked child gets its own."""
        if self._runtime is not None and self._runtime_pid == os.getpid():
            return self._runtime
        if self._opening is None or self._opening.get_loop() is not asyncio.get_running_loop():
            self._opening = asyncio.get_running_loop().create_task(self._open())
        opening = self._opening
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            asking = asyncio.current_task()
            if opening.cancelled() and asking is not None and not asking.cancelling():
                raise StoreUnavailable("the store was closed before it was open; nothing was stored") from None
            raise
        finally:
            if self._opening is not None and self._opening.done():
                self._opening = None

    async def _open(self) -> Runtime:
        self._after_fork()
        store = self._given_store or open_store(self.url, self.clock)
        if not store.capabilities.durable:
            self._given_store = store  # what only lives in memory must outlive run() and close()
        broker = open_broker(self.broker, self.clock) if isinstance(self.broker, str) else self.broker
        if isinstance(self.broker, str) and self.broker.startswith("memory:"):
            self.broker = broker  # the same of it
        runtime = Runtime(store, self.clock, self._rng, self.settings, self._handlers, self._bus, self._threads, broker)
        try:
            await runtime.open()
        except BaseException:  # what did not open is closed by nobody
            await store.close()
            raise
        if store.capabilities.remote and self._given_store is None:
            runtime.direct = Direct(lambda: open_store(self.url, self.clock), runtime.crossing)
        elif isinstance(store, Inlines):
            runtime.direct = Inline(store.beside, runtime.crossing, self.clock.monotonic)
        self._runtime, self._runtime_pid = runtime, os.getpid()
        return runtime

    async def close(self) -> None:
        """Close the store, also one that is being opened, and end the engine's thread; the next call opens it again."""
        if self._engine.begun:
            await self._engine.call(self._begin_no_more())
        runtime, self._runtime = self._runtime, None
        if runtime is not None and self._runtime_pid == os.getpid():
            if runtime.direct is not None:
                await runtime.direct.close()
            await self._engine.call(runtime.close())
        await self._engine.rest(lambda: self._runtime is None)  # another thread may have opened it again

    async def _begin_no_more(self) -> None:
        """Whoever asked for the store gave up; a server that is not there is waited for no longer."""
        self._progress.clear()
        if self._progressing is not None:
            self._progressing.cancel()
        opening, self._opening = self._opening, None
        if opening is not None and opening.get_loop() is asyncio.get_running_loop():
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)

    def now(self) -> Ms:
        """The store's time as far as it is known here, else this machine's."""
        return self.clock.now() if self._runtime is None else self._runtime.time.now()

    def new_id(self, now: Ms) -> str:
        """A time-ordered id for a run made here."""
        self._after_fork()
        with self._ids_lock:
            return self._ids.uuid7(now)

    def new_ids(self, now: Ms, count: int) -> list[str]:
        """So many of them, in order."""
        self._after_fork()
        with self._ids_lock:
            return self._ids.uuid7s(now, count)

    def _after_fork(self) -> None:
        """A forked child begins with its parent's random state: siblings would make the same ids."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            if self._own_rng:
                self._rng.seed()
            self._ids, self._ids_lock = IdFactory(self._rng), threading.Lock()

    def report_progress(self, attempt: Attempt, text: str) -> None:
        """Keep a progress line; from any thread, never blocks the handler; only the newest one is written."""
        self._engine.post(self._note_progress, attempt, text)

    def _note_progress(self, attempt: Attempt, text: str) -> None:
        idle = not self._progress
        self._progress[attempt] = text
        if idle:
            self._progressing = asyncio.get_running_loop().create_task(self._store_progress())

    async def _store_progress(self) -> None:
        while self._progress:
            for attempt, text in list(self._progress.items()):
                if self._progress.get(attempt) == text:
                    del self._progress[attempt]
                if self._runtime is not None and not attempt.done:
                    with contextlib.suppress(StoreError):
                        await self._runtime.store.progress(attempt.run.id, attempt.run.epoch, text)
            await asyncio.sleep(PROGRESS_SECONDS)


async def _itself(runtime: Runtime) -> Runtime:
    return runtime
