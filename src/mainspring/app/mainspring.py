"""`Mainspring`: the object with which a program declares tasks and schedules, queries runs, and runs the engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from msgspec import UNSET

from mainspring.app.context import Context
from mainspring.app.engine_host import EngineHost, HostEnvironment
from mainspring.app.engine_runner import EngineRunner
from mainspring.app.http_agents import HttpAgents
from mainspring.app.locks import Lock, Locks
from mainspring.app.queries import Queries
from mainspring.app.registry import DeclareOptions, Registry, TaskSettings
from mainspring.app.run_handle import RunHandle
from mainspring.app.schedule_bulk import BulkReader, create_many
from mainspring.app.schedule_edit import EditOptions, ScheduleEdit
from mainspring.app.sync import SyncDoor
from mainspring.app.task import AsyncContextTask, AsyncTask, BaseTask, ContextTask, Task, TaskDecorator
from mainspring.engine.leader import Leadership
from mainspring.model.events import Event
from mainspring.model.health import Health
from mainspring.model.http import AgentSettings, Http, HttpAgent, Method
from mainspring.model.instant import Duration, duration_ms, instant_ms, load_zone
from mainspring.model.policies import ON_CONFLICT, OnConflict, Role, check_choice
from mainspring.model.run import Run, State
from mainspring.model.schedule import Schedule
from mainspring.model.settings import Settings, make_settings
from mainspring.ports.broker import Broker
from mainspring.ports.clock import Clock, SystemClock
from mainspring.ports.executor import CHILD, LOADING, end_of_loading
from mainspring.ports.lock import LockKind
from mainspring.ports.store import Store
from mainspring.ports.threads import SystemThreads, Threads
from mainspring.rules.definition import WhenAndHow
from mainspring.rules.triggers import At, Every
from mainspring.runtime.engine_thread import ThreadLoop

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=Event)
E2 = TypeVar("E2", bound=Event)
E3 = TypeVar("E3", bound=Event)

DEFAULT_URL = "sqlite:///mainspring.db"


class Mainspring:
    """A scheduler and a queue on one store. Nothing starts on import, and nothing is opened before the first call."""

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
        settings = make_settings(
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
        threads = threads or SystemThreads()
        environment = HostEnvironment(
            clock=clock or SystemClock(),
            engine=ThreadLoop(threads),
            settings=settings,
            store=store,
            broker=broker or os.environ.get("MAINSPRING_BROKER") or None,
        )
        url = url or os.environ.get("MAINSPRING_URL") or DEFAULT_URL
        self._host = EngineHost(url, environment, threads=threads, rng=rng, agents=agents)
        load_zone(tz, field="tz")
        self.tz = tz
        #: The object that handlers receive as `ctx.deps`.
        self.deps = deps
        check_choice(on_drift, ("keep", "code"), field="on_drift")
        self.on_drift: Literal["keep", "code"] = on_drift
        self._registry = Registry(self, self._host)
        self._runner = EngineRunner(self._host, self._registry, on_drift)
        self._agents = HttpAgents(self._host)
        self._locks = Locks(self._host)
        self._queries = Queries(self._host)

    @property
    def url(self) -> str:
        """The URL of the store; not used if a store object was given."""
        return self._host.url

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._host.settings

    @property
    def broker(self) -> str | Broker | None:
        """The broker that carries hints of work between processes, or its URL."""
        return self._host.broker

    @property
    def agents(self) -> AgentSettings | None:
        """The settings for calls of HTTP agents; None if this program schedules no such calls."""
        return self._host.agents

    @property
    def clock(self) -> Clock:
        """The clock of this machine, or of a test."""
        return self._host.clock

    @property
    def tasks(self) -> dict[str, BaseTask[Any, Any]]:
        """The registered tasks, by name."""
        return self._registry.tasks

    @property
    def declared(self) -> tuple[str, ...]:
        """The names of the schedules that code declares."""
        return tuple(self._registry.declared)

    @property
    def sync(self) -> SyncDoor:
        """The coroutine methods of this object as blocking ones: `ms.sync.pause("nightly")`."""
        return SyncDoor(self, self._host)

    # ── declaring ──────────────────────────────────────────────────────────

    @overload
    def task(  # type: ignore[overload-overlap]  # the first that fits wins, which is what we want
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> AsyncContextTask[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> ContextTask[P, R]: ...
    @overload
    def task(  # type: ignore[overload-overlap]  # likewise
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, **options: Unpack[TaskSettings]) -> TaskDecorator: ...
    def task(self, *functions: Any, **options: Any) -> Any:
        """Register a function as a task; with or without parentheses.

        Options: name, executor ("auto", "loop", "thread", "process"), retry (3 attempts), timeout ("300s"), recovery
        ("retry", "fail"), max_crashes (3), limit (of runs at once), priority, queue, overrun ("60s").
        """
        self._registry.check_task_options(options)
        if not functions:
            return lambda inner: self._registry.register(inner, **options)
        return self._registry.register(functions[0], **options)

    def cron(self, expression: str, *, name: str | None = None, **options: Unpack[DeclareOptions]) -> TaskDecorator:
        """Run the function at the times of a cron expression; options are those of `schedule` and `task`."""
        return self._registry.schedule_decorator(name, {"cron": expression}, dict(options))

    def every(
        self, interval: Duration | Every, *, name: str | None = None, **options: Unpack[DeclareOptions]
    ) -> TaskDecorator:
        """Run the function at an interval, the first time one interval from now."""
        return self._registry.schedule_decorator(name, {"every": interval}, dict(options))

    def at(
        self, times: datetime | Iterable[datetime] | At, *, name: str | None = None, **options: Unpack[DeclareOptions]
    ) -> TaskDecorator:
        """Run the function at an instant or a list of instants."""
        return self._registry.schedule_decorator(name, {"at": times}, dict(options))

    def http(
        self,
        name: str,
        url: str,
        *,
        payload: Any = None,
        method: Method = "POST",
        headers: Mapping[str, str] | None = None,
        agent_id: str = "",
        silence: Duration = "60s",
        within: Duration = "1h",
        **when_and_how: Unpack[WhenAndHow],
    ) -> HttpAgent:
        """Declare a schedule that calls an HTTP agent; it is stored when the program runs, like a decorated one.

        The payload is sent as the body, unchanged. Header values are stored apart and never shown again.
        """
        agent = Http(url, method=method, headers=headers, agent_id=agent_id, silence=silence, within=within)
        self._registry.declare_schedule(name, task=agent, payload=payload, **when_and_how)
        return agent

    # ── schedules ──────────────────────────────────────────────────────────

    async def schedule(
        self,
        name: str,
        task: BaseTask[Any, Any] | Callable[..., Any] | HttpAgent | str,
        *,
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        payload: Any = UNSET,
        on_conflict: OnConflict = "error",
        **when_and_how: Unpack[WhenAndHow],
    ) -> Schedule:
        """Create a schedule: exactly one of cron, every, at, delay or trigger, and any policy.

        It runs a task with arguments, or calls `Http("https://…")` with a payload. The same definition again changes
        nothing; another one under the same name is a conflict.
        """
        check_choice(on_conflict, ON_CONFLICT, field="on_conflict")
        request = self._registry.make_request(
            name, task=task, args=args, kwargs=kwargs, payload=payload, **when_and_how
        )
        await self._agents.check_target(task)
        schedule = await self._host.call(lambda runtime: runtime.commands.create(request, on_conflict))
        await self._agents.start_calling(task)
        return schedule

    async def schedule_many(
        self,
        task: BaseTask[Any, Any] | Callable[..., Any] | HttpAgent | str,
        items: Iterable[Mapping[str, Any]],
        *,
        on_conflict: OnConflict = "error",
    ) -> int:
        """Create schedules in bulk, a thousand in a commit, and return how many are new.

        Each item holds a name and options of `schedule()`. Items are read as they are stored; a million need no memory.
        A wrong item raises InvalidInput with its number; commits before it stay, also when the call is repeated.
        """
        check_choice(on_conflict, ON_CONFLICT, field="on_conflict")
        return await create_many(self._host, BulkReader(self._registry.make_request, task), items, on_conflict)

    async def update(
        self,
        key: str,
        *,
        task: BaseTask[Any, Any] | Callable[..., Any] | HttpAgent | str | None = None,
        args: Iterable[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        payload: Any = UNSET,
        **changes: Unpack[EditOptions],
    ) -> Schedule:
        """Change a schedule's definition; only later fires are affected. What is not named stays as it is."""
        await self._agents.check_target(task)
        edit = ScheduleEdit(task=task, args=args, kwargs=kwargs, payload=payload, options=changes)
        schedule = await edit.apply(self._host, self._registry, key, self.tz)
        await self._agents.start_calling(task)
        return schedule

    async def get(self, key: str) -> Schedule:
        """Return a schedule by name or id."""
        return await self._queries.find_schedule(key)

    async def schedules(
        self, *, enabled: bool | None = None, limit: int = 1_000, after: str | None = None
    ) -> list[Schedule]:
        """Return schedules that are not deleted; `enabled` selects those that plan runs, or those that do not."""
        return await self._queries.find_schedules(enabled, limit, after)

    async def pause(self, key: str, *, reason: str = "paused", until: datetime | None = None) -> Schedule:
        """Plan no more runs of a schedule until it is resumed, or until an instant."""
        end = None if until is None else instant_ms(until, field="until")
        schedule = await self.get(key)
        return await self._host.call(lambda runtime: runtime.commands.pause(schedule, reason=reason, until=end))

    async def resume(self, key: str) -> Schedule:
        """Plan runs of a paused schedule again; the fires it would have had meanwhile become one span."""
        schedule = await self.get(key)
        return await self._host.call(lambda runtime: runtime.commands.resume(schedule))

    async def delete(self, key: str, *, reason: str = "user") -> None:
        """Delete a schedule; waiting runs are cancelled, running ones end, the event log stays."""
        schedule = await self.get(key)
        await self._host.call(lambda runtime: runtime.commands.delete(schedule, reason=reason))

    async def trigger(
        self,
        key: str,
        *,
        args: Iterable[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        payload: Any = UNSET,
    ) -> Any:
        """Start one run now, outside the plan, and return its handle.

        Arguments, or the payload of an agent, replace the schedule's own.
        """
        schedule = await self.get(key)
        body, decode = self._registry.prepare_trigger(schedule, args, kwargs, payload)
        run = await self._host.call(lambda runtime: runtime.commands.trigger(schedule, body, by="api"))
        return RunHandle(run.id, self._host, decode)

    # ── runs and events ────────────────────────────────────────────────────

    async def find_by_id(self, run_id: str) -> Run:
        """Return a run by its id."""
        return await self._queries.find_run(run_id)

    async def find_by_status(self, state: State | str, *, limit: int = 100) -> list[Run]:
        """Return runs in a state, newest first."""
        return await self.runs(state=state, limit=limit)

    async def find_due(self, before: datetime | None = None, *, limit: int = 100) -> list[Run]:
        """Return waiting runs that are due at an instant (by default now), oldest first."""
        due_before = self._host.now() if before is None else instant_ms(before, field="before")
        return await self._queries.find_waiting(due_before, limit)

    async def find_overdue(self, by: Duration = "60s", *, limit: int = 100) -> list[Run]:
        """Return waiting runs that should have started at least the duration `by` ago, oldest first."""
        return await self._queries.find_waiting(self._host.now() - duration_ms(by, field="by"), limit)

    async def unresolved(self, *, limit: int = 100) -> list[Run]:
        """Return waiting runs whose task no live instance has, oldest first; they wait until an instance has it."""
        return await self._queries.find_unresolved(limit)

    async def runs(
        self,
        *,
        schedule: str | None = None,
        state: State | str | Iterable[State | str] | None = None,
        since: datetime | None = None,
        task: str | None = None,
        due_before: datetime | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[Run]:
        """Return runs, newest first; `state` may be several states, `after` is the id of the last run of a page."""
        return await self._queries.find_runs(schedule, state, since, task, due_before, limit, after)

    async def cancel(self, run_id: str, *, reason: str = "cancelled") -> Run:
        """Cancel a waiting run, or ask a running one to stop; return the run."""
        return await self._host.call(lambda runtime: runtime.commands.cancel(run_id, reason=reason, by="api"))

    async def retry(self, run_id: str) -> Run:
        """Run an ended run again, with its row and fire time and with fresh budgets; return the run."""
        return await self._host.call(lambda runtime: runtime.commands.reopen(run_id, by="api"))

    async def events(
        self,
        *,
        run: str | None = None,
        schedule: str | None = None,
        types: Iterable[type[Event] | str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 1_000,
    ) -> list[Event]:
        """Return events of the log, oldest first."""
        return await self._queries.find_events(run, schedule, types, since, until, limit)

    @overload
    def on_event(self, event: type[E], handler: Callable[[E], Any], *, everywhere: bool = False) -> None: ...
    @overload
    def on_event(
        self, event: tuple[type[E], type[E2]], handler: Callable[[E | E2], Any], *, everywhere: bool = False
    ) -> None: ...
    @overload
    def on_event(
        self,
        event: tuple[type[E], type[E2], type[E3]],
        handler: Callable[[E | E2 | E3], Any],
        *,
        everywhere: bool = False,
    ) -> None: ...
    @overload
    def on_event(
        self, event: tuple[type[E], ...], handler: Callable[[E], Any], *, everywhere: bool = False
    ) -> None: ...
    def on_event(
        self, event: type[Any] | tuple[type[Any], ...], handler: Callable[[Any], Any], *, everywhere: bool = False
    ) -> None:
        """Call `handler` with every event of a type that this process commits; at most once for each.

        With `everywhere`, also with events that other instances commit from now on, in log order, while this one runs.
        """
        self._host.subscribe(event if isinstance(event, tuple) else (event,), handler, everywhere=everywhere)

    # ── agents and locks ───────────────────────────────────────────────────

    async def signing_secret(self, key: str) -> str:
        """Return the secret that signs the calls of a schedule. Raises: InvalidInput if it was shown before."""
        return await self._agents.signing_secret(key)

    async def rotate_secret(self, key: str, *, overlap: Duration = "24h") -> str:
        """Return a new signing secret; for the duration `overlap`, calls are signed with the old one, too."""
        return await self._agents.rotate_secret(key, overlap)

    def lock(self, name: str, *, ttl: Duration = "30s", wait: bool | Duration = True, kind: LockKind = "lease") -> Lock:
        """Return a lock with one holder among all processes on this store: `async with ms.lock("import") as guard:`.

        It is renewed until the block ends. `wait` bounds the wait for another holder: True waits without a bound, False
        raises `LockTaken` at once, a duration is the bound. `guard.token` grows with every holder of the name.
        """
        return self._locks.lock(name, ttl, wait, kind)

    def execution_lease(
        self, schedule: str, fire_time: datetime, *, ttl: Duration = "30s", remember: Duration = "1d"
    ) -> Lock:
        """Return a lock on one fire of a schedule; entering it raises `ExecutionTaken` if the fire is or was executed.

        For work that Mainspring does not run itself; its own runs are always protected. After a block that ended
        without an error the fire stays taken for `remember`; after one that failed it is free at once, after a crash
        within `ttl`.
        """
        return self._locks.execution_lease(schedule, fire_time, ttl, remember)

    async def leader(self) -> Leadership | None:
        """Return the instance that does housekeeping for this app, and its term; None if there never was one."""
        return await self._locks.leader()

    # ── running ────────────────────────────────────────────────────────────

    def run(self, *, until_idle: bool = False, role: Role = "all") -> None:
        """Plan schedules and run tasks until SIGTERM or SIGINT; with `until_idle` until nothing is due any more.

        `role="worker"` plans and declares nothing: it runs what other instances plan. `role="planner"` plans and claims
        no runs.
        """
        end_of_loading()
        if os.environ.get(CHILD) or os.environ.get(LOADING):
            return  # this program is only imported: to find its functions, or by `mainspring run`, which runs it
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(self.run_async(until_idle=until_idle, role=role))

    async def run_async(self, *, until_idle: bool = False, signals: bool = True, role: Role = "all") -> None:
        """Do what `run` does, on the running loop; the first signal drains, the second stops at once."""
        await self._runner.run(until_idle=until_idle, signals=signals, role=role)

    @property
    def is_running(self) -> bool:
        """True between start and stop of the engine in this process."""
        return self._runner.is_running

    def health(self) -> Health:
        """Return the state of this instance: `ok`, `degraded` while a loop fails, or `stopped`. Thread: any."""
        return Health("stopped") if self._host.runtime is None else self._host.runtime.health()

    def metrics(self) -> dict[str, float]:
        """Return the counters of this instance, without asking the store; empty when stopped. Thread: any."""
        return {} if self._host.runtime is None else self._host.runtime.metrics()

    def stop(self) -> None:
        """Ask a running `run()` to drain and return. Thread: any."""
        self._runner.request_stop()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Mainspring]:
        """Run the engine beside other code on this loop, inside the block."""
        async with self._runner.run_in_block():
            yield self

    @contextlib.asynccontextmanager
    async def sharing(self) -> AsyncIterator[Callable[[], bool]]:
        """Keep the engine running inside the block: use the running one, or start one that the last block stops.

        Yields a function that returns True if leaving the block now would stop the engine.
        """
        async with self._runner.sharing() as is_last:
            yield is_last

    def lifespan(self) -> Callable[[Any], contextlib.AbstractAsyncContextManager[None]]:
        """Return a lifespan for FastAPI, Starlette and other ASGI apps: `FastAPI(lifespan=ms.lifespan())`."""
        return lambda _app: self._runner.run_in_block()

    async def close(self) -> None:
        """Close the store, also one that is being opened, and end the engine's thread; the next call opens it again."""
        await self._host.close()
