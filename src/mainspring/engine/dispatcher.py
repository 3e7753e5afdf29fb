"""The dispatcher: tells the broker, after the commit, which runs became claimable and what happened.

Nothing waits for it. What does not fit its buffers, or is lost on the way, the workers find in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from mainspring.engine.line import Line, end
from mainspring.model.change import Change
from mainspring.model.events import COLUMNS, Event
from mainspring.model.instant import Ms
from mainspring.model.run import CLAIMABLE, Run
from mainspring.ports.broker import EVENTS, Broker

#: Messages of one topic that wait to be published; beyond that the oldest are left out.
BUFFER = 20_000
BATCH = 500
#: A longer event travels without its data.
MAX_EVENT = 8 * 1024
#: Seconds between two looks whether anybody reads events.
LOOK = 1.0
#: Seconds for what is left when the instance ends.
LAST_WORDS = 1.0


class Hint(Struct, frozen=True, gc=False):
    """A message of work: this run can be claimed. The task tells who may want to."""

    run: str
    task: str


_encode = msgspec.json.Encoder().encode


def work_topic(lane: str) -> str:
    """Where the runs of a lane are announced."""
    return f"work:{lane}"


class Outbox:
    """What waits to be published to one topic, and the task that does it while there is something."""

    def __init__(self, topic: str, broker: Broker, line: Line) -> None:
        self._topic = topic
        self._broker = broker
        self._line = line
        self._waiting: deque[str] = deque(maxlen=BUFFER)
        self._task: asyncio.Task[None] | None = None
        self.sent = 0
        self.dropped = 0

    def put(self, body: str) -> None:
        """Never waits."""
        self.dropped += len(self._waiting) == BUFFER
        self._waiting.append(body)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        try:
            await self._line.keep(f"publishing to {self._topic}", self._publish)
        finally:
            self._task = None

    async def _publish(self) -> bool:
        batch = [self._waiting[n] for n in range(min(BATCH, len(self._waiting)))]
        dropped = self.dropped
        await self._broker.publish(self._topic, batch)
        # Those dropped meanwhile were the first of these.
        for _ in range(max(0, len(batch) - (self.dropped - dropped))):
            self._waiting.popleft()
        self.sent += len(batch)
        return bool(self._waiting)

    async def close(self) -> None:
        """Publish what is left, if that is quick."""
        task = self._task
        if task is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS):
                    await asyncio.shield(task)
            await end(task)


class Dispatcher:
    """Lives on the engine's loop, from the opening of the store to its closing."""

    def __init__(self, broker: Broker, line: Line, now: Callable[[], Ms], held: Callable[[str], bool]) -> None:
        self._broker = broker
        self._line = line
        self._now = now
        self._held = held
        self._fresh: list[Run] = []
        #: Whether anybody reads events; told when that changes.
        self.wanted = False
        self.wants: Callable[[], None] = lambda: None
        self._outboxes: dict[str, Outbox] = {}

    def committed(self, changes: Sequence[Change]) -> None:
        """Remember the runs that can be claimed since this commit."""
        fresh, now = self._fresh, self._now()
        before = len(fresh)
        for change in changes:
            run = change.run
            if run is not None and run.state in CLAIMABLE and run.ready_at <= now:
                fresh.append(run)
            for new in change.runs:
                if new.state in CLAIMABLE and new.ready_at <= now:
                    fresh.append(new)
        if fresh and before == 0:
            # A little later: what the claim in the same commit took for this instance needs no message.
            asyncio.get_running_loop().call_soon(self._announce_fresh)

    def _announce_fresh(self) -> None:
        fresh, self._fresh = self._fresh, []
        self.announce([run for run in fresh if not self._held(run.id)])

    def announce(self, runs: Sequence[Run]) -> None:
        """Name runs to whoever may claim them."""
        for run in runs:
            self._outbox(work_topic(run.lane)).put(_encode(Hint(run.id, run.task)).decode())

    def event(self, event: Event) -> None:
        """Tell other programs what happened, if they want to know."""
        if self.wanted:
            self._outbox(EVENTS).put(event_text(event))

    async def look_for_audience(self) -> bool:
        """Find out whether anybody reads events."""
        wanted = await self._broker.audience(EVENTS)
        if wanted is not self.wanted:
            self.wanted = wanted
            self.wants()
        await asyncio.sleep(LOOK)
        return True

    def _outbox(self, topic: str) -> Outbox:
        outbox = self._outboxes.get(topic)
        if outbox is None:
            outbox = self._outboxes[topic] = Outbox(topic, self._broker, self._line)
        return outbox

    async def close(self) -> None:
        """Publish what is left, if that is quick."""
        if self._fresh:
            self._announce_fresh()
        await asyncio.gather(*(outbox.close() for outbox in self._outboxes.values()))

    @property
    def sent(self) -> int:
        """Messages published."""
        return sum(outbox.sent for outbox in self._outboxes.values())

    @property
    def dropped(self) -> int:
        """Messages left out because a buffer was full."""
        return sum(outbox.dropped for outbox in self._outboxes.values())


def event_text(event: Event) -> str:
    """An event as other programs read it: its type, then its fields that are not as they always are."""
    kind = type(event).__name__
    text = _encode(event)
    if len(text) > MAX_EVENT:
        columns = {name: getattr(event, name) for name in COLUMNS if getattr(event, name) is not None}
        text = _encode({**columns, "cut": True})
    rest = text[1:].decode()
    return f'{{"type":"{kind}"' + (rest if rest == "}" else f",{rest}")
