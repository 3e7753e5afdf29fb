"""The broker link: all that a broker adds to an instance. It publishes and reads messages, and replaces lost ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Container, Mapping, Sequence

from mainspring.engine.broker.availability import BrokerAvailability, cancel_and_wait
from mainspring.engine.broker.consumer import WORKER_GROUP, HintConsumer
from mainspring.engine.broker.dispatcher import Dispatcher, work_topic
from mainspring.engine.leader import Leader
from mainspring.engine.loop import Loop
from mainspring.engine.work.worker import Worker
from mainspring.model.change import Change
from mainspring.model.errors import BrokerError
from mainspring.model.instant import Ms
from mainspring.model.run import CLAIMABLE, Run
from mainspring.model.settings import Settings
from mainspring.ports.broker import EVENTS_TOPIC, Broker
from mainspring.ports.clock import Clock
from mainspring.ports.executor import Handler, HeldRun
from mainspring.ports.store import Offer, Runs, Store
from mainspring.rules.lanes import lane_of

#: The most runs that one query finds and announces again.
RESEND_BATCH_RUNS = 500


class BrokerLink:
    """The connection of an instance to its broker.

    It publishes from `open` to `close`, and reads messages from `start` to `stop`. Thread: engine loop.
    """

    def __init__(
        self,
        broker: Broker,
        store: Store,
        clock: Clock,
        settings: Settings,
        owner: str,
        is_held: Callable[[str], bool],
    ) -> None:
        """Make the link between the instance `owner` and `broker`; connect to nothing yet.

        `is_held(run_id)` returns True for a run whose lease this instance holds.
        """
        self.broker = broker
        self.availability = BrokerAvailability()
        self._store = store
        self._clock = clock
        self._settings = settings
        self._owner = owner
        self.dispatcher = Dispatcher(broker, self.availability, clock.now, is_held)
        self.consumer: HintConsumer | None = None
        self._listening: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Start a task that connects to the broker and asks every second whether any program reads events there."""
        opened = False

        async def check() -> bool:
            """Connect if that has not been done, and ask once. Return True, to be called again."""
            nonlocal opened
            if not opened:
                await self.broker.open()
                opened = True
            return await self.dispatcher.check_readers()

        checking = self.availability.repeat("asking for readers of events", check)
        self._checking = asyncio.get_running_loop().create_task(checking)

    def committed(self, changes: Sequence[Change]) -> None:
        """Announce the runs that accepted changes made claimable.

        Also acknowledge the messages of the runs whose outcomes these changes stored.
        """
        self.dispatcher.committed(changes)
        if self.consumer is not None:
            self.consumer.committed(changes)

    def start(self, worker: Worker, handlers: Mapping[str, Handler], unstored: Mapping[str, HeldRun]) -> None:
        """Begin to read messages of work for this worker, which can run the tasks in `handlers`.

        `unstored`: the runs whose outcome is not stored yet, by run id.
        """
        settings = self._settings
        lanes = [lane_of(settings.namespace, queue) for queue in dict.fromkeys(settings.queues)]
        self.consumer = HintConsumer(
            self.broker, self.availability, self._clock, self._owner, lanes, settings.poll / 1000, settings.concurrency
        )
        self.consumer.serve(worker, handlers, unstored)
        self.consumer.start()

    def serve(self, worker: Worker, tasks: Container[str], unstored: Container[str]) -> None:
        """From now on, pass messages for the tasks named in `tasks` to one more worker, such as that of HTTP agents.

        Ignored if `start` was not called yet. `unstored`: ids of the runs whose outcome is not stored yet.
        """
        if self.consumer is not None:
            self.consumer.serve(worker, tasks, unstored)

    def make_resender(self, leader: Leader, handlers: Mapping[str, Handler]) -> Loop:
        """Return the loop, not yet started, that announces runs again whose message was lost, while `leader` leads.

        `handlers`: task name → handler. Only an overdue run of one of these tasks starts a search for lost messages.
        """
        return HintResender(self, leader, self._store, self._clock, self._settings, handlers)

    def listen(self, on_event: Callable[[], None]) -> None:
        """From now on, call `on_event` whenever this or another instance published events. A second call is ignored."""
        if self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(self._listen(on_event))

    async def _listen(self, on_event: Callable[[], None]) -> None:
        """Call `on_event` whenever messages arrive in the topic of events, until the broker is closed."""

        async def read() -> bool:
            """Read the topic of events until the broker is closed. Return False, to be called no more."""
            messages = self.broker.consume(EVENTS_TOPIC, group=None, consumer=self._owner, limit=1_000)
            async with contextlib.aclosing(messages):
                async for batch in messages:
                    self.availability.report_success("reading events")
                    if batch:
                        on_event()
            return False

        await self.availability.repeat("reading events", read)

    async def stop_reading(self) -> None:
        """Stop reading messages of work, and give messages whose runs are not claimed yet back to the broker."""
        if self.consumer is not None:
            await self.consumer.stop_reading()

    async def stop(self) -> None:
        """Stop reading messages, of work and of events, and send the last acknowledgements."""
        consumer, self.consumer = self.consumer, None
        if consumer is not None:
            await consumer.stop()
        task, self._listening = self._listening, None
        if task is not None:
            await cancel_and_wait(task)

    async def close(self) -> None:
        """Stop reading, publish waiting messages for at most a second, and disconnect. What is left then is lost."""
        await self.stop()
        checking, self._checking = self._checking, None
        if checking is not None:
            await cancel_and_wait(checking)
        await self.dispatcher.close()
        with contextlib.suppress(BrokerError):
            await self.broker.close()

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the broker by name: counters, whose names end in `_total`, and `broker_up` (0 or 1)."""
        consumer = self.consumer
        return {
            "broker_up": float(self.availability.trouble is None),
            "broker_messages_published_total": float(self.dispatcher.sent),
            "broker_messages_dropped_total": float(self.dispatcher.dropped),
            "broker_messages_heard_total": float(0 if consumer is None else consumer.received),
            "broker_messages_unreadable_total": float(0 if consumer is None else consumer.unreadable),
            "broker_runs_claimed_total": float(0 if consumer is None else consumer.claimed),
        }


class HintResender(Loop):
    """Announces runs again whose message was lost. Only the leader does this. Thread: engine loop.

    Such a run is overdue by a poll interval, and no message waits in its lane's topic. The workers' own polls find such
    runs, too; a message brings the runs to idle workers, which wait for messages.
    """

    name = "hint-resender"

    def __init__(
        self,
        link: BrokerLink,
        leader: Leader,
        store: Store,
        clock: Clock,
        settings: Settings,
        handlers: Mapping[str, Handler],
    ) -> None:
        """Announce runs through `link` while `leader` leads, if a run of a task in `handlers` is overdue.

        `handlers`: task name → handler.
        """
        super().__init__(settings.poll / 1000)
        self._link = link
        self._leader = leader
        self._store = store
        self._clock = clock
        self._settings = settings
        self._handlers = handlers
        #: When each run was announced again, by run id, in monotonic seconds.
        self._resent_at: dict[str, float] = {}
        #: Number of runs that were announced again.
        self.announced = 0

    async def run_once(self) -> float:
        """Announce runs again whose message was lost, if this instance leads and the broker works.

        Return the seconds to wait. Raises: StoreError.
        """
        if self._leader.leads and self._link.availability.trouble is None:
            with contextlib.suppress(BrokerError):
                await self.resend()
        return self.poll

    async def resend(self) -> int:
        """Announce overdue runs again if there are more of them than unanswered messages. Return their number.

        Only lanes in whose topic no message waits are compared: elsewhere a waiting message may name an overdue run.
        Runs that were announced again lately are left out, and at most `RESEND_BATCH_RUNS` are taken.

        An unanswered message explains an overdue run: a worker may have the message and no free slot for its run.
        Unanswered means read by a worker and not yet acknowledged. Usually nothing is overdue, and one cheap query to
        the store shows it. Raises: StoreError, BrokerError.
        """
        settings = self._settings
        lanes = tuple(lane_of(settings.namespace, queue) for queue in settings.queues)
        offer = Offer("", lanes, tuple(self._handlers), settings.lease_ttl)
        answer = await self._store.claim(offer, 0)  # claims no run, but tells when the next one is due
        overdue_before: Ms = answer.now - settings.poll
        if answer.next_at is None or answer.next_at > overdue_before:
            return 0
        unanswered = await self._count_unanswered(lanes)
        if not unanswered:
            return 0
        lost = await self._find_overdue(unanswered, overdue_before)
        if len(lost) <= sum(unanswered.values()):  # they may be runs that workers know of and have no slot for
            return 0
        now = self._clock.monotonic()
        self._resent_at.update((run.id, now) for run in lost)
        self._link.dispatcher.announce(lost)
        self.announced += len(lost)
        return len(lost)

    async def _count_unanswered(self, lanes: Sequence[str]) -> dict[str, int]:
        """Return lane → number of unacknowledged messages, for each lane in whose topic no message waits to be read.

        Raises: BrokerError.
        """
        broker = self._link.broker
        depths = {lane: await broker.depth(work_topic(lane), group=WORKER_GROUP) for lane in lanes}
        return {lane: depth.unanswered for lane, depth in depths.items() if depth.waiting == 0}

    async def _find_overdue(self, lanes: Container[str], before: Ms) -> list[Run]:
        """Return the runs of these lanes among the oldest claimable runs that were due at the store time `before`.

        At most `RESEND_BATCH_RUNS` runs are read. Parked runs are left out, and runs that were announced again less
        than `redeliver_after` ago, the time after which the broker delivers an unanswered message again. Raises:
        StoreError.
        """
        forget_before = self._clock.monotonic() - self._link.broker.limits.redeliver_after / 1000
        self._resent_at = {run_id: at for run_id, at in self._resent_at.items() if at > forget_before}
        query = Runs(
            ns=self._settings.namespace,
            states=tuple(sorted(CLAIMABLE)),
            due_before=before,
            oldest_first=True,
            limit=RESEND_BATCH_RUNS,
        )
        found = await self._store.find(query)
        return [run for run in found if run.parked_on is None and run.lane in lanes and run.id not in self._resent_at]
