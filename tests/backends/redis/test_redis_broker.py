"""Redis Streams on real servers: errors of servers, messages of other programs, and the stream of events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager

import pytest
from click.testing import CliRunner

from mainspring import Mainspring
from mainspring.app.internals import host_of, runtime_of
from mainspring.cli.main import mainspring
from mainspring.model.errors import BrokerDenied, BrokerError, BrokerUnavailable
from mainspring.ports.broker import Broker, Depth, Message
from mainspring.ports.clock import SystemClock
from mainspring.runtime.broker_url import open_broker
from servers import for_tests_redis as servers
from servers.redis import RedisServer

WORK, GROUP = "work:default/default", "workers"


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Broker]:
    broker = open_broker(url, SystemClock())
    try:
        await broker.open()
        yield broker
    finally:
        await broker.close()


async def take(broker: Broker, count: int, topic: str = WORK) -> list[Message]:
    found: list[Message] = []
    async with asyncio.timeout(20), aclosing(broker.consume(topic, group=GROUP, consumer="c")) as batches:
        async for batch in batches:
            found += batch
            if len(found) >= count:
                return found
    raise AssertionError("the stream ended")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    one = servers.skipping(lambda: RedisServer("valkey").start())
    yield one
    one.remove()


@pytest.mark.parametrize("place", ["cluster", "sentinel"])
async def test_messages_travel_by_a_cluster_and_behind_a_sentinel(place: str) -> None:
    base = servers.cluster().url if place == "cluster" else servers.sentineled().url
    async with opened(servers.fresh_url(base)) as broker:
        for topic in ("work:a/one", "work:a/two", "events"):  # on different nodes
            await broker.publish(topic, ["1", "2", "3"])
            got = await take(broker, 3, topic)
            await broker.ack(got[:1], group=GROUP)
            await broker.nack(got[1:2], group=GROUP)
            await broker.bury(got[2:], group=GROUP, reason="a test")
            assert [one.body for one in await take(broker, 1, topic)] == ["2"]
            assert await broker.has_readers(topic)
            assert await broker.depth(topic, group=GROUP) == Depth(0, 1)
        letters = await broker.dead_letters()
        assert [letter.topic for letter in letters] == ["work:a/one", "work:a/two", "events"]
        assert await broker.replay([letter.id for letter in letters]) == 3


async def test_a_server_that_was_emptied_is_used_again_at_once() -> None:
    url = servers.fresh_url()
    async with opened(url) as broker, aclosing(broker.consume(WORK, group=GROUP, consumer="c")) as batches:
        assert await anext(batches) == []
        for _ in range(2):
            servers.server("valkey").do("DEL", broker.key(WORK))  # type: ignore[attr-defined]  # of Redis Streams only
            await broker.publish(WORK, ["after"])
            async with asyncio.timeout(20):
                while not (batch := await anext(batches)):
                    pass
            assert [one.body for one in batch] == ["after"]
            await broker.ack(batch, group=GROUP)


async def test_acknowledged_messages_leave_no_memory_behind() -> None:
    async with opened(servers.fresh_url()) as broker:
        await broker.publish(WORK, [str(n) for n in range(2_000)])
        await broker.ack(await take(broker, 2_000), group=GROUP)
        assert servers.server("valkey").do("XLEN", broker.key(WORK)) == 0  # type: ignore[attr-defined]


async def test_entries_of_other_programs_are_delivered_and_can_be_buried() -> None:
    server = servers.server("valkey")
    async with opened(servers.fresh_url()) as broker:
        key = broker.key(WORK)  # type: ignore[attr-defined]  # of Redis Streams
        with server.client() as client:
            client.xadd(key, {"something": "else"})
            client.xadd(key, {"body": b"\xff\xfe"})
        got = await take(broker, 2)
        assert [one.body for one in got] == ["", "\\xff\\xfe"]
        await broker.bury(got, group=GROUP, reason="not ours")
        assert [letter.reason for letter in await broker.dead_letters()] == ["not ours", "not ours"]


async def test_a_wrong_password_is_reported_with_the_fix() -> None:
    server = servers.skipping(lambda: RedisServer("valkey", password="secret").start())
    try:
        for login in ("", ":wrong@"):
            url = f"redis://{login}127.0.0.1:{server.port}/0"
            with pytest.raises(BrokerDenied, match="Check the URL"):
                async with opened(url):
                    pass
            ms = Mainspring("memory://", broker=url)

            @ms.task(name="work")
            async def work() -> str:
                return "done"

            async with ms.running():
                assert await (await work.enqueue()).result(timeout="10s") == "done"
                async with asyncio.timeout(10):
                    while ms.health().ok:  # noqa: ASYNC110 - the engine's thread finds out
                        await asyncio.sleep(0.01)
                assert "refused the user or the password" in ms.health().failing["broker"]
                assert "wrong@" not in ms.health().failing["broker"]
        async with opened(f"redis://:secret@127.0.0.1:{server.port}/0") as broker:
            await broker.publish(WORK, ["x"])
    finally:
        server.remove()


async def test_a_replica_and_an_absent_server_are_reported(server: RedisServer) -> None:
    replica = RedisServer("valkey", replica_of=server).start()
    try:
        with pytest.raises(BrokerUnavailable, match="read-only replica"):
            async with opened(replica.url):
                pass
        broker = open_broker(replica.url, SystemClock())
        with pytest.raises(BrokerError, match="read-only replica"):
            await broker.publish(WORK, ["x"])
        await broker.close()
    finally:
        replica.remove()
    with pytest.raises(BrokerUnavailable, match="does not answer"):
        async with opened(replica.url):
            pass


async def test_a_broker_goes_on_after_a_restart_of_its_server(server: RedisServer) -> None:
    async with opened(server.url) as broker:
        await broker.publish(WORK, ["before"])
        server.kill()
        with pytest.raises(BrokerUnavailable):
            await broker.publish(WORK, ["lost"])
        server.start()
        await broker.publish(WORK, ["after"])
        assert [one.body for one in await take(broker, 2)] == ["before", "after"]


async def test_events_are_in_the_stream_that_source_000_names(server: RedisServer) -> None:
    ms = Mainspring("memory://", broker=f"{server.url}?events=always")

    @ms.task(name="work")
    async def work() -> None: ...

    async with ms.running():
        assert host_of(ms).runtime is not None
        assert runtime_of(ms).broker_link is not None
        dispatcher = runtime_of(ms).broker_link.dispatcher
        async with asyncio.timeout(10):
            while not dispatcher.has_readers:  # noqa: ASYNC110 - the engine's thread finds out
                await asyncio.sleep(0.01)
        handle = await work.enqueue()
        await handle.result(timeout="10s")
    with server.client() as client:
        published = [json.loads(fields["body"]) for _, fields in client.xrange("scheduler-events")]
    assert [one["type"] for one in published if one.get("run_id") == handle.id] == [
        "RunScheduled",
        "RunStarted",
        "RunSucceeded",
    ]


def test_the_command_line_shows_replays_and_discards_dead_letters() -> None:
    url = servers.fresh_url()

    async def prepare() -> None:
        async with opened(url) as broker:
            await broker.publish(WORK, ["one", "two", "three"])
            await broker.bury(await take(broker, 3), group=GROUP, reason="not JSON")

    def run_command(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(mainspring, ["broker", *words], env={"MAINSPRING_BROKER": url})
        assert done.exit_code == code, done.output
        return done.output

    asyncio.run(prepare())
    letters = json.loads(run_command("dead", "--json"))
    assert [letter["body"] for letter in letters] == ["one", "two", "three"]
    assert "not JSON: 'one'" in run_command("dead", "--limit", "1")
    assert run_command("replay", letters[0]["id"]) == "1 replayed\n"
    assert run_command("replay", letters[0]["id"], code=1) == "0 replayed, 1 not found\n"
    assert run_command("discard", "--all") == "2 discarded\n"
    assert "work:default/default: 1 waiting, 0 not acknowledged" in run_command("status")
    assert "give either ids or --all" in run_command("discard", code=2)
    assert "lives inside one process" in run_command("dead", "--broker", "memory://", code=2)
