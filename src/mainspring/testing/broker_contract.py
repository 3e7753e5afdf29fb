"""The contract every broker keeps, as one test class for pytest.

A broker joins with three lines:

    class TestMine(BrokerContract):
        make = staticmethod(lambda place, limits: MyBroker(place, limits=limits))

`make` gives a broker that is not yet open; two of one `place` share their messages, as two processes would. Tests wait
for what must come; that something does not come is seen by what comes in its stead.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from mainspring.model.errors import BrokerUnavailable, InvalidInput
from mainspring.ports.broker import DEAD, Broker, Limits, Message

#: A machine may be slow; nothing here takes as long.
PATIENCE = 20.0
WORK = "work:default/default"
GROUP = "workers"
#: What is not acknowledged comes again soon.
SOON = Limits(redeliver_after=100)

_places = itertools.count(1)


class Reader:
    """One consumer, and what it was given."""

    def __init__(self, broker: Broker, topic: str, group: str | None, consumer: str, limit: int) -> None:
        self._messages = broker.consume(topic, group=group, consumer=consumer, limit=limit)

    async def batch(self) -> list[Message]:
        """The next messages, empty lists left out."""
        async with asyncio.timeout(PATIENCE):
            async for batch in self._messages:
                if batch:
                    return batch
        raise AssertionError("the stream of messages ended")

    async def round(self) -> list[Message]:
        """The next list, which may be empty."""
        async with asyncio.timeout(PATIENCE):
            return await anext(self._messages)

    async def take(self, count: int) -> list[Message]:
        """So many messages."""
        found: list[Message] = []
        while len(found) < count:
            found += await self.batch()
        assert len(found) == count, found
        return found

    async def one(self) -> Message:
        return (await self.take(1))[0]

    async def ready(self) -> Reader:
        """A consumer without a group hears what comes from now on: wait until now."""
        assert await self.round() == []
        return self

    async def close(self) -> None:
        await self._messages.aclose()


class Bench:
    """Brokers of one place, closed when the test is over."""

    def __init__(self, make: Callable[[str, Limits], Broker]) -> None:
        self._make = make
        self._place = f"contract-{os.getpid()}-{next(_places)}"
        self._brokers: list[Broker] = []
        self._readers: list[Reader] = []

    async def broker(self, limits: Limits | None = None) -> Broker:
        broker = self._make(self._place, limits or Limits())
        await broker.open()
        self._brokers.append(broker)
        return broker

    def reader(
        self, broker: Broker, *, topic: str = WORK, group: str | None = GROUP, consumer: str = "c1", limit: int = 100
    ) -> Reader:
        reader = Reader(broker, topic, group, consumer, limit)
        self._readers.append(reader)
        return reader

    async def close(self) -> None:
        for reader in self._readers:
            await reader.close()
        for broker in self._brokers:
            await broker.close()


def bodies(messages: Sequence[Message]) -> list[str]:
    """What they say."""
    return [message.body for message in messages]


class BrokerContract:
    """Run it with pytest; see the module."""

    make: ClassVar[Callable[[str, Limits], Broker]]

    @asynccontextmanager
    async def bench(self) -> AsyncGenerator[Bench, None]:
        bench = Bench(type(self).make)
        try:
            yield bench
        finally:
            await bench.close()

    # ── publish, consume, ack ──────────────────────────────────────────────

    async def test_messages_come_in_order_with_their_text(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            sent = ['{"run":"1"}', "", "ü €\n\0", "x" * 1_000]
            await broker.publish(WORK, sent)
            got = await bench.reader(broker).take(4)
            assert bodies(got) == sent
            assert {(message.topic, message.deliveries) for message in got} == {(WORK, 1)}
            assert len({message.id for message in got}) == 4

    async def test_nothing_published_is_nothing(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await broker.publish(WORK, [])
            await broker.ack([], group=GROUP)
            await broker.nack([], group=GROUP)
            assert (await broker.depth(WORK, group=GROUP)).waiting == 0

    async def test_a_batch_is_no_larger_than_asked(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await broker.publish(WORK, [str(n) for n in range(250)])
            reader = bench.reader(broker, limit=100)
            sizes = [len(await reader.batch()) for _ in range(3)]
            assert sizes == [100, 100, 50]

    async def test_thousands_in_one_call(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await broker.publish(WORK, [str(n) for n in range(3_500)])
            reader = bench.reader(broker, limit=1_000)
            got = await reader.take(3_500)
            await broker.ack(got, group=GROUP)
            assert bodies(got) == [str(n) for n in range(3_500)]
            assert (await broker.depth(WORK, group=GROUP)).waiting == 0

    async def test_a_consumer_is_woken_by_what_comes(self) -> None:
        async with self.bench() as bench:
            broker, other = await bench.broker(), await bench.broker()
            waiting = asyncio.create_task(bench.reader(broker).one())
            await asyncio.sleep(0)
            await other.publish(WORK, ["now"])
            assert (await waiting).body == "now"

    async def test_an_empty_list_says_that_the_broker_is_there(self) -> None:
        async with self.bench() as bench:
            await bench.reader(await bench.broker()).ready()

    async def test_topics_do_not_mix(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await broker.publish("work:a/mail", ["mail"])
            await broker.publish("work:a/default", ["default"])
            assert (await bench.reader(broker, topic="work:a/mail").one()).body == "mail"
            assert (await bench.reader(broker, topic="work:a/default").one()).body == "default"

    async def test_acknowledged_messages_do_not_come_again(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker(SOON)
            await broker.publish(WORK, ["done", "open"])
            reader = bench.reader(broker)
            done, unanswered = await reader.take(2)
            await broker.ack([done], group=GROUP)
            await broker.ack([done], group=GROUP)  # twice is no mistake
            again = await reader.one()
            assert (again.id, again.body, again.deliveries) == (unanswered.id, "open", 2)

    # ── groups ─────────────────────────────────────────────────────────────

    async def test_in_a_group_each_message_goes_to_one(self) -> None:
        async with self.bench() as bench:
            one, two = await bench.broker(), await bench.broker()
            first = bench.reader(one, consumer="c1", limit=1)
            second = bench.reader(two, consumer="c2", limit=1)
            await one.publish(WORK, ["a", "b"])
            assert {(await first.one()).body, (await second.one()).body} == {"a", "b"}

    async def test_every_group_gets_all_whatever_the_others_are_done_with(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            slow = bench.reader(broker, group="slow", limit=1)
            quick = bench.reader(broker, group="quick")
            await quick.ready()
            await slow.ready()
            await broker.publish(WORK, ["a", "b"])
            await broker.ack(await quick.take(2), group="quick")
            for body in ("a", "b"):
                message = await slow.one()
                assert message.body == body
                await broker.ack([message], group="slow")

    async def test_a_group_begins_with_what_is_there(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await broker.publish(WORK, ["before"])
            assert (await broker.depth(WORK, group=GROUP)).waiting == 1
            assert (await bench.reader(broker).one()).body == "before"
            assert (await broker.depth(WORK, group=GROUP)).waiting == 0

    async def test_without_a_group_everybody_gets_what_comes_from_now_on(self) -> None:
        async with self.bench() as bench:
            one, two = await bench.broker(), await bench.broker()
            await one.publish("events", ["before"])
            first = await bench.reader(one, topic="events", group=None, consumer="c1").ready()
            second = await bench.reader(two, topic="events", group=None, consumer="c2").ready()
            await two.publish("events", ["a", "b"])
            assert bodies(await first.take(2)) == bodies(await second.take(2)) == ["a", "b"]

    async def test_who_publishes_can_know_whether_anybody_reads(self) -> None:
        async with self.bench() as bench:
            broker, other = await bench.broker(), await bench.broker()
            await broker.publish("events", ["to nobody"])
            assert not await broker.audience("events")
            await bench.reader(other, topic="events", group=None).ready()
            assert await broker.audience("events")
            assert not await broker.audience(WORK)
            await bench.reader(other).ready()
            assert await broker.audience(WORK)

    # ── again ──────────────────────────────────────────────────────────────

    async def test_what_a_consumer_that_died_had_goes_to_another(self) -> None:
        async with self.bench() as bench:
            dying, other = await bench.broker(SOON), await bench.broker(SOON)
            await other.publish(WORK, ["a"])
            lost = await bench.reader(dying, consumer="dead").one()
            await dying.close()
            again = await bench.reader(other, consumer="alive").one()
            assert (again.id, again.body, again.deliveries) == (lost.id, "a", 2)

    async def test_what_is_under_way_does_not_come_to_others(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await broker.publish(WORK, ["a"])
            await bench.reader(broker, consumer="c1").one()
            other = bench.reader(broker, consumer="c2")
            await other.ready()
            await broker.publish(WORK, ["b"])
            assert (await other.one()).body == "b"

    async def test_refused_messages_come_again_at_once(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()  # the time-out is far away
            await broker.publish(WORK, ["a"])
            reader = bench.reader(broker)
            first = await reader.one()
            await broker.nack([first], group=GROUP)
            again = await reader.one()
            assert (again.id, again.deliveries) == (first.id, 2)

    async def test_refused_messages_come_again_after_their_delay(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await broker.publish(WORK, ["late", "later"])
            reader = bench.reader(broker)
            late, later = await reader.take(2)
            loop = asyncio.get_running_loop()
            began = loop.time()
            await broker.nack([later], group=GROUP, delay=30_000)
            await broker.nack([late], group=GROUP, delay=200)
            again = await reader.one()
            assert again.id == late.id
            assert loop.time() - began >= 0.15

    async def test_refusing_what_is_done_changes_nothing(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await broker.publish(WORK, ["a"])
            reader = bench.reader(broker)
            first = await reader.one()
            await broker.ack([first], group=GROUP)
            await broker.nack([first], group=GROUP)
            await broker.publish(WORK, ["b"])
            assert (await reader.one()).body == "b"

    # ── dead letters ───────────────────────────────────────────────────────

    async def test_delivered_too_often_is_a_dead_letter(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker(Limits(redeliver_after=50, max_deliveries=3))
            await broker.publish(WORK, ["poison"])
            reader = bench.reader(broker)
            assert [(await reader.one()).deliveries for _ in range(3)] == [1, 2, 3]
            await self._until_dead(broker, reader)
            (letter,) = await broker.dead()
            assert (letter.topic, letter.body, letter.deliveries) == (WORK, "poison", 3)
            assert "3 times" in letter.reason
            assert letter.at > 0

    async def test_refused_too_often_is_a_dead_letter(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker(Limits(max_deliveries=2))
            await broker.publish(WORK, ["poison"])
            reader = bench.reader(broker)
            for _ in range(2):
                await broker.nack([await reader.one()], group=GROUP)
            assert bodies_of(await broker.dead()) == ["poison"]
            await broker.publish(WORK, ["next"])
            assert (await reader.one()).body == "next"

    async def test_what_cannot_be_read_is_buried_at_once(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await broker.publish(WORK, ["\0 not JSON", "good"])
            reader = bench.reader(broker)
            bad, good = await reader.take(2)
            await broker.bury([bad], group=GROUP, reason="not JSON")
            await broker.ack([good], group=GROUP)
            (letter,) = await broker.dead()
            assert (letter.body, letter.reason, letter.topic) == ("\0 not JSON", "not JSON", WORK)
            assert (await broker.depth(WORK, group=GROUP)).waiting == 0

    async def test_dead_letters_are_replayed_where_they_came_from(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            letters = await self._buried(bench, broker, ["a", "b"])
            assert await broker.replay([letters[1].id, letters[1].id, "0-1", "none"]) == 1
            again = await bench.reader(broker).one()
            assert (again.topic, again.body, again.deliveries) == (WORK, "b", 1)
            assert bodies_of(await broker.dead()) == ["a"]

    async def test_dead_letters_are_discarded(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            letters = await self._buried(bench, broker, ["a", "b"])
            assert await broker.discard([letters[0].id]) == 1
            assert await broker.discard([letters[0].id]) == 0
            assert await broker.discard([]) == await broker.replay([]) == 0
            assert bodies_of(await broker.dead()) == ["b"]

    async def test_dead_letters_in_pages(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await self._buried(bench, broker, [str(n) for n in range(5)])
            first = await broker.dead(limit=2)
            second = await broker.dead(limit=2, after=first[-1].id)
            assert bodies_of([*first, *second]) == ["0", "1", "2", "3"]
            assert bodies_of(await broker.dead(after=second[-1].id)) == ["4"]

    # ── bounds, bad input, the end ─────────────────────────────────────────

    async def test_a_full_topic_makes_publishers_wait(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker(Limits(capacity=10))
            reader = bench.reader(broker, limit=5)
            await reader.ready()
            publishing = asyncio.create_task(broker.publish(WORK, [str(n) for n in range(25)]))
            got: list[Message] = []
            while len(got) < 25:
                batch = await reader.batch()
                assert (await broker.depth(WORK, group=GROUP)).waiting <= 10
                if len(got) + len(batch) <= 15:  # more has to be published before that
                    assert not publishing.done()
                await broker.ack(batch, group=GROUP)
                got += batch
            await publishing
            assert bodies(got) == [str(n) for n in range(25)]

    async def test_a_topic_that_no_group_reads_keeps_the_newest(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker(Limits(kept=100))
            for start in range(0, 2_000, 500):
                await broker.publish(WORK, [str(n) for n in range(start, start + 500)])
            held = (await broker.depth(WORK, group=GROUP)).waiting
            assert 100 <= held <= 400  # a server may keep somewhat more, where that is cheaper
            got = await bench.reader(broker, limit=1_000).take(held)
            assert bodies(got) == [str(n) for n in range(2_000 - held, 2_000)]

    async def test_bad_names_and_bodies_are_refused(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker(Limits(body=10))
            wrong: list[Any] = [("", "x"), ("a\n", "x"), (DEAD, "x"), ("x" * 300, "x"), (WORK, "x" * 11), (WORK, 7)]
            for topic, body in wrong:
                refused: InvalidInput | None = None
                try:
                    await broker.publish(topic, [body])
                except InvalidInput as error:
                    refused = error
                assert refused is not None, f"{topic!r} {body!r} was accepted"
                assert refused.fix
            assert (await broker.depth(WORK, group=GROUP)).waiting == 0

    async def test_closing_ends_whoever_consumes(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()

            async def read() -> list[str]:
                messages = broker.consume(WORK, group=GROUP, consumer="c1")
                try:
                    return [message.body async for batch in messages for message in batch]
                except BrokerUnavailable:
                    return []  # it was in the middle of asking

            reading = asyncio.create_task(read())
            await asyncio.sleep(0)
            await broker.close()
            async with asyncio.timeout(PATIENCE):
                assert await reading == []

    async def test_a_closed_broker_says_so_and_can_be_opened_again(self) -> None:
        async with self.bench() as bench:
            broker = await bench.broker()
            await broker.publish(WORK, ["kept"])
            await broker.close()
            try:
                await broker.publish(WORK, ["refused"])
            except BrokerUnavailable:
                pass
            else:
                raise AssertionError("a closed broker took a message")
            await broker.open()
            assert (await bench.reader(broker).one()).body == "kept"

    # ── steps ──────────────────────────────────────────────────────────────

    async def _buried(self, bench: Bench, broker: Broker, texts: list[str]) -> Sequence[Any]:
        await broker.publish(WORK, texts)
        got = await bench.reader(broker).take(len(texts))
        await broker.bury(got, group=GROUP, reason="a test")
        return await broker.dead()

    async def _until_dead(self, broker: Broker, reader: Reader) -> None:
        """A consumer that asks again meets what came too often."""
        async with asyncio.timeout(PATIENCE):
            while not await broker.dead():
                assert await reader.round() == []


def bodies_of(letters: Sequence[Any]) -> list[str]:
    """What dead letters say."""
    return [letter.body for letter in letters]
