"""The contract of the broker port, as one test class for pytest.

To test a broker, write three lines:

    class TestMine(BrokerContract):
        make = staticmethod(lambda place, limits: MyBroker(place, limits=limits))

`make` returns a broker that is not yet open. Two brokers with the same `place` share their messages, as two processes
would. Tests wait for messages that must arrive. To show that a message does not arrive, they wait for a later one.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from mainspring.model.errors import BrokerUnavailable, InvalidInput
from mainspring.ports.broker import DEAD_LETTER_TOPIC, Broker, BrokerLimits, Message

#: Time-out of every wait for messages: longer than any of these tests takes on a slow machine.
MESSAGE_TIMEOUT_SECONDS = 20.0
WORK_TOPIC = "work:default/default"
WORKER_GROUP = "workers"
#: Limits under which an unacknowledged message is redelivered after 100 ms.
QUICK_REDELIVERY = BrokerLimits(redeliver_after=100)

_places = itertools.count(1)


class Reader:
    """One consumer of a topic, with methods that wait for its messages."""

    def __init__(self, broker: Broker, topic: str, group: str | None, consumer: str, limit: int) -> None:
        self._messages = broker.consume(topic, group=group, consumer=consumer, limit=limit)

    async def next_messages(self) -> list[Message]:
        """Wait for the next list of messages that is not empty, and return it."""
        async with asyncio.timeout(MESSAGE_TIMEOUT_SECONDS):
            async for batch in self._messages:
                if batch:
                    return batch
        raise AssertionError("the stream of messages ended")

    async def next_batch(self) -> list[Message]:
        """Wait for the next list of messages and return it; it may be empty, as the first list always is."""
        async with asyncio.timeout(MESSAGE_TIMEOUT_SECONDS):
            return await anext(self._messages)

    async def take(self, count: int) -> list[Message]:
        """Wait for `count` messages and return them; fail if the list that brings the last one brings more."""
        found: list[Message] = []
        while len(found) < count:
            found += await self.next_messages()
        assert len(found) == count, found
        return found

    async def one(self) -> Message:
        """Wait for a message and return it; fail if its list brings more than one."""
        return (await self.take(1))[0]

    async def wait_until_subscribed(self) -> Reader:
        """Wait until the consumer is subscribed, and return this reader.

        The consumer's first list, which is always empty, shows that. Why wait: a consumer without a group receives only
        messages that are published after it has subscribed.
        """
        assert await self.next_batch() == []
        return self

    async def close(self) -> None:
        await self._messages.aclose()


class BrokerBench:
    """The brokers and consumers of one test, all at one new place; `close` closes them."""

    def __init__(self, make: Callable[[str, BrokerLimits], Broker]) -> None:
        self._make = make
        self._place = f"contract-{os.getpid()}-{next(_places)}"
        self._brokers: list[Broker] = []
        self._readers: list[Reader] = []

    async def broker(self, limits: BrokerLimits | None = None) -> Broker:
        """Open and return one more broker at the place of the test; `limits` None: the default ones."""
        broker = self._make(self._place, limits or BrokerLimits())
        await broker.open()
        self._brokers.append(broker)
        return broker

    def reader(
        self,
        broker: Broker,
        *,
        topic: str = WORK_TOPIC,
        group: str | None = WORKER_GROUP,
        consumer: str = "c1",
        limit: int = 100,
    ) -> Reader:
        """Return a new consumer of a topic, named `consumer`; `limit` is the most messages in one list."""
        reader = Reader(broker, topic, group, consumer, limit)
        self._readers.append(reader)
        return reader

    async def close(self) -> None:
        for reader in self._readers:
            await reader.close()
        for broker in self._brokers:
            await broker.close()


def bodies(messages: Sequence[Message]) -> list[str]:
    """Return the bodies of messages."""
    return [message.body for message in messages]


class BrokerContract:
    """Tests of the broker port. A subclass sets `make`: given place and limits, it returns a broker, not yet open."""

    make: ClassVar[Callable[[str, BrokerLimits], Broker]]

    @asynccontextmanager
    async def bench(self) -> AsyncGenerator[BrokerBench, None]:
        """Yield a bench at a new place, and close its brokers and consumers at the end."""
        bench = BrokerBench(type(self).make)
        try:
            yield bench
        finally:
            await bench.close()

    # ── publish, consume, ack ──────────────────────────────────────────────

    async def test_messages_come_in_order_with_their_text(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            sent = ['{"run":"1"}', "", "ü €\n\0", "x" * 1_000]
            await broker.publish(WORK_TOPIC, sent)
            got = await bench.reader(broker).take(4)
            assert bodies(got) == sent
            assert {(message.topic, message.deliveries) for message in got} == {(WORK_TOPIC, 1)}
            assert len({message.id for message in got}) == 4

    async def test_nothing_published_is_nothing(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await broker.publish(WORK_TOPIC, [])
            await broker.ack([], group=WORKER_GROUP)
            await broker.nack([], group=WORKER_GROUP)
            assert (await broker.depth(WORK_TOPIC, group=WORKER_GROUP)).waiting == 0

    async def test_a_batch_is_no_larger_than_asked(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await broker.publish(WORK_TOPIC, [str(n) for n in range(250)])
            reader = bench.reader(broker, limit=100)
            sizes = [len(await reader.next_messages()) for _ in range(3)]
            assert sizes == [100, 100, 50]

    async def test_thousands_in_one_call(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await broker.publish(WORK_TOPIC, [str(n) for n in range(3_500)])
            reader = bench.reader(broker, limit=1_000)
            got = await reader.take(3_500)
            await broker.ack(got, group=WORKER_GROUP)
            assert bodies(got) == [str(n) for n in range(3_500)]
            assert (await broker.depth(WORK_TOPIC, group=WORKER_GROUP)).waiting == 0

    async def test_a_waiting_consumer_is_woken_by_a_message(self) -> None:
        async with self.bench() as bench:
            broker, other = await bench.broker(), await bench.broker()
            waiting = asyncio.create_task(bench.reader(broker).one())
            await asyncio.sleep(0)
            await other.publish(WORK_TOPIC, ["now"])
            assert (await waiting).body == "now"

    async def test_an_idle_consumer_receives_empty_lists(self) -> None:
        async with self.bench() as bench:
            await bench.reader(await bench.broker()).wait_until_subscribed()

    async def test_topics_do_not_mix(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await broker.publish("work:a/mail", ["mail"])
            await broker.publish("work:a/default", ["default"])
            assert (await bench.reader(broker, topic="work:a/mail").one()).body == "mail"
            assert (await bench.reader(broker, topic="work:a/default").one()).body == "default"

    async def test_acknowledged_messages_are_not_redelivered(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker(QUICK_REDELIVERY)
            await broker.publish(WORK_TOPIC, ["done", "open"])
            reader = bench.reader(broker)
            done, unanswered = await reader.take(2)
            await broker.ack([done], group=WORKER_GROUP)
            await broker.ack([done], group=WORKER_GROUP)  # a second acknowledgement has no effect
            again = await reader.one()
            assert (again.id, again.body, again.deliveries) == (unanswered.id, "open", 2)

    # ── groups ─────────────────────────────────────────────────────────────

    async def test_each_message_goes_to_one_consumer_of_a_group(self) -> None:
        async with self.bench() as bench:
            one, two = await bench.broker(), await bench.broker()
            first = bench.reader(one, consumer="c1", limit=1)
            second = bench.reader(two, consumer="c2", limit=1)
            await one.publish(WORK_TOPIC, ["a", "b"])
            assert {(await first.one()).body, (await second.one()).body} == {"a", "b"}

    async def test_every_group_receives_every_message(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            slow = bench.reader(broker, group="slow", limit=1)
            quick = bench.reader(broker, group="quick")
            await quick.wait_until_subscribed()
            await slow.wait_until_subscribed()
            await broker.publish(WORK_TOPIC, ["a", "b"])
            await broker.ack(await quick.take(2), group="quick")
            for body in ("a", "b"):
                message = await slow.one()
                assert message.body == body
                await broker.ack([message], group="slow")

    async def test_a_new_group_receives_messages_published_before_it(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await broker.publish(WORK_TOPIC, ["before"])
            assert (await broker.depth(WORK_TOPIC, group=WORKER_GROUP)).waiting == 1
            assert (await bench.reader(broker).one()).body == "before"
            assert (await broker.depth(WORK_TOPIC, group=WORKER_GROUP)).waiting == 0

    async def test_every_consumer_without_a_group_receives_later_messages(self) -> None:
        async with self.bench() as bench:
            one, two = await bench.broker(), await bench.broker()
            await one.publish("events", ["before"])
            first = await bench.reader(one, topic="events", group=None, consumer="c1").wait_until_subscribed()
            second = await bench.reader(two, topic="events", group=None, consumer="c2").wait_until_subscribed()
            await two.publish("events", ["a", "b"])
            assert bodies(await first.take(2)) == bodies(await second.take(2)) == ["a", "b"]

    async def test_audience_is_true_while_a_topic_has_a_consumer(self) -> None:
        async with self.bench() as bench:
            broker, other = await bench.broker(), await bench.broker()
            await broker.publish("events", ["to nobody"])
            assert not await broker.has_readers("events")
            await bench.reader(other, topic="events", group=None).wait_until_subscribed()
            assert await broker.has_readers("events")
            assert not await broker.has_readers(WORK_TOPIC)
            await bench.reader(other).wait_until_subscribed()
            assert await broker.has_readers(WORK_TOPIC)

    # ── again ──────────────────────────────────────────────────────────────

    async def test_messages_of_a_dead_consumer_are_redelivered_to_another(self) -> None:
        async with self.bench() as bench:
            dying, other = await bench.broker(QUICK_REDELIVERY), await bench.broker(QUICK_REDELIVERY)
            await other.publish(WORK_TOPIC, ["a"])
            lost = await bench.reader(dying, consumer="dead").one()
            await dying.close()
            again = await bench.reader(other, consumer="alive").one()
            assert (again.id, again.body, again.deliveries) == (lost.id, "a", 2)

    async def test_an_unacknowledged_message_is_not_delivered_twice_before_the_time_out(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await broker.publish(WORK_TOPIC, ["a"])
            await bench.reader(broker, consumer="c1").one()
            other = bench.reader(broker, consumer="c2")
            await other.wait_until_subscribed()
            await broker.publish(WORK_TOPIC, ["b"])
            assert (await other.one()).body == "b"

    async def test_nacked_messages_are_redelivered_at_once(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()  # with the default limits, no message is redelivered during the test
            await broker.publish(WORK_TOPIC, ["a"])
            reader = bench.reader(broker)
            first = await reader.one()
            await broker.nack([first], group=WORKER_GROUP)
            again = await reader.one()
            assert (again.id, again.deliveries) == (first.id, 2)

    async def test_nacked_messages_are_redelivered_after_their_delay(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await broker.publish(WORK_TOPIC, ["late", "later"])
            reader = bench.reader(broker)
            late, later = await reader.take(2)
            loop = asyncio.get_running_loop()
            began = loop.time()
            await broker.nack([later], group=WORKER_GROUP, delay=30_000)
            await broker.nack([late], group=WORKER_GROUP, delay=200)
            again = await reader.one()
            assert again.id == late.id
            assert loop.time() - began >= 0.15

    async def test_a_nack_after_an_ack_changes_nothing(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await broker.publish(WORK_TOPIC, ["a"])
            reader = bench.reader(broker)
            first = await reader.one()
            await broker.ack([first], group=WORKER_GROUP)
            await broker.nack([first], group=WORKER_GROUP)
            await broker.publish(WORK_TOPIC, ["b"])
            assert (await reader.one()).body == "b"

    # ── dead letters ───────────────────────────────────────────────────────

    async def test_a_message_delivered_too_often_becomes_a_dead_letter(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker(BrokerLimits(redeliver_after=50, max_deliveries=3))
            await broker.publish(WORK_TOPIC, ["poison"])
            reader = bench.reader(broker)
            assert [(await reader.one()).deliveries for _ in range(3)] == [1, 2, 3]
            await self._until_dead(broker, reader)
            (letter,) = await broker.dead_letters()
            assert (letter.topic, letter.body, letter.deliveries) == (WORK_TOPIC, "poison", 3)
            assert "3 times" in letter.reason
            assert letter.at > 0

    async def test_a_message_nacked_too_often_becomes_a_dead_letter(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker(BrokerLimits(max_deliveries=2))
            await broker.publish(WORK_TOPIC, ["poison"])
            reader = bench.reader(broker)
            for _ in range(2):
                await broker.nack([await reader.one()], group=WORKER_GROUP)
            assert bodies_of_letters(await broker.dead_letters()) == ["poison"]
            await broker.publish(WORK_TOPIC, ["next"])
            assert (await reader.one()).body == "next"

    async def test_a_buried_message_becomes_a_dead_letter_at_once(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await broker.publish(WORK_TOPIC, ["\0 not JSON", "good"])
            reader = bench.reader(broker)
            bad, good = await reader.take(2)
            await broker.bury([bad], group=WORKER_GROUP, reason="not JSON")
            await broker.ack([good], group=WORKER_GROUP)
            (letter,) = await broker.dead_letters()
            assert (letter.body, letter.reason, letter.topic) == ("\0 not JSON", "not JSON", WORK_TOPIC)
            assert (await broker.depth(WORK_TOPIC, group=WORKER_GROUP)).waiting == 0

    async def test_dead_letters_are_replayed_to_their_topic(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            letters = await self._buried(bench, broker, ["a", "b"])
            assert await broker.replay([letters[1].id, letters[1].id, "0-1", "none"]) == 1
            again = await bench.reader(broker).one()
            assert (again.topic, again.body, again.deliveries) == (WORK_TOPIC, "b", 1)
            assert bodies_of_letters(await broker.dead_letters()) == ["a"]

    async def test_dead_letters_are_discarded(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            letters = await self._buried(bench, broker, ["a", "b"])
            assert await broker.discard([letters[0].id]) == 1
            assert await broker.discard([letters[0].id]) == 0
            assert await broker.discard([]) == await broker.replay([]) == 0
            assert bodies_of_letters(await broker.dead_letters()) == ["b"]

    async def test_dead_letters_in_pages(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await self._buried(bench, broker, [str(n) for n in range(5)])
            first = await broker.dead_letters(limit=2)
            second = await broker.dead_letters(limit=2, after=first[-1].id)
            assert bodies_of_letters([*first, *second]) == ["0", "1", "2", "3"]
            assert bodies_of_letters(await broker.dead_letters(after=second[-1].id)) == ["4"]

    # ── bounds, bad input, the end ─────────────────────────────────────────

    async def test_a_full_topic_makes_publishers_wait(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker(BrokerLimits(capacity=10))
            reader = bench.reader(broker, limit=5)
            await reader.wait_until_subscribed()
            publishing = asyncio.create_task(broker.publish(WORK_TOPIC, [str(n) for n in range(25)]))
            got: list[Message] = []
            while len(got) < 25:
                batch = await reader.next_messages()
                assert (await broker.depth(WORK_TOPIC, group=WORKER_GROUP)).waiting <= 10
                if len(got) + len(batch) <= 15:  # the topic has room for 10, so the last of 25 cannot be published yet
                    assert not publishing.done()
                await broker.ack(batch, group=WORKER_GROUP)
                got += batch
            await publishing
            assert bodies(got) == [str(n) for n in range(25)]

    async def test_a_topic_that_no_group_reads_keeps_the_newest(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker(BrokerLimits(kept=100))
            for start in range(0, 2_000, 500):
                await broker.publish(WORK_TOPIC, [str(n) for n in range(start, start + 500)])
            held = (await broker.depth(WORK_TOPIC, group=WORKER_GROUP)).waiting
            assert 100 <= held <= 400  # a server may keep more than the limit, because it removes messages in blocks
            got = await bench.reader(broker, limit=1_000).take(held)
            assert bodies(got) == [str(n) for n in range(2_000 - held, 2_000)]

    async def test_bad_names_and_bodies_are_refused(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker(BrokerLimits(body=10))
            wrong: list[Any] = [
                ("", "x"),
                ("a\n", "x"),
                (DEAD_LETTER_TOPIC, "x"),
                ("x" * 300, "x"),
                (WORK_TOPIC, "x" * 11),
                (WORK_TOPIC, 7),
            ]
            for topic, body in wrong:
                refused: InvalidInput | None = None
                try:
                    await broker.publish(topic, [body])
                except InvalidInput as error:
                    refused = error
                assert refused is not None, f"{topic!r} {body!r} was accepted"
                assert refused.fix
            assert (await broker.depth(WORK_TOPIC, group=WORKER_GROUP)).waiting == 0

    async def test_closing_ends_consumers(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()

            async def read() -> list[str]:
                messages = broker.consume(WORK_TOPIC, group=WORKER_GROUP, consumer="c1")
                try:
                    return [message.body async for batch in messages for message in batch]
                except BrokerUnavailable:
                    return []  # closed while a request was under way

            reading = asyncio.create_task(read())
            await asyncio.sleep(0)
            await broker.close()
            async with asyncio.timeout(MESSAGE_TIMEOUT_SECONDS):
                assert await reading == []

    async def test_a_closed_broker_refuses_messages_and_can_be_opened_again(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await broker.publish(WORK_TOPIC, ["kept"])
            await broker.close()
            try:
                await broker.publish(WORK_TOPIC, ["refused"])
            except BrokerUnavailable:
                pass
            else:
                raise AssertionError("a closed broker took a message")
            await broker.open()
            assert (await bench.reader(broker).one()).body == "kept"

    # ── steps ──────────────────────────────────────────────────────────────

    async def _buried(self, bench: BrokerBench, broker: Broker, texts: list[str]) -> Sequence[Any]:
        """Publish messages with these texts, bury them, and return the dead letters."""
        await broker.publish(WORK_TOPIC, texts)
        got = await bench.reader(broker).take(len(texts))
        await broker.bury(got, group=WORKER_GROUP, reason="a test")
        return await broker.dead_letters()

    async def _until_dead(self, broker: Broker, reader: Reader) -> None:
        """Poll with `reader` until the broker has a dead letter.

        Fail if a poll returns a message, or after `MESSAGE_TIMEOUT_SECONDS`. Why poll: only at its next poll does the
        broker bury a message delivered too often.
        """
        async with asyncio.timeout(MESSAGE_TIMEOUT_SECONDS):
            while not await broker.dead_letters():
                assert await reader.next_batch() == []


def bodies_of_letters(letters: Sequence[Any]) -> list[str]:
    """Return the bodies of dead letters."""
    return [letter.body for letter in letters]
