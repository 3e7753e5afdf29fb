"""The workers of an instance and what they share: executors, claims, and the handlers' loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from mainspring.engine.commit.batcher import EventSink
from mainspring.engine.commit.shared_claims import SharedClaims
from mainspring.engine.store_clock import StoreClock
from mainspring.engine.work.recorder import Recorder
from mainspring.engine.work.watchdog import Watchdog
from mainspring.engine.work.worker import Worker
from mainspring.executors.coroutine import CoroutineExecutor
from mainspring.executors.lazy import LazyExecutor
from mainspring.executors.outcomes import timeout_outcome
from mainspring.executors.thread import ThreadExecutor
from mainspring.model.events import Event
from mainspring.model.http import HTTP_TASK, AgentSettings
from mainspring.model.settings import Settings
from mainspring.ports.executor import Executor, Handler, Kind
from mainspring.ports.store import Store
from mainspring.ports.threads import Threads

if TYPE_CHECKING:
    from mainspring.agents.vault import Vault


class WorkerSet:
    """The worker of Python handlers and, where HTTP agents are called, a second worker with slots of its own.

    A slow agent takes no slot from a handler. The set is made before the batcher, which needs `claims`; it has no
    worker before `start` and none after `close`. Thread: engine loop.
    """

    def __init__(
        self,
        store: Store,
        clock: StoreClock,
        settings: Settings,
        owner: str,
        handlers: Mapping[str, Handler],
        threads: Threads,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        """`post` calls a function on the engine loop soon, from any thread."""
        self._store = store
        self._clock = clock
        self._settings = settings
        self._owner = owner
        self._handlers = handlers
        self._threads = threads
        self._post = post
        self._handler_loop: asyncio.AbstractEventLoop | None = None
        #: Claims of the workers that may share a commit with changes.
        self.claims = SharedClaims()
        #: Runs the program's handlers.
        self.worker: Worker | None = None
        #: Calls HTTP agents.
        self.agents: Worker | None = None
        #: The executors of both workers, by kind of handler.
        self.executors: dict[Kind, Executor] = {}

    def __iter__(self) -> Iterator[Worker]:
        """Iterate over the workers that exist now: none, one or two."""
        return iter([worker for worker in (self.worker, self.agents) if worker is not None])

    # ── life ───────────────────────────────────────────────────────────────

    def start(
        self,
        handler_loop: asyncio.AbstractEventLoop,
        recorder: Recorder,
        publisher: EventSink,
        note: Callable[[Event], None],
        *,
        inline: bool = False,
    ) -> Worker:
        """Make the worker of Python handlers and its executors, and return the worker; the caller starts its loops.

        Handlers of the kinds "async" and "sync" run on `handler_loop`; with `inline`, handlers of every kind do. `note`
        appends an event to the log soon.
        """
        self.executors = {}
        self._handler_loop = handler_loop
        self.worker = worker = Worker(
            "worker",
            self._store,
            recorder,
            self._clock,
            self._settings,
            self._owner,
            self._handlers,
            self.executors,
            publisher,
            self._post,
        )
        self.executors.update(self._make_executors(worker, handler_loop, note, inline=inline))
        self.claims.register(worker)
        return worker

    def _make_executors(
        self, worker: Worker, handler_loop: asyncio.AbstractEventLoop, note: Callable[[Event], None], *, inline: bool
    ) -> dict[Kind, Executor]:
        """Return the executors by kind of handler. A watchdog watches `handler_loop` if it is not the engine loop."""
        done = worker.outcomes.put
        on_loop: Executor = CoroutineExecutor(
            handler_loop,
            self._clock,
            done,
            take_slot=worker.slots.take,
            on_no_slot=lambda held: self._post(functools.partial(worker.no_slot, held)),
        )
        if handler_loop is not asyncio.get_running_loop():
            give_up = functools.partial(timeout_outcome, abandoned=True)
            on_loop = Watchdog(on_loop, handler_loop, self._clock, self._owner, note, give_up, worker)
        if inline:
            return {"async": on_loop, "sync": on_loop, "thread": on_loop, "process": on_loop}
        return {
            "async": on_loop,
            "sync": on_loop,
            "thread": ThreadExecutor(self._threads, self._clock, done, handler_loop),
            "process": LazyExecutor(functools.partial(self._make_process_executor, worker)),
        }

    def _make_process_executor(self, worker: Worker) -> Executor:
        """Return the executor of handlers that run in child processes."""
        from mainspring.executors.process import ProcessExecutor  # most programs never need it

        return ProcessExecutor(self._threads, self._clock, worker.outcomes.put)

    def start_agents(
        self, settings: AgentSettings, vault: Vault, recorder: Recorder, publisher: EventSink
    ) -> Worker | None:
        """Make the worker of HTTP agents and its executor, and return the worker; the caller starts its loops.

        Return None, and make nothing, if there is such a worker already, or no worker of Python handlers. Agents are
        called on the handlers' loop. Raises: MissingExtra without aiohttp.
        """
        if self.agents is not None or self.worker is None or self._handler_loop is None:
            return None
        from mainspring.agents.fair_limiter import with_reserve
        from mainspring.runtime.http_agents import make_agent_client, make_agent_executor  # aiohttp is an extra

        client, handler = make_agent_client(settings, self._handler_loop, self._clock, vault)
        self.agents = agents = Worker(
            "agents",
            self._store,
            recorder,
            self._clock,
            replace(self._settings, concurrency=with_reserve(settings.concurrency)),
            f"{self._owner}:http",
            {HTTP_TASK: handler},
            self.executors,
            publisher,
            self._post,
            heartbeat_name="agents-heart",
            under_way=lambda: client.under_way,
        )
        self.executors["http"] = make_agent_executor(self._handler_loop, self._clock, agents.outcomes.put, client)
        self.claims.register(agents)
        return agents

    def stop_claiming(self) -> None:
        """Have the workers claim and begin nothing more; attempts that run go on."""
        for worker in self:
            worker.stop_claiming()

    async def drain(self, timeout: float) -> None:
        """Stop claiming, let attempts finish within `timeout` seconds, and hand the rest back."""
        await asyncio.gather(*(worker.drain(timeout) for worker in self))

    async def abort(self) -> None:
        """Hand every run back at once, which ends a `drain` under way; `close` may run meanwhile."""
        for worker in self:
            await worker.abort("shutdown")

    async def close(self) -> None:
        """Close the executors and forget the workers."""
        for executor in self.executors.values():
            await executor.close()
        self.claims.clear()
        self.worker = self.agents = None

    # ── what others ask the workers for ────────────────────────────────────

    def wake(self) -> None:
        """Have every worker claim soon, without waiting for its poll."""
        for worker in self:
            worker.wake()

    def cancel(self, run_id: str, reason: str) -> None:
        """Have the attempt of a run end as cancelled for `reason`, if one of these workers holds the run."""
        for worker in self:
            worker.cancel(run_id, reason)

    def drain_outcomes(self) -> None:
        """Record the outcomes that still wait in the workers' inboxes."""
        for worker in self:
            worker.outcomes.drain()

    def holds(self, run_id: str) -> bool:
        """Return True if one of the workers holds the lease of this run."""
        return any(run_id in worker.running for worker in self)

    @property
    def has_backlog(self) -> bool:
        """True while the worker of Python handlers holds as many runs as it has slots, or more.

        An outcome that is committed at once then brings no run to a free slot, so it may linger.
        """
        return self.worker is not None and len(self.worker.running) >= self._settings.concurrency

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks that the workers can execute, "http" among them while agents are called."""
        return tuple(self._handlers) + ((HTTP_TASK,) if self.agents is not None else ())

    @property
    def running(self) -> int:
        """Number of runs that the workers hold, those that wait for a slot included."""
        return sum(len(worker.running) for worker in self)

    @property
    def abandoned(self) -> int:
        """Number of attempts since the start that did not stop after their time-out."""
        return sum(getattr(executor, "abandoned", 0) for executor in set(self.executors.values()))
