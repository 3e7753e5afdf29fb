"""The composition root: one instance of the engine, wired. The only file that knows backends."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import os
import random
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from mainspring.engine.batcher import Batcher
from mainspring.engine.bus import Bus
from mainspring.engine.crossing import Crossing
from mainspring.engine.direct import Direct
from mainspring.engine.ends import Ends
from mainspring.engine.inline import Inline
from mainspring.engine.keeper import Keeper
from mainspring.engine.leader import Leader
from mainspring.engine.presence import Instance, Presence
from mainspring.engine.recorder import Recorder
from mainspring.engine.riders import Riders
from mainspring.engine.service import Service
from mainspring.engine.settler import Settler
from mainspring.engine.store_time import StoreTime
from mainspring.engine.telling import Telling
from mainspring.engine.watchdog import Watchdog
from mainspring.engine.watcher import Watcher
from mainspring.engine.worker import Worker
from mainspring.executors.coroutine import CoroutineExecutor
from mainspring.executors.lazily import Lazily
from mainspring.executors.outcomes import timed_out
from mainspring.executors.thread import ThreadExecutor
from mainspring.model.change import Change
from mainspring.model.errors import RunsAlready, StoreError
from mainspring.model.events import Event, InstanceJoined, InstanceLeft, SubscriberFailed
from mainspring.model.health import Health
from mainspring.model.http import HTTP_TASK, AgentSettings
from mainspring.model.ids import IdFactory
from mainspring.model.instant import Ms
from mainspring.model.outcome import Outcome
from mainspring.model.run import CLAIMABLE, ENDED
from mainspring.model.schedule import Schedule
from mainspring.model.settings import Settings
from mainspring.ports.broker import Broker
from mainspring.ports.clock import Clock
from mainspring.ports.executor import Attempt, Executor, Handler, Kind
from mainspring.ports.store import Agenda, Applied, Store
from mainspring.ports.threads import Threads
from mainspring.service import Commands

if TYPE_CHECKING:
    from mainspring.agents.callbacks import Callbacks
    from mainspring.agents.vault import Vault
    from mainspring.engine.brokering import Brokering

log = logging.getLogger("mainspring.engine")

#: So long one call to the store may take, in seconds, before the store counts as silent.
SILENT = 2.0
#: Below this a lease may end because the machine is busy, not because the worker is dead.
SHORT_LEASE = 5_000


def open_store(url: str, clock: Clock) -> Store:
    """The store a URL names; backends are imported when they are asked for."""
    from mainspring.stores.url import open_store as named

    return named(url, clock)


def open_broker(url: str, clock: Clock) -> Broker:
    """The broker a URL names."""
    from mainspring.brokers.url import open_broker as named

    return named(url, clock)


class Runtime:
    """Store, batcher and commands from `open` on; loops between `start` and `stop`. Lives on the engine's loop."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        rng: random.Random,
        settings: Settings,
        handlers: Mapping[str, Handler],
        bus: Bus,
        threads: Threads,
        broker: Broker | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.time = time = StoreTime(store, clock)
        self.settings = settings
        self.handlers = handlers
        self.bus = bus
        self._threads = threads
        self._rng = rng
        self.ids = IdFactory(rng)
        self.owner = f"{socket.gethostname()[:24]}:{os.getpid()}:{rng.getrandbits(24):06x}"
        self._changes = itertools.count(1)
        self._change_prefix = f"{rng.getrandbits(40):010x}"
        self.brokering: Brokering | None = None
        if broker is not None:
            from mainspring.engine.brokering import Brokering  # most programs have none

            self.brokering = Brokering(broker, store, time, settings, self.owner, self.workers)
        self._telling = Telling(bus, self.brokering, settings.namespace, lambda: self.commands.follower(None))
        self.batcher = Batcher(store, self._committed, self._telling.publish, settings.pace / 1000)
        self.crossing = Crossing(self.batcher, self._post)
        #: The callers' own ways to a server, where this process may have them.
        self.direct: Direct | Inline | None = None
        self.commands = Commands(
            store, self.batcher.apply, self.batcher.apply_many, time, self.ids, self.change_id, lambda: self.vault
        )
        poll = settings.poll / 1000
        self.settler = Settler(
            store, self.batcher, self.change_id, handlers, clock, poll, self.commands.cancel_older, self._wake_worker
        )
        self.settler.heard = time.heard
        self.recorder = Recorder(self.batcher, time, rng, self.change_id, poll)
        self.leader = Leader(store, time, settings, self.owner, self._note_soon)
        self.keeper = Keeper(store, time, settings, self.leader, self._pause_undeclared, self._touch)
        self.presence = Presence(store, settings, self.owner, self._describe)
        self.worker: Worker | None = None
        #: The worker of HTTP agents, with slots of its own: a slow agent takes none from a handler.
        self.agents: Worker | None = None
        self.declares: Callable[[], dict[str, str]] = dict
        self.executors: dict[Kind, Executor] = {}
        self._handler_loop: asyncio.AbstractEventLoop | None = None
        self._services: list[Service] = []
        self._ends = Ends()
        self.wait_for_end = self._ends.wait
        self._done: deque[tuple[Attempt, Outcome]] = deque()
        self._done_posted = False
        self._since: Ms = 0
        self._works = True
        self._loop: asyncio.AbstractEventLoop | None = None

    @functools.cached_property
    def vault(self) -> Vault:
        """Header values and signing secrets."""
        from mainspring.agents.vault import Vault  # most programs keep none

        return Vault(self.store, self.time.now)

    @functools.cached_property
    def callbacks(self) -> Callbacks:
        """What agents that answered 202 say later."""
        from mainspring.agents.callbacks import Callbacks  # most programs hear none

        return Callbacks(self.store, self.batcher.apply, self.recorder, self.vault, self.time)

    def change_id(self) -> str:
        """Short, unique and cheap: this instance, then a count; from any thread."""
        return f"{self._change_prefix}{next(self._changes):x}"

    # ── life ───────────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Open the store; commands work from here on."""
        self._loop = asyncio.get_running_loop()
        self.batcher.listening = self._telling.listening
        await self.store.open()
        await self.time.ask()
        if self.brokering is not None:
            self.brokering.open(self.listen)

    @property
    def is_open(self) -> bool:
        """True while its loop can be reached."""
        return self._loop is not None and not self._loop.is_closed()

    def wire(self, handler_loop: asyncio.AbstractEventLoop, *, inline: bool = False) -> Worker:
        """Make worker and executors for handlers that run on this loop; `inline` keeps every kind on it."""
        coroutines = CoroutineExecutor(handler_loop, self.time, self._finished)
        on_loop: Executor = coroutines
        watchdog: Watchdog | None = None
        if handler_loop is not asyncio.get_running_loop():
            given_up = functools.partial(timed_out, abandoned=True)
            on_loop = watchdog = Watchdog(on_loop, handler_loop, self.clock, self.owner, self._note_soon, given_up)
        self.executors = {"async": on_loop, "sync": on_loop}
        if inline:
            self.executors |= {"thread": on_loop, "process": on_loop}
        else:
            self.executors["thread"] = ThreadExecutor(self._threads, self.time, self._finished, handler_loop)
            self.executors["process"] = Lazily(self._process_executor)
        self.bus.bind(handler_loop, lambda event, error: self._post(self._note_subscriber, event, error))
        self.batcher.listening = self._telling.listening
        publish = self._telling.publish if self._telling.listening else None
        self.worker = worker = Worker(
            self.store, self.recorder, self.time, self.settings, self.owner, self.handlers, self.executors, publish
        )
        worker.heard, worker.hear = self.time.heard, self._take_outcomes
        self.settler.hear, self.settler.ending = worker.hear, self.recorder.ending
        coroutines.take = worker.slots.take
        coroutines.no_slot = lambda attempt: self._post(worker.no_slot, attempt)
        if watchdog is not None:
            watchdog.worker = worker
        self.batcher.rider = worker
        self.batcher.crowded = lambda: len(worker.running) >= self.settings.concurrency and not self._ends.waiting
        self._handler_loop = handler_loop
        return self.worker

    def call_agents(self, settings: AgentSettings) -> None:
        """Take the runs of HTTP agents, too; calls are made on the handlers' loop."""
        if self.agents is not None or self.worker is None or self._handler_loop is None:
            return
        from mainspring.agents.turns import and_reserve
        from mainspring.engine.calling import agent_executor  # aiohttp is an extra

        executor, handler = agent_executor(self, settings, self._handler_loop, self._finished)
        self.executors["http"] = executor
        self.agents = Worker(
            self.store,
            self.recorder,
            self.time,
            replace(self.settings, concurrency=and_reserve(settings.concurrency)),
            f"{self.owner}:http",
            {HTTP_TASK: handler},
            self.executors,
            self._telling.publish if self._telling.listening else None,
        )
        self.agents.name, self.agents.heart.name = "agents", "agents-heart"
        self.agents.under_way = lambda: executor.under_way
        self.batcher.rider = Riders(self.worker, self.agents)
        if self.brokering is not None and self.brokering.intake is not None:
            self.brokering.intake.serve(self.agents, (HTTP_TASK,), self.recorder.unstored)
        for service in (self.agents, self.agents.heart):
            self._services.append(service)
            service.start()

    def listen(self) -> None:
        """Somebody subscribed after the start, or did so elsewhere."""
        self._post(self._follow_all)
        self.batcher.listening = self._telling.listening
        for worker in self.workers():
            worker.publish = self._telling.publish if self._telling.listening else None

    def _follow_all(self) -> None:
        if self.worker is not None and (follower := self._telling.follow_all()) is not None:
            self._services.append(follower)
            follower.start()

    def workers(self) -> tuple[Worker, ...]:
        return tuple(worker for worker in (self.worker, self.agents) if worker is not None)

    def _process_executor(self) -> Executor:
        from mainspring.executors.process import ProcessExecutor  # most programs never need it

        return ProcessExecutor(self._threads, self.time, self._finished)

    async def start(
        self,
        handler_loop: asyncio.AbstractEventLoop,
        *,
        inline: bool = False,
        plans: bool = True,
        agents: AgentSettings | None = None,
    ) -> None:
        """Start every loop; without `plans` neither schedules nor housekeeping, but rescue and gates as everywhere."""
        if self.worker is not None:
            raise RunsAlready
        if self.settings.lease_ttl < SHORT_LEASE:
            log.warning("lease_ttl of %d ms is short: a busy machine may lose leases", self.settings.lease_ttl)
        self._loop = asyncio.get_running_loop()
        self.settler.plans, self._since = plans, self.time.now()
        worker = self.wire(handler_loop, inline=inline)
        await self.presence.run_once()
        await self.note(InstanceJoined(instance=self.owner, version=self.settings.version))
        watcher = Watcher(self.store, self.settings.poll / 1000, self._wake_all)
        self._services = [self.presence, self.settler, worker, worker.heart, watcher]
        if plans:
            self._services += [self.leader, self.keeper]
        if self.brokering is not None:
            self.brokering.start(worker, self.handlers, self.recorder.unstored)
            if plans:
                self._services.append(self.brokering.sweep(self.leader, self.handlers))
        if (follower := self._telling.follow_all()) is not None:
            await follower.begin()
            self._services.append(follower)
        for service in self._services:
            service.start()
        if agents is not None:
            self.call_agents(agents)

    async def take_nothing(self) -> None:
        """A planner settles, and leaves every run to others; said before its loops have had a turn."""
        self.batcher.rider = None
        self._works = False
        if self.brokering is not None:
            await self.brokering.stop_reading()
        if self.worker is not None:
            await self.worker.stop()
        await self.presence.run_once()

    async def stop(self, timeout: float) -> None:
        """Drain: stop taking, let runs finish within `timeout`, hand the rest back, leave in order."""
        if self.worker is None:
            return
        if self.brokering is not None:
            await self.brokering.stop_reading()
        await asyncio.gather(*(worker.drain(timeout) for worker in self.workers()))
        await self._stop_services()
        await self.recorder.drain()
        if self.brokering is not None:
            await self.brokering.stop()
        with contextlib.suppress(StoreError):
            await self.note(InstanceLeft(instance=self.owner))
            await self.leader.leave()
            await self.presence.leave()
        for executor in self.executors.values():
            await executor.close()
        self.worker = self.agents = None

    async def stop_now(self) -> None:
        """The second signal: hand everything back at once."""
        for worker in self.workers():  # the drain that is under way may be done, and forget them, meanwhile
            worker.draining = True
            await worker.stop()
            await worker.hand_back("shutdown")
            worker.idle.set()

    async def _stop_services(self) -> None:
        for service in reversed(self._services):
            await service.stop()
        self._services = []
        self._telling.everywhere = None

    def way(self) -> Crossing | Direct | Inline:
        """The shortest way to the store for a caller's loop or thread; with a worker here a claim may ride along."""
        alone = self.worker is None and not self.batcher.listening and self.brokering is None
        return self.direct if self.direct is not None and alone else self.crossing

    async def close(self) -> None:
        """Close the store, after what callers on other loops asked for."""
        await self.crossing.close()
        await self.batcher.flush()
        if self.brokering is not None:
            await self.brokering.close()
        await self.store.close()

    def health(self) -> Health:
        """Which loops cannot do their work, as they know it themselves; asks nobody, from any thread."""
        warnings: tuple[str, ...] = getattr(self.store, "warnings", ())
        if self.worker is None or self._loop is None:
            return Health("stopped", warnings=warnings)
        now = self._loop.time()
        failing = {service.name: service.trouble for service in self._services if service.trouble is not None}
        loops = [service for worker in self.workers() for service in (worker, worker.heart)]
        for service in (self.presence, *loops):  # whose work is one call
            if service.since is not None and (silence := now - service.since) > SILENT:
                failing.setdefault(service.name, f"the store has not answered for {silence:.0f} s")
        if self.brokering is not None and self.brokering.line.trouble is not None:
            failing["broker"] = self.brokering.line.trouble
        return Health("degraded" if failing else "ok", failing, warnings)

    def metrics(self) -> dict[str, float]:
        """Counters end in `_total`, everything else is as it is now."""
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
            "store_failures": float(sum(service.failures for service in self._services)),
        } | ({} if self.brokering is None else self.brokering.metrics())

    # ── hints and wake-ups ─────────────────────────────────────────────────

    def _wake_all(self) -> None:
        self.settler.wake()
        self._wake_worker()
        self._telling.grown()

    def _wake_worker(self) -> None:
        for worker in self.workers():
            worker.wake()

    def _committed(self, changes: Sequence[Change], applied: Applied) -> None:
        """Wake precisely: who has work because of what was just committed here."""
        to_run = touched = released = False
        for change in changes:
            run, schedule = change.run, change.schedule
            to_run = to_run or change.runs != ()
            touched = touched or change.touches != ()
            released = released or change.releases != ()
            if schedule is not None and schedule.next_at is not None:
                self.settler.expect(schedule.next_at)
            if run is None:
                continue
            if run.cancel is not None:
                for worker in self.workers():
                    worker.cancel(run.id, run.cancel)
            if run.state in CLAIMABLE:
                to_run = True
            elif self._ends.waiting and run.state in ENDED:
                self._ends.ended(run.id)
        if self.brokering is not None:
            self.brokering.committed(changes)
        self._telling.grown()
        if to_run and (applied.claimed is None or self.agents is not None):  # one that rode along has seen its own
            self._wake_worker()
        if touched:
            self.settler.wake(Agenda.TOUCHED)
        if released and applied.parked:
            self.settler.released()

    # ── outcomes from other threads ────────────────────────────────────────

    def _finished(self, attempt: Attempt, outcome: Outcome) -> None:
        """Called by executors on any thread; one hop for all that end together."""
        self._done.append((attempt, outcome))
        worker = self.worker
        if attempt.early and worker is not None:
            if attempt.handed:  # after it is noted: who sees it without a slot finds its end
                worker.slots.leave(attempt)
            if worker.early.hears:
                return
        if not self._done_posted:  # whoever takes clears this first, so what is appended now is taken by that hop
            self._done_posted = True
            self._post(self._take_outcomes)

    def _take_outcomes(self) -> None:
        self._done_posted = False
        done = [self._done.popleft() for _ in range(len(self._done))]
        if self.agents is not None:
            called = [ended for ended in done if ended[0].handler.kind == "http"]
            if called:
                self.agents.finished(called)
                done = [ended for ended in done if ended[0].handler.kind != "http"]
        if self.worker is None:
            for attempt in [attempt for attempt, _ in done if not attempt.done]:  # those were handed back before
                log.error("run %s ended after its worker had stopped; it will be repeated", attempt.run.id)
        elif done:
            self.worker.finished(done)

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # it was closed
            if self._loop is not None:
                self._loop.call_soon_threadsafe(callback, *args)

    # ── small things ───────────────────────────────────────────────────────

    async def note(self, event: Event) -> None:
        """Append a note to the log."""
        await self.batcher.apply(Change(id=self.change_id(), events=(event,)))

    def _note_subscriber(self, event: Event, error: str) -> None:
        if isinstance(event, SubscriberFailed):
            return  # a subscriber of failures that fails must not feed itself
        name = type(event).__name__
        note = SubscriberFailed(run_id=event.run_id, schedule_id=event.schedule_id, event=name, error=error[:500])
        self._note_soon(note)

    def _note_soon(self, event: Event) -> None:
        """Append a note; nobody waits for it, and a store that is away does without it."""
        future = self.batcher.submit(Change(id=self.change_id(), events=(event,)))
        future.add_done_callback(lambda f: f.cancelled() or f.exception())

    def _describe(self) -> Instance:
        return Instance(
            app=self.settings.app,
            version=self.settings.version,
            tasks=self._tasks() if self._works else (),
            declares=self.declares(),
            running=sum(len(worker.running) for worker in self.workers()),
            concurrency=self.settings.concurrency if self._works else 0,
            abandoned=sum(getattr(executor, "abandoned", 0) for executor in set(self.executors.values())),
            pid=os.getpid(),
            host=socket.gethostname(),
            role=("all" if self._works else "planner") if self.settler.plans else "worker",
            queues=self.settings.queues,
            labels=self.settings.labels,
            since=self._since,
        )

    def _tasks(self) -> tuple[str, ...]:
        return tuple(self.handlers) + ((HTTP_TASK,) if self.agents is not None else ())

    async def _touch(self, schedules: Sequence[str]) -> None:
        """Have the settler look at schedules again."""
        await self.batcher.apply(Change(id=self.change_id(), touches=tuple(schedules)))

    async def _pause_undeclared(self, schedule: Schedule, reason: str) -> None:
        await self.commands.pause(schedule, reason=reason)
