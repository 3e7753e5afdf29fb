"""The engine on PostgreSQL, Valkey and Redis: the README's program, two instances on one store, broken connections."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest
import redis

from mainspring import Context, Mainspring, Retry, State
from mainspring.backends.postgres.settings import read_url
from mainspring.ledger.account import ledger
from mainspring.ports.clock import SystemClock
from mainspring.runtime.store_url import open_store
from servers import for_tests, for_tests_redis
from tests.engine.support import WAIT, beside

README = Path(__file__).parents[2] / "README.md"

#: Server → a new URL on it: an empty schema or an unused prefix.
FRESH_URLS: dict[str, Callable[[], str]] = {
    "postgresql": for_tests.fresh_url,
    "valkey": lambda: for_tests_redis.fresh_url(for_tests_redis.server_url("valkey")),
    "redis": lambda: for_tests_redis.fresh_url(for_tests_redis.server_url("redis")),
}


@pytest.fixture(params=FRESH_URLS)
def url(request: pytest.FixtureRequest) -> str:
    return FRESH_URLS[request.param]()


class Instance:
    """A Mainspring on the server, with tasks that write down each call."""

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


async def cut_connections(url: str) -> None:
    """Let the server close every connection of the engine."""
    if url.startswith("postgresql"):
        killer = await asyncpg.connect(read_url(url).dsn)
        try:
            await killer.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'mainspring' AND datname = current_database() AND pid <> pg_backend_pid()"
            )
        finally:
            await killer.close()
        return
    with redis.Redis.from_url(url.partition("?")[0]) as client:
        for connection in client.client_list():
            if connection["name"] == "mainspring":
                client.client_kill_filter(_id=connection["id"])


async def test_two_instances_run_each_run_once(url: str) -> None:
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
    store = open_store(url, SystemClock())
    await store.open()
    books = await ledger(store, SystemClock().now())
    await store.close()
    assert (books.unexplained, books.differences) == (0, [])
    assert books.planned >= 6


async def test_an_instance_continues_by_itself_after_its_connections_were_cut(url: str) -> None:
    calls: list[tuple[str, str]] = []
    one = Instance(url, "one", calls)
    async with beside(one.ms):
        assert await (await one.work.enqueue(1)).result(timeout=WAIT) == 1
        for number in range(2, 6):
            await cut_connections(url)
            handle = await one.work.enqueue(number)
            assert await handle.result(timeout=WAIT) == number
            assert (await handle.run()).state is State.SUCCEEDED
    await one.ms.close()
    worked = Counter(what for _, what in calls if what.startswith("work"))
    assert set(worked) == {f"work {number}" for number in range(1, 6)}


def test_the_five_lines_of_the_readme(url: str, tmp_path: Path) -> None:
    page = README.read_text(encoding="utf-8")
    (program,) = re.findall(r"## Start with five lines\n.*?```python\n(.*?)```", page, re.DOTALL)
    assert "sqlite:///five.db" in program
    (tmp_path / "five.py").write_text(program.replace("sqlite:///five.db", url), encoding="utf-8")
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
