"""The engine on Valkey and Redis: the README's program, two instances on one prefix, connections that are cut."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import redis
from support import WAIT, beside

from mainspring import Context, Mainspring, Retry, State
from mainspring.ledger import ledger
from mainspring.ports.clock import SystemClock
from mainspring.stores.redis import RedisStore
from servers.for_tests_redis import fresh_url, server_url

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(params=["valkey", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    return fresh_url(server_url(request.param))


class Instance:
    """A Mainspring on the server, with tasks that write down who called them."""

    def __init__(self, url: str, name: str, calls: list[tuple[str, str]]) -> None:
        self.ms = ms = Mainspring(url, name="shop", concurrency=5, poll_interval="200ms", lease_ttl="10s")

        @ms.task
        async def work(number: int) -> int:
            calls.append((name, f"work {number}"))
            return number

        @ms.task(retry=Retry(max_attempts=3, initial="10ms", jitter=0))
        async def flaky(ctx: Context) -> str:
            calls.append((name, f"{ctx.run_id} {ctx.attempt}"))
            if ctx.attempt < 3:
                raise ValueError("not yet")
            return "done"

        @ms.every("250ms")
        async def tick(ctx: Context) -> None:
            calls.append((name, f"tick {ctx.fire_time}"))

        self.work, self.flaky = work, flaky


async def test_two_instances_on_redis_run_each_run_once(url: str) -> None:
    calls: list[tuple[str, str]] = []
    one, two = Instance(url, "one", calls), Instance(url, "two", calls)
    async with beside(one.ms), beside(two.ms):
        handles = [*(await one.work.enqueue_many([(i,) for i in range(60)]))]
        handles += [await two.work.enqueue(60 + i) for i in range(10)]
        tried = await two.flaky.enqueue()
        results = [await handle.result(timeout=WAIT) for handle in handles]
        assert sorted(results) == list(range(70))
        assert await tried.result(timeout=WAIT) == "done"
        async with asyncio.timeout(20):
            while len({what for _, what in calls if what.startswith("tick")}) < 6:  # noqa: ASYNC110 - as they come
                await asyncio.sleep(0.02)
    for app in (one.ms, two.ms):
        await app.close()
    assert set(Counter(what for _, what in calls).values()) == {1}
    assert {name for name, _ in calls} == {"one", "two"}
    store = RedisStore(url)
    await store.open()
    books = await ledger(store, SystemClock().now())
    await store.close()
    assert (books.unexplained, books.differences) == (0, [])
    assert books.planned >= 6


async def test_an_instance_on_redis_comes_back_by_itself_when_its_connections_are_cut(url: str) -> None:
    calls: list[tuple[str, str]] = []
    one = Instance(url, "one", calls)
    with redis.Redis.from_url(url.partition("?")[0]) as killer:
        async with beside(one.ms):
            assert await (await one.work.enqueue(1)).result(timeout=WAIT) == 1
            for number in range(2, 6):
                for client in killer.client_list():
                    if client["name"] == "mainspring":
                        killer.client_kill_filter(_id=client["id"])
                handle = await one.work.enqueue(number)
                assert await handle.result(timeout=WAIT) == number
                assert (await handle.run()).state is State.SUCCEEDED
    await one.ms.close()
    worked = Counter(what for _, what in calls if what.startswith("work"))
    assert set(worked) == {f"work {number}" for number in range(1, 6)}


def test_the_five_lines_of_the_readme_on_redis(url: str, tmp_path: Path) -> None:
    (program,) = re.findall(r"## Five lines\n\n```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert "sqlite:///mainspring.db" in program
    (tmp_path / "five.py").write_text(program.replace("sqlite:///mainspring.db", url), encoding="utf-8")
    process = subprocess.Popen([sys.executable, "five.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("tick ")
        assert process.stdout.readline().startswith("tick ")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.stdout.close()
    environment = {**os.environ, "MAINSPRING_URL": url}
    for words in (["events", "verify"], ["ledger"]):
        done = subprocess.run(
            [sys.executable, "-m", "mainspring.cli.main", *words], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
