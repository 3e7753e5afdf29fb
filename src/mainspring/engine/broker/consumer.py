"""The hint consumer: reads messages of work for the workers of this instance, and acknowledges them to the broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Container, Sequence

import msgspec

from mainspring.engine.broker.availability import BrokerAvailability, cancel_and_wait
from mainspring.engine.broker.dispatcher import Hint, work_topic
from mainspring.engine.work.hint_inbox import HintInbox
from mainspring.engine.work.worker import Worker
from mainspring.model.change import Change
from mainspring.model.errors import BrokerError
from mainspring.model.run import ENDED, State
from mainspring.ports.broker import Broker, Message
from mainspring.ports.clock import Clock

log = logging.getLogger("mainspring.engine")

#: The name of the broker's consumer group of which all instances are members. Each message goes to one member.
WORKER_GROUP = "workers"
#: Read no more messages while this many runs that messages named wait to be claimed: 10 per slot, and at least 100.
MAX_NAMED_PER_SLOT, MIN_NAMED = 10, 100
#: Acknowledge a message whose run has not been claimed for this many seconds, or for two poll intervals if that is
#: longer. The message is of no more use: every worker has polled the store since.
STALE_MESSAGE_SECONDS = 2.0
#: The most seconds for returning messages, and for the last acknowledgements, when the instance stops.
LAST_ANSWERS_SECONDS = 1.0
#: Acknowledgements are sent together after this many seconds, because nothing waits for them.
ANSWER_INTERVAL_SECONDS = 0.2
#: Acknowledgements are sent without that delay if there are at least this many.
ANSWER_AT_MESSAGES = 1_000

_decoder = msgspec.json.Decoder(Hint)


class HintConsumer:
    """Reads messages of work and gives each to the worker that knows its task. Thread: engine loop.

    Between `start` and `stop` it reads the topic of every lane of this instance.
    """

    def __init__(
        self,
        broker: Broker,
        availability: BrokerAvailability,
        clock: Clock,
        owner: str,
        lanes: Sequence[str],
        poll: float,
        slots: int,
    ) -> None:
        """Read the topics of `lanes`. `owner`: this instance's name in the consumer group.

        `poll`: the poll interval in seconds. `slots`: how many handlers run at once; it limits how many runs may wait
        here to be claimed.
        """
        self._broker = broker
        self._availability = availability
        self._clock = clock
        self._owner = owner
        self._lanes = lanes
        self._poll = poll
        self._max_named = max(MIN_NAMED, MAX_NAMED_PER_SLOT * slots)
        self._workers: list[tuple[Worker, HintInbox]] = []
        self._tasks: list[asyncio.Task[None]] = []
        #: Messages whose acknowledgement is still to be sent, and the task that sends them.
        self._answered: list[Message] = []
        self._sending: asyncio.Task[None] | None = None
        #: Set when fewer runs may wait to be claimed.
        self._room = asyncio.Event()
        #: Number of messages that were read.
        self.received = 0
        #: Number of messages that were read and could not be decoded.
        self.unreadable = 0

    def serve(self, worker: Worker, tasks: Container[str], unstored: Container[str]) -> None:
        """Give messages for `tasks` to `worker`, which then claims the runs that they name.

        `tasks`: names of tasks. `unstored`: ids of the runs whose outcome is not stored yet.
        """
        inbox = HintInbox(tasks, worker.running, unstored, self._poll, self._answer_soon, self._room.set)
        worker.attach_hints(inbox)
        self._workers.append((worker, inbox))

    def start(self) -> None:
        """Begin to read the topics, in one task per lane."""
        loop = asyncio.get_running_loop()
        for lane in self._lanes:
            topic = work_topic(lane)
            self._tasks.append(loop.create_task(self._read_repeatedly(topic), name=f"mainspring-hints-{lane}"))

    async def stop_reading(self) -> None:
        """Stop reading, and give the messages of runs not claimed yet back to the broker, for other instances.

        That takes at most `LAST_ANSWERS_SECONDS`. If it fails, the broker delivers the messages again later.
        """
        tasks, self._tasks = self._tasks, []
        await cancel_and_wait(*tasks)
        left = [message for _, inbox in self._workers for message in inbox.remove_all()]
        if left:
            with contextlib.suppress(BrokerError, TimeoutError):
                async with asyncio.timeout(LAST_ANSWERS_SECONDS):
                    await self._broker.nack(left, group=WORKER_GROUP)

    async def stop(self) -> None:
        """Stop reading, detach the workers, and send the waiting acknowledgements.

        To send them takes at most `LAST_ANSWERS_SECONDS`; if it fails, the broker delivers the messages again.
        """
        await self.stop_reading()
        for worker, _ in self._workers:
            worker.detach_hints()
        task = self._sending
        if task is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_ANSWERS_SECONDS):
                    await asyncio.shield(task)
            await cancel_and_wait(task)

    @property
    def claimed(self) -> int:
        """Number of runs that the workers' own claims brought, by name or by a poll. Shared claims do not count."""
        return sum(inbox.claimed for _, inbox in self._workers)

    # ── reading ────────────────────────────────────────────────────────────

    async def _read_repeatedly(self, topic: str) -> None:
        """Read a topic until the broker is closed, and begin again after each failure. Runs in a task of its own."""

        async def read() -> bool:
            """Read the topic until the broker is closed. Return False, to be called no more."""
            await self._read(topic)
            return False

        await self._availability.repeat(f"reading {topic}", read)

    async def _read(self, topic: str) -> None:
        """Read a topic until the broker is closed. Pause while too many runs that messages named wait to be claimed.

        Raises: BrokerError.
        """
        messages = self._broker.consume(
            topic, group=WORKER_GROUP, consumer=self._owner, limit=min(1_000, self._max_named // 2)
        )
        async with contextlib.aclosing(messages):
            async for batch in messages:
                self._availability.report_success(f"reading {topic}")
                if batch:
                    await self._distribute(batch)
                    await self._wait_for_room()

    async def _distribute(self, batch: Sequence[Message]) -> None:
        """Give each message to the worker that knows its task, and wake the workers that have runs to claim.

        If no worker knows the task, acknowledge the message. A message that cannot be decoded becomes a dead letter of
        the broker. Raises: BrokerError.
        """
        self.received += len(batch)
        now = self._clock.monotonic()
        bad: list[Message] = []
        awake: set[Worker] = set()
        for message in batch:
            try:
                hint = _decoder.decode(message.body)
            except msgspec.MsgspecError:
                bad.append(message)
                continue
            for worker, inbox in self._workers:
                if hint.task in inbox.tasks:
                    if inbox.add(hint.run, message, now):
                        awake.add(worker)
                    break
            else:
                self._answer_soon(message)  # a worker that knows the task finds its run in the store
        for worker in awake:
            worker.wake()
        if bad:
            self.unreadable += len(bad)
            log.error("%d messages of %s cannot be read; they are dead letters now", len(bad), bad[0].topic)
            await self._broker.bury(bad, group=WORKER_GROUP, reason="not a message of work")

    async def _wait_for_room(self) -> None:
        """Return once fewer than `_max_named` runs wait to be claimed. Meanwhile acknowledge messages that are too old.

        A message is too old if its run was not claimed for `STALE_MESSAGE_SECONDS`, or for two poll intervals if these
        are longer.
        """
        while sum(len(inbox.named) for _, inbox in self._workers) >= self._max_named:
            self._room.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll / 2):
                    await self._room.wait()
            before = self._clock.monotonic() - max(STALE_MESSAGE_SECONDS, 2 * self._poll)
            for _, inbox in self._workers:
                inbox.answer_older(before)

    # ── answering ──────────────────────────────────────────────────────────

    def committed(self, changes: Sequence[Change]) -> None:
        """Acknowledge the messages of runs whose outcomes these accepted changes stored."""
        inboxes = [inbox for _, inbox in self._workers]
        for change in changes:
            run = change.run
            if run is None or run.state is State.RUNNING:
                continue
            ended = run.state in ENDED
            for inbox in inboxes:
                if run.task in inbox.tasks:
                    inbox.stored(run.id, ended=ended)

    def _answer_soon(self, message: Message) -> None:
        """Queue the acknowledgement of a message, to be sent together with others."""
        self._answered.append(message)
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_answers())

    async def _send_answers(self) -> None:
        """Acknowledge the queued messages, many in one call, until none is left. Runs in a task of its own.

        If an acknowledgement is lost, the broker delivers the message again.
        """
        try:
            while self._answered:
                if len(self._answered) < ANSWER_AT_MESSAGES and self._tasks:
                    await asyncio.sleep(ANSWER_INTERVAL_SECONDS)
                answered, self._answered = self._answered, []
                with contextlib.suppress(BrokerError):  # the tasks that read report it
                    await self._broker.ack(answered, group=WORKER_GROUP)
        finally:
            self._sending = None
