"""The dispatcher: publishes to the broker, after a commit, which runs became claimable and which events happened.

Nothing waits for the messages. If a message is dropped by a full outbox or lost on the way, the workers find its run in
the store when they poll.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from mainspring.engine.broker.availability import BrokerAvailability, cancel_and_wait
from mainspring.model.change import Change
from mainspring.model.events import EVENT_BASE_FIELDS, Event
from mainspring.model.instant import Ms
from mainspring.model.run import CLAIMABLE, Run
from mainspring.ports.broker import EVENTS_TOPIC, Broker

#: The most messages of one topic that wait to be published; beyond that the oldest are dropped.
MAX_OUTBOX_MESSAGES = 20_000
#: The most messages published in one call.
PUBLISH_BATCH = 500
#: An event whose JSON is longer, in bytes, is published without its data.
MAX_EVENT_BYTES = 8 * 1024
#: Seconds between two questions to the broker whether any program reads events.
READERS_INTERVAL_SECONDS = 1.0
#: The most seconds for publishing the waiting messages when the instance stops.
LAST_PUBLISH_SECONDS = 1.0


class Hint(Struct, frozen=True, gc=False):
    """The body of a message of work: the run with the id `run` can be claimed by workers that know its task."""

    run: str
    task: str


_encode = msgspec.json.Encoder().encode


def work_topic(lane: str) -> str:
    """Return the broker's topic in which the claimable runs of a lane are announced."""
    return f"work:{lane}"


class Outbox:
    """The messages that wait to be published to one topic, and the task that publishes them. Thread: engine loop."""

    def __init__(self, topic: str, broker: Broker, availability: BrokerAvailability) -> None:
        """Publish to `topic` of `broker`; report successes and failures to `availability`."""
        self._topic = topic
        self._broker = broker
        self._availability = availability
        self._waiting: deque[str] = deque(maxlen=MAX_OUTBOX_MESSAGES)
        self._task: asyncio.Task[None] | None = None
        #: Number of messages that were published.
        self.sent = 0
        #: Number of messages that were dropped because the outbox was full.
        self.dropped = 0

    def put(self, body: str) -> None:
        """Queue the message `body` without waiting. If the outbox is full, drop the oldest message."""
        self.dropped += len(self._waiting) == MAX_OUTBOX_MESSAGES
        self._waiting.append(body)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        """Publish messages until none waits, with pauses while the broker fails. Runs in a task of its own."""
        try:
            await self._availability.repeat(f"publishing to {self._topic}", self._publish)
        finally:
            self._task = None

    async def _publish(self) -> bool:
        """Publish the oldest messages, up to `PUBLISH_BATCH`. Return True if messages are left. Raises: BrokerError."""
        batch = [self._waiting[n] for n in range(min(PUBLISH_BATCH, len(self._waiting)))]
        dropped = self.dropped
        await self._broker.publish(self._topic, batch)
        # Messages dropped meanwhile were the first of this batch.
        for _ in range(max(0, len(batch) - (self.dropped - dropped))):
            self._waiting.popleft()
        self.sent += len(batch)
        return bool(self._waiting)

    async def close(self) -> None:
        """Publish the messages that wait, for at most a second. Messages that are left after that are lost."""
        task = self._task
        if task is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_PUBLISH_SECONDS):
                    await asyncio.shield(task)
            await cancel_and_wait(task)


class Dispatcher:
    """Queues messages for the broker: announcements of claimable runs, and events. Thread: engine loop."""

    def __init__(
        self, broker: Broker, availability: BrokerAvailability, now: Callable[[], Ms], is_held: Callable[[str], bool]
    ) -> None:
        """Publish to `broker`; report successes and failures to `availability`. `now` returns the store's time.

        `is_held(run_id)` returns True for a run whose lease this instance holds.
        """
        self._broker = broker
        self._availability = availability
        self._now = now
        self._is_held = is_held
        #: Runs that became claimable since the last turn of the event loop and are still to be announced.
        self._claimable: list[Run] = []
        #: True if any program read events from the broker at the last check.
        self.has_readers = False
        #: The outboxes, by topic.
        self._outboxes: dict[str, Outbox] = {}

    def committed(self, changes: Sequence[Change]) -> None:
        """Announce the runs that accepted changes made claimable now, in the next turn of the event loop.

        Runs that this instance holds by then are not announced.
        """
        claimable, now = self._claimable, self._now()
        before = len(claimable)
        for change in changes:
            run = change.run
            if run is not None and run.state in CLAIMABLE and run.ready_at <= now:
                claimable.append(run)
            for new in change.runs:
                if new.state in CLAIMABLE and new.ready_at <= now:
                    claimable.append(new)
        if claimable and before == 0:
            # In the next turn of the event loop: runs claimed here in the same commit need no message.
            asyncio.get_running_loop().call_soon(self._announce_claimable)

    def _announce_claimable(self) -> None:
        """Announce the runs that became claimable and that this instance does not hold."""
        claimable, self._claimable = self._claimable, []
        self.announce([run for run in claimable if not self._is_held(run.id)])

    def announce(self, runs: Sequence[Run]) -> None:
        """Queue a message of work for each run, in the topic of its lane."""
        for run in runs:
            self._outbox(work_topic(run.lane)).put(_encode(Hint(run.id, run.task)).decode())

    def publish_event(self, event: Event) -> None:
        """Queue an event for the broker's topic of events; drop it if the last check found no reader there."""
        if self.has_readers:
            self._outbox(EVENTS_TOPIC).put(event_text(event))

    async def check_readers(self) -> bool:
        """Ask the broker whether any program reads events, set `has_readers`, and pause for a second.

        Always return True, so that `BrokerAvailability.repeat` calls this again. Raises: BrokerError.
        """
        self.has_readers = await self._broker.has_readers(EVENTS_TOPIC)
        await asyncio.sleep(READERS_INTERVAL_SECONDS)
        return True

    def _outbox(self, topic: str) -> Outbox:
        """Return the outbox of a topic, which is made at its first use."""
        outbox = self._outboxes.get(topic)
        if outbox is None:
            outbox = self._outboxes[topic] = Outbox(topic, self._broker, self._availability)
        return outbox

    async def close(self) -> None:
        """Publish the waiting messages of all topics, for at most a second. Messages left after that are lost."""
        if self._claimable:
            self._announce_claimable()
        await asyncio.gather(*(outbox.close() for outbox in self._outboxes.values()))

    @property
    def sent(self) -> int:
        """Number of messages published, to all topics."""
        return sum(outbox.sent for outbox in self._outboxes.values())

    @property
    def dropped(self) -> int:
        """Number of messages dropped because an outbox was full, of all topics."""
        return sum(outbox.dropped for outbox in self._outboxes.values())


def event_text(event: Event) -> str:
    """Return an event as JSON for other programs: its type, then the fields that differ from their defaults.

    Of an event larger than `MAX_EVENT_BYTES`, only the fields common to all events are kept, and `"cut":true` is added.
    """
    kind = type(event).__name__
    text = _encode(event)
    if len(text) > MAX_EVENT_BYTES:
        columns = {name: getattr(event, name) for name in EVENT_BASE_FIELDS if getattr(event, name) is not None}
        text = _encode({**columns, "cut": True})
    rest = text[1:].decode()
    return f'{{"type":"{kind}"' + (rest if rest == "}" else f",{rest}")
