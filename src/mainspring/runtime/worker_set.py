"""The workers of an instance and what they share: the executors, the claims, and the handlers' loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from mainspring.engine.commit.batcher import EventSink
from mainspring.engine.commit.shared_claims import SharedClaims
from mainspring.engine.run_logger import RunLogger
from mainspring.engine.store_clock import StoreClock
from mainspring.engine.work.log_writer import LogWriter
from mainspring.engine.work.recorder import Recorder
from mainspring.engine.work.watchdog import Watchdog
from mainspring.engine.work.worker import Worker
from mainspring.executors.coroutine import CoroutineExecutor
from mainspring.executors.deadlines import log_time_limit
from mainspring.executors.lazy import LazyExecutor
from mainspring.executors.outcomes import timeout_outcome
from mainspring.executors.thread import ThreadExecutor
from mainspring.model.events import Event
from mainspring.model.http import HTTP_TASK, AgentSettings
from mainspring.model.run import Run
from mainspring.model.settings import Settings
from mainspring.ports.executor import Executor, Handler, Kind
from mainspring.ports.store import Store
from mainspring.ports.threads import Threads
from mainspring.runtime.lingering import Lingering

if TYPE_CHECKING:
    from mainspring.agents.vault import Vault


class WorkerSet:
    """The worker of Python handlers and, where HTTP agents are called, a second worker with slots of its own.

    Why two: a slow agent then takes no slot from a Python handler. The set has no workers before `make_worker` and
    after `close`; it is made early because the batcher keeps its `claims`. Thread: engine loop.
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
        """Make the set, without a worker yet.

        `owner`: the name for claims; the worker of agents appends ":http" to it. `handlers`: task name → handler.
        `post(function)` schedules `function()` on the engine loop, from any thread.
        """
        self._store = store
        self._clock = clock
        self._settings = settings
        self._owner = owner
        self._handlers = handlers
        self._threads = threads
        self._post = post
        #: Logs lines about runs, also for the recorder and the settler.
        self.run_logger = RunLogger(store, clock.monotonic)
        #: Stores the lines that handlers write in the logs of their runs.
        self.log_writer = LogWriter(store, clock, settings.logs_limit, post)
        self._handler_loop: asyncio.AbstractEventLoop | None = None
        self._watchdog: Watchdog | None = None
        #: The workers whose claims may share a commit with changes.
        self.claims = SharedClaims()
        #: The worker that runs the program's handlers.
        self.worker: Worker | None = None
        #: The worker that calls HTTP agents.
        self.agents: Worker | None = None
        #: The executors of both workers, by kind of handler.
        self.executors: dict[Kind, Executor] = {}

    def __iter__(self) -> Iterator[Worker]:
        """Iterate over the workers that exist now: none, one or two."""
        return iter([worker for worker in (self.worker, self.agents) if worker is not None])

    # ── life ───────────────────────────────────────────────────────────────

    def make_worker(
        self,
        handler_loop: asyncio.AbstractEventLoop,
        recorder: Recorder,
        publisher: EventSink,
        note: Callable[[Event], None],
        *,
        inline: bool = False,
    ) -> Worker:
        """Make the worker of Python handlers and its executors, and return the worker; the caller starts its loops.

        Handlers of the kinds "async" and "sync" run on `handler_loop`; with `inline`, handlers of every kind run there.
        `publisher` receives the events of claims. `note` appends an event to the log soon.
        """
        self.executors = {}
        self._handler_loop, self._watchdog = handler_loop, None
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
            waits_for_handlers=not inline,
        )
        self.executors.update(self._make_executors(worker, handler_loop, note, inline=inline))
        self.claims.register(worker)
        return worker

    def _make_executors(
        self, worker: Worker, handler_loop: asyncio.AbstractEventLoop, note: Callable[[Event], None], *, inline: bool
    ) -> dict[Kind, Executor]:
        """Return kind of handler → executor. A watchdog checks `handler_loop` unless it is the engine loop.

        `note` appends an event to the log soon. With `inline`, handlers of every kind run on `handler_loop`.
        """
        done = worker.outcomes.put
        on_loop: Executor = CoroutineExecutor(
            handler_loop,
            self._clock,
            done,
            take_slot=worker.slots.take,
            on_no_slot=lambda held: self._post(functools.partial(worker.queue_for_slot, held)),
        )
        if handler_loop is not asyncio.get_running_loop():
            give_up = functools.partial(timeout_outcome, abandoned=True)
            report = functools.partial(log_time_limit, self.run_logger.write)
            on_loop = self._watchdog = Watchdog(
                on_loop, handler_loop, self._clock, self._owner, note, give_up, report, worker, self.run_logger
            )
        if inline:
            return {"async": on_loop, "sync": on_loop, "thread": on_loop, "process": on_loop}
        return {
            "async": on_loop,
            "sync": on_loop,
            "thread": ThreadExecutor(self._threads, self._clock, done, handler_loop, log_run=self._log_run),
            "process": LazyExecutor(functools.partial(self._make_process_executor, worker)),
        }

    def _make_process_executor(self, worker: Worker) -> Executor:
        """Return the executor of handlers that run in child processes. `LazyExecutor` calls this when it is needed."""
        from mainspring.executors.process import ProcessExecutor  # most programs never need it

        return ProcessExecutor(
            self._threads,
            self._clock,
            worker.outcomes.put,
            log_run=self._log_run,
            write_line=self.log_writer.put,
            schedule_name=self.run_logger.schedule_name,
        )

    def _log_run(self, level: int, run: Run, text: str, *args: object) -> None:
        """Log a line about a run, as `RunLogger.write` does. The executors call this. Thread: any."""
        self._post(functools.partial(self.run_logger.write, level, run, text, *args))

    def make_agent_worker(
        self, settings: AgentSettings, vault: Vault, recorder: Recorder, publisher: EventSink
    ) -> Worker | None:
        """Make the worker of HTTP agents and its executor, and return the worker; the caller starts its loops.

        If this worker exists already, or if there is no worker of Python handlers, make nothing and return None. Agents
        are called on the handlers' loop. Raises: MissingExtra if aiohttp is not installed.
        """
        if self.agents is not None or self.worker is None or self._handler_loop is None:
            return None
        from mainspring.agents.fair_limiter import add_reserve
        from mainspring.runtime.http_agents import make_agent_client, make_agent_executor  # aiohttp is an extra

        client, handler = make_agent_client(settings, self._handler_loop, self._clock, vault)
        self.agents = agents = Worker(
            "agents",
            self._store,
            recorder,
            self._clock,
            replace(self._settings, concurrency=add_reserve(settings.concurrency) + client.waiting_places),
            f"{self._owner}:http",
            {HTTP_TASK: handler},
            self.executors,
            publisher,
            self._post,
            heartbeat_name="agents-heartbeat",
            waits_for_handlers=self.worker.waits_for_handlers,
            under_way=lambda: client.placed,
        )
        self.executors["http"] = make_agent_executor(self._handler_loop, self._clock, agents.outcomes.put, client)
        self.claims.register(agents)
        return agents

    def stop_claiming(self) -> None:
        """Let the workers claim and begin no more runs. Attempts that have begun go on."""
        for worker in self:
            worker.stop_claiming()

    async def drain(self, timeout: float) -> None:
        """Stop claiming, let attempts finish within `timeout` seconds, and hand back the runs that did not finish."""
        await asyncio.gather(*(worker.drain(timeout) for worker in self))

    async def abort(self) -> None:
        """Hand back every run at once. A `drain` that waits for attempts then ends.

        The caller of that `drain` may call `close` before this has ended.
        """
        for worker in self:
            await worker.abort("shutdown")

    async def close(self) -> Lingering | None:
        """Close the executors and forget the workers.

        If handlers still run, return what keeps their leases, begun; else None.
        """
        left = [worker for worker in self if worker.running]
        for executor in self.executors.values():
            await executor.close()
        await self.run_logger.drain()
        await self.log_writer.close()
        self.claims.clear()
        lingering = None
        if left and self._handler_loop is not None:
            lingering = Lingering(left, self._handler_loop, self.run_logger.write)
            lingering.begin()
        self.worker = self.agents = None
        return lingering

    # ── what other parts of the instance call ──────────────────────────────

    def wake(self) -> None:
        """Let every worker claim soon, without waiting for its poll."""
        for worker in self:
            worker.wake()

    def cancel(self, run_id: str, reason: str) -> None:
        """Stop the attempt of a run if one of the workers holds the run; it ends as cancelled for `reason`."""
        for worker in self:
            worker.cancel(run_id, reason)

    def drain_outcomes(self) -> None:
        """Record the outcomes that wait in the workers' inboxes. The settler calls this before it settles."""
        for worker in self:
            worker.outcomes.drain()

    def holds(self, run_id: str) -> bool:
        """Return True if one of the workers holds the lease of this run."""
        return any(run_id in worker.running for worker in self)

    @property
    def has_backlog(self) -> bool:
        """True while the worker of Python handlers holds as many runs as it has slots, or more.

        Outcomes may linger then: to commit them at once would bring no run sooner, because the next run is here
        already.
        """
        return self.worker is not None and len(self.worker.running) >= self._settings.concurrency

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks that the workers can execute, "http" among them while agents are called."""
        return tuple(self._handlers) + ((HTTP_TASK,) if self.agents is not None else ())

    @property
    def running(self) -> int:
        """Number of runs that the workers hold, including those that wait for a slot."""
        return sum(len(worker.running) for worker in self)

    @property
    def handlers_trouble(self) -> str | None:
        """Why no handler can run on the handlers' loop any more; None if handlers can."""
        return None if self._watchdog is None else self._watchdog.trouble

    @property
    def tasks_under_way(self) -> list[str]:
        """Names of the tasks of the runs whose attempts have begun here, one name for each run."""
        return [
            held.attempt.run.task
            for worker in self
            for held in worker.running.values()
            if held.execution.began_at is not None
        ]

    @property
    def abandoned(self) -> int:
        """Number of attempts that still ran after their overrun and were abandoned, since the start."""
        return sum(getattr(executor, "abandoned", 0) for executor in set(self.executors.values()))
