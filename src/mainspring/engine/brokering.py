"""What a broker adds to an instance, in one place: hints out, hints in, a sweep for what was lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from mainspring.engine.dispatcher import Dispatcher, work_topic
from mainspring.engine.intake import GROUP, Intake
from mainspring.engine.leader import Leader
from mainspring.engine.line import Line, end
from mainspring.engine.service import Service
from mainspring.engine.worker import Worker
from mainspring.model.change import Change
from mainspring.model.errors import BrokerError
from mainspring.model.instant import Ms
from mainspring.model.run import CLAIMABLE
from mainspring.model.settings import Settings
from mainspring.ports.broker import EVENTS, Broker
from mainspring.ports.clock import Clock
from mainspring.ports.executor import Attempt, Handler
from mainspring.ports.store import Offer, Runs, Store
from mainspring.rules.lanes import lane_of

#: Runs announced again at once.
SWEEP = 500


class Brokering:
    """The dispatcher from open to close, the rest between start and stop."""

    def __init__(
        self,
        broker: Broker,
        store: Store,
        clock: Clock,
        settings: Settings,
        owner: str,
        workers: Callable[[], Sequence[Worker]],
    ) -> None:
        self.broker = broker
        self.line = Line()
        self._store = store
        self._clock = clock
        self._settings = settings
        self._owner = owner
        self.dispatcher = Dispatcher(
            broker, self.line, clock.now, lambda run_id: any(run_id in worker.running for worker in workers())
        )
        self.intake: Intake | None = None
        self._listening: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None

    def open(self, wants: Callable[[], None]) -> None:
        """Begin to look whether anybody reads events; `wants` is told when that changes."""
        self.dispatcher.wants = wants
        opened = False

        async def look() -> bool:
            nonlocal opened
            if not opened:
                await self.broker.open()
                opened = True
            return await self.dispatcher.look_for_audience()

        looking = self.line.keep("asking who reads events", look)
        self._looking = asyncio.get_running_loop().create_task(looking)

    def committed(self, changes: Sequence[Change]) -> None:
        """What was committed here."""
        self.dispatcher.committed(changes)
        if self.intake is not None:
            self.intake.committed(changes)

    def start(self, worker: Worker, handlers: Mapping[str, Handler], unstored: Mapping[str, Attempt]) -> None:
        """Begin to read messages of work."""
        settings = self._settings
        lanes = [lane_of(settings.namespace, queue) for queue in dict.fromkeys(settings.queues)]
        self.intake = Intake(
            self.broker, self.line, self._clock, self._owner, lanes, settings.poll / 1000, settings.concurrency
        )
        self.intake.serve(worker, handlers, unstored)
        self.intake.start()

    def sweep(self, leader: Leader, handlers: Mapping[str, Handler]) -> Service:
        """The loop that announces again what was lost."""
        return Sweep(self, leader, self._store, self._clock, self._settings, handlers)

    def listen(self, heard: Callable[[], None]) -> None:
        """Say when any instance tells of an event."""
        if self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(self._listen(heard))

    async def _listen(self, heard: Callable[[], None]) -> None:
        async def read() -> bool:
            messages = self.broker.consume(EVENTS, group=None, consumer=self._owner, limit=1_000)
            async with contextlib.aclosing(messages):
                async for batch in messages:
                    self.line.works("reading events")
                    if batch:
                        heard()
            return False

        await self.line.keep("reading events", read)

    async def stop_reading(self) -> None:
        """Take nothing more."""
        if self.intake is not None:
            await self.intake.stop_reading()

    async def stop(self) -> None:
        """Answer what is left and read no more."""
        intake, self.intake = self.intake, None
        if intake is not None:
            await intake.stop()
        task, self._listening = self._listening, None
        if task is not None:
            await end(task)

    async def close(self) -> None:
        """Say what is left, if that is quick."""
        await self.stop()
        looking, self._looking = self._looking, None
        if looking is not None:
            await end(looking)
        await self.dispatcher.close()
        with contextlib.suppress(BrokerError):
            await self.broker.close()

    def metrics(self) -> dict[str, float]:
        """Counters, as in `Runtime.metrics`."""
        intake = self.intake
        return {
            "broker_up": float(self.line.trouble is None),
            "broker_messages_published_total": float(self.dispatcher.sent),
            "broker_messages_dropped_total": float(self.dispatcher.dropped),
            "broker_messages_heard_total": float(0 if intake is None else intake.heard),
            "broker_messages_unreadable_total": float(0 if intake is None else intake.buried),
            "broker_runs_claimed_total": float(0 if intake is None else intake.claimed),
        }


class Sweep(Service):
    """Announces again what is due, unclaimed for longer than a poll, and no longer in the broker. The leader does it.

    The workers' own polls find such runs as well: this brings them to those that are idle and wait for messages.
    """

    name = "sweep"

    def __init__(
        self,
        brokering: Brokering,
        leader: Leader,
        store: Store,
        clock: Clock,
        settings: Settings,
        handlers: Mapping[str, Handler],
    ) -> None:
        super().__init__(settings.poll / 1000)
        self._brokering = brokering
        self._leader = leader
        self._store = store
        self._clock = clock
        self._settings = settings
        self._handlers = handlers
        self._again: dict[str, float] = {}
        self.announced = 0

    async def run_once(self) -> float:
        """One cheap look; more only when something is overdue."""
        if self._leader.leads and self._brokering.line.trouble is None:
            with contextlib.suppress(BrokerError):
                await self.sweep()
        return self.poll

    async def sweep(self) -> int:
        """Announce what is overdue and was not announced lately; how many."""
        settings = self._settings
        lanes = tuple(lane_of(settings.namespace, queue) for queue in settings.queues)
        look = await self._store.claim(Offer("", lanes, tuple(self._handlers), settings.lease_ttl), 0)
        late: Ms = look.now - settings.poll
        if look.next_at is None or look.next_at > late:
            return 0
        broker = self._brokering.broker
        depths = {lane: await broker.depth(work_topic(lane), group=GROUP) for lane in lanes}
        empty = {lane: depth.unanswered for lane, depth in depths.items() if depth.waiting == 0}
        if not empty:
            return 0
        query = Runs(
            ns=settings.namespace,
            states=tuple(sorted(CLAIMABLE)),
            due_before=late,
            oldest_first=True,
            limit=SWEEP,
        )
        now = self._clock.monotonic()
        forgotten = now - broker.limits.redeliver_after / 1000
        self._again = {run_id: at for run_id, at in self._again.items() if at > forgotten}
        lost = [
            run
            for run in await self._store.find(query)
            if run.parked_on is None and run.lane in empty and run.id not in self._again
        ]
        if len(lost) <= sum(empty.values()):  # they may be what some worker was told of and has no slot for
            return 0
        self._again.update((run.id, now) for run in lost)
        self._brokering.dispatcher.announce(lost)
        self.announced += len(lost)
        return len(lost)
