"""Registry: the tasks and schedules that a program declares, and how options become stored definitions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypedDict, TypeVar

from msgspec import UNSET, Struct, json

from mainspring.app.engine_host import EngineHost
from mainspring.app.origin import origin_of
from mainspring.app.output_capture import CaptureKind, check_capture
from mainspring.app.signature import payload_body
from mainspring.app.task import AsyncContextTask, AsyncTask, BaseTask, ContextTask, Task, TaskDecorator, TaskOptions
from mainspring.app.task_function import check_function
from mainspring.app.trigger_hints import EXAMPLES
from mainspring.model.change import Body
from mainspring.model.errors import DuplicateTask, InvalidInput, UnknownTask, WrongArguments, suggest_nearest
from mainspring.model.gate import Gate
from mainspring.model.http import HTTP_TASK, HttpAgent, HttpResult
from mainspring.model.ids import check_name
from mainspring.model.instant import Duration, duration_ms
from mainspring.model.option_hints import suggest_option
from mainspring.model.policies import (
    RECOVERY,
    FilteredRetry,
    Priority,
    PriorityName,
    Recovery,
    RetryPolicy,
    check_choice,
    check_retry,
    check_task_retry,
    parse_priority,
)
from mainspring.model.schedule import Schedule
from mainspring.ports.executor import Kind
from mainspring.rules.definition import PolicyOptions, SpecTarget, build_spec, check_options, digest_of
from mainspring.service.requests import ScheduleRequest

if TYPE_CHECKING:
    from mainspring.app.mainspring import Mainspring

P = ParamSpec("P")
R = TypeVar("R")

Executor = Literal["auto", "loop", "thread", "process"]


class TaskSettings(TypedDict, total=False):
    """Options of `@ms.task(…)`. An option that is absent gets its default."""

    #: Name of the task; None: the name of the function.
    name: str | None
    #: Where the function runs: on the event loop, in a thread, or in a process. "auto": an `async def` on the loop, a
    #: plain `def` in a thread.
    executor: Executor
    #: How often and after which delays a failed run is tried again: `Retry(…)`.
    retry: RetryPolicy | None
    #: Time limit of one attempt; None: no limit.
    timeout: Duration | None
    #: Whether a run whose worker crashed is run again ("retry") or lost ("fail").
    recovery: Recovery
    #: A run fails for good after this number of crashes.
    max_crashes: int
    #: The most runs that execute at once, in all instances together; None: no limit.
    limit: int | None
    #: Of the runs that are due, those with a higher priority start first.
    priority: Priority | PriorityName | int
    #: Queue of the runs: only instances with this queue in their `queues` execute them.
    queue: str
    #: Time after the limit until the worker abandons a function that does not stop, so that another attempt may run
    #: beside it; None: the worker waits for its end.
    overrun: Duration | None
    #: What of the function's output is stored in the log of its run, besides `ctx.log`: "print", "logging" or both.
    capture: CaptureKind | Iterable[CaptureKind]


class DeclareOptions(PolicyOptions, total=False):
    """Options of `@ms.cron(…)`, `@ms.every(…)` and `@ms.at(…)`: policies of the schedule and settings of the task.

    `args` and `kwargs` are the arguments of every run of the schedule.
    """

    #: As for `@ms.task`.
    executor: Executor
    #: As for `@ms.task`.
    limit: int | None
    #: As for `@ms.task`.
    max_crashes: int
    #: As for `@ms.task`.
    overrun: Duration | None
    #: As for `@ms.task`.
    capture: CaptureKind | Iterable[CaptureKind]
    #: Arguments of every run, by position.
    args: Iterable[Any]
    #: Arguments of every run, by name.
    kwargs: dict[str, Any]


TASK_OPTIONS = tuple(TaskSettings.__annotations__)
#: Options that both a task and a schedule have: the decorator of a schedule passes them to both.
_SHARED_OPTIONS = tuple(name for name in TASK_OPTIONS if name in PolicyOptions.__annotations__)
#: Options of a schedule's decorator that only the task has.
_TASK_ONLY_OPTIONS = tuple(name for name in TASK_OPTIONS if name not in ("name", *_SHARED_OPTIONS))


class ScheduleTarget(Struct, frozen=True, kw_only=True, gc=False):
    """What the runs of a schedule execute: a task with arguments, or a call of an HTTP agent with a payload."""

    #: Name of the task; the built-in task for an agent.
    task: str
    #: The agent; None: the runs execute a function.
    agent: HttpAgent | None = None
    #: The arguments or the agent's payload as JSON; None: there are none.
    body: Body | None = None
    gates: tuple[Gate, ...] = ()
    #: Policies, by option name, that apply unless the schedule sets them.
    policies: Mapping[str, Any] = {}

    def for_spec(self) -> SpecTarget:
        """Return what a schedule's definition stores of this target: names and ids in place of objects."""
        return SpecTarget(
            self.task,
            None if self.body is None else self.body.id,
            tuple(gate.name for gate in self.gates),
            None if self.agent is None else self.agent.target,
        )


class Registry:
    """Tables of an app's tasks, handlers and declared schedules. It also makes definitions of schedules from options.

    Decorators only fill the tables; the engine stores the declared schedules when it starts.
    """

    def __init__(self, app: Mainspring, host: EngineHost) -> None:
        self._app = app
        self._host = host
        #: Tasks by name.
        self.tasks: dict[str, BaseTask[Any, Any]] = {}
        #: Handlers by task name: the table that the host gives to each runtime.
        self.handlers = host.handlers
        #: The options of each declared schedule, by its name.
        self.declared: dict[str, dict[str, Any]] = {}

    # ── tasks ──────────────────────────────────────────────────────────────

    def check_task_options(self, options: Iterable[str]) -> None:
        """Raise `InvalidInput` for a name that is no option of a task, with the option that was probably meant."""
        wrong = next((key for key in options if key not in TASK_OPTIONS), None)
        if wrong is not None:
            raise InvalidInput(wrong, "is not an option of a task", suggest_option(wrong, TASK_OPTIONS))

    def register(
        self,
        function: Any,
        *,
        name: str | None = None,
        executor: Executor = "auto",
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        recovery: Recovery = "retry",
        max_crashes: int = 3,
        limit: int | None = None,
        priority: Priority | PriorityName | int = Priority.NORMAL,
        queue: str = "default",
        overrun: Duration | None = None,
        capture: CaptureKind | Iterable[CaptureKind] = (),
    ) -> BaseTask[Any, Any]:
        """Make a task of a function, add it to the tables and return it. `TaskSettings` explains the options.

        If `function` is a task already, it is returned unchanged, and the options are ignored. Raises: InvalidInput for
        a wrong option; DuplicateTask for a name that is taken.
        """
        if isinstance(function, BaseTask):
            return function
        kind = _handler_kind(function, executor)
        check_function(function, has_name=name is not None, in_process=kind == "process")
        name = self._check_task_name(name if name is not None else getattr(function, "__name__", ""))
        check_choice(recovery, RECOVERY, field="recovery")
        options = TaskOptions(
            kind=kind,
            timeout=None if timeout is None else duration_ms(timeout, field="timeout", minimum=1),
            retry=retry.plain() if isinstance(retry, FilteredRetry) else check_task_retry(retry) or RetryPolicy(),
            retry_filter=retry.filter if isinstance(retry, FilteredRetry) else None,
            recovery=recovery,
            max_crashes=_check_max_crashes(max_crashes),
            limit=_check_limit(limit),
            priority=parse_priority(priority),
            queue=check_name(queue, field="queue"),
            overrun=None if overrun is None else duration_ms(overrun, field="overrun"),
            capture=check_capture(capture),
        )
        task = self._make_task(function, name, options)
        self.tasks[name] = task
        self.handlers[name] = task.handler()
        return task

    def _check_task_name(self, name: str) -> str:
        """Return `name` if a new task may have it. Raises: InvalidInput if not; DuplicateTask if a task has it."""
        name = check_name(name, field="task name")
        if name == HTTP_TASK:
            raise InvalidInput("name", f"{name!r} is the built-in task of HTTP agents", "Choose another name")
        if name in self.tasks:
            raise DuplicateTask("name", f"a task called {name!r} is registered already", "Give one of them a name=…")
        return name

    def _make_task(self, function: Callable[..., Any], name: str, options: TaskOptions) -> BaseTask[Any, Any]:
        """Return a task for the function, of one of four classes: async or not, with the run's `Context` first or not.

        Why four: so a call of the task has the function's own signature for type checkers. The `kind` "async" in
        `options` selects the async classes.
        """
        is_async = options.kind == "async"
        task: BaseTask[Any, Any] = (AsyncTask if is_async else Task)(self._app, self._host, function, name, options)
        parameters = list(inspect.signature(function).parameters)
        if task.signature.context is not None and parameters[0] == task.signature.context:
            with_context = AsyncContextTask if is_async else ContextTask
            return with_context(self._app, self._host, function, name, options)
        return task

    def find_task(self, task: BaseTask[Any, Any] | Callable[..., Any] | str) -> BaseTask[Any, Any]:
        """Return the task that `task` stands for: a task itself, a task's name, or a function whose name is a task's.

        Raises: UnknownTask, with the nearest name; InvalidInput for the built-in task of HTTP agents.
        """
        if isinstance(task, BaseTask):
            return task
        name = task if isinstance(task, str) else getattr(task, "__name__", repr(task))
        if name == HTTP_TASK:
            raise InvalidInput("task", "the built-in task 'http' needs an agent", 'Give Http("https://…") instead')
        if name not in self.tasks:
            raise UnknownTask(
                f"no task is called {name!r}. {suggest_nearest(name, self.tasks) or 'Register it with @ms.task.'}"
            )
        return self.tasks[name]

    @property
    def origins(self) -> dict[str, str]:
        """The origins of the tasks: name → importable name of the function; tasks without one are left out."""
        return {name: origin for name, task in self.tasks.items() if (origin := origin_of(task.function))}

    # ── declared schedules ─────────────────────────────────────────────────

    def declare_schedule(self, name: str, **options: Any) -> None:
        """Declare a schedule: check `options`, which are parameters of `make_request`, and add them to the table.

        The definition is made from the options when the engine starts. Raises: InvalidInput for a wrong option;
        UnknownTask; DuplicateTask for a name that is taken.
        """
        check_name(name)
        if name in self.declared:
            raise DuplicateTask("name", f"a schedule called {name!r} is declared already", "Give one a name=…")
        self.make_request(name, **options)
        self.declared[name] = options

    def schedule_decorator(self, name: str | None, trigger: dict[str, Any], options: dict[str, Any]) -> TaskDecorator:
        """Return a decorator that registers a function as a task, declares a schedule of it, and returns the task.

        `name` is the schedule's name; None: the task's name. `trigger` holds one trigger option by its name, such as
        `{"cron": "0 9 * * *"}`. `options` are `DeclareOptions`; those that only the task takes are removed from the
        dictionary. The decorator raises InvalidInput or DuplicateTask, and then registers no task.
        """
        for kind, value in trigger.items():
            if callable(value):  # @ms.every without parentheses: the function came in place of the interval
                raise InvalidInput(kind, "is used without a value", f"Write @ms.{kind}({EXAMPLES[kind]}) above the def")
        own = {key: options.pop(key) for key in _TASK_ONLY_OPTIONS if key in options}
        own |= {key: options[key] for key in _SHARED_OPTIONS if key in options}
        retry = options.get("retry")
        if isinstance(retry, FilteredRetry):
            options["retry"] = retry.plain()

        def decorate(function: Callable[..., Any]) -> Any:
            was_task = isinstance(function, BaseTask)
            if was_task:
                check_retry(retry)  # a task keeps its own options: a filter here would be lost
            task = self.register(function, **own)
            try:
                self.declare_schedule(name if name is not None else task.name, task=task, **trigger, **options)
            except Exception:
                if not was_task:  # a function whose schedule is refused is not registered either
                    del self.tasks[task.name], self.handlers[task.name]
                raise
            return task

        return decorate

    def declared_requests(self) -> dict[str, ScheduleRequest]:
        """Return the definition of each declared schedule, by name, made anew from its options."""
        return {name: self.make_request(name, origin="code", **options) for name, options in self.declared.items()}

    # ── definitions ────────────────────────────────────────────────────────

    def make_request(
        self,
        name: str,
        *,
        task: BaseTask[Any, Any] | Callable[..., Any] | HttpAgent | str,
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        payload: Any = UNSET,
        origin: Literal["code", "api"] = "api",
        **when_and_how: Any,
    ) -> ScheduleRequest:
        """Return the checked definition of a schedule, with its payload and gates, ready to be stored.

        `when_and_how` are `WhenAndHow` options. `origin` "code": this program declares the schedule, and the request
        states its app and version; "api": a user creates it. An HTTP agent as `task` enables calls of agents by this
        app. Raises: InvalidInput for a wrong option or argument; UnknownTask.
        """
        settings = self._host.settings
        check_options(when_and_how)  # first, because a wrong option is often what the arguments' error comes from
        target = self.resolve_target(task, args, kwargs, payload)
        now = self._host.now()
        named = {key: value for key, value in when_and_how.items() if value is not None}
        spec = build_spec(
            target.for_spec(),
            {**target.policies, **named},
            name=self.full_name(name),
            now=now,
            default_tz=self._app.tz,
        )
        delay = when_and_how.get("delay")
        is_code = origin == "code"
        return ScheduleRequest(
            ns=settings.namespace,
            name=check_name(name),
            spec=spec,
            digest=digest_of(spec),
            bodies=() if target.body is None else (target.body,),
            gates=target.gates,
            origin=origin,
            by=f"code@{settings.version}" if is_code else "api",
            app=settings.app if is_code else "",
            version=settings.version if is_code else "",
            delay=None if delay is None else duration_ms(delay, field="delay"),
            agent=target.agent,
        )

    def resolve_target(
        self,
        task: BaseTask[Any, Any] | Callable[..., Any] | HttpAgent | str,
        args: Iterable[Any],
        kwargs: dict[str, Any] | None,
        payload: Any,
        *,
        with_payload: bool = True,
    ) -> ScheduleTarget:
        """Return what the runs of a schedule execute, with its encoded payload unless `with_payload` is False.

        A task takes `args` and `kwargs`, an HTTP agent takes `payload`; UNSET: none. An agent enables calls of agents
        by this app, from the next start of its engine on. Raises: InvalidInput for arguments to an agent or a payload
        to a task; WrongArguments; UnknownTask.
        """
        if isinstance(args, str | bytes):
            raise InvalidInput("args", f"{args!r} is one value, not a list of arguments", f"Write args=({args!r},)")
        args = tuple(args)
        limit = self._host.settings.payload_limit
        if isinstance(task, HttpAgent):
            if args or kwargs:
                raise InvalidInput("args", "an HTTP agent takes no arguments", "Give a payload: it is the body")
            self._host.enable_agents()
            body = payload_body(None if payload is UNSET else payload, limit) if with_payload else None
            return ScheduleTarget(task=HTTP_TASK, agent=task, body=body, policies={"overlap": "allow_parallel"})
        if payload is not UNSET:
            raise InvalidInput("payload", "a task takes arguments", "Write args=(…) or kwargs={…}")
        target = self.find_task(task)
        try:
            body = target.signature.encode(args, kwargs or {}, limit) if with_payload else None
        except WrongArguments as error:
            if args or kwargs:
                raise
            fix = f"{error.fix}. Give args=(…,) or kwargs={{…}}"
            raise WrongArguments(error.field, error.problem, fix) from None
        return ScheduleTarget(
            task=target.name,
            body=body,
            gates=target.gates(),
            policies={"priority": target.options.priority, "queue": target.options.queue},
        )

    def prepare_trigger(
        self, schedule: Schedule, args: Iterable[Any] | None, kwargs: dict[str, Any] | None, payload: Any
    ) -> tuple[Body | None, Callable[[str | None], Any]]:
        """Return what `Mainspring.trigger` needs for one run of a schedule: (payload, decoder of the result).

        The payload is None if the run gets the schedule's own. The decoder turns the stored JSON text into the task's
        return value, or into an `HttpResult` for an agent. If the task is not registered here, it returns the text.
        Raises: InvalidInput for arguments to an agent or a payload to a task; UnknownTask for arguments of a task that
        is not registered here.
        """
        limit = self._host.settings.payload_limit
        has_arguments = args is not None or kwargs is not None
        if schedule.spec.task == HTTP_TASK:
            if has_arguments:
                raise InvalidInput("args", "an HTTP agent takes no arguments", "Give a payload: it is the body")
            return None if payload is UNSET else payload_body(payload, limit), _decode_http_result
        if payload is not UNSET:
            raise InvalidInput("payload", "a task takes arguments", "Write args=(…) or kwargs={…}")
        body = None
        if has_arguments:
            signature = self.find_task(schedule.spec.task).signature
            body = signature.encode(tuple(args or ()), kwargs or {}, limit)
        task = self.tasks.get(schedule.spec.task)
        return body, task.signature.result if task is not None else _return_text

    def full_name(self, name: str) -> str:
        """Return a schedule's name with the app's namespace before it: `default/nightly`."""
        return f"{self._host.settings.namespace}/{name}"

    # ── test kits ──────────────────────────────────────────────────────────

    def copy_tables(self) -> tuple[dict[str, Any], ...]:
        """Return copies of the tables of tasks, handlers and declared schedules.

        Test kits pass them to `restore_tables` after the test.
        """
        return dict(self.tasks), dict(self.handlers), dict(self.declared)

    def restore_tables(self, copies: tuple[dict[str, Any], ...]) -> None:
        """Undo every registration of a task or schedule since `copy_tables` returned `copies`."""
        for table, before in zip((self.tasks, self.handlers, self.declared), copies, strict=True):
            table.clear()  # type: ignore[attr-defined]  # each is a dictionary
            table.update(before)  # type: ignore[attr-defined]  # likewise


def _decode_http_result(text: str | None) -> HttpResult | None:
    return None if text is None else json.decode(text, type=HttpResult)


def _return_text(text: str | None) -> str | None:
    return text


def _check_limit(limit: Any) -> int | None:
    """Return the concurrency limit of a task. Raises: InvalidInput unless it is None or a number of at least 1."""
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidInput("limit", f"{limit!r} is out of range", "Use at least 1, or None for no limit")
    return limit


def _check_max_crashes(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput("max_crashes", f"{value!r} is out of range", "Use a whole number of at least 1")
    return value


def _handler_kind(function: Callable[..., Any], executor: Executor) -> Kind:
    """Return where the function runs, from the option `executor`: "auto" depends on whether it is an `async def`.

    Raises: InvalidInput for an unknown option, and for an `async def` in a thread or process.
    """
    check_choice(executor, ("auto", "loop", "thread", "process"), field="executor")
    is_async = inspect.iscoroutinefunction(function)
    if is_async and executor in ("thread", "process"):
        raise InvalidInput("executor", f"an async def cannot run in a {executor}", "Write a plain def for that")
    if is_async:
        return "async"
    return {"auto": "thread", "loop": "sync", "thread": "thread", "process": "process"}[executor]  # type: ignore[return-value]  # checked above
