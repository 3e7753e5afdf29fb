"""The object a user holds: tasks, schedules, run(), lifespan()."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import random
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from datetime import datetime
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from mainspring.context import Context
from mainspring.engine.bus import Bus, Subscriber
from mainspring.engine.loop import EngineLoop, SameLoop, ThreadLoop
from mainspring.engine.presence import instances
from mainspring.engine.runtime import Runtime, open_store
from mainspring.model.errors import DuplicateTask, InvalidInput, UnknownTask, nearest
from mainspring.model.events import Event
from mainspring.model.ids import IdFactory, check_name
from mainspring.model.instant import Duration, Ms, duration_ms, instant_ms, zone
from mainspring.model.policies import (
    ON_CONFLICT,
    RECOVERY,
    OnConflict,
    Priority,
    Recovery,
    RetryPolicy,
    choice,
    priority_of,
)
from mainspring.model.run import Run, State
from mainspring.model.schedule import Schedule
from mainspring.model.settings import Settings, make_settings
from mainspring.ports.clock import Clock, SystemClock
from mainspring.ports.executor import Attempt, Handler, Kind
from mainspring.ports.store import Events, Runs, Schedules, Store
from mainspring.ports.threads import SystemThreads, Threads
from mainspring.rules.declaring import Live
from mainspring.rules.definition import build_spec, digest_of
from mainspring.service import Definition
from mainspring.signals import Stopper
from mainspring.sync import SyncDoor
from mainspring.task import BaseTask, ContextTask, Task, TaskDecorator, TaskOptions

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
E = TypeVar("E", bound=Event)

DEFAULT_URL = "sqlite:///mainspring.db"
Executor = Literal["auto", "loop", "thread", "process"]


class Mainspring:
    """A scheduler and a queue on one store. Nothing starts on import, and nothing before the first call."""

    def __init__(
        self,
        url: str | None = None,
        *,
        store: Store | None = None,
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
        history: Duration = "30d",
        payload_limit: int = 64 * 1024,
        deps: Any = None,
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
        )
        zone(tz, field="tz")
        self.tz = tz
        self.deps = deps
        self.on_drift: Literal["keep", "code"] = (
            "code" if choice(on_drift, ("keep", "code"), field="on_drift") == "code" else "keep"
        )
        self.clock: Clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311 - jitter and ids, not secrets
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
        self._opening: asyncio.Task[Runtime] | None = None
        self._stopper: Stopper | None = None

    # ── tasks ──────────────────────────────────────────────────────────────

    @overload
    def task(  # type: ignore[overload-overlap]  # the first that fits wins, which is what we want
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> ContextTask[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> ContextTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        executor: Executor = "auto",
        retry: RetryPolicy | None = None,
        timeout: Duration | None = "300s",
        recovery: Recovery = "retry",
        max_crashes: int = 3,
        limit: int | None = None,
        priority: Priority | str | int = Priority.NORMAL,
        queue: str = "default",
        overrun: Duration = "60s",
    ) -> TaskDecorator: ...
    def task(self, *functions: Any, **options: Any) -> Any:
        """Register a function as a task; with or without parentheses."""
        if not functions:
            return lambda inner: self._register(inner, **options)
        return self._register(functions[0], **options)

    def _register(
        self,
        function: Any,
        *,
        name: str | None = None,
        executor: Executor = "auto",
        retry: RetryPolicy | None = None,
        timeout: Duration | None = "300s",
        recovery: Recovery = "retry",
        max_crashes: int = 3,
        limit: int | None = None,
        priority: Priority | str | int = Priority.NORMAL,
        queue: str = "default",
        overrun: Duration = "60s",
    ) -> BaseTask[Any, Any]:
        if isinstance(function, BaseTask):
            return function
        if not callable(function):
            raise InvalidInput("task", f"{function!r} is not a function", "Decorate a def or an async def")
        name = check_name(name if name is not None else getattr(function, "__name__", ""), field="task name")
        if name in self.tasks:
            raise DuplicateTask("name", f"a task called {name!r} is registered already", "Give one of them a name=…")
        if limit is not None and limit < 1:
            raise InvalidInput("limit", f"{limit!r} is out of range", "Use at least 1, or None for no limit")
        choice(recovery, RECOVERY, field="recovery")
        options = TaskOptions(
            kind=_kind(function, executor),
            timeout=None if timeout is None else duration_ms(timeout, field="timeout", minimum=1),
            retry=retry if retry is not None else RetryPolicy(),
            recovery=recovery,
            max_crashes=max_crashes,
            limit=limit,
            priority=priority_of(priority),
            queue=check_name(queue, field="queue"),
            overrun=duration_ms(overrun, field="overrun"),
        )
        made: BaseTask[Any, Any] = Task(self, function, name, options)
        parameters = list(inspect.signature(function).parameters)
        if made.signature.context is not None and parameters[0] == made.signature.context:
            made = ContextTask(self, function, name, options)
        self.tasks[name] = made
        self._handlers[name] = made.handler()
        return made

    def cron(self, expression: str, *, tz: str | None = None, name: str | None = None, **options: Any) -> TaskDecorator:
        """Run the function at the times of a cron expression; options are those of `schedule` and `task`."""
        return self._declare(name, {"cron": expression, "tz": tz}, options)

    def every(self, interval: Any, *, name: str | None = None, **options: Any) -> TaskDecorator:
        """Run the function at an interval, the first time one interval from now."""
        return self._declare(name, {"every": interval}, options)

    def at(self, times: Any, *, name: str | None = None, **options: Any) -> TaskDecorator:
        """Run the function at an instant or a list of instants."""
        return self._declare(name, {"at": times}, options)

    def _declare(self, name: str | None, when: dict[str, Any], options: dict[str, Any]) -> TaskDecorator:
        task_only = ("executor", "limit", "max_crashes", "overrun")
        both = ("retry", "timeout", "recovery", "priority", "queue")
        own = {key: options.pop(key) for key in task_only if key in options}
        own |= {key: options[key] for key in both if key in options}
        args, kwargs = options.pop("args", ()), options.pop("kwargs", {})

        def decorate(function: Callable[..., Any]) -> Any:
            task = self._register(function, **own)
            schedule_name = check_name(name if name is not None else task.name)
            if schedule_name in self._declared:
                raise DuplicateTask(
                    "name", f"a schedule called {schedule_name!r} is declared already", "Give one a name=…"
                )
            wanted = {"task": task, "args": args, "kwargs": kwargs, **when, **options}
            self._definition(schedule_name, **wanted)  # wrong values fail here, at the decorator
            self._declared[schedule_name] = wanted
            return task

        return decorate

    # ── schedules ──────────────────────────────────────────────────────────

    def _definition(
        self,
        name: str,
        *,
        task: BaseTask[Any, Any] | Callable[..., Any] | str,
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        origin: Literal["code", "api"] = "api",
        **when_and_how: Any,
    ) -> Definition:
        target = self._task(task)
        body = target.signature.encode(tuple(args), kwargs or {}, self.settings.payload_limit)
        try:
            spec = build_spec(
                name=f"{self.settings.namespace}/{name}",
                task=target.name,
                now=self.clock.now(),
                body=None if body is None else body.id,
                gates=tuple(gate.name for gate in target.gates()),
                default_tz=self.tz,
                **{
                    "priority": target.options.priority,
                    "queue": target.options.queue,
                    **{key: value for key, value in when_and_how.items() if value is not None},
                },
            )
        except TypeError as error:
            known = list(inspect.signature(build_spec).parameters)
            wrong = next((key for key in when_and_how if key not in known), "")
            raise InvalidInput(wrong or "schedule", str(error).split(") ")[-1], nearest(wrong, known)) from None
        by = f"code@{self.settings.version}" if origin == "code" else "api"
        return Definition(
            ns=self.settings.namespace,
            name=check_name(name),
            spec=spec,
            digest=digest_of(spec),
            bodies=() if body is None else (body,),
            gates=target.gates(),
            origin=origin,
            by=by,
            app=self.settings.app if origin == "code" else "",
            version=self.settings.version if origin == "code" else "",
        )

    def _task(self, task: BaseTask[Any, Any] | Callable[..., Any] | str) -> BaseTask[Any, Any]:
        if isinstance(task, BaseTask):
            return task
        name = task if isinstance(task, str) else getattr(task, "__name__", repr(task))
        if name not in self.tasks:
            raise UnknownTask(
                f"no task is called {name!r}. {nearest(name, self.tasks) or 'Register it with @ms.task.'}"
            )
        return self.tasks[name]

    async def schedule(
        self,
        name: str,
        task: BaseTask[Any, Any] | Callable[..., Any] | str,
        *,
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        on_conflict: OnConflict = "error",
        **when_and_how: Any,
    ) -> Schedule:
        """Create a schedule: exactly one of cron, every, at, delay or trigger, and any policy.

        The same definition again changes nothing; another one under the same name is a conflict.
        """
        choice(on_conflict, ON_CONFLICT, field="on_conflict")
        want = self._definition(name, task=task, args=args, kwargs=kwargs, **when_and_how)
        return await self.call(lambda runtime: runtime.commands.create(want, on_conflict))

    async def update(
        self,
        key: str,
        *,
        task: BaseTask[Any, Any] | Callable[..., Any] | str | None = None,
        args: Iterable[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Schedule:
        """Change some of a schedule's definition; only later fires are affected."""
        from mainspring.editing import edited

        return await edited(self, key, task, args, kwargs, changes)

    async def get(self, key: str) -> Schedule:
        """A schedule by name or id."""
        return await self.call(lambda runtime: runtime.commands.schedule(self.settings.namespace, key))

    async def schedules(
        self, *, enabled: bool | None = None, limit: int = 1_000, after: str | None = None
    ) -> list[Schedule]:
        """Schedules, deleted ones left out; `enabled` tells those that plan runs from the others."""
        states: tuple[Any, ...] = ("active", "paused", "finished")
        if enabled is not None:
            states = ("active",) if enabled else ("paused", "finished")
        query = Schedules(ns=self.settings.namespace, states=states, limit=limit, after=after)
        return await self.call(lambda runtime: runtime.commands.schedules(query))

    async def pause(self, key: str, *, reason: str = "paused", until: datetime | None = None) -> Schedule:
        """Plan nothing more until resumed (or until an instant)."""
        end = None if until is None else instant_ms(until, field="until")
        schedule = await self.get(key)
        return await self.call(lambda runtime: runtime.commands.pause(schedule, reason=reason, until=end))

    async def resume(self, key: str) -> Schedule:
        """Plan again; what would have fired meanwhile is one span."""
        schedule = await self.get(key)
        return await self.call(lambda runtime: runtime.commands.resume(schedule))

    async def delete(self, key: str, *, reason: str = "user") -> None:
        """Remove a schedule; waiting runs are cancelled, running ones end, history stays."""
        schedule = await self.get(key)
        await self.call(lambda runtime: runtime.commands.delete(schedule, reason=reason))

    async def trigger(
        self, key: str, *, args: Iterable[Any] | None = None, kwargs: dict[str, Any] | None = None
    ) -> Any:
        """One run now, outside the plan; arguments replace the schedule's own."""
        schedule = await self.get(key)
        body = None
        target = self.tasks.get(schedule.spec.task)
        if args is not None or kwargs is not None:
            body = self._task(schedule.spec.task).signature.encode(
                tuple(args or ()), kwargs or {}, self.settings.payload_limit
            )
        run = await self.call(lambda runtime: runtime.commands.trigger(schedule, body, by="api"))
        from mainspring.handle import RunHandle

        return RunHandle(run.id, self.call, target.signature.result if target else lambda text: text)

    # ── runs and events ────────────────────────────────────────────────────

    async def run_by_id(self, run_id: str) -> Run:
        """One run."""
        return await self.call(lambda runtime: runtime.commands.run(run_id))

    async def runs(
        self,
        *,
        schedule: str | None = None,
        state: State | str | None = None,
        since: datetime | None = None,
        task: str | None = None,
        due_before: datetime | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[Run]:
        """Runs, newest first."""
        schedule_id = None if schedule is None else (await self.get(schedule)).id
        query = Runs(
            ns=self.settings.namespace,
            schedule_id=schedule_id,
            states=None if state is None else (State(choice(str(state), tuple(State), field="state")),),
            created_since=None if since is None else instant_ms(since, field="since"),
            due_before=None if due_before is None else instant_ms(due_before, field="due_before"),
            task=task,
            limit=limit,
            after=after,
        )
        return await self.call(lambda runtime: runtime.commands.runs(query))

    async def cancel(self, run_id: str, *, reason: str = "cancelled") -> Run:
        """End a waiting run; ask a running one to stop."""
        return await self.call(lambda runtime: runtime.commands.cancel(run_id, reason=reason, by="api"))

    async def retry(self, run_id: str) -> Run:
        """Run an ended run again: the same row and fire time, fresh budgets."""
        return await self.call(lambda runtime: runtime.commands.reopen(run_id, by="api"))

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
        """The log, in order."""
        schedule_id = None if schedule is None else (await self.get(schedule)).id
        query = Events(
            run_id=run,
            schedule_id=schedule_id,
            types=None if types is None else tuple(t if isinstance(t, str) else t.__name__ for t in types),
            since=None if since is None else instant_ms(since, field="since"),
            until=None if until is None else instant_ms(until, field="until"),
            limit=limit,
        )
        return await self.call(lambda runtime: runtime.commands.events(query))

    def on_event(self, event: type[E] | tuple[type[E], ...], handler: Callable[[E], Any]) -> None:
        """Call `handler` with every event of this type that this process commits; at most once."""
        call: Subscriber = handler
        self._bus.subscribe(event if isinstance(event, tuple) else (event,), call)

    @property
    def sync(self) -> SyncDoor:
        """The same verbs, blocking: `ms.sync.pause("nightly")`."""
        return SyncDoor(self)

    # ── running ────────────────────────────────────────────────────────────

    def run(self, *, until_idle: bool = False) -> None:
        """Plan and work until SIGTERM or SIGINT; with `until_idle` until nothing is due any more."""
        if os.environ.get("MAINSPRING_CHILD"):
            return  # a process handler's child imports this program only to find its functions
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(self.run_async(until_idle=until_idle))

    async def run_async(self, *, until_idle: bool = False, signals: bool = True) -> None:
        """The same on the running loop; the first signal drains, the second stops at once."""
        stopper = Stopper()
        self._stopper = stopper
        with stopper.on_signals(signal.SIGTERM, signal.SIGINT) if signals else contextlib.nullcontext():
            await self._start()
            try:
                if until_idle:
                    await stopper.first_of(self._idle())
                else:
                    await stopper.wait()
            finally:
                await self._stop(stopper)
                self._stopper = None

    def stop(self) -> None:
        """Ask a running `run()` to drain and return; from any thread."""
        if self._stopper is not None:
            self._stopper.request()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Mainspring]:
        """Run beside other code on this loop."""
        await self._start()
        try:
            yield self
        finally:
            await self._stop(Stopper())

    def lifespan(self) -> Callable[[Any], contextlib.AbstractAsyncContextManager[None]]:
        """For FastAPI, Starlette and other ASGI apps: `FastAPI(lifespan=ms.lifespan())`."""

        @contextlib.asynccontextmanager
        async def lifespan(_app: Any) -> AsyncIterator[None]:
            async with self.running():
                yield

        return lifespan

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        inline = isinstance(self._engine, SameLoop)
        await self.call(lambda runtime: self._declare_all(runtime))
        await self.call(lambda runtime: runtime.start(loop, inline=inline))

    async def _stop(self, stopper: Stopper) -> None:
        timeout = self.settings.shutdown_timeout / 1000
        draining = asyncio.ensure_future(self.call(lambda runtime: runtime.stop(timeout)))
        stopper.on_second(lambda: self._engine.post(self._stop_now))
        await draining
        await self._bus.settle()
        await self.close()

    def _stop_now(self) -> None:
        if self._runtime is not None:
            task = asyncio.get_running_loop().create_task(self._runtime.stop_now())
            self._stopping = task  # keep a reference until it is done

    async def _idle(self) -> None:
        from mainspring.idle import until_idle

        await self.call(until_idle)

    async def _declare_all(self, runtime: Runtime) -> None:
        wants = {name: self._definition(name, origin="code", **wanted) for name, wanted in self._declared.items()}
        runtime.declares = lambda: {name: want.digest for name, want in wants.items()}
        others = [
            instance
            for lease, instance in await instances(runtime.store)
            if lease.live and lease.owner != runtime.owner and instance.app == self.settings.app
        ]
        for name, want in wants.items():
            live = tuple(Live(one.version, one.declares[name]) for one in others if name in one.declares)
            await runtime.commands.declare(want, live, self.on_drift)

    # ── the engine ─────────────────────────────────────────────────────────

    async def call(self, work: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
        """Run something on the engine's loop, with the store open."""
        return await self._engine.call(self._with_runtime(work))

    async def _with_runtime(self, work: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
        return await work(await self._opened())

    async def _opened(self) -> Runtime:
        """The runtime of this process, opened once; a forked child gets its own."""
        if self._runtime is not None and self._runtime_pid == os.getpid():
            return self._runtime
        if self._opening is None or self._opening.get_loop() is not asyncio.get_running_loop():
            self._opening = asyncio.get_running_loop().create_task(self._open())
        try:
            return await asyncio.shield(self._opening)
        finally:
            if self._opening is not None and self._opening.done():
                self._opening = None

    async def _open(self) -> Runtime:
        store = self._given_store or open_store(self.url, self.clock)
        runtime = Runtime(store, self.clock, self._rng, self.settings, self._handlers, self._bus, self._threads)
        await runtime.open()
        self._runtime, self._runtime_pid = runtime, os.getpid()
        return runtime

    async def close(self) -> None:
        """Close the store; the next call opens it again."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None and self._runtime_pid == os.getpid():
            await self._engine.call(runtime.close())

    def new_id(self, now: Ms) -> str:
        """A time-ordered id for a run made here."""
        with self._ids_lock:
            return self._ids.uuid7(now)

    def report_progress(self, attempt: Attempt, text: str) -> None:
        """Keep a progress line; from any thread, never blocks the handler."""
        self._engine.post(self._store_progress, attempt, text)

    def _store_progress(self, attempt: Attempt, text: str) -> None:
        if self._runtime is not None:
            work = self._runtime.store.progress(attempt.run.id, attempt.run.epoch, text)
            self._progressing = asyncio.get_running_loop().create_task(work)


def _kind(function: Callable[..., Any], executor: Executor) -> Kind:
    choice(executor, ("auto", "loop", "thread", "process"), field="executor")
    is_async = inspect.iscoroutinefunction(function)
    if is_async and executor in ("thread", "process"):
        raise InvalidInput("executor", f"an async def cannot run in a {executor}", "Write a plain def for that")
    if is_async:
        return "async"
    return {"auto": "thread", "loop": "sync", "thread": "thread", "process": "process"}[executor]  # type: ignore[return-value]  # checked above
