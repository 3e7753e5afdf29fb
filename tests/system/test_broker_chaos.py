"""Failures of a broker cost time but no runs. `make chaos` runs these tests with larger counts."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from statistics import median

import pytest

from mainspring import Mainspring, State
from servers.for_tests import fresh_url
from servers.for_tests_redis import skipping
from servers.redis import RedisServer
from tests.system.scripts import run_script

#: Seconds for which the broker is down.
AWAY = float(os.environ.get("MAINSPRING_BROKER_AWAY", "2"))
KILLS = int(os.environ.get("MAINSPRING_BROKER_KILLS", "2"))
STOPS = int(os.environ.get("MAINSPRING_BROKER_STOPS", "1"))
RESTARTS = int(os.environ.get("MAINSPRING_BROKER_RESTARTS", "1"))
WIPES = int(os.environ.get("MAINSPRING_BROKER_WIPES", "1"))
#: Seconds within which full speed is reached after the broker is back.
BACK = 5.0


@pytest.mark.chaos
@pytest.mark.timeout(120 + 8 * (KILLS + STOPS + RESTARTS + WIPES))
def test_no_run_is_lost_when_messages_are_lost_doubled_late_or_wiped() -> None:
    counts = {"kills": KILLS, "stops": STOPS, "restarts": RESTARTS, "wipes": WIPES}
    lines = run_script("broker_kill_loop.py", *(f"--{name}={n}" for name, n in counts.items()))
    assert "0 violations" in "".join(lines)


async def until(fact: Callable[[], object], seconds: float) -> float:
    """Wait until `fact` returns a true value; return the seconds that it took."""
    began = time.monotonic()
    async with asyncio.timeout(seconds):
        while not fact():  # noqa: ASYNC110 - other processes and threads change it
            await asyncio.sleep(0.01)
    return time.monotonic() - began


class Pair:
    """An instance that enqueues and one that works; measures the time from enqueue to start."""

    def __init__(self, url: str, broker: str) -> None:
        self.began: dict[int, float] = {}
        self.calls: Counter[int] = Counter()
        self.asks, self.works = (Mainspring(url, broker=broker, poll_interval="500ms") for _ in range(2))

        def work(n: int) -> None:
            self.began.setdefault(n, time.monotonic())
            self.calls[n] += 1

        for ms in (self.asks, self.works):
            self.task = ms.task(name="work", executor="loop")(work)
        self.asked: dict[int, float] = {}
        self._enqueue = self.asks.tasks["work"]

    async def ask(self, seconds: float, least: int = 20) -> float:
        """Enqueue 50 runs a second for some seconds; return the median of the milliseconds from enqueue to start."""
        first, end = len(self.asked), time.monotonic() + seconds
        while time.monotonic() < end or len(self.asked) < first + least:
            n = len(self.asked)
            self.asked[n] = time.monotonic()
            await self._enqueue.enqueue(n)  # type: ignore[attr-defined]  # a task that takes a number
            await asyncio.sleep(0.02)
        numbers = range(first, len(self.asked))
        await until(lambda: all(n in self.began for n in numbers), 20)
        return median(1_000 * (self.began[n] - self.asked[n]) for n in numbers)


@pytest.mark.chaos
@pytest.mark.timeout(90 + AWAY)
async def test_a_broker_that_is_away_costs_time_only(caplog: pytest.LogCaptureFixture) -> None:
    redis = skipping(lambda: RedisServer("valkey").start())
    pair = Pair(fresh_url(), redis.url)

    def up() -> bool:
        return pair.works.health().ok

    try:
        async with pair.works.running():
            before = await pair.ask(0.5)
            heard = pair.works.metrics()["broker_messages_heard_total"]
            assert heard > 0
            redis.kill()
            noticed = await until(lambda: not up(), BACK)
            health = pair.works.health()
            assert (health.status, list(health.failing)) == ("degraded", ["broker"])
            away = await pair.ask(AWAY)
            assert not up()
            heard = pair.works.metrics()["broker_messages_heard_total"]
            redis.start()
            back = time.monotonic()
            await until(up, BACK)
            while pair.works.metrics()["broker_messages_heard_total"] <= heard:
                await pair.ask(0.0, least=1)
                assert time.monotonic() - back <= BACK
            took = time.monotonic() - back
            after = await pair.ask(0.5)
        runs = await pair.asks.runs(limit=100_000)
        assert Counter(run.state for run in runs) == {State.SUCCEEDED: len(pair.asked)}
        assert set(pair.calls.values()) == {1}
        said = [record.message for record in caplog.records if "the broker" in record.message]
        assert sum("the broker fails" in line for line in said) == 2, said  # each of the two instances logs it once
        assert sum("the broker answers again" in line for line in said) >= 1, said
    finally:
        await pair.asks.close()
        redis.remove()
    print(
        f"broker away for {AWAY:g} s: noticed after {noticed:.2f} s, back after {took:.2f} s; from enqueue to start "
        f"{before:.1f} ms before, {away:.1f} ms meanwhile, {after:.1f} ms after; {len(pair.asked)} runs, none lost"
    )
