"""`Mainspring`: the object with which a program declares tasks and schedules, queries runs, and runs the engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from msgspec import UNSET

from mainspring.app.background_runner import BackgroundRunner
from mainspring.app.blocking import runs_loop
from mainspring.app.context import Context
from mainspring.app.engine_host import EngineHost, HostEnvironment
from mainspring.app.engine_runner import EngineRunner
from mainspring.app.http_agents import HttpAgents
from mainspring.app.locks import Lock, Locks
from mainspring.app.log_line import LogLine
from mainspring.app.method_hints import APP_METHODS, APP_OPTIONS, missing_attribute
from mainspring.app.options import AppOptions
from mainspring.app.queries import Queries
from mainspring.app.read_models import ReadModels
from mainspring.app.registry import DeclareOptions, Registry, TaskSettings
from mainspring.app.run_handle import RunHandle
from mainspring.app.run_view import Run
from mainspring.app.schedule_bulk import BulkReader, create_many
from mainspring.app.schedule_edit import EditOptions, ScheduleEdit
from mainspring.app.schedule_view import Schedule
from mainspring.app.sync import SyncDoor
from mainspring.app.task import AsyncContextTask, AsyncTask, BaseTask, ContextTask, Task, TaskDecorator
from mainspring.app.trigger_hints import require_value
from mainspring.engine.leader import Leadership
from mainspring.model.errors import InvalidInput, SyncOnLoop
from mainspring.model.events import Event
from mainspring.model.health import Health
from mainspring.model.http import AgentSettings, Http, HttpAgent, Method
from mainspring.model.ids import check_schedule_name
from mainspring.model.instant import Duration, duration_ms, instant_ms, load_zone
from mainspring.model.option_hints import refuse_unknown_options
from mainspring.model.policies import ON_CONFLICT, OnConflict, Role, check_choice
from mainspring.model.run import State
from mainspring.model.settings import DEFAULT_STORE_URL, Settings, make_settings
from mainspring.model.trigger import First
from mainspring.ports.broker import Broker
from mainspring.ports.clock import Clock, SystemClock
from mainspring.ports.executor import CHILD_VARIABLE, LOADING_VARIABLE, end_of_loading
from mainspring.ports.lock import LockKind
from mainspring.ports.store import Store
from mainspring.ports.threads import SystemThreads, Threads
from mainspring.rules.definition import WhenAndHow
from mainspring.rules.triggers import At, Cron, Every
from mainspring.runtime.engine_thread import ThreadLoop
from mainspring.service.requests import ScheduleRequest

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=Event)
E2 = TypeVar("E2", bound=Event)
E3 = TypeVar("E3", bound=Event)


class Mainspring:
    """A scheduler and a queue on one store: `ms = Mainspring("sqlite:///jobs.db")`. The first use opens the store.

    `url` of the store; None: $MAINSPRING_URL, else mainspring.db. `store`: an object instead. `broker` hastens the
    start of work; None: $MAINSPRING_BROKER, else none. Instances of one `name` share a leader and declared schedules;
    if these differ, the newer `version` wins. `namespace` separates programs on one store. `tz`: zone of schedules that
    name none. `queues`: only their runs are claimed. `concurrency`: most runs at a time. `lease_ttl`: after it, a
    crashed worker's runs may be claimed again. `heartbeat` None: a third of it. `poll_interval`: longest time between
    queries for due work. `shutdown_timeout`: time for runs to end at a stop. `history`: how long ended runs stay, and
    `logs_limit`: bytes of all run logs; None: the store decides. `payload_limit`: bytes of arguments. `labels` describe
    the instance. `deps`: `ctx.deps`. `agents`: limits of HTTP calls. `on_drift`: "keep" a person's edit of a declared
    schedule, or restore the "code".
    """

    @refuse_unknown_options("Mainspring(…)", APP_OPTIONS)
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
        logs_limit: int | None = None,
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
            logs_limit=logs_limit,
            labels=labels,
        )
        url = url or os.environ.get("MAINSPRING_URL") or DEFAULT_STORE_URL
        broker = broker or os.environ.get("MAINSPRING_BROKER") or None
        threads = threads or SystemThreads()
        environment = HostEnvironment(
            clock=clock or SystemClock(), engine=ThreadLoop(threads), settings=settings, store=store, broker=broker
        )
        self._host = EngineHost(url, environment, threads=threads, rng=rng, agents=agents)
        load_zone(tz, field="tz")
        self.tz, self.deps = tz, deps
        check_choice(on_drift, ("keep", "code"), field="on_drift")
        self.on_drift: Literal["keep", "code"] = on_drift
        self._registry = Registry(self, self._host)
        self._runner = EngineRunner(self._host, self._registry, on_drift)
        self._background = BackgroundRunner(self._runner, threads)
        self._agents, self._locks, self._queries = HttpAgents(self._host), Locks(self._host), Queries(self._host)
        self._read_models = ReadModels(self._host)

    @classmethod
    def from_config(
        cls, path: str | os.PathLike[str] | None = None, *, url: str | None = None, **options: Unpack[AppOptions]
    ) -> Self:
        """Return an app whose settings come from where `mainspring serve` takes them: environment, .env and a file.

        `path` of the file; None: the one that $MAINSPRING_CONFIG names, else mainspring.yaml or .toml in this folder.
        `url` and `options` are the program's own settings, for what is not configured. Raises: InvalidInput, which
        names the source of a wrong value.
        """
        from mainspring.app.configuration import configure_program
        from mainspring.config.resolve import Sources, resolve

        resolved = resolve(Sources(variables=dict(os.environ), config=None if path is None else Path(path)))
        app = cls(url, **options)
        configure_program(app, resolved)
        return app

    @property
    def url(self) -> str:
        """The URL of the store; not used if a store object was given."""
        return self._host.url

    @property
    def settings(self) -> Settings:
        """The checked settings of this instance; durations in milliseconds."""
        return self._host.settings

    @property
    def broker(self) -> str | Broker | None:
        """The broker that carries hints of work between processes, or its URL; None if there is none."""
        return self._host.broker

    @property
    def agents(self) -> AgentSettings | None:
        """The settings for calls of HTTP agents; None if this program schedules no such calls."""
        return self._host.agents

    @property
    def clock(self) -> Clock:
        """The clock of this machine, or the one that a test provides."""
        return self._host.clock

    @property
    def tasks(self) -> dict[str, BaseTask[Any, Any]]:
        """The registered tasks, by name."""
        return self._registry.tasks

    @property
    def declared(self) -> tuple[str, ...]:
        """The names of the schedules that this program declares; the engine stores the schedules when it starts."""
        return tuple(self._registry.declared)

    @property
    def sync(self) -> SyncDoor:
        """The coroutine methods of this object as blocking ones: `ms.sync.pause("nightly")`."""
        return SyncDoor(self, self._host)

    if not TYPE_CHECKING:  # for type checkers an unknown name is an error

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError, with what to write for a method of another scheduler, such as `add_job`."""
            raise missing_attribute(self, name, APP_METHODS)

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
        """Register a function as a task and return the task; given only options, return a decorator that does so.

        Options: name, executor ("auto", "loop", "thread", "process"), retry (3 attempts), timeout of an attempt (none),
        recovery after a crash ("retry", "fail"), max_crashes (3), limit of runs at once, priority, queue, overrun (time
        after the timeout until what does not stop is abandoned; none), capture of "print" and "logging" in the run's
        log. Raises: InvalidInput; DuplicateTask.
        """
        self._registry.check_task_options(options)
        if not functions:
            return lambda inner: self._registry.register(inner, **options)
        return self._registry.register(functions[0], **options)

    @require_value("cron", "expression")
    def cron(
        self, expression: str | Cron, *, name: str | None = None, **options: Unpack[DeclareOptions]
    ) -> TaskDecorator:
        """Return a decorator that makes a function a task and declares a schedule `name` (None: the task's name)."""
        return self._registry.schedule_decorator(name, {"cron": expression}, dict(options))

    @require_value("every", "interval")
    def every(
        self,
        interval: Duration | Every,
        *,
        name: str | None = None,
        first: First | None = None,
        **options: Unpack[DeclareOptions],
    ) -> TaskDecorator:
        """Return a decorator that makes a function a task with a schedule that fires at an interval.

        The first fire is one interval after the schedule is created; with `first="now"`, it is when it is created.
        """
        return self._registry.schedule_decorator(name, {"every": interval, "first": first}, dict(options))

    @require_value("at", "times")
    def at(
        self, times: datetime | Iterable[datetime] | At, *, name: str | None = None, **options: Unpack[DeclareOptions]
    ) -> TaskDecorator:
        """Return a decorator that makes a function a task with a schedule that fires at `times`, which have a zone."""
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
        """Declare a schedule `name` that calls an HTTP agent, with `payload` as JSON body, and return the agent.

        `silence`, `within`: for an agent that answers 202 and reports the end of its work later, the longest time
        between two of its callbacks, and the time for all of the work. `agent_id`: a label for people.
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
        """Create a schedule and return it; give exactly one of cron, every, at, delay or trigger, and any policy.

        It runs a task with `args` and `kwargs`, or calls `Http("https://…")` with `payload`. If the name exists with an
        equal definition, that schedule is returned. If it exists with another one, `on_conflict` "keep" returns it,
        "replace" edits it, and "error" raises ScheduleConflict. Also raises: InvalidInput; UnknownTask; WrongArguments.
        """
        check_choice(on_conflict, ON_CONFLICT, field="on_conflict")
        wanted = self._registry.make_request(name, task=task, args=args, kwargs=kwargs, payload=payload, **when_and_how)
        return await self._create(wanted, task, on_conflict)

    async def _create(self, wanted: ScheduleRequest, task: Any, on_conflict: OnConflict) -> Schedule:
        """Store the schedule `wanted`, which runs `task`, and return it."""
        await self._agents.check_target(task)
        schedule = await self._host.call(lambda runtime: runtime.commands.create(wanted, on_conflict))
        await self._agents.start_calling(task)
        return await self._read_models.schedule(schedule)

    async def schedule_many(
        self,
        task: BaseTask[Any, Any] | Callable[..., Any] | HttpAgent | str,
        items: Iterable[Mapping[str, Any]],
        *,
        on_conflict: OnConflict = "error",
    ) -> int:
        """Create schedules in bulk, up to a thousand in a commit, and return how many are new.

        Each item holds a name and options of `schedule`. Items are read chunk by chunk: a generator may yield millions.
        InvalidInput names a wrong item by its number. After an error, stored schedules stay: repeat the call to go on.
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
        """Change the schedule with the name or id `key` for later fires, and return it. What is not given stays.

        `args` or `kwargs` replaces all arguments. A new `task` drops them; an agent for an agent keeps the payload.
        """
        await self._agents.check_target(task)
        edit = ScheduleEdit(task=task, args=args, kwargs=kwargs, payload=payload, options=changes)
        schedule = await edit.apply(self._host, self._registry, key, self.tz)
        await self._agents.start_calling(task)
        return await self._read_models.schedule(schedule)

    async def rename(self, key: str, name: str) -> Schedule:
        """Give the schedule with the name or id `key` the name `name`, and return it. Its runs and history stay.

        Raises: ScheduleConflict if another schedule has the name; DeclaredInCode if code declares the schedule;
        InvalidInput for a name that no new schedule may have.
        """
        edit = ScheduleEdit(name=check_schedule_name(name))
        return await self._read_models.schedule(await edit.apply(self._host, self._registry, key, self.tz))

    async def get(self, key: str) -> Schedule:
        """Return the schedule with the name or id `key`. Raises: UnknownSchedule, with the nearest name."""
        return await self._read_models.schedule(await self._queries.find_schedule(key))

    async def schedules(
        self, *, enabled: bool | None = None, limit: int = 1_000, after: str | None = None
    ) -> list[Schedule]:
        """Return up to `limit` schedules, oldest first; for the next page, give the last id as `after`.

        `enabled` True: active ones; False: paused or finished ones; None: both.
        """
        return await self._read_models.schedules(await self._queries.find_schedules(enabled, limit, after))

    async def pause(self, key: str, *, reason: str = "paused", until: datetime | None = None) -> Schedule:
        """Plan no runs of the schedule `key` (name or id) until `resume` or the instant `until`; return it."""
        end = None if until is None else instant_ms(until, field="until")
        row = await self._queries.find_schedule(key)
        paused = await self._host.call(lambda runtime: runtime.commands.pause(row, reason=reason, until=end))
        return await self._read_models.schedule(paused)

    async def resume(self, key: str) -> Schedule:
        """Plan runs of the schedule `key` (name or id) again, and return it. Its fires during the pause never run."""
        row = await self._queries.find_schedule(key)
        resumed = await self._host.call(lambda runtime: runtime.commands.resume(row))
        return await self._read_models.schedule(resumed)

    async def use_code(self, key: str) -> Schedule:
        """Replace a person's edit of the schedule `key` by the definition that code declared last; return it.

        Without such an edit, nothing is changed. Raises: InvalidInput if no program declared the schedule.
        """
        row = await self._queries.find_schedule(key)
        changed = await self._host.call(lambda runtime: runtime.commands.use_code(row))
        return await self._read_models.schedule(changed)

    async def rewind(self, key: str) -> Schedule:
        """Set the schedule `key` back to now if a wrong clock planned it ahead, and return it.

        Its fires from now on run again, except those that have a run already. Otherwise the schedule stays as it is.
        """
        row = await self._queries.find_schedule(key)
        rewound = await self._host.call(lambda runtime: runtime.commands.rewind(row))
        return await self._read_models.schedule(rewound)

    async def delete(self, key: str, *, reason: str = "user") -> None:
        """Delete the schedule `key`, cancel its waiting runs, let running ones end. `reason` is stored in the event.

        If more than 500 runs wait, an instance that runs cancels the others after the return, the oldest first.
        """
        schedule = await self._queries.find_schedule(key)
        await self._host.call(lambda runtime: runtime.commands.delete(schedule, reason=reason))

    async def trigger(
        self, key: str, *, args: Iterable[Any] | None = None, kwargs: dict[str, Any] | None = None, payload: Any = UNSET
    ) -> Any:
        """Start a run of the schedule `key` now; return its handle. Arguments or a payload apply to this run only."""
        schedule = await self._queries.find_schedule(key)
        body, decode = self._registry.prepare_trigger(schedule, args, kwargs, payload)
        run = await self._host.call(lambda runtime: runtime.commands.trigger(schedule, body, by="api"))
        await self._queries.warn_if_unserved(schedule)
        return RunHandle(run.id, self._host, decode)

    # ── runs and events ────────────────────────────────────────────────────

    async def find_by_id(self, run_id: str) -> Run:
        """Return a run by its id. Raises: UnknownRun."""
        return await self._read_models.run(await self._queries.find_run(run_id))

    async def find_by_status(self, state: State | str, *, limit: int = 100) -> list[Run]:
        """Return up to `limit` runs in a state, newest first."""
        return await self.runs(state=state, limit=limit)

    async def find_due(self, before: datetime | None = None, *, limit: int = 100) -> list[Run]:
        """Return up to `limit` waiting and retrying runs that are due by `before` (None: now), in order of id."""
        due_before = self._host.now() if before is None else instant_ms(before, field="before")
        return await self._read_models.runs(await self._queries.find_waiting(due_before, limit))

    async def find_overdue(self, by: Duration = "60s", *, limit: int = 100) -> list[Run]:
        """Return up to `limit` waiting and retrying runs, due for at least the duration `by`, oldest first."""
        due_before = self._host.now() - duration_ms(by, field="by")
        return await self._read_models.runs(await self._queries.find_waiting(due_before, limit))

    async def unresolved(self, *, limit: int = 100) -> list[Run]:
        """Return up to `limit` waiting and retrying runs whose task no live instance has, oldest first."""
        return await self._read_models.runs(await self._queries.find_unresolved(limit))

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
        """Return up to `limit` runs, newest first, after the one with the id `after`. A condition None is not applied.

        `schedule`: its name or id. `state`: one or several. `since`: created then or later. `due_before`: due by then.
        """
        found = await self._queries.find_runs(schedule, state, since, task, due_before, limit, after)
        return await self._read_models.runs(found)

    async def cancel(self, run_id: str, *, reason: str = "cancelled") -> Run:
        """Cancel a waiting run, or ask a running one to stop; return the run, unchanged if it has ended before."""
        row = await self._host.call(lambda runtime: runtime.commands.cancel(run_id, reason=reason, by="api"))
        return await self._read_models.run(row)

    async def retry(self, run_id: str) -> Run:
        """Run a failed, lost or cancelled run again, due now, with full retry budget; return it. Raises: UnknownRun."""
        row = await self._host.call(lambda runtime: runtime.commands.reopen(run_id, by="api"))
        return await self._read_models.run(row)

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
        """Return up to `limit` events of the log, oldest first. A condition that is None is not applied.

        `run`: a run id. `schedule`: a name or id. `types`: classes or their names. Times: `since` ≤ time < `until`.
        """
        return await self._queries.find_events(run, schedule, types, since, until, limit)

    async def logs(
        self, run_id: str, *, attempt: int | None = None, after: int | None = None, limit: int = 1_000
    ) -> list[LogLine]:
        """Return up to `limit` lines of a run's log, oldest first: what its handler wrote with `ctx.log`.

        Of one `attempt`, or of all; after the line with the number `after`. Raises: UnknownRun.
        """
        return await self._queries.find_logs(run_id, attempt, after, limit)

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
        """Call `handler`, plain or async, with events of these types that this process commits from now on.

        Each comes at most once. Events before the engine runs come at its start; of more than 1,000 the latest. With
        `everywhere`: those that any instance in this namespace commits while the engine runs here, in log order.
        """
        self._host.subscribe(event if isinstance(event, tuple) else (event,), handler, everywhere=everywhere)

    # ── agents, locks, running ─────────────────────────────────────────────

    async def signing_secret(self, key: str) -> str:
        """Return the secret that signs the calls of the schedule `key`. Raises: InvalidInput if it was shown before."""
        return await self._agents.signing_secret(key)

    async def rotate_secret(self, key: str, *, overlap: Duration = "24h") -> str:
        """Replace the secret that signs calls of the schedule `key`; return the new one. For `overlap`, both sign."""
        return await self._agents.rotate_secret(key, overlap)

    def lock(self, name: str, *, ttl: Duration = "30s", wait: bool | Duration = True, kind: LockKind = "lease") -> Lock:
        """Return a lock with one holder among all processes on this store: `async with ms.lock("import") as guard:`.

        It is renewed until the block ends; after a crash it is free within `ttl`. `wait`: the longest wait (True: no
        limit) until `LockTaken` is raised. `kind` "advisory": the server's lock. `guard.token` grows with each holder.
        """
        return self._locks.lock(name, ttl, wait, kind)

    def execution_lease(
        self, schedule: str, fire_time: datetime, *, ttl: Duration = "30s", remember: Duration = "1d"
    ) -> Lock:
        """Return a lock on one fire of another scheduler; entering it raises `ExecutionTaken` if the fire is taken.

        The fire is taken while the lock is held, and for `remember` after a block without an error. After a block with
        an error the fire is free at once, after a crash within `ttl`. Runs of Mainspring need no such lock.
        """
        return self._locks.execution_lease(schedule, fire_time, ttl, remember)

    async def leader(self) -> Leadership | None:
        """Return the present or last instance that does housekeeping for this app; None if there never was one."""
        return await self._locks.leader()

    def run(self, *, until_idle: bool = False, role: Role = "all") -> None:
        """Plan schedules and run tasks until SIGTERM or SIGINT; with `until_idle` until nothing is due any more.

        Role "worker": store and plan no schedules, only run what others plan. Role "planner": plan, claim no runs.
        Return at once if Mainspring itself imports the program: in a handlers' child process, or for `mainspring run`.
        """
        end_of_loading()
        if os.environ.get(CHILD_VARIABLE) or os.environ.get(LOADING_VARIABLE):
            return  # the program is only imported: to find its functions, or by `mainspring run`, which runs the engine
        if runs_loop():
            raise SyncOnLoop(
                "ms.run() starts an event loop, and this thread runs one already: write await ms.run_async(), or "
                "async with ms.running():"
            )
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(self.run_async(until_idle=until_idle, role=role))

    @contextlib.contextmanager
    def background(self, *, role: Role = "all") -> Iterator[Mainspring]:
        """Run the engine on threads of its own while the block of a synchronous program runs; then let runs end.

        Raises: RunsAlready if the engine runs in this process; InvalidInput if another program imports this block.
        """
        end_of_loading()
        if os.environ.get(LOADING_VARIABLE):
            fix = 'Put the block under `if __name__ == "__main__":`'
            raise InvalidInput("background", "the program is only imported here, and the block would run", fix)
        background = self.start_background(role=role)
        try:
            yield self
        finally:
            background.stop()

    def start_background(self, *, role: Role = "all") -> BackgroundRunner:
        """Start the engine on threads of its own, and return an object with `stop()`; at exit it stops by itself.

        For Flask, Django, gunicorn and scripts. `role`: as for `run`. In a forked child the engine does not run, and
        can be started. Start nothing if Mainspring itself imports the program: in a handlers' child process, or for
        `mainspring run`. Raises: RunsAlready if the engine runs in this process; StoreError.
        """
        if not (os.environ.get(CHILD_VARIABLE) or os.environ.get(LOADING_VARIABLE)):
            self._background.start(role)
        return self._background

    async def run_async(self, *, until_idle: bool = False, signals: bool = True, role: Role = "all") -> None:
        """Run the engine on this loop. With `signals`, a SIGTERM or SIGINT lets runs end, a second hands them back."""
        await self._runner.run(until_idle=until_idle, signals=signals, role=role)

    @property
    def is_running(self) -> bool:
        """True between start and stop of the engine in this process."""
        return self._runner.is_running

    def health(self) -> Health:
        """Return the state of this instance: `ok`, `degraded` while a loop fails, or `stopped`. Thread: any."""
        return Health("stopped") if self._host.runtime is None else self._host.runtime.health()

    def metrics(self) -> dict[str, float]:
        """Return counters and present values by name, without asking the store; empty when stopped. Thread: any."""
        return {} if self._host.runtime is None else self._host.runtime.metrics()

    def stop(self) -> None:
        """Let `run` or `run_async` claim no more, let runs end (for `shutdown_timeout`), and return. Thread: any."""
        self._runner.request_stop()

    def running(self) -> contextlib.AbstractAsyncContextManager[Mainspring]:
        """Run the engine while the block runs other code on this loop; then let runs end, and close the store."""
        return self._runner.run_in_block(self)

    @contextlib.asynccontextmanager
    async def sharing(self) -> AsyncIterator[Callable[[], bool]]:
        """Keep the engine running in the block: use one that runs, or start one, which stops with the last such block.

        Yield a function that returns True if leaving the block now would stop the engine.
        """
        async with self._runner.sharing() as is_last:
            yield is_last

    def lifespan(self) -> Callable[[Any], contextlib.AbstractAsyncContextManager[None]]:
        """Return a lifespan that runs the engine while an ASGI app runs: `FastAPI(lifespan=ms.lifespan())`."""
        return lambda _app: self._runner.run_in_block(None)

    async def close(self) -> None:
        """Close the store, even while it is being opened, and end the engine's thread; the next call opens it again."""
        await self._host.close()
