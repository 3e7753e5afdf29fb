"""The tasks and schedules that code declares."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from msgspec import UNSET

from mainspring.context import Context
from mainspring.host import EngineHost
from mainspring.model.change import Body
from mainspring.model.errors import DuplicateTask, InvalidInput, UnknownTask, nearest
from mainspring.model.gate import Gate
from mainspring.model.http import HTTP_TASK, AgentSettings, HttpAgent
from mainspring.model.ids import check_name
from mainspring.model.instant import Duration, duration_ms
from mainspring.model.policies import (
    RECOVERY,
    Priority,
    PriorityName,
    Recovery,
    RetryPolicy,
    checked_retry,
    choice,
    priority_of,
)
from mainspring.payload import payload_body
from mainspring.ports.executor import Kind
from mainspring.rules.definition import PolicyOptions, build_spec, digest_of
from mainspring.rules.triggers import At, Every
from mainspring.service import Definition
from mainspring.task import AsyncContextTask, AsyncTask, BaseTask, ContextTask, Task, TaskDecorator, TaskOptions

P = ParamSpec("P")
R = TypeVar("R")

Executor = Literal["auto", "loop", "thread", "process"]


#: What other schedulers call our options.
SYNONYMS = {
    "timezone": "tz",
    "zone": "tz",
    "seconds": "every",
    "interval": "every",
    "retries": "retry",
    "coalesce": "missed",
}


TASK_OPTIONS = (
    "name",
    "executor",
    "retry",
    "timeout",
    "recovery",
    "max_crashes",
    "limit",
    "priority",
    "queue",
    "overrun",
)


class DeclareOptions(PolicyOptions, total=False):
    """What a schedule's decorator takes beside *when*: the policies, the task's settings, the arguments."""

    executor: Executor
    limit: int | None
    max_crashes: int
    overrun: Duration
    args: Iterable[Any]
    kwargs: dict[str, Any]


class Registry(EngineHost):
    """Decorators record; nothing is stored or started before `run()`."""

    @property
    def declared(self) -> tuple[str, ...]:
        """The names of the schedules that code declares."""
        return tuple(self._declared)

    # ── tasks ──────────────────────────────────────────────────────────────

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
        priority: Priority | PriorityName | int = Priority.NORMAL,
        queue: str = "default",
        overrun: Duration = "60s",
    ) -> TaskDecorator: ...
    def task(self, *functions: Any, **options: Any) -> Any:
        """Register a function as a task; with or without parentheses.

        Options: name, executor ("auto", "loop", "thread", "process"), retry (3 attempts), timeout ("300s"), recovery
        ("retry", "fail"), max_crashes (3), limit (of runs at once), priority, queue, overrun ("60s").
        """
        wrong = next((key for key in options if key not in TASK_OPTIONS), None)
        if wrong is not None:
            hint = f"Did you mean {SYNONYMS[wrong]!r}?" if wrong in SYNONYMS else nearest(wrong, TASK_OPTIONS)
            raise InvalidInput(wrong, "is not an option of a task", hint or f"Known are {', '.join(TASK_OPTIONS)}")
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
        priority: Priority | PriorityName | int = Priority.NORMAL,
        queue: str = "default",
        overrun: Duration = "60s",
    ) -> BaseTask[Any, Any]:
        if isinstance(function, BaseTask):
            return function
        if not callable(function):
            raise InvalidInput("task", f"{function!r} is not a function", "Decorate a def or an async def")
        name = check_name(name if name is not None else getattr(function, "__name__", ""), field="task name")
        if name == HTTP_TASK:
            raise InvalidInput("name", f"{name!r} is the built-in task of HTTP agents", "Choose another name")
        if name in self.tasks:
            raise DuplicateTask("name", f"a task called {name!r} is registered already", "Give one of them a name=…")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise InvalidInput("limit", f"{limit!r} is out of range", "Use at least 1, or None for no limit")
        if isinstance(max_crashes, bool) or not isinstance(max_crashes, int) or max_crashes < 1:
            raise InvalidInput("max_crashes", f"{max_crashes!r} is out of range", "Use a whole number of at least 1")
        choice(recovery, RECOVERY, field="recovery")
        options = TaskOptions(
            kind=_kind(function, executor),
            timeout=None if timeout is None else duration_ms(timeout, field="timeout", minimum=1),
            retry=checked_retry(retry) or RetryPolicy(),
            recovery=recovery,
            max_crashes=max_crashes,
            limit=limit,
            priority=priority_of(priority),
            queue=check_name(queue, field="queue"),
            overrun=duration_ms(overrun, field="overrun"),
        )
        made: BaseTask[Any, Any] = (AsyncTask if options.kind == "async" else Task)(self, function, name, options)
        parameters = list(inspect.signature(function).parameters)
        if made.signature.context is not None and parameters[0] == made.signature.context:
            with_context = AsyncContextTask if options.kind == "async" else ContextTask
            made = with_context(self, function, name, options)
        self.tasks[name] = made
        self._handlers[name] = made.handler()
        return made

    def cron(self, expression: str, *, name: str | None = None, **options: Unpack[DeclareOptions]) -> TaskDecorator:
        """Run the function at the times of a cron expression; options are those of `schedule` and `task`."""
        return self._declare(name, {"cron": expression}, dict(options))

    def every(
        self, interval: Duration | Every, *, name: str | None = None, **options: Unpack[DeclareOptions]
    ) -> TaskDecorator:
        """Run the function at an interval, the first time one interval from now."""
        return self._declare(name, {"every": interval}, dict(options))

    def at(
        self, times: datetime | Iterable[datetime] | At, *, name: str | None = None, **options: Unpack[DeclareOptions]
    ) -> TaskDecorator:
        """Run the function at an instant or a list of instants."""
        return self._declare(name, {"at": times}, dict(options))

    def _declare(self, name: str | None, when: dict[str, Any], options: dict[str, Any]) -> TaskDecorator:
        task_only = ("executor", "limit", "max_crashes", "overrun")
        both = ("retry", "timeout", "recovery", "priority", "queue")
        own = {key: options.pop(key) for key in task_only if key in options}
        own |= {key: options[key] for key in both if key in options}
        args, kwargs = options.pop("args", ()), options.pop("kwargs", {})

        def decorate(function: Callable[..., Any]) -> Any:
            known = isinstance(function, BaseTask)
            task = self._register(function, **own)
            wanted = {"task": task, "args": args, "kwargs": kwargs, **when, **options}
            try:
                schedule_name = check_name(name if name is not None else task.name)
                if schedule_name in self._declared:
                    raise DuplicateTask(
                        "name", f"a schedule called {schedule_name!r} is declared already", "Give one a name=…"
                    )
                self._definition(schedule_name, **wanted)  # wrong values fail here, at the decorator
            except Exception:
                if not known:  # registered just now: half a declaration is none
                    del self.tasks[task.name], self._handlers[task.name]
                raise
            self._declared[schedule_name] = wanted
            return task

        return decorate

    # ── schedules ──────────────────────────────────────────────────────────

    def _definition(
        self,
        name: str,
        *,
        task: BaseTask[Any, Any] | Callable[..., Any] | HttpAgent | str,
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        payload: Any = UNSET,
        origin: Literal["code", "api"] = "api",
        with_payload: bool = True,
        **when_and_how: Any,
    ) -> Definition:
        if isinstance(args, str | bytes):
            raise InvalidInput("args", f"{args!r} is one value, not a list of arguments", f"Write args=({args!r},)")
        agent = task if isinstance(task, HttpAgent) else None
        body: Body | None = None
        gates: tuple[Gate, ...] = ()
        own: dict[str, Any]
        if isinstance(task, HttpAgent):
            if args or kwargs:
                raise InvalidInput("args", "an HTTP agent takes no arguments", "Give a payload: it is the body")
            self.agents = self.agents or AgentSettings()  # who schedules calls makes them, too
            task_name, own = HTTP_TASK, {"overlap": "allow_parallel", "http": task.target}
            body = payload_body(None if payload is UNSET else payload, self.settings.payload_limit)
        else:
            if payload is not UNSET:
                raise InvalidInput("payload", "a task takes arguments", "Write args=(…) or kwargs={…}")
            target = self._task(task)
            task_name, gates = target.name, target.gates()
            own = {"priority": target.options.priority, "queue": target.options.queue}
            if with_payload:
                body = target.signature.encode(tuple(args), kwargs or {}, self.settings.payload_limit)
        try:
            spec = build_spec(
                name=f"{self.settings.namespace}/{name}",
                task=task_name,
                now=self.now(),
                body=None if body is None else body.id,
                gates=tuple(gate.name for gate in gates),
                default_tz=self.tz,
                **{**own, **{key: value for key, value in when_and_how.items() if value is not None}},
            )
        except TypeError as error:
            known = [key for key in inspect.signature(build_spec).parameters if key not in ("http", "body", "gates")]
            wrong = next((key for key in when_and_how if key not in known), "")
            hint = f"Did you mean {SYNONYMS[wrong]!r}?" if wrong in SYNONYMS else nearest(wrong, known)
            raise InvalidInput(wrong or "schedule", str(error).split(") ")[-1], hint) from None
        delay = when_and_how.get("delay")
        by = f"code@{self.settings.version}" if origin == "code" else "api"
        return Definition(
            ns=self.settings.namespace,
            name=check_name(name),
            spec=spec,
            digest=digest_of(spec),
            bodies=() if body is None else (body,),
            gates=gates,
            origin=origin,
            by=by,
            app=self.settings.app if origin == "code" else "",
            version=self.settings.version if origin == "code" else "",
            delay=None if delay is None else duration_ms(delay, field="delay"),
            agent=agent,
        )

    def _task(self, task: BaseTask[Any, Any] | Callable[..., Any] | str) -> BaseTask[Any, Any]:
        if isinstance(task, BaseTask):
            return task
        name = task if isinstance(task, str) else getattr(task, "__name__", repr(task))
        if name == HTTP_TASK:
            raise InvalidInput("task", "the built-in task 'http' needs an agent", 'Give Http("https://…") instead')
        if name not in self.tasks:
            raise UnknownTask(
                f"no task is called {name!r}. {nearest(name, self.tasks) or 'Register it with @ms.task.'}"
            )
        return self.tasks[name]


def _kind(function: Callable[..., Any], executor: Executor) -> Kind:
    choice(executor, ("auto", "loop", "thread", "process"), field="executor")
    is_async = inspect.iscoroutinefunction(function)
    if is_async and executor in ("thread", "process"):
        raise InvalidInput("executor", f"an async def cannot run in a {executor}", "Write a plain def for that")
    if is_async:
        return "async"
    return {"auto": "thread", "loop": "sync", "thread": "thread", "process": "process"}[executor]  # type: ignore[return-value]  # checked above
