"""Sync door: the methods of `Mainspring`, tasks and run handles as blocking ones, for Flask, Django and scripts.

Thread: any that runs no event loop, also in a forked process. `tests/app/test_public_surface.py` compares the
signatures with those of the coroutine methods.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, overload

from msgspec import UNSET

from mainspring.app.blocking import refuse_on_loop
from mainspring.app.method_hints import APP_METHODS, blocking_hint
from mainspring.app.run_handle import RunHandle
from mainspring.app.run_view import Run
from mainspring.app.schedule_view import Schedule
from mainspring.model.events import Event
from mainspring.model.http import HttpAgent
from mainspring.model.instant import Duration
from mainspring.model.policies import OnConflict, Role
from mainspring.model.run import State
from mainspring.ports.lock import LockKind
from mainspring.rules.definition import WhenAndHow

if TYPE_CHECKING:
    from mainspring.app.background_runner import BackgroundRunner
    from mainspring.app.engine_host import EngineHost
    from mainspring.app.locks import SyncLock
    from mainspring.app.log_line import LogLine
    from mainspring.app.mainspring import Mainspring
    from mainspring.app.schedule_edit import EditOptions
    from mainspring.app.task import BaseTask
    from mainspring.engine.leader import Leadership

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class SyncHandle(Generic[R]):
    """A run that was enqueued or triggered, with methods that block: `send.sync.enqueue("acme").result()`.

    `id` is the run's. `created` is False if an open run had the unique key of the call: the handle is then of that run.
    The methods raise `SyncOnLoop` on a thread that runs an event loop.
    """

    def __init__(self, handle: RunHandle[R]) -> None:
        self._handle = handle
        self._block_on = handle._host.block_on
        self.id = handle.id
        self.created = handle.created

    def run(self) -> Run:
        """Return the run as it is stored now."""
        return self._block_on(self._handle.run(), "handle.run()")

    def state(self) -> State:
        """Return the state of the run."""
        return self._block_on(self._handle.state(), "handle.state()")

    def result(self, timeout: Duration | None = None) -> R:
        """Wait until the run has ended, and return the handler's return value.

        `timeout` None: without a limit. Raises: RunNotSuccessful if the run did not succeed; ResultTimeout if it did
        not end within `timeout`.
        """
        return self._block_on(self._handle.result(timeout), "handle.result()")


class SyncTask(Generic[P, R]):
    """`task.sync`: enqueues runs of the task by blocking calls.

    The methods raise `SyncOnLoop` on a thread that runs an event loop.
    """

    def __init__(self, task: BaseTask[P, R], host: EngineHost) -> None:
        self._task = task
        self._host = host

    @overload
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]: ...
    @overload
    def enqueue(self, *args: Any, connection: Any, **kwargs: Any) -> SyncHandle[R]: ...
    def enqueue(self, *args: Any, **kwargs: Any) -> SyncHandle[R]:
        """Store a run for this call of the task and return the run's handle: `send.sync.enqueue("acme")`.

        With `connection`, the run is part of the transaction that is open on it: the run exists if and only if the
        transaction commits. Raises: WrongArguments; InvalidInput if the store cannot join a transaction; StoreError.
        """
        refuse_on_loop(instead := f"{self._task.name}.enqueue(…)")
        stored = self._task.enqueue_blocking(args, kwargs)
        return SyncHandle(stored or self._host.block_on(self._task.enqueue(*args, **kwargs), instead))

    def enqueue_many(
        self, items: Iterable[tuple[Any, ...] | dict[str, Any]], *, connection: Any = None
    ) -> list[SyncHandle[R]]:
        """Store a run for each item and return the runs' handles in the order of the items.

        An item is a tuple of arguments, or a dictionary of named ones. If one does not fit, WrongArguments is raised
        and nothing is stored. With `connection`, all runs are part of the transaction that is open on it.
        """
        refuse_on_loop(instead := f"{self._task.name}.enqueue_many(…)")
        stored = self._task.enqueue_many_blocking(items, connection)
        handles = self._host.block_on(self._task.enqueue_many(items), instead) if stored is None else stored
        return [SyncHandle(handle) for handle in handles]


class SyncDoor:
    """`ms.sync`: each coroutine method of `Mainspring` as a blocking one, and `with ms.sync.lock("import"):`.

    On a thread that runs an event loop the methods raise `SyncOnLoop`; a lock raises it when its block is entered.
    """

    def __init__(self, app: Mainspring, host: EngineHost) -> None:
        self._app = app
        self._host = host

    def _run(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Run `work`, a call of the coroutine method `name` of `Mainspring`, to its end and return its result."""
        return self._host.block_on(work, f"ms.{name}(…)")

    if not TYPE_CHECKING:  # for type checkers an unknown name is an error

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError. If `Mainspring` has a method `name`, the text advises to call it."""
            known = hasattr(self._app, name)
            hint = f"call ms.{name} itself" if known else blocking_hint(self, name, APP_METHODS)
            raise AttributeError(f"Mainspring.sync has no {name!r}" + (f": {hint}" if hint else ""))

    # ── schedules ──────────────────────────────────────────────────────────

    def schedule(
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
        created = self._app.schedule(
            name, task, args=args, kwargs=kwargs, payload=payload, on_conflict=on_conflict, **when_and_how
        )
        return self._run(created, "schedule")

    def schedule_many(
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
        return self._run(self._app.schedule_many(task, items, on_conflict=on_conflict), "schedule_many")

    def update(
        self,
        key: str,
        *,
        task: BaseTask[Any, Any] | Callable[..., Any] | HttpAgent | str | None = None,
        args: Iterable[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        payload: Any = UNSET,
        **changes: Unpack[EditOptions],
    ) -> Schedule:
        """Change the schedule with the name or id `key` for later fires, and return it.

        What is not given stays. But either of `args` and `kwargs` replaces all arguments. With `task`, the old
        arguments are dropped; an agent in place of an agent keeps the payload. Raises: UnknownSchedule; UnknownTask;
        InvalidInput; WrongArguments.
        """
        updated = self._app.update(key, task=task, args=args, kwargs=kwargs, payload=payload, **changes)
        return self._run(updated, "update")

    def get(self, key: str) -> Schedule:
        """Return the schedule with the name or id `key`. Raises: UnknownSchedule, with the nearest name."""
        return self._run(self._app.get(key), "get")

    def schedules(self, *, enabled: bool | None = None, limit: int = 1_000, after: str | None = None) -> list[Schedule]:
        """Return up to `limit` schedules that are not deleted, in the order of their ids.

        `enabled` True: only active ones; False: only paused or finished ones. `after`: only those with a greater id.
        """
        return self._run(self._app.schedules(enabled=enabled, limit=limit, after=after), "schedules")

    def pause(self, key: str, *, reason: str = "paused", until: datetime | None = None) -> Schedule:
        """Plan no runs of the schedule with the name or id `key` until `resume` or the instant `until`; return it.

        `reason` is stored and shown. Raises: UnknownSchedule; InvalidInput if the schedule has finished, or `until`
        lies in the past.
        """
        return self._run(self._app.pause(key, reason=reason, until=until), "pause")

    def resume(self, key: str) -> Schedule:
        """Plan runs of the schedule with the name or id `key` again after a pause, and return the schedule.

        The fires during the pause become one span, not runs. Raises: UnknownSchedule.
        """
        return self._run(self._app.resume(key), "resume")

    def rename(self, key: str, name: str) -> Schedule:
        """Give the schedule with the name or id `key` the name `name`, and return it. Its runs and history stay.

        Raises: ScheduleConflict if another schedule has the name; DeclaredInCode if code declares the schedule;
        InvalidInput for a name that no new schedule may have; UnknownSchedule.
        """
        return self._run(self._app.rename(key, name), "rename")

    def use_code(self, key: str) -> Schedule:
        """Replace a person's edit of the schedule with the name or id `key` by the definition that code declared last.

        Return the schedule. Without such an edit, nothing is changed. Raises: UnknownSchedule; InvalidInput if no
        program declared the schedule.
        """
        return self._run(self._app.use_code(key), "use_code")

    def rewind(self, key: str) -> Schedule:
        """Set the schedule with the name or id `key` back to now if a wrong clock planned it ahead, and return it.

        Its fires from now on run again, except those that have a run already. Raises: UnknownSchedule.
        """
        return self._run(self._app.rewind(key), "rewind")

    def delete(self, key: str, *, reason: str = "user") -> None:
        """Delete the schedule with the name or id `key` and cancel its waiting runs; running ones go on, the log stays.

        `reason` goes into the event of the deletion. Raises: UnknownSchedule.
        """
        self._run(self._app.delete(key, reason=reason), "delete")

    def trigger(
        self,
        key: str,
        *,
        args: Iterable[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        payload: Any = UNSET,
    ) -> SyncHandle[Any]:
        """Start one run of the schedule with the name or id `key` now, outside its plan, and return the run's handle.

        `args` and `kwargs`, or a `payload` for an HTTP agent, replace the schedule's own for this run. Raises:
        UnknownSchedule; InvalidInput; UnknownTask for arguments of a task that is not registered here.
        """
        triggered = self._app.trigger(key, args=args, kwargs=kwargs, payload=payload)
        return SyncHandle(self._run(triggered, "trigger"))

    # ── runs and events ────────────────────────────────────────────────────

    def find_by_id(self, run_id: str) -> Run:
        """Return a run by its id. Raises: UnknownRun."""
        return self._run(self._app.find_by_id(run_id), "find_by_id")

    def find_by_status(self, state: State | str, *, limit: int = 100) -> list[Run]:
        """Return up to `limit` runs in a state, newest first."""
        return self._run(self._app.find_by_status(state, limit=limit), "find_by_status")

    def find_due(self, before: datetime | None = None, *, limit: int = 100) -> list[Run]:
        """Return up to `limit` waiting and retrying runs that are due by `before` (None: now), in order of id."""
        return self._run(self._app.find_due(before, limit=limit), "find_due")

    def find_overdue(self, by: Duration = "60s", *, limit: int = 100) -> list[Run]:
        """Return up to `limit` waiting and retrying runs, due for at least the duration `by`, oldest first."""
        return self._run(self._app.find_overdue(by, limit=limit), "find_overdue")

    def unresolved(self, *, limit: int = 100) -> list[Run]:
        """Return up to `limit` waiting and retrying runs whose task no live instance has, oldest first."""
        return self._run(self._app.unresolved(limit=limit), "unresolved")

    def runs(
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
        """Return up to `limit` runs, newest first. A condition that is None is not applied.

        `schedule`: its name or id. `state`: one or several. `since`: created then or later. `due_before`: due by then.
        `after`: the id of the last run of the page before. Raises: UnknownSchedule; InvalidInput.
        """
        found = self._app.runs(
            schedule=schedule, state=state, since=since, task=task, due_before=due_before, limit=limit, after=after
        )
        return self._run(found, "runs")

    def cancel(self, run_id: str, *, reason: str = "cancelled") -> Run:
        """Cancel a waiting run, or ask a running one to stop; return the run, unchanged if it has ended before.

        `reason` is stored with the run. Raises: UnknownRun.
        """
        return self._run(self._app.cancel(run_id, reason=reason), "cancel")

    def retry(self, run_id: str) -> Run:
        """Run a failed, lost or cancelled run again, due now, and return it.

        Its id and fire time stay, and it gets its full number of attempts again. Raises: UnknownRun;
        IllegalTransition if the run is in another state.
        """
        return self._run(self._app.retry(run_id), "retry")

    def events(
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

        `run`: a run id. `schedule`: a name or id. `types`: classes of events, or their names. Times: `since` ≤ time of
        the event < `until`.
        """
        found = self._app.events(run=run, schedule=schedule, types=types, since=since, until=until, limit=limit)
        return self._run(found, "events")

    def logs(
        self, run_id: str, *, attempt: int | None = None, after: int | None = None, limit: int = 1_000
    ) -> list[LogLine]:
        """Return up to `limit` lines of a run's log, oldest first: what its handler wrote with `ctx.log`.

        Of one `attempt`, or of all; after the line with the number `after`. Raises: UnknownRun.
        """
        return self._run(self._app.logs(run_id, attempt=attempt, after=after, limit=limit), "logs")

    # ── agents, locks, running ─────────────────────────────────────────────

    def signing_secret(self, key: str) -> str:
        """Return the secret that signs the HTTP calls of the schedule with the name or id `key`. This works once.

        If the secret is lost, call `rotate_secret`. Raises: InvalidInput if the secret was returned before, by this
        method or by `rotate_secret`, or if the schedule calls no agent; UnknownSchedule.
        """
        return self._run(self._app.signing_secret(key), "signing_secret")

    def rotate_secret(self, key: str, *, overlap: Duration = "24h") -> str:
        """Replace the secret that signs the HTTP calls of the schedule with the name or id `key`; return the new one.

        For the duration `overlap`, calls are signed with the old secret, too. Raises: InvalidInput if the schedule
        calls no agent; UnknownSchedule.
        """
        return self._run(self._app.rotate_secret(key, overlap=overlap), "rotate_secret")

    def lock(
        self, name: str, *, ttl: Duration = "30s", wait: bool | Duration = True, kind: LockKind = "lease"
    ) -> SyncLock:
        """Return a lock with one holder among all processes on this store: `with ms.sync.lock("import") as guard:`.

        It is renewed until the block ends; after a crash it is free within `ttl`. `wait`: the longest wait for another
        holder (True: no limit; False: none), after which `LockTaken` is raised. `kind`: "lease", a row in the store, or
        "advisory", a lock of the database server. If the lock is lost, the block is not stopped: `guard.lost` is set.
        `guard.token` grows with every holder of the name.
        """
        return self._app.lock(name, ttl=ttl, wait=wait, kind=kind).blocking()

    def execution_lease(
        self, schedule: str, fire_time: datetime, *, ttl: Duration = "30s", remember: Duration = "1d"
    ) -> SyncLock:
        """Return a lock on one fire of another scheduler; entering it raises `ExecutionTaken` if the fire is taken.

        The fire is taken while the lock is held, and for `remember` after a block without an error. After a block with
        an error the fire is free at once, after a crash within `ttl`. Runs of Mainspring need no such lock.
        """
        return self._app.execution_lease(schedule, fire_time, ttl=ttl, remember=remember).blocking()

    def leader(self) -> Leadership | None:
        """Return the present or last instance that does housekeeping for this app; None if there never was one."""
        return self._run(self._app.leader(), "leader")

    def run_async(self, *, until_idle: bool = False, signals: bool = True, role: Role = "all") -> None:
        """Run the engine on a new event loop of this thread until it is stopped or, with `until_idle`, nothing is due.

        With `signals`, the first SIGTERM or SIGINT lets running runs end, the second hands them back to the store. Role
        "worker": store and plan no schedules, only run what others plan. Role "planner": plan, claim no runs.
        """
        self._run(self._app.run_async(until_idle=until_idle, signals=signals, role=role), "run_async")

    def start(self, *, role: Role = "all") -> BackgroundRunner:
        """Call `ms.start_background(role=role)`: start the engine beside this synchronous program, and return it."""
        return self._app.start_background(role=role)

    def close(self) -> None:
        """Close the store and end the engine's thread; the next call starts both again."""
        self._run(self._app.close(), "close")
