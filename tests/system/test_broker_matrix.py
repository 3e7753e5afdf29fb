"""Every store with every broker runs one small program, with the same results."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring, Retry, RunNotSuccessful, RunSucceeded, State
from mainspring.app.internals import host_of
from mainspring.ledger.account import ledger
from mainspring.runtime.store_url import _STORE_MAKERS
from servers import for_tests, for_tests_redis

RUNS = 60
STORES = ["memory", "sqlite", "postgresql", *(["redis"] if "redis" in _STORE_MAKERS else [])]
BROKERS = ["none", "memory", "valkey", "redis"]
_names = itertools.count(1)


def store_url(kind: str, tmp_path: Path) -> str:
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/x.db"
    if kind == "postgresql":
        return for_tests.fresh_url()
    return "memory://" if kind == "memory" else for_tests_redis.fresh_url()


def broker_url(kind: str) -> str | None:
    if kind == "none":
        return None
    if kind == "memory":
        return f"memory://matrix-{next(_names)}"
    return for_tests_redis.fresh_url(for_tests_redis.server_url(kind))  # type: ignore[arg-type]  # 'valkey' or 'redis'


class Shop:
    """The program: runs that succeed, fail at first or fail for good, and a schedule."""

    def __init__(self, url: str, broker: str | None) -> None:
        self.ms = Mainspring(url, broker=broker, name="shop", concurrency=4, poll_interval="200ms")
        self.calls: Counter[str] = Counter()
        self.ticks: list[int] = []
        soon = Retry(max_attempts=3, backoff="fixed", initial="10ms", jitter=0)

        @self.ms.task(name="double", retry=soon)
        async def double(n: int) -> int:
            self.calls[f"double {n}"] += 1
            if n % 10 == 0 and self.calls[f"double {n}"] == 1:
                raise ValueError("not at the first try")
            return 2 * n

        @self.ms.task(name="never", retry=Retry(max_attempts=1))
        def never() -> None:
            raise RuntimeError("never")

        @self.ms.task(name="tick")
        def tick() -> None:
            self.ticks.append(1)

        self.double, self.never, self.tick = double, never, tick


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize("store", STORES)
async def test_one_program_on_every_pair(store: str, broker: str, tmp_path: Path) -> None:
    url, way = store_url(store, tmp_path), broker_url(broker)
    began = time.monotonic()
    works = Shop(url, way)
    asks = works if store == "memory" else Shop(url, way)  # a memory store is private to its instance
    heard: list[Any] = []
    all_heard = asyncio.Event()

    def hear(event: RunSucceeded) -> None:
        heard.append(event)
        if len(heard) == RUNS + 4:
            all_heard.set()

    works.ms.on_event(RunSucceeded, hear, everywhere=True)
    async with works.ms.running():
        await asks.ms.schedule("ticks", "tick", every="100ms", max_runs=3, overlap="allow_parallel")
        handles = await asks.double.enqueue_many((n,) for n in range(RUNS))
        failing = await asks.never.enqueue()
        later = await asks.double.using(delay="300ms").enqueue(RUNS + 1)
        assert [await handle.result(timeout="20s") for handle in handles] == [2 * n for n in range(RUNS)]
        with pytest.raises(RunNotSuccessful):
            await failing.result(timeout="20s")
        assert await later.result(timeout="20s") == 2 * RUNS + 2
        async with asyncio.timeout(20):
            await all_heard.wait()
        assert works.ms.health().ok
        metrics = works.ms.metrics()
        runs = await asks.ms.runs(limit=1_000)
        told = await host_of(asks.ms).call(lambda runtime: ledger(runtime.store, runtime.time.now()))
    assert Counter(run.state for run in runs) == {State.SUCCEEDED: RUNS + 4, State.FAILED: 1}
    assert sum(count > 1 for count in works.calls.values()) == RUNS // 10
    assert told.unexplained == 0
    if asks is not works:
        await asks.ms.close()
    if broker != "none":
        assert metrics["broker_up"] == 1
        assert metrics["broker_messages_heard_total"] > 0
    claimed = int(metrics.get("broker_runs_claimed_total", 0))
    print(f"{store} × {broker}: {len(runs)} runs, {claimed} by messages, {time.monotonic() - began:.1f} s")


async def test_two_workers_share_what_the_messages_name(tmp_path: Path) -> None:
    url, way = store_url("sqlite", tmp_path), broker_url("memory")
    asks, one, two = (Shop(url, way) for _ in range(3))
    async with one.ms.running(), two.ms.running():
        handles = await asks.double.enqueue_many((n,) for n in range(1, 1_000) if n % 10)
        for handle in handles:
            await handle.result(timeout="20s")
        claimed = [shop.ms.metrics()["broker_messages_heard_total"] for shop in (one, two)]
    assert sum((one.calls + two.calls).values()) == len(handles)
    assert one.calls
    assert two.calls
    assert all(claimed), claimed
    await asks.ms.close()
