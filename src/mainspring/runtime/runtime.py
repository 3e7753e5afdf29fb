"""The composition root: makes the parts of one instance of the engine, connects them, and starts and stops them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import os
import random
import socket
from collections.abc import Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING

from mainspring.engine.ahead_schedules import AheadSchedules
from mainspring.engine.commit.batcher import Batcher
from mainspring.engine.commit.inline_writer import InlineWriter
from mainspring.engine.commit.loop_writer import LoopWriter
from mainspring.engine.commit.submitter import ThreadsafeSubmitter
from mainspring.engine.commit.writer import Writer
from mainspring.engine.events.bus import Bus
from mainspring.engine.events.publisher import EventPublisher
from mainspring.engine.events.run_waiters import MAX_QUERY_PAUSE_SECONDS, RunWaiters
from mainspring.engine.keeper import Keeper
from mainspring.engine.leader import Leader
from mainspring.engine.loop import Loop
from mainspring.engine.presence import Instance, Presence
from mainspring.engine.settler import Settler
from mainspring.engine.store_clock import StoreClock
from mainspring.engine.store_listener import StoreListener
from mainspring.engine.unserved_tasks import UnservedTasks
from mainspring.engine.work.recorder import Recorder
from mainspring.engine.work.worker import Worker
from mainspring.model.change import Change
from mainspring.model.errors import RunsAlready, StoreError
from mainspring.model.events import InstanceJoined, InstanceLeft
from mainspring.model.health import Health
from mainspring.model.http import HTTP_TASK, AgentSettings
from mainspring.model.ids import IdFactory
from mainspring.model.instant import Ms
from mainspring.model.run import ENDED, Run
from mainspring.model.schedule import Schedule
from mainspring.model.settings import Settings
from mainspring.ports.broker import Broker
from mainspring.ports.clock import Clock
from mainspring.ports.executor import Handler
from mainspring.ports.store import Runs, Store
from mainspring.ports.store_extras import InlineStore
from mainspring.ports.threads import Threads
from mainspring.runtime.lingering import Lingering
from mainspring.runtime.log_notes import LogNotes
from mainspring.runtime.loop_health import judge_loops
from mainspring.runtime.wakeups import Wakeups
from mainspring.runtime.worker_set import WorkerSet
from mainspring.service.commands import Commands
from mainspring.service.declarations import Declarations

if TYPE_CHECKING:
    from mainspring.agents.callbacks import Callbacks
    from mainspring.agents.vault import Vault
    from mainspring.engine.broker.link import BrokerLink

log = logging.getLogger("mainspring.engine")

#: Leases shorter than this, in milliseconds, may end because the machine is busy, not because the worker is dead.
SHORT_LEASE_MS: Ms = 5_000


class Runtime:
    """One instance of the engine. Commands work from `open` on; its loops run between `start` and `stop`.

    Thread: engine loop, unless a method says otherwise.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        rng: random.Random,
        settings: Settings,
        handlers: MutableMapping[str, Handler],
        bus: Bus,
        threads: Threads,
        broker: Broker | None = None,
        open_another: Callable[[], Store] | None = None,
        *,
        may_close: Callable[[], bool] = lambda: True,
        is_sole_process: bool = False,
    ) -> None:
        """Make the parts of an instance on `store` and connect them; open and start nothing.

        `handlers`: task name → handler. `broker` None: no broker. `open_another` makes a further store object for the
        URL of `store`, so that a caller's own event loop can have connections; None: there is no URL.
        `is_sole_process`: no other process uses the store, as in a test that drives the engine itself. While a caller
        waits for the end of a run, the store is then queried less often: with pauses that grow to the poll interval.
        `may_close` returns False if another runtime uses the store object by the time that lingering handlers ended.

        Where two parts need each other, the part made later is registered with the part made before: workers with
        `workers.claims`, the wake-ups with the batcher.
        """
        self.store = store
        self.clock = clock
        self.time = time = StoreClock(store, clock)
        self.settings = settings
        self.handlers = handlers
        self.bus = bus
        self.ids = IdFactory(rng)
        self.owner = owner = f"{socket.gethostname()[:24]}:{os.getpid()}:{rng.getrandbits(24):06x}"
        self._changes = itertools.count(1)
        self._change_prefix = f"{rng.getrandbits(40):010x}"
        poll = settings.poll / 1000
        self.workers = WorkerSet(store, time, settings, owner, handlers, threads, self._post)
        self.waiters = RunWaiters(
            self._find_ended, self.workers.holds, poll if is_sole_process else MAX_QUERY_PAUSE_SECONDS
        )
        self.broker_link = self._make_broker_link(broker)
        self.publisher = EventPublisher(
            bus, self.broker_link, settings.namespace, lambda: self.commands.open_cursor(None)
        )
        self.batcher = Batcher(
            store,
            pace=settings.pace / 1000,
            claims=self.workers.claims,
            publisher=self.publisher,
            is_busy=lambda: self.workers.has_backlog and not self.waiters.waiting,
        )
        self.submitter = ThreadsafeSubmitter(self.batcher, self._post)
        #: The writer for callers' own loops and threads; None if the store allows none.
        self.caller_writer = self._make_caller_writer(open_another)
        self.notes = LogNotes(settings.namespace, self.batcher, self.change_id)
        self.recorder = Recorder(self.batcher, time, rng, self.change_id, poll, self.workers.run_logger)
        apply, apply_many = self.batcher.apply, self.batcher.apply_many
        self.commands = Commands(
            settings.namespace, store, apply, apply_many, time, self.ids, self.change_id, lambda: self.vault
        )
        self.settler = Settler(
            store,
            self.batcher,
            self.change_id,
            handlers,
            clock,
            poll,
            self.commands.cancel_older,
            self.workers.wake,
            observe_store_time=time.observe,
            drain_outcomes=self.workers.drain_outcomes,
            ending=self.recorder.ending,
            run_logger=self.workers.run_logger,
            is_unserved=lambda task, lane: self.unserved.is_unserved(task, lane),
            on_clock_step=lambda: self.ahead.search_soon(),
        )
        self._wakeups = Wakeups(self.settler, self.workers, self.waiters, self.publisher, self.broker_link)
        self.batcher.call_after_commit(self._wakeups.after_commit)
        self.leader = Leader(store, time, settings, owner, self.notes.append_soon)
        self.unserved = UnservedTasks(store, time, settings, self.leader, lambda: self.offered_tasks)
        self.ahead = AheadSchedules(store, time, settings.namespace)
        self.keeper = Keeper(store, time, settings, self.leader, self._pause_undeclared, self._touch)
        self.presence = Presence(store, settings, owner, self._describe)
        self.declarations = Declarations(
            store, time, settings, owner, self.commands, handlers, self.presence.run_once, self.notes.append
        )
        self._loops: list[Loop] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started_at: Ms = 0
        self._is_planner_only = False
        #: What keeps the leases of handlers that still run after `stop`; None: none did.
        self._lingering: Lingering | None = None
        self._may_close = may_close
        self.wait_for_end = self.waiters.wait

    def _make_broker_link(self, broker: Broker | None) -> BrokerLink | None:
        """Return the link between the engine and `broker`; None without a broker."""
        if broker is None:
            return None
        from mainspring.engine.broker.link import BrokerLink  # most programs have none

        return BrokerLink(broker, self.store, self.time, self.settings, self.owner, self.workers.holds)

    def _make_caller_writer(self, open_another: Callable[[], Store] | None) -> Writer | None:
        """Return a writer for callers' own loops and threads, with connections of its own; None if there can be none.

        A store on a server has one if `open_another` is given, that is, if the store has a URL. A store in a local file
        always has one.
        """
        if self.store.capabilities.remote and open_another is not None:
            return LoopWriter(open_another, self.submitter)
        if isinstance(self.store, InlineStore):
            return InlineWriter(self.store.open_beside, self.submitter, self.clock.monotonic)
        return None

    @functools.cached_property
    def vault(self) -> Vault:
        """Reads and writes the header values and signing secrets of HTTP agents; made at the first use."""
        from mainspring.agents.vault import Vault  # most programs keep none

        return Vault(self.store, self.time.now)

    @functools.cached_property
    def callbacks(self) -> Callbacks:
        """Receiver of the callbacks of agents that answered 202: it renews the lease of their runs, or ends the runs.

        Made at the first use.
        """
        from mainspring.agents.callbacks import Callbacks  # most programs receive none

        return Callbacks(self.settings.namespace, self.store, self.batcher.apply, self.recorder, self.vault, self.time)

    @property
    def worker(self) -> Worker | None:
        """The worker of Python handlers; None before `start` and after `stop`."""
        return self.workers.worker

    @property
    def offered_tasks(self) -> tuple[str, ...]:
        """Names of the tasks that this instance executes; empty if it only plans (`become_planner`)."""
        return () if self._is_planner_only else self.workers.tasks

    def change_id(self) -> str:
        """Return a new change id: the random prefix of this instance, then a counter. Thread: any."""
        return f"{self._change_prefix}{next(self._changes):x}"

    # ── life ───────────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Open the store, so that commands work. The running event loop becomes the engine loop.

        If there is a broker, a task begins to connect to it. Raises: StoreError if the store cannot be opened.
        """
        self._loop = asyncio.get_running_loop()
        await self.store.open()
        await self.time.read()
        if self.broker_link is not None:
            self.broker_link.open()

    @property
    def is_open(self) -> bool:
        """True from `open` until the engine loop is closed. Thread: any."""
        return self._loop is not None and not self._loop.is_closed()

    def make_worker(self, handler_loop: asyncio.AbstractEventLoop, *, inline: bool = False) -> Worker:
        """Make the worker of Python handlers and its executors, and return the worker; start nothing.

        Handlers of the kinds "async" and "sync", and subscribers to events, run on `handler_loop`. With `inline`,
        handlers of every kind run there.
        """
        self.bus.bind(handler_loop, lambda event, error: self._post(self.notes.append_subscriber_failure, event, error))
        return self.workers.make_worker(
            handler_loop, self.recorder, self.publisher, self.notes.append_soon, inline=inline
        )

    async def start(
        self,
        handler_loop: asyncio.AbstractEventLoop,
        *,
        inline: bool = False,
        plans: bool = True,
        agents: AgentSettings | None = None,
    ) -> None:
        """Start the loops of the instance, after writing its presence row and an `InstanceJoined` event.

        Handlers of the kinds "async" and "sync", and subscribers to events, run on `handler_loop`; with `inline`,
        handlers of every kind run there. Without `plans`, the instance neither plans schedules nor becomes the leader.
        `agents`: call HTTP agents within these limits; None: call none. Raises: RunsAlready if the loops run;
        StoreError.
        """
        if self.worker is not None or (self._lingering is not None and self._lingering.is_under_way):
            raise RunsAlready
        if self.settings.lease_ttl < SHORT_LEASE_MS:
            log.warning(
                "lease_ttl of %d ms is short: a busy machine may lose leases. Use at least 5s", self.settings.lease_ttl
            )
        self._loop = asyncio.get_running_loop()
        self._started_at = self.time.now()
        self.settler.enable_planning(enabled=plans)
        worker = self.make_worker(handler_loop, inline=inline)
        await self.presence.run_once()
        await self.notes.append(InstanceJoined(instance=self.owner, version=self.settings.version))
        listener = StoreListener(self.store, self.settings.poll / 1000, self._wakeups.after_hint)
        self._loops = [self.presence, self.declarations, self.settler, worker, worker.heart, listener]
        if plans:
            self._loops += [self.leader, self.keeper, self.unserved, self.ahead]
        if self.broker_link is not None:
            self.broker_link.start(worker, self.handlers, self.recorder.unstored)
            if plans:
                self._loops.append(self.broker_link.make_resender(self.leader, self.handlers))
        if (follower := self.publisher.follow_log()) is not None:
            await follower.begin()
            self._loops.append(follower)
        for loop in self._loops:
            loop.start()
        if agents is not None:
            self.call_agents(agents)

    def call_agents(self, settings: AgentSettings) -> None:
        """Start to claim the runs of HTTP agents, too, and to call the agents within the limits of `settings`.

        The calls are made on the handlers' loop. Do nothing if agents are called already or the engine does not run.
        """
        if (agents := self.workers.make_agent_worker(settings, self.vault, self.recorder, self.publisher)) is None:
            return
        if self.broker_link is not None:
            self.broker_link.serve(agents, (HTTP_TASK,), self.recorder.unstored)
        self._start_loops(agents, agents.heart)

    async def become_planner(self) -> None:
        """Execute no runs from now on, only plan, and write that to the presence row.

        To be called right after `start`, before the event loop has run the loops that `start` started.
        """
        self.workers.claims.clear()
        self._is_planner_only = True
        if self.broker_link is not None:
            await self.broker_link.stop_reading()
        if self.worker is not None:
            await self.worker.stop()
        await self.presence.run_once()

    def stop_claiming(self) -> None:
        """Plan no more fires, and let the workers claim and begin no more runs. Attempts that have begun go on."""
        self.settler.stop_planning()
        self.workers.stop_claiming()

    async def stop(self, timeout: float) -> None:
        """If the engine runs, stop to plan and claim, let attempts end in `timeout` seconds, and hand back the others.

        Then append `InstanceLeft` and give up leadership and presence row, even if the store fails. It stays open.
        """
        if self.worker is None:
            self.declarations.give_back_handlers()
            with contextlib.suppress(StoreError):
                await self.presence.leave()  # the program declared its schedules, and its start failed then
            return
        if self.broker_link is not None:
            await self.broker_link.stop_reading()
        self.settler.stop_planning()
        await self.workers.drain(timeout)
        await self._stop_loops()
        await self.recorder.drain()
        if self.broker_link is not None:
            await self.broker_link.stop()
        with contextlib.suppress(StoreError):
            await self.notes.append(InstanceLeft(instance=self.owner))
            await self.leader.leave()
            await self.presence.leave()
        self._lingering = await self.workers.close()
        self.declarations.give_back_handlers()

    async def stop_now(self) -> None:
        """Give up every attempt now and hand back its run. A `stop` under way then no longer waits for attempts.

        A begun run with `recovery="fail"` ends as lost instead. Called on a second stop signal and by test harnesses.
        """
        await self.workers.abort()

    def _start_loops(self, *loops: Loop) -> None:
        for loop in loops:
            self._loops.append(loop)
            loop.start()

    async def _stop_loops(self) -> None:
        for loop in reversed(self._loops):
            await loop.stop()
        self._loops = []
        self.publisher.forget_follower()

    async def close_caller_writer(self) -> None:
        """Close the connections of `caller_writer`; to be called before `close`. Thread: the caller's event loop."""
        if self.caller_writer is not None:
            await self.caller_writer.close()

    async def close(self) -> None:
        """Wake the callers that wait for a run, commit what was submitted, and close the broker and the store.

        While handlers of the stopped engine still run, the store stays open; it is closed once they have ended.
        """
        self.waiters.notify_all()
        try:
            await self.submitter.close()
            await self.batcher.flush()
            if self.broker_link is not None:
                await self.broker_link.close()
        finally:
            if self._lingering is None:
                await self.store.close()
            else:
                self._lingering.close_afterwards(self.store, self.batcher.flush, self._may_close)

    # ── what callers use ───────────────────────────────────────────────────

    def writer(self) -> Writer:
        """Return the quickest writer for a caller outside the engine loop. Thread: any.

        If this process has a worker, a subscriber to its own events, or a broker, the writer commits through the engine
        loop. Why: a claim may then share the commit, and the events and hints of the commit are published.
        """
        if self.caller_writer is None or self.worker is not None:
            return self.submitter
        needs_engine = self.publisher.has_listeners or self.broker_link is not None
        return self.submitter if needs_engine else self.caller_writer

    def follow_log_if_needed(self) -> None:
        """Start the log follower soon if a subscriber wants the events of every instance, and if none runs yet.

        The log follower reads the event log and passes new events to such subscribers. Do nothing if the engine does
        not run. Called after each subscription. Thread: any.
        """
        self._post(self._follow_log)

    def _follow_log(self) -> None:
        if self.worker is not None and (follower := self.publisher.follow_log()) is not None:
            self._start_loops(follower)

    @property
    def store_warnings(self) -> tuple[str, ...]:
        """Problems of the store that a person should solve. Thread: any."""
        return tuple(getattr(self.store, "warnings", ()))

    @property
    def work_warnings(self) -> tuple[str, ...]:
        """What keeps work of this namespace from being done, as far as this instance knows. Thread: any."""
        return (*self.declarations.warnings, *(one.describe() for one in self.unserved.found.values()))

    def health(self) -> Health:
        """Return whether the engine runs, which of its loops fail and why (`judge_loops`), and warnings. Thread: any.

        The warnings are those of the store, then `work_warnings`. This does not query the store.
        """
        warnings = self.store_warnings + self.work_warnings
        if self.worker is None or self._loop is None:
            return Health("stopped", warnings=warnings)
        one_call_each = [self.presence, *(loop for worker in self.workers for loop in (worker, worker.heart))]
        others = {"handlers": self.workers.handlers_trouble, "schedules": self.ahead.trouble_text}
        if self.broker_link is not None:
            others["broker"] = self.broker_link.availability.trouble
        return judge_loops(self._loops, one_call_each, others, warnings, self._loop.time())

    def metrics(self) -> dict[str, float]:
        """Return metric name → value; empty if the engine does not run. Counters end in `_total`. Thread: any."""
        worker = self.worker
        if worker is None:
            return {}
        return {
            "leader": float(self.leader.leads),
            "leader_term": float(self.leader.epoch or 0),
            "leader_terms_won_total": float(self.leader.terms),
            "runs_held": float(len(worker.running)),
            "slots": float(self.settings.concurrency),
            "claims_total": float(worker.claims),
            "changes_waiting": float(self.batcher.waiting),
            "store_failures": float(sum(loop.failures for loop in self._loops)),
        } | ({} if self.broker_link is None else self.broker_link.metrics())

    # ── what the loops use ─────────────────────────────────────────────────

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        """Schedule `callback(*args)` on the engine loop. Thread: any.

        Do nothing if there is no engine loop yet, or if it is closed.
        """
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            if self._loop is not None:
                self._loop.call_soon_threadsafe(callback, *args)

    def _describe(self) -> Instance:
        """Return what the presence row of this instance should say now, such as app, tasks and declared schedules.

        An instance that only plans (`become_planner`) offers no tasks and no slots.
        """
        works = not self._is_planner_only
        return Instance(
            app=self.settings.app,
            version=self.settings.version,
            tasks=self.offered_tasks,
            declares=self.declarations.digests,
            running=self.workers.running,
            concurrency=self.settings.concurrency if works else 0,
            abandoned=self.workers.abandoned,
            pid=os.getpid(),
            host=socket.gethostname(),
            role=("all" if works else "planner") if self.settler.plans else "worker",
            queues=self.settings.queues,
            labels=self.settings.labels,
            since=self._started_at,
            namespace=self.settings.namespace,
            task_origins=self.declarations.task_origins,
            schedule_origins=self.declarations.schedule_origins,
        )

    async def _find_ended(self, run_ids: Sequence[str]) -> Sequence[Run]:
        """Return those of the runs with these ids that have ended, read from the store. Raises: StoreError."""
        return await self.store.find(Runs(ids=tuple(run_ids), states=tuple(ENDED), limit=len(run_ids)))

    async def _touch(self, schedules: Sequence[str]) -> None:
        """Touch schedules, given by id, so that the settler examines them again. The keeper calls this."""
        await self.batcher.apply(Change(id=self.change_id(), touches=tuple(schedules)))

    async def _pause_undeclared(self, schedule: Schedule, reason: str) -> None:
        """Pause a schedule that no program declares any more, for `reason`. The keeper calls this."""
        await self.commands.pause(schedule, reason=reason)
