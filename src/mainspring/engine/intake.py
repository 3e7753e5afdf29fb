"""The intake: messages of work from the broker to the workers of this instance, and the answers back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Container, Sequence

import msgspec

from mainspring.engine.dispatcher import Hint, work_topic
from mainspring.engine.inbox import Inbox
from mainspring.engine.line import Line, end
from mainspring.engine.worker import Worker
from mainspring.model.change import Change
from mainspring.model.errors import BrokerError
from mainspring.model.run import ENDED, State
from mainspring.ports.broker import Broker, Message
from mainspring.ports.clock import Clock

log = logging.getLogger("mainspring.engine")

GROUP = "workers"
#: So many named runs may wait for slots here, for each slot; then no more messages are read. At least so many.
AHEAD, LEAST = 10, 100
#: A message that found no slot for so many seconds, or two polls, has nothing more to say.
STALE = 2.0
LAST_WORDS = 1.0
#: Answers wait for company so many seconds, or until there are so many: nobody waits for them.
PACE, ENOUGH = 0.2, 1_000

_decoder = msgspec.json.Decoder(Hint)


class Intake:
    """One consumer for each lane; lives on the engine's loop between start and stop."""

    def __init__(
        self, broker: Broker, line: Line, clock: Clock, owner: str, lanes: Sequence[str], poll: float, slots: int
    ) -> None:
        self._broker = broker
        self._line = line
        self._clock = clock
        self._owner = owner
        self._lanes = lanes
        self._poll = poll
        self._ahead = max(LEAST, AHEAD * slots)
        self._workers: list[tuple[Worker, Inbox]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._done: list[Message] = []
        self._acking: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self.heard = 0
        self.buried = 0

    def serve(self, worker: Worker, tasks: Container[str], unstored: Container[str]) -> None:
        """Tell this worker, too, about runs that it can run."""
        inbox = Inbox(tasks, worker.running, unstored, self._poll, self._finish, self._room.set)
        worker.inbox = inbox
        self._workers.append((worker, inbox))

    def start(self) -> None:
        """Begin to read."""
        loop = asyncio.get_running_loop()
        for lane in self._lanes:
            topic = work_topic(lane)
            self._tasks.append(loop.create_task(self._keep_reading(topic), name=f"mainspring-intake-{lane}"))

    async def stop_reading(self) -> None:
        """Read no more, and leave to others what waits here."""
        tasks, self._tasks = self._tasks, []
        await end(*tasks)
        left = [message for _, inbox in self._workers for message in inbox.give_up()]
        if left:
            with contextlib.suppress(BrokerError, TimeoutError):
                async with asyncio.timeout(LAST_WORDS):
                    await self._broker.nack(left, group=GROUP)

    async def stop(self) -> None:
        """Say the last answers, if that is quick."""
        await self.stop_reading()
        for worker, _ in self._workers:
            worker.inbox = None
        task = self._acking
        if task is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS):
                    await asyncio.shield(task)
            await end(task)

    @property
    def claimed(self) -> int:
        """Runs that were claimed by name."""
        return sum(inbox.claimed for _, inbox in self._workers)

    # ── reading ────────────────────────────────────────────────────────────

    async def _keep_reading(self, topic: str) -> None:
        async def read() -> bool:
            await self._read(topic)
            return False

        await self._line.keep(f"reading {topic}", read)

    async def _read(self, topic: str) -> None:
        messages = self._broker.consume(topic, group=GROUP, consumer=self._owner, limit=min(1_000, self._ahead // 2))
        async with contextlib.aclosing(messages):
            async for batch in messages:
                self._line.works(f"reading {topic}")
                if batch:
                    await self._take(batch)
                    await self._wait_for_room()

    async def _take(self, batch: Sequence[Message]) -> None:
        self.heard += len(batch)
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
                self._finish(message)  # somebody who knows the task finds its run in the store
        for worker in awake:
            worker.wake()
        if bad:
            self.buried += len(bad)
            log.error("%d messages of %s cannot be read; they are dead letters now", len(bad), bad[0].topic)
            await self._broker.bury(bad, group=GROUP, reason="not a message of work")

    async def _wait_for_room(self) -> None:
        while sum(len(inbox.named) for _, inbox in self._workers) >= self._ahead:
            self._room.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll / 2):
                    await self._room.wait()
            before = self._clock.monotonic() - max(STALE, 2 * self._poll)
            for _, inbox in self._workers:
                inbox.forget(before)

    # ── answering ──────────────────────────────────────────────────────────

    def committed(self, changes: Sequence[Change]) -> None:
        """Outcomes that are stored, of runs that are held or named here."""
        inboxes = [inbox for _, inbox in self._workers]
        for change in changes:
            run = change.run
            if run is None or run.state is State.RUNNING:
                continue
            ended = run.state in ENDED
            for inbox in inboxes:
                if run.task in inbox.tasks:
                    inbox.stored(run.id, ended=ended)

    def _finish(self, message: Message) -> None:
        self._done.append(message)
        if self._acking is None:
            self._acking = asyncio.get_running_loop().create_task(self._ack())

    async def _ack(self) -> None:
        """In one call for all that meet; an answer that is lost costs a question later."""
        try:
            while self._done:
                if len(self._done) < ENOUGH and self._tasks:
                    await asyncio.sleep(PACE)
                done, self._done = self._done, []
                with contextlib.suppress(BrokerError):  # whoever reads will see it, too
                    await self._broker.ack(done, group=GROUP)
        finally:
            self._acking = None
