"""Power cuts and failovers of Redis leave a beginning of the store's history, consistent in itself."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import Mainspring, Retry
from mainspring.backends.redis import RedisStore
from mainspring.ledger.verify import verify
from mainspring.ports.store import Events, Runs
from mainspring.testing.contract.factories import Ids, enqueue_change, make_run
from servers.for_tests_redis import skipping
from servers.redis import Kind, RedisServer, until

#: Number of times the file is truncated; `make chaos` sets more.
CUTS = int(os.environ.get("MAINSPRING_REDIS_CUTS", "6"))
#: The servers are removed with their test; each test runs `events verify` itself.
pytestmark = pytest.mark.tampers


async def _live(url: str) -> None:
    """Run schedules, retries, queues and ad-hoc work, so that the server's file holds scripts of every kind."""
    ms = Mainspring(url, poll_interval="50ms", concurrency=20)
    failed: set[str] = set()

    @ms.task(retry=Retry(max_attempts=3, initial="20ms", jitter=0))
    async def work(number: int) -> int:
        if number % 7 == 0 and str(number) not in failed:
            failed.add(str(number))
            raise ValueError("once")
        return number

    @ms.every("20ms", max_runs=5, missed="replay_all", overlap="queue_all")
    async def often() -> None: ...

    async with asyncio.timeout(60), ms.running():
        for number in range(30):
            await work.enqueue(number)
        while [run for run in await ms.runs(limit=1_000) if run.ended_at is None]:  # noqa: ASYNC110 - no event signals it
            await asyncio.sleep(0.02)
    await ms.close()


async def _history(url: str) -> list[str]:
    """Return the events of the log, after `verify` has found no difference between log and rows."""
    store = RedisStore(url)
    await store.open()
    try:
        report = await verify(store)
        assert report.ok, report.differences
        return [repr(event) for event in await store.find(Events(limit=100_000))]
    finally:
        await store.close()


@pytest.fixture(params=["valkey", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    kind: Kind = request.param
    found = skipping(lambda: RedisServer(kind, fsync="always").start())
    yield found
    found.remove()


@pytest.mark.chaos
@pytest.mark.timeout(120 + CUTS)
def test_a_file_that_a_power_cut_truncated_is_a_valid_beginning_of_the_history(
    server: RedisServer, tmp_path: Path
) -> None:
    asyncio.run(_live(server.url))
    whole = asyncio.run(_history(server.url))
    server.kill()
    (file,) = (path for path in server.folder.rglob("*.aof") if path.stat().st_size > 1_000)
    content = file.read_bytes()
    rng = random.Random(20261116)
    lengths = set()
    for _ in range(CUTS):
        file.write_bytes(content[: rng.randrange(len(content) // 20, len(content))])
        server.start()
        left = asyncio.run(_history(server.url))
        assert left == whole[: len(left)]
        lengths.add(len(left))
        server.kill()
    assert len(lengths) > 1, "the cuts fell into different scripts"


def test_writes_that_a_failover_lost_are_lost_whole(server: RedisServer) -> None:
    """A lagging replica becomes the primary, which is how a failover loses the last acknowledged writes."""
    replica = RedisServer(server.kind, replica_of=server).start()
    try:
        until(lambda: replica.info("replication").get("master_link_status") == "up", "the replica", replica.log)

        ids = Ids()

        async def enqueue(count: int) -> set[str]:
            store = RedisStore(server.url)
            await store.open()
            runs = [make_run(ids) for _ in range(count)]
            applied = await store.apply([enqueue_change(ids, run) for run in runs])
            await store.close()
            assert all(result.ok for result in applied.results)
            return {run.id for run in runs}

        carried = asyncio.run(enqueue(20))
        server.do("WAIT", 1, 10_000)
        replica.do("REPLICAOF", "127.0.0.1", 1)  # it stops replicating and keeps its data
        asyncio.run(enqueue(5))
        server.kill()
        replica.do("REPLICAOF", "NO", "ONE")

        async def look() -> set[str]:
            store = RedisStore(replica.url)
            await store.open()
            try:
                assert (await verify(store)).ok
                return {run.id for run in await store.find(Runs(limit=100))}
            finally:
                await store.close()

        assert asyncio.run(look()) == carried
    finally:
        replica.remove()
