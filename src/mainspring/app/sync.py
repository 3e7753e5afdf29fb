"""Sync door: blocking methods of `Mainspring`, tasks and handles, for Flask, Django and scripts.

Thread: any that runs no event loop; also after a fork. `tests/app/test_public_surface.py` compares the signatures with
those of the coroutine methods.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, overload

from msgspec import UNSET

from mainspring.app.blocking import refuse_on_loop
from mainspring.app.run_handle import RunHandle
from mainspring.model.events import Event
from mainspring.model.http import HttpAgent
from mainspring.model.instant import Duration
from mainspring.model.policies import OnConflict, Role
from mainspring.model.run import Run, State
from mainspring.model.schedule import Schedule
from mainspring.ports.lock import LockKind
from mainspring.rules.definition import WhenAndHow

if TYPE_CHECKING:
    from mainspring.app.engine_host import EngineHost
    from mainspring.app.locks import SyncLock
    from mainspring.app.mainspring import Mainspring
    from mainspring.app.schedule_edit import EditOptions
    from mainspring.app.task import BaseTask
    from mainspring.engine.leader import Leadership

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class SyncHandle(Generic[R]):
    """A run handle whose methods block. They raise `SyncOnLoop` on a thread that runs an event loop."""

    def __init__(self, handle: RunHandle[R]) -> None:
        self._handle = handle
        self._block_on = handle._host.block_on
        self.id = handle.id
        self.created = handle.created

    def run(self) -> Run:
        """Return the row of the run as it is stored now."""
        return self._block_on(self._handle.run(), "handle.run()")

    def state(self) -> State:
        """Return the state of the run."""
        return self._block_on(self._handle.state(), "handle.state()")

    def result(self, timeout: Duration | None = None) -> R:
        """Wait until the run has ended, and return the handler's return value.

        `timeout` None: without a limit. Raises: RunNotSuccessful; ResultTimeout.
        """
        return self._block_on(self._handle.result(timeout), "handle.result()")


class SyncTask(Generic[P, R]):
    """Enqueues runs of a task from a thread without an event loop (`task.sync`); else its methods raise SyncOnLoop."""

    def __init__(self, task: BaseTask[P, R], host: EngineHost) -> None:
        self._task = task
        self._host = host

    @overload
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]: ...
    @overload
    def enqueue(self, *args: Any, connection: Any, **kwargs: Any) -> SyncHandle[R]: ...
    def enqueue(self, *args: Any, **kwargs: Any) -> SyncHandle[R]:
        """Store a run for this call and return its handle; with `connection`, in the caller's own transaction there."""
        refuse_on_loop(instead := f"{self._task.name}.enqueue(…)")
        stored = self._task.enqueue_blocking(args, kwargs)
        return SyncHandle(stored or self._host.block_on(self._task.enqueue(*args, **kwargs), instead))

    def enqueue_many(
        self, items: Iterable[tuple[Any, ...] | dict[str, Any]], *, connection: Any = None
    ) -> list[SyncHandle[R]]:
        """Store a run for each item (a tuple of arguments, or a dictionary of named ones) and return their handles.

        With `connection`, all are part of the caller's own transaction there. A wrong item refuses all of them.
        """
        refuse_on_loop(instead := f"{self._task.name}.enqueue_many(…)")
        stored = self._task.enqueue_many_blocking(items, connection)
        handles = self._host.block_on(self._task.enqueue_many(items), instead) if stored is None else stored
        return [SyncHandle(handle) for handle in handles]


class SyncDoor:
    """`ms.sync`: each coroutine method of `Mainspring` as a blocking one, and `with ms.sync.lock(…)`.

    Each method does what the method of `Mainspring` with its name does. On a thread that runs an event loop they raise
    `SyncOnLoop`; a lock raises it when it is entered.
    """

    def __init__(self, app: Mainspring, host: EngineHost) -> None:
        self._app = app
        self._host = host

    def _run(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Return the result of `work`, a call of the method `name` of `Mainspring`."""
        return self._host.block_on(work, f"ms.{name}(…)")

    if not TYPE_CHECKING:  # for type checkers an unknown name is an error

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError; if `Mainspring` has a method of this name, advise to call that without `sync`."""
            hint = f": call ms.{name} itself" if hasattr(self._app, name) else ""
            raise AttributeError(f"Mainspring.sync has no {name!r}{hint}")

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

        `on_conflict`: what becomes of a schedule of this name with another definition. See `Mainspring.schedule`.
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
        """Create schedules in bulk and return how many are new; see `Mainspring.schedule_many`.

        Each item holds a name and options of `schedule()`.
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
        """Edit a schedule for later fires, return it. What is not given stays, but a `task` drops the old arguments."""
        updated = self._app.update(key, task=task, args=args, kwargs=kwargs, payload=payload, **changes)
        return self._run(updated, "update")

    def get(self, key: str) -> Schedule:
        """Return a schedule by name or id. Raises: UnknownSchedule, with the nearest name."""
        return self._run(self._app.get(key), "get")

    def schedules(self, *, enabled: bool | None = None, limit: int = 1_000, after: str | None = None) -> list[Schedule]:
        """Return schedules behind the id `after`; `enabled` True: active, False: paused or finished, None: both."""
        return self._run(self._app.schedules(enabled=enabled, limit=limit, after=after), "schedules")

    def pause(self, key: str, *, reason: str = "paused", until: datetime | None = None) -> Schedule:
        """Plan no runs of a schedule until `resume` or, if given, the instant `until`; return the schedule."""
        return self._run(self._app.pause(key, reason=reason, until=until), "pause")

    def resume(self, key: str) -> Schedule:
        """Plan runs of a paused schedule again and return it. The fires during the pause become one span, not runs."""
        return self._run(self._app.resume(key), "resume")

    def delete(self, key: str, *, reason: str = "user") -> None:
        """Delete a schedule and cancel its waiting runs; running ones go on to their end, and the event log stays."""
        self._run(self._app.delete(key, reason=reason), "delete")

    def trigger(
        self,
        key: str,
        *,
        args: Iterable[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        payload: Any = UNSET,
    ) -> SyncHandle[Any]:
        """Start one run now, outside the plan; return its handle. Arguments or a payload replace the stored ones."""
        triggered = self._app.trigger(key, args=args, kwargs=kwargs, payload=payload)
        return SyncHandle(self._run(triggered, "trigger"))

    # ── runs and events ────────────────────────────────────────────────────

    def find_by_id(self, run_id: str) -> Run:
        """Return a run by its id. Raises: UnknownRun."""
        return self._run(self._app.find_by_id(run_id), "find_by_id")

    def find_by_status(self, state: State | str, *, limit: int = 100) -> list[Run]:
        """Return runs in a state, newest first."""
        return self._run(self._app.find_by_status(state, limit=limit), "find_by_status")

    def find_due(self, before: datetime | None = None, *, limit: int = 100) -> list[Run]:
        """Return waiting and retrying runs that are due by the instant `before` (None: now), oldest first."""
        return self._run(self._app.find_due(before, limit=limit), "find_due")

    def find_overdue(self, by: Duration = "60s", *, limit: int = 100) -> list[Run]:
        """Return waiting and retrying runs that have been due for at least the duration `by`, oldest first."""
        return self._run(self._app.find_overdue(by, limit=limit), "find_overdue")

    def unresolved(self, *, limit: int = 100) -> list[Run]:
        """Return waiting and retrying runs whose task no live instance has, oldest first; they wait for one."""
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
        """Return a page of runs behind the run id `after`, newest first. A condition that is None is not applied.

        `schedule`: its name or id. `state`: one or several. `since`: created then or later. `due_before`: due by then.
        """
        found = self._app.runs(
            schedule=schedule, state=state, since=since, task=task, due_before=due_before, limit=limit, after=after
        )
        return self._run(found, "runs")

    def cancel(self, run_id: str, *, reason: str = "cancelled") -> Run:
        """Cancel a waiting run, or ask a running one to stop; return the run. An ended run stays as it is."""
        return self._run(self._app.cancel(run_id, reason=reason), "cancel")

    def retry(self, run_id: str) -> Run:
        """Open a failed, lost or cancelled run again and return it: same row and fire time, new retry budgets."""
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
        """Return events of the log, oldest first. A condition that is None is not applied.

        `run`: a run id. `schedule`: a name or id. `types`: classes or their names. Times: `since` ≤ time < `until`.
        """
        found = self._app.events(run=run, schedule=schedule, types=types, since=since, until=until, limit=limit)
        return self._run(found, "events")

    # ── agents, locks, life ────────────────────────────────────────────────

    def signing_secret(self, key: str) -> str:
        """Return a schedule's signing secret and mark it as shown. Raises: InvalidInput if it was shown before."""
        return self._run(self._app.signing_secret(key), "signing_secret")

    def rotate_secret(self, key: str, *, overlap: Duration = "24h") -> str:
        """Replace a signing secret, return the new one; for the time `overlap` the old one signs calls, too."""
        return self._run(self._app.rotate_secret(key, overlap=overlap), "rotate_secret")

    def lock(
        self, name: str, *, ttl: Duration = "30s", wait: bool | Duration = True, kind: LockKind = "lease"
    ) -> SyncLock:
        """Return a lock for one `with` block, with one holder among all processes on this store.

        `wait`: the longest wait for another holder (True: no limit), after which `LockTaken` is raised.
        """
        return self._app.lock(name, ttl=ttl, wait=wait, kind=kind).blocking()

    def execution_lease(
        self, schedule: str, fire_time: datetime, *, ttl: Duration = "30s", remember: Duration = "1d"
    ) -> SyncLock:
        """Return a lock on one fire of another scheduler; entering it raises `ExecutionTaken` if the fire is taken.

        After a block without an error the fire stays taken for `remember`. After a crash it is free within `ttl`.
        """
        return self._app.execution_lease(schedule, fire_time, ttl=ttl, remember=remember).blocking()

    def leader(self) -> Leadership | None:
        """Return the present or last instance that does housekeeping for this app; None if there never was one."""
        return self._run(self._app.leader(), "leader")

    def run_async(self, *, until_idle: bool = False, signals: bool = True, role: Role = "all") -> None:
        """Run the engine on a new event loop of this thread until it is stopped; see `Mainspring.run_async`."""
        self._run(self._app.run_async(until_idle=until_idle, signals=signals, role=role), "run_async")

    def close(self) -> None:
        """Close the store and end the engine's thread; the next call starts both again."""
        self._run(self._app.close(), "close")
