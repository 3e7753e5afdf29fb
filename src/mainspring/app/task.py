"""Tasks: registered functions. A program can call them as before, enqueue runs of them and schedule them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from datetime import datetime
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from msgspec import Struct
from msgspec.structs import replace

from mainspring.app.context import Context
from mainspring.app.dependencies import resolve, resolve_blocking
from mainspring.app.method_hints import TASK_METHODS, missing_attribute
from mainspring.app.output_capture import CaptureKind, capture_output
from mainspring.app.pending_call import PendingCall, coroutine_function
from mainspring.app.result import ResultEncoder
from mainspring.app.run_handle import RunHandle
from mainspring.app.signature import Signature
from mainspring.app.sync import SyncTask
from mainspring.app.transactional import join, join_blocking
from mainspring.model.change import Body
from mainspring.model.errors import InvalidInput
from mainspring.model.events import RunScheduled
from mainspring.model.gate import Gate
from mainspring.model.ids import check_name, storable_text
from mainspring.model.instant import Duration, Ms, duration_ms, instant_ms
from mainspring.model.option_hints import refuse_unknown_options
from mainspring.model.policies import (
    RECOVERY,
    Priority,
    PriorityName,
    Recovery,
    RetryFilter,
    RetryPolicy,
    RunOptions,
    check_choice,
    check_retry,
    parse_priority,
)
from mainspring.ports.executor import Handler, HeldRun, Kind
from mainspring.rules.lanes import lane_of, task_gate
from mainspring.service.commands import MAX_ROWS_PER_COMMIT
from mainspring.service.requests import NewRun

if TYPE_CHECKING:
    from mainspring.app.engine_host import EngineHost
    from mainspring.app.mainspring import Mainspring

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class TaskOptions(Struct, frozen=True, kw_only=True):
    """Settings of a task, for all of its runs; `using(…)` overrides some of them for single calls.

    They are made from the options of `@ms.task(…)`. Durations are in milliseconds.
    """

    #: Where the function runs: "async" or "sync" on the event loop, in a "thread", or in a "process".
    kind: Kind
    #: Time limit of one attempt; None: no limit.
    timeout: Ms | None = None
    retry: RetryPolicy = RetryPolicy()
    #: Whether a run whose worker crashed is run again ("retry") or lost ("fail").
    recovery: Recovery = "retry"
    #: A run fails for good after this number of crashes.
    max_crashes: int = 3
    #: The most runs that execute at once, in all instances; None: no limit.
    limit: int | None = None
    priority: Priority = Priority.NORMAL
    queue: str = "default"
    #: Time after the limit until the worker abandons a function that does not stop; None: the worker waits for its end.
    overrun: Ms | None = None
    #: What of the function's output is stored in the log of its run: "print", "logging" or both.
    capture: tuple[CaptureKind, ...] = ()
    #: Which errors of the function are worth another attempt; None: all.
    retry_filter: RetryFilter | None = None


class CallOptions(Struct, frozen=True, kw_only=True):
    """Settings of single calls, made by `using(…)`. None: the task's own setting applies. Durations in milliseconds."""

    priority: Priority | None = None
    queue: str | None = None
    #: The run is due this time after the call, or at the instant `at`; if both are None, at once.
    delay: Ms | None = None
    at: Ms | None = None
    #: While a run of the task with this key is open, a call stores nothing and returns that run.
    unique: str | None = None
    #: The run is skipped if it has not begun this time after the call, or at the instant `expires_at`.
    expires_in: Ms | None = None
    expires_at: Ms | None = None
    timeout: Ms | None = None
    retry: RetryPolicy | None = None
    recovery: Recovery | None = None
    #: The caller's connection, in whose open transaction the run is stored.
    connection: Any = None

    def for_run(self, now: Ms, due_at: Ms) -> RunOptions | None:
        """Return the settings that workers need, to be stored with the run; None if all of them are the task's own.

        The call is at `now`, its run is due at `due_at`. Raises: InvalidInput if the run would expire before it is due.
        """
        expires = self.expires_at if self.expires_in is None else now + self.expires_in
        if expires is not None and expires < due_at:
            raise InvalidInput("expires", "lies before the run is due", "Give a time after delay or at")
        deadline = None if expires is None else expires - due_at
        options = RunOptions(timeout=self.timeout, retry=self.retry, recovery=self.recovery, start_deadline=deadline)
        return None if options == RunOptions() else options


_NO_OPTIONS = CallOptions()


class BaseTask(Generic[P, R]):
    """A registered function: `await send.enqueue("acme")` stores a run of it, which a worker executes later.

    Subclasses can also be called like the function, at once and without a run.
    """

    def __init__(
        self, app: Mainspring, host: EngineHost, function: Callable[..., Any], name: str, options: TaskOptions
    ) -> None:
        self.app = app
        self._host = host
        self.name = name
        self.function = function
        self.options = options
        self.signature = Signature(function)
        self._call_options = _NO_OPTIONS
        functools.update_wrapper(self, function)  # type: ignore[arg-type]  # subclasses are callable

    # ── enqueueing ─────────────────────────────────────────────────────────

    @overload
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, RunHandle[R]]: ...
    @overload
    def enqueue(self, *args: Any, connection: Any, **kwargs: Any) -> Coroutine[Any, Any, RunHandle[R]]: ...
    @coroutine_function
    def enqueue(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, RunHandle[R]]:
        """Store a run for a call of the function with these arguments, and return the run's handle.

        With `connection`, a database connection, the run is part of the transaction that is open on it: the run exists
        if and only if the transaction commits. Raises: WrongArguments, before anything is stored; InvalidInput if the
        store cannot join a transaction; StoreError. Await the call: if it is thrown away, an ERROR in the log says so.
        """
        call: Any = PendingCall(self._enqueue(args, kwargs), self.name, "enqueue")
        return call  # type: ignore[no-any-return]  # it is registered as a coroutine

    async def _enqueue(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RunHandle[R]:
        """Store a run for a call of the function with these arguments, and return the run's handle."""
        connection = self.connection_of(kwargs)
        new = self.new_run(args, kwargs)
        if connection is not None:
            ((run, created),) = await join(self._host, connection, [new])
        else:
            run, created = await self._host.enqueue(new)
        return RunHandle(run.id, self._host, self.signature.result, created=created)

    def connection_of(self, kwargs: dict[str, Any]) -> Any:
        """Remove `connection` from the arguments of a call and return it.

        If it is absent or None, return the connection of `using(…)`; None if `using(…)` has none. If the function
        itself has a parameter `connection`, the argument belongs to the function and stays.
        """
        if "connection" in kwargs and "connection" not in self.signature.names:
            given = kwargs.pop("connection")
            return self._call_options.connection if given is None else given
        return self._call_options.connection

    def enqueue_blocking(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RunHandle[R] | None:
        """Store a run for a call with these arguments, on a thread without an event loop, and return the run's handle.

        Return None, and store nothing, if only the engine's loop can store the run, for example because the store is
        not open: `task.sync` then awaits `enqueue`. An argument `connection` is removed from `kwargs`. Raises what
        `enqueue` raises.
        """
        connection = self.connection_of(kwargs)
        if connection is not None:
            ((run, created),) = join_blocking(self._host, connection, [self.new_run(args, kwargs)])
            return RunHandle(run.id, self._host, self.signature.result, created=created)
        stored = self._host.enqueue_blocking(self.new_run(args, kwargs))
        return None if stored is None else RunHandle(stored[0].id, self._host, self.signature.result, created=stored[1])

    @coroutine_function
    def enqueue_many(
        self, items: Iterable[tuple[Any, ...] | dict[str, Any]], *, connection: Any = None
    ) -> Coroutine[Any, Any, list[RunHandle[R]]]:
        """Store a run for each item, up to a thousand in one commit, and return the handles in the order of the items.

        Each item is a tuple of arguments, or a dictionary of named ones. If one does not fit, WrongArguments is raised
        and nothing is stored. With `connection`, all runs are part of the transaction that is open on it. With
        `using(unique=…)` all items have the same key: while the run of the first is open, the others store nothing and
        get a handle of that run.
        """
        call: Any = PendingCall(self._enqueue_many(items, connection), self.name, "enqueue_many")
        return call  # type: ignore[no-any-return]  # it is registered as a coroutine

    async def _enqueue_many(
        self, items: Iterable[tuple[Any, ...] | dict[str, Any]], connection: Any
    ) -> list[RunHandle[R]]:
        """Store a run for each item and return the handles in the order of the items."""
        bodies = self._bodies(items)
        host, decode = self._host, self.signature.result
        connection = self._call_options.connection if connection is None else connection
        if connection is not None:
            joined = await join(self._host, connection, [self._new_run(body) for body in bodies])
            return [RunHandle(run.id, host, decode, created=created) for run, created in joined]
        if self._call_options.unique is not None:
            asked = await asyncio.gather(*(self._host.enqueue(self._new_run(body)) for body in bodies))
            return [RunHandle(run.id, host, decode, created=created) for run, created in asked]
        ids = await self._host.enqueue_many(self._new_runs(bodies))
        return [RunHandle(run_id, host, decode) for run_id in ids]

    def enqueue_many_blocking(
        self, items: Iterable[tuple[Any, ...] | dict[str, Any]], connection: Any
    ) -> list[RunHandle[R]] | None:
        """Store a run for each item in the open transaction of a blocking `connection`, and return the runs' handles.

        `connection` None: the connection of `using(…)`. If `using(…)` has none, return None and store nothing:
        `task.sync` then awaits `enqueue_many`.
        """
        connection = self._call_options.connection if connection is None else connection
        if connection is None:
            return None
        joined = join_blocking(self._host, connection, [self._new_run(body) for body in self._bodies(items)])
        return [RunHandle(run.id, self._host, self.signature.result, created=created) for run, created in joined]

    def _bodies(self, items: Iterable[tuple[Any, ...] | dict[str, Any]]) -> list[Body | None]:
        """Return the encoded arguments of each item; None for an item without arguments.

        An item is a tuple of arguments or a dictionary of named ones. Raises: WrongArguments; PayloadTooLarge;
        PayloadNotSerialisable.
        """
        encode, limit = self.signature.encode, self._host.settings.payload_limit
        return [encode((), i, limit) if isinstance(i, dict) else encode(tuple(i), {}, limit) for i in items]

    @property
    def sync(self) -> SyncTask[P, R]:
        """`enqueue` and `enqueue_many` as blocking methods, for code without an event loop: `send.sync.enqueue(…)`."""
        return SyncTask(self, self._host)

    if not TYPE_CHECKING:  # for type checkers an unknown name is an error

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError, with what to write for a method of another queue, such as `delay`."""
            raise missing_attribute(self, name, TASK_METHODS, self.__dict__.get("name", ""))

    @refuse_unknown_options("using(…)")
    def using(
        self,
        *,
        priority: Priority | PriorityName | int | None = None,
        queue: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        unique: str | None = None,
        expires: Duration | datetime | None = None,
        timeout: Duration | None = None,
        retry: RetryPolicy | None = None,
        recovery: Recovery | None = None,
        connection: Any = None,
    ) -> BaseTask[P, R]:
        """Return a copy of this task with other options for its calls: `send.using(delay="10m").enqueue("acme")`.

        Options that are None stay as an earlier `using` set them. The run is due after `delay` or `at` an instant.
        `unique`: while a run of this task with that key is open, `enqueue` returns its handle and stores nothing.
        `expires`: a run that has not begun so long after the call, or at that instant, is skipped ("start_deadline").
        `connection`: store the runs in the transaction that is open on it, as `enqueue(connection=…)` does, but so that
        mypy checks the function's arguments. Raises: InvalidInput.
        """
        if delay is not None and at is not None:
            raise InvalidInput("delay", "delay and at are both given", "Give one of them")
        if recovery is not None:
            check_choice(recovery, RECOVERY, field="recovery")
        given: dict[str, Any] = {
            "priority": None if priority is None else parse_priority(priority),
            "queue": None if queue is None else check_name(queue, field="queue"),
            "delay": None if delay is None else duration_ms(delay, field="delay"),
            "at": None if at is None else instant_ms(at, field="at"),
            "unique": unique,
            "expires_at": instant_ms(expires, field="expires") if isinstance(expires, datetime) else None,
            "expires_in": None
            if expires is None or isinstance(expires, datetime)
            else duration_ms(expires, field="expires"),
            "timeout": None if timeout is None else duration_ms(timeout, field="timeout"),
            "retry": check_retry(retry),
            "recovery": recovery,
            "connection": connection,
        }
        before = self._call_options
        if delay is not None or at is not None:  # the newest option of when to run replaces the older one
            before = replace(before, delay=None, at=None)
        if expires is not None:
            before = replace(before, expires_in=None, expires_at=None)
        other: BaseTask[P, R] = BaseTask.__new__(BaseTask)
        other.__dict__.update(self.__dict__)
        other._call_options = replace(before, **{name: value for name, value in given.items() if value is not None})
        return other

    def new_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewRun:
        """Return a new run of this task for these arguments, not yet stored. Raises: WrongArguments."""
        return self._new_run(self.signature.encode(args, kwargs, self._host.settings.payload_limit))

    def _new_runs(self, bodies: Sequence[Body | None]) -> Iterator[NewRun]:
        """Yield a new run, without a unique key, for each payload. The runs of one commit are due at one instant.

        Why: they then share one notification of the workers.
        """
        gates = self.gates()
        for start in range(0, len(bodies), MAX_ROWS_PER_COMMIT):
            now, chunk = self._host.now(), bodies[start : start + MAX_ROWS_PER_COMMIT]
            ids = self._host.ids.new_many(now, len(chunk))
            event = self._scheduled(ids[0], now, gates, None)
            for run_id, body in zip(ids, chunk, strict=True):
                if body is None:
                    yield NewRun(replace(event, run_id=run_id), (), gates)
                else:
                    yield NewRun(replace(event, run_id=run_id, body=body.id), (body,), gates)

    def _new_run(self, body: Body | None) -> NewRun:
        """Return a new run with this payload, not yet stored."""
        now, gates = self._host.now(), self.gates()
        event = self._scheduled(self._host.ids.new(now), now, gates, None if body is None else body.id)
        return NewRun(event, () if body is None else (body,), gates)

    def _scheduled(self, run_id: str, now: Ms, gates: tuple[Gate, ...], body: str | None) -> RunScheduled:
        """Return the first event of a run that is enqueued at `now`; `body`: its payload's id, None for no payload."""
        settings = self._host.settings
        own, call = self.options, self._call_options
        due_at = call.at if call.at is not None else now + (call.delay or 0)
        return RunScheduled(
            ns=settings.namespace,
            run_id=run_id,
            task=self.name,
            due_at=due_at,
            lane=lane_of(settings.namespace, call.queue or own.queue),
            priority=int(own.priority if call.priority is None else call.priority),
            gates=tuple([gate.name for gate in gates]),
            body=body,
            unique_key=None if call.unique is None else f"{self.name}:{storable_text(call.unique)}",
            options=None if call is _NO_OPTIONS else call.for_run(now, due_at),
        )

    def gates(self) -> tuple[Gate, ...]:
        """Return the gate of this task's concurrency limit; empty if it has none."""
        if self.options.limit is None:
            return ()
        return (Gate(task_gate(self._host.settings.namespace, self.name), self.options.limit),)

    # ── running ────────────────────────────────────────────────────────────

    def handler(self) -> Handler:
        """Return what workers need to execute this task: its functions to call, and its settings."""
        own = self.options
        return Handler(
            name=self.name,
            kind=own.kind,
            call=self._call_captured if own.capture else self._call,
            call_blocking=self._call_blocking_captured if own.capture else self._call_blocking,
            encode=ResultEncoder(self.name),
            module=getattr(self.function, "__module__", None) or "",
            qualname=getattr(self.function, "__qualname__", ""),  # a partial function has none
            timeout=own.timeout,
            retry=own.retry,
            recovery=own.recovery,
            max_crashes=own.max_crashes,
            overrun=own.overrun,
            limit=own.limit,
            retry_filter=own.retry_filter,
        )

    async def _call(self, held: HeldRun) -> Any:
        """Execute an attempt: call the function with the run's arguments, the context and the dependencies.

        Return the function's value. A worker calls this for tasks that run on the event loop. Thread: handlers' loop.
        """
        values = self.signature.decode(held.attempt.body)
        context = self._context(held)
        if not self.signature.needs:
            value = self.signature.call(values, context, {})
            return await value if type(value) is CoroutineType or inspect.isawaitable(value) else value
        async with contextlib.AsyncExitStack() as stack:
            value = self.signature.call(values, context, await resolve(self.signature.needs, stack))
            return await value if inspect.isawaitable(value) else value

    def _call_blocking(self, held: HeldRun) -> Any:
        """Execute an attempt on a thread, or in a child process, without an event loop; return the function's value.

        If that is a coroutine, as of a plain function around an `async def`, run it: on the handlers' loop, or in a
        child process on a loop of its own.
        """
        values = self.signature.decode(held.attempt.body)
        context = self._context(held)
        with contextlib.ExitStack() as stack:
            resolved = resolve_blocking(self.signature.needs, stack, held.execution.run_on_loop)
            value = self.signature.call(values, context, resolved)
            if type(value) is CoroutineType:
                return (held.execution.run_on_loop or asyncio.run)(value)
            return value

    async def _call_captured(self, held: HeldRun) -> Any:
        """Do what `_call` does, and store the function's output in the log of its run."""
        with capture_output(self.options.capture, functools.partial(self._host.write_line, held)):
            return await self._call(held)

    def _call_blocking_captured(self, held: HeldRun) -> Any:
        """Do what `_call_blocking` does, and store the function's output in the log of its run."""
        with capture_output(self.options.capture, functools.partial(self._host.write_line, held)):
            return self._call_blocking(held)

    def _context(self, held: HeldRun) -> Context:
        """Return the context of an attempt. If the function has a parameter for it, learn the schedule's name soon."""
        if self.signature.context is not None and held.attempt.run.schedule_id is not None:
            self._host.look_up_schedule_soon(held)
        return Context(held, self.app.deps, self._host.report_progress, self._host.schedule_name, self._host.write_line)

    def with_options(self, **changes: Any) -> None:
        """Change fields of `options` for later runs and schedule definitions.

        Meant for `priority` (a `Priority`), `queue` and `limit`; workers keep the handler made at registration. The
        values are not checked.
        """
        self.options = replace(self.options, **changes)

    def __repr__(self) -> str:
        return f"<task {self.name!r}>"


class Task(BaseTask[P, R]):
    """A task of a function whose first parameter is not the context; calling it calls the function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        value: R = self.function(*args, **kwargs)
        return value


class AsyncTask(BaseTask[P, R]):
    """A task of a coroutine function whose first parameter is not the context; calling it returns the coroutine."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        coroutine: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return coroutine


class ContextTask(BaseTask[P, R]):
    """A task of a function whose first parameter is the context; calling it calls the function."""

    def __call__(self, ctx: Context | None, /, *args: P.args, **kwargs: P.kwargs) -> R:
        value: R = self.function(ctx, *args, **kwargs)
        return value


class AsyncContextTask(BaseTask[P, R]):
    """A task of a coroutine function whose first parameter is the context; calling it returns the coroutine."""

    def __call__(self, ctx: Context | None, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        coroutine: Coroutine[Any, Any, R] = self.function(ctx, *args, **kwargs)
        return coroutine


class TaskDecorator(Protocol):
    """Type of the decorators that `ms.task(…)`, `ms.cron(…)`, `ms.every(…)` and `ms.at(…)` return.

    The decorated function becomes a task with the function's own signature, for type checkers.
    """

    @overload
    def __call__(  # type: ignore[overload-overlap]  # the first that fits wins, which is what we want
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> AsyncContextTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> ContextTask[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # likewise
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
