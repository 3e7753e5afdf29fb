"""The object a user holds: schedules, runs, events, run(), lifespan()."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar, Unpack, overload

from msgspec import UNSET, json

from mainspring.agent_door import AgentDoor
from mainspring.bulk import Bulk
from mainspring.editing import EditOptions, edited
from mainspring.engine.bus import Subscriber
from mainspring.engine.loop import SameLoop
from mainspring.engine.presence import instances
from mainspring.engine.runtime import Runtime
from mainspring.handle import RunHandle
from mainspring.idle import until_idle as until_nothing_is_due
from mainspring.locks import Coordination
from mainspring.model.errors import InvalidInput, RunsAlready
from mainspring.model.events import Event, type_names
from mainspring.model.health import Health
from mainspring.model.http import HTTP_TASK, HttpAgent, HttpResult
from mainspring.model.instant import Duration, duration_ms, instant_ms
from mainspring.model.policies import ON_CONFLICT, ROLES, OnConflict, Role, choice
from mainspring.model.run import CLAIMABLE, Run, State
from mainspring.model.schedule import Schedule
from mainspring.paging import all_rows
from mainspring.payload import payload_body
from mainspring.ports.executor import CHILD, LOADING, end_of_loading
from mainspring.ports.store import Events, Runs, Schedules
from mainspring.rules.declaring import Live
from mainspring.rules.definition import WhenAndHow
from mainspring.service import CHUNK, Definition
from mainspring.signals import Stopper
from mainspring.sync import SyncDoor
from mainspring.task import BaseTask

E = TypeVar("E", bound=Event)
E2 = TypeVar("E2", bound=Event)
E3 = TypeVar("E3", bound=Event)


class Mainspring(AgentDoor, Coordination):
    """A scheduler and a queue on one store. Nothing starts on import, and nothing before the first call."""

    _stopper: Stopper | None = None
    _sharers = 0
    _started_for_sharers = False

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
        choice(on_conflict, ON_CONFLICT, field="on_conflict")
        want = self._definition(name, task=task, args=args, kwargs=kwargs, payload=payload, **when_and_how)
        await self._agent_at_save(task)
        schedule = await self.call(lambda runtime: runtime.commands.create(want, on_conflict))
        await self._agent_saved(task)
        return schedule

    async def schedule_many(
        self,
        task: BaseTask[Any, Any] | Callable[..., Any] | HttpAgent | str,
        items: Iterable[Mapping[str, Any]],
        *,
        on_conflict: OnConflict = "error",
    ) -> int:
        """Create schedules in bulk, a thousand in a commit: each item holds a name and what `schedule()` takes.

        Items are read as they are stored, so a million need no memory. A wrong one is refused with its number; what
        came before its thousand is stored, and the same call again changes nothing of it. The answer counts new ones.
        """
        choice(on_conflict, ON_CONFLICT, field="on_conflict")
        created = 0
        storing: asyncio.Task[int] | None = None
        numbered = enumerate(items)
        bulk = Bulk(self._definition, task)
        try:
            while wants := [bulk.definition(*numbered_item) for numbered_item in itertools.islice(numbered, CHUNK)]:
                if storing is not None:
                    created += await storing
                storing = asyncio.create_task(self._create_many(wants, on_conflict))
                await asyncio.sleep(0)  # it is stored while the next thousand is read
        finally:
            if storing is not None:
                created += await storing
        return created

    async def _create_many(self, wants: list[Definition], on_conflict: OnConflict) -> int:
        return await self.call(lambda runtime: runtime.commands.create_many(wants, on_conflict))

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
        """Change some of a schedule's definition; only later fires are affected."""
        await self._agent_at_save(task)
        schedule = await edited(self, key, task, args, kwargs, payload, dict(changes))
        await self._agent_saved(task)
        return schedule

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
        self,
        key: str,
        *,
        args: Iterable[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        payload: Any = UNSET,
    ) -> Any:
        """One run now, outside the plan; arguments, or the payload of an agent, replace the schedule's own."""
        schedule = await self.get(key)
        body = None
        target = self.tasks.get(schedule.spec.task)
        if schedule.spec.task == HTTP_TASK:
            if args is not None or kwargs is not None:
                raise InvalidInput("args", "an HTTP agent takes no arguments", "Give a payload: it is the body")
            body = None if payload is UNSET else payload_body(payload, self.settings.payload_limit)
        elif payload is not UNSET:
            raise InvalidInput("payload", "a task takes arguments", "Write args=(…) or kwargs={…}")
        if args is not None or kwargs is not None:
            body = self._task(schedule.spec.task).signature.encode(
                tuple(args or ()), kwargs or {}, self.settings.payload_limit
            )
        run = await self.call(lambda runtime: runtime.commands.trigger(schedule, body, by="api"))
        if schedule.spec.task == HTTP_TASK:
            return RunHandle(run.id, self.call, _answer)
        return RunHandle(run.id, self.call, target.signature.result if target else lambda text: text)

    # ── runs and events ────────────────────────────────────────────────────

    async def find_by_id(self, run_id: str) -> Run:
        """One run."""
        return await self.call(lambda runtime: runtime.commands.run(run_id))

    async def find_by_status(self, state: State | str, *, limit: int = 100) -> list[Run]:
        """Runs in a state, newest first."""
        return await self.runs(state=state, limit=limit)

    async def find_due(self, before: datetime | None = None, *, limit: int = 100) -> list[Run]:
        """Runs that wait and are due at an instant (now), oldest first."""
        at = self.now() if before is None else instant_ms(before, field="before")
        return await self._waiting(at, limit)

    async def find_overdue(self, by: Duration = "60s", *, limit: int = 100) -> list[Run]:
        """Runs that should have begun so long ago and still wait, oldest first."""
        return await self._waiting(self.now() - duration_ms(by, field="by"), limit)

    async def unresolved(self, *, limit: int = 100) -> list[Run]:
        """Runs that wait for a task which no live instance knows, oldest first; they stay until one does."""

        async def look(runtime: Runtime) -> list[Run]:
            known = {task for lease, one in await instances(runtime.store) if lease.live for task in one.tasks}
            waiting = Runs(ns=self.settings.namespace, states=tuple(sorted(CLAIMABLE)), oldest_first=True)
            found: list[Run] = []
            async for run in all_rows(runtime.store, waiting, lambda run: run.id):
                if run.task not in known:
                    found.append(run)
                    if len(found) >= limit:
                        break
            return found

        return await self.call(look)

    async def _waiting(self, due_before: int, limit: int) -> list[Run]:
        states = tuple(sorted(CLAIMABLE))
        ns = self.settings.namespace
        query = Runs(ns=ns, states=states, due_before=due_before, limit=limit, oldest_first=True)
        return await self.call(lambda runtime: runtime.commands.runs(query))

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
        """Runs, newest first; `state` may be several."""
        schedule_id = None if schedule is None else (await self.get(schedule)).id
        query = Runs(
            ns=self.settings.namespace,
            schedule_id=schedule_id,
            states=None if state is None else _states(state),
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
            types=None if types is None else type_names(types),
            since=None if since is None else instant_ms(since, field="since"),
            until=None if until is None else instant_ms(until, field="until"),
            limit=limit,
        )
        return await self.call(lambda runtime: runtime.commands.events(query))

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
        """Call `handler` with every event of this type that this process commits; at most once.

        With `everywhere` with those of every instance on this store, from now on and in the order of the log, while
        this one runs.
        """
        call: Subscriber = handler
        self._bus.subscribe(event if isinstance(event, tuple) else (event,), call, everywhere=everywhere)
        if self._runtime is not None:
            self._runtime.listen()

    @property
    def sync(self) -> SyncDoor:
        """The same verbs, blocking: `ms.sync.pause("nightly")`."""
        return SyncDoor(self)

    # ── running ────────────────────────────────────────────────────────────

    def run(self, *, until_idle: bool = False, role: Role = "all") -> None:
        """Plan and work until SIGTERM or SIGINT; with `until_idle` until nothing is due any more.

        `role="worker"` plans nothing and declares nothing: it works on what other instances plan. `role="planner"` is
        the rest of it: it plans and takes no work.
        """
        end_of_loading()
        if os.environ.get(CHILD) or os.environ.get(LOADING):
            return  # this program is only imported: to find its functions, or by `mainspring run`, which runs it
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(self.run_async(until_idle=until_idle, role=role))

    async def run_async(self, *, until_idle: bool = False, signals: bool = True, role: Role = "all") -> None:
        """The same on the running loop; the first signal drains, the second stops at once."""
        choice(role, ROLES, field="role")
        stopper = Stopper()
        self._stopper = stopper
        stopper.at_once(self.claim_no_more)
        with stopper.on_signals(signal.SIGTERM, signal.SIGINT) if signals else contextlib.nullcontext():
            await stopper.first_of(self._reached())
            if stopper.requests:  # while a server was waited for that is not there
                self._stopper = None
                await self.close()
                return
            await self._start(role)
            try:
                if until_idle:
                    await stopper.first_of(self.call(until_nothing_is_due))
                else:
                    await stopper.wait()
            finally:
                await self._stop(stopper)
                self._stopper = None

    @property
    def is_running(self) -> bool:
        """True between start and stop of the engine in this process."""
        return self._runtime is not None and self._runtime.worker is not None

    def health(self) -> Health:
        """How this instance is: `ok`, `degraded` while a loop cannot do its work, `stopped`; from any thread."""
        return Health("stopped") if self._runtime is None else self._runtime.health()

    def metrics(self) -> dict[str, float]:
        """What this instance counts, for an exporter to read; asks nobody, from any thread. Empty when stopped."""
        return {} if self._runtime is None else self._runtime.metrics()

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

    @contextlib.asynccontextmanager
    async def sharing(self) -> AsyncIterator[Callable[[], bool]]:
        """Make sure that the engine runs: use the one that does, or start one that the last to leave stops.

        The answer tells whether leaving now would stop it.
        """
        if self._sharers == 0:
            self._share_lock = asyncio.Lock()
        self._sharers += 1
        try:
            async with self._share_lock:
                if not self.is_running:
                    await self._start()
                    self._started_for_sharers = True
            yield lambda: self._started_for_sharers and self._sharers == 1
        finally:
            try:
                async with self._share_lock:
                    if self._started_for_sharers and self._sharers == 1:
                        self._started_for_sharers = False
                        await self._stop(Stopper())
            finally:
                self._sharers -= 1

    def lifespan(self) -> Callable[[Any], contextlib.AbstractAsyncContextManager[None]]:
        """For FastAPI, Starlette and other ASGI apps: `FastAPI(lifespan=ms.lifespan())`."""

        @contextlib.asynccontextmanager
        async def lifespan(_app: Any) -> AsyncIterator[None]:
            async with self.running():
                yield

        return lifespan

    async def start(self, role: Role = "all") -> None:
        """Begin to plan and work beside other code, which later calls `drain` and `close`."""
        await self._start(role)

    async def drain(self, stopper: Stopper) -> None:
        """Take nothing more and let what runs finish; a second request to stop hands it back. The store stays open."""
        timeout = self.settings.shutdown_timeout / 1000
        draining = asyncio.ensure_future(self.call(lambda runtime: runtime.stop(timeout)))
        stopper.on_second(lambda: self._engine.post(self._stop_now))
        await draining
        await self._bus.settle()

    def claim_no_more(self) -> None:
        """Leave what waits to others; from any thread, does not block."""
        self._engine.post(self._claim_no_more)

    async def _start(self, role: Role = "all") -> None:
        loop, plans = asyncio.get_running_loop(), role != "worker"
        inline = isinstance(self._engine, SameLoop)
        await self.call(lambda runtime: self._declare_all(runtime, write=plans))

        async def start(runtime: Runtime) -> None:
            await runtime.start(loop, inline=inline, plans=plans, agents=None if role == "planner" else self.agents)
            if role == "planner":
                await runtime.take_nothing()

        try:
            await self.call(start)
        except RunsAlready:
            raise
        except BaseException:  # what has begun must not go on without anybody to stop it
            await self._stop(Stopper())
            raise

    async def _reached(self) -> None:
        await self.opened()

    async def _stop(self, stopper: Stopper) -> None:
        await self.drain(stopper)
        await self.close()

    def _claim_no_more(self) -> None:
        if self._runtime is not None:
            for worker in self._runtime.workers():
                worker.draining = True

    def _stop_now(self) -> None:
        if self._runtime is not None:
            task = asyncio.get_running_loop().create_task(self._runtime.stop_now())
            self._stopping = task  # keep a reference until it is done

    async def _declare_all(self, runtime: Runtime, *, write: bool = True) -> None:
        """Bring the schedules of the code into the store; a worker only says that it knows them."""
        made = {name: self._definition(name, origin="code", **wanted) for name, wanted in self._declared.items()}
        wants = {name: await runtime.commands.sealed(want) for name, want in made.items()}
        runtime.declares = lambda: {name: want.digest for name, want in wants.items()}
        if not write:
            return
        others = [
            instance
            for lease, instance in await instances(runtime.store)
            if lease.live and lease.owner != runtime.owner and instance.app == self.settings.app
        ]
        for name, want in wants.items():
            live = tuple(Live(one.version, one.declares[name]) for one in others if name in one.declares)
            await runtime.commands.declare(want, live, self.on_drift)


def _answer(text: str | None) -> HttpResult | None:
    return None if text is None else json.decode(text, type=HttpResult)


def _states(given: State | str | Iterable[State | str]) -> tuple[State, ...]:
    several = (given,) if isinstance(given, str) else tuple(given)
    return tuple(State(choice(str(one), tuple(State), field="state")) for one in several)
