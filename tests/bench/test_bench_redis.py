"""The Redis part of the benchmark: a tiny run, its floor, its measurements, the judgement of its targets."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from bench.contenders.common import appended
from bench.contenders.postgres import peer as timed
from bench.contenders.redis.floor import Floor
from bench.contenders.redis.peer import Looks, RedisPeer
from bench.envs import CONTENDERS
from bench.plan import Part
from bench.redis_server import Keyspaces
from bench.report import store
from bench.runner import Measured, Results, Runner
from bench.suites import SUITES
from bench.targets import Verdict
from mainspring import Mainspring
from mainspring.backends.redis import RedisStore
from mainspring.ledger.verify import verify
from mainspring.model.run import State
from mainspring.ports.store import Runs
from servers.for_tests_redis import fresh_url, server_url
from servers.redis import RedisServer

ROOT = Path(__file__).parents[2]
SUITE = SUITES["redis"]


@pytest.mark.timeout(240)  # a server and a process for each of five parts, on a machine that may be busy
def test_a_tiny_run_on_redis(tmp_path: Path) -> None:
    server_url()  # skips where there is no server to be had
    asked = ("--here", "--n", "120", "--runs", "1", "--json", "--no-gate", "--dir", str(tmp_path))
    only = ("--part", "redis", "--only", "redis-drain", "--only", "redis-enqueue")
    contenders = ("--contender", "mainspring-redis", "--contender", "floor-redis")
    done = subprocess.run(
        [sys.executable, "-m", "bench", *asked, *only, *contenders], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    parts = [part for scenario in found["scenarios"].values() for part in scenario["parts"]]
    assert [part["not_run"] for part in parts] == [None] * 6
    for part in parts:
        (run,) = part["runs"]
        assert run["n"] in (100, 120)
        assert run["durability"] == "AOF, appendfsync=everysec", "as the server told it"
        assert 1 < run["per_second"] < 1_000_000
    assert found["machine"]["server"]["appendfsync"] == "everysec"
    judged = {target["what"]: target["met"] for target in found["targets"]}
    assert judged["drain ÷ floor"] in (True, False)
    assert judged["drain ÷ best at-least-once peer"] is None, "none was run, so nothing is said about it"


async def test_the_floor_writes_whole_rows_and_their_events_on_redis() -> None:
    """The floor leaves the keys that our store leaves for equal runs, and its log rebuilds its rows."""
    url = fresh_url()
    store = RedisStore(url)
    await store.open()
    floor = Floor(url.partition("?")[0], store.settings.prefix)
    await floor.fill(250)
    assert await floor.drain() == 250
    report = await verify(store)
    assert report.ok, report.differences
    assert (report.runs, report.events) == (250, 750)
    assert {run.attempt for run in await store.find(Runs(states=(State.SUCCEEDED,), limit=500))} == {1}
    theirs = await _kinds(floor, store.settings.prefix)
    await floor.close()
    await store.close()
    ms = Mainspring(fresh_url(), concurrency=100)

    @ms.task
    async def nothing() -> None: ...

    await nothing.enqueue_many(() for _ in range(250))
    await ms.run_async(until_idle=True)
    floor = Floor(url.partition("?")[0])
    ours = await _kinds(floor, ms.url.partition("prefix=")[2])
    await floor.close()
    await ms.close()
    beside = {name for name in ours if name.partition(":")[0] in ("lease", "notes", "noted", "kept")}
    assert theirs == ours - beside - {"changes"}, "leases and notes are the instance's own"


async def _kinds(floor: Floor, prefix: str) -> set[str]:
    """Return the kinds of the keys below a prefix: the first part of each key's name."""
    begin = f"{{{prefix}}}:"
    names = [key.decode().removeprefix(begin) async for key in floor.client.scan_iter(f"{begin}*")]
    return {name.partition(":")[0] for name in names}


class Listed(RedisPeer):
    """The simplest queue: a list, and a second list for items that are being processed."""

    open_rows = "return redis.call('LLEN', 'queue') + redis.call('LLEN', 'taken')"

    async def open(self) -> None:
        self._client: Any = Redis.from_url(self.url)

    async def enqueue(self, number: int | None = None) -> None:
        await self._client.lpush("queue", "" if number is None else number)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async def work() -> None:
            while True:
                item = await self._client.blmove("queue", "taken", 5)
                self.ran.one(int(item) if item else None)
                await self._client.lrem("taken", 1, item)

        task = asyncio.create_task(work())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        await self._client.aclose()


async def test_a_peer_is_timed_until_nothing_is_open() -> None:
    server_url()  # skips where there is no server to be had
    with Keyspaces().fresh() as url:
        drained = await timed._drain(Listed, url, 30)
        assert (drained["n"], drained["durability"]) == (30, "AOF, appendfsync=everysec")
        look = await Looks.connect(url)
        assert not await look.any(Listed.open_rows)
        several = await timed._enqueue_coroutines(Listed, url, 40, coroutines=4)
        assert several["n"] == 40
        assert await look.count(Listed.open_rows) == 40 + 50, "and 50 to warm up"
        await look.close()


async def test_latency_is_from_the_call_to_the_handler() -> None:
    server_url()
    with Keyspaces().fresh() as url:
        found = await timed._latency(Listed, url, 20, per_second=200)
    assert len(found["ms"]) == 20
    assert all(value > 0 for value in found["ms"])


def test_a_server_that_may_lose_more_than_a_second_is_refused() -> None:
    server_url()
    with pytest.raises(SystemExit, match="appendonly=no, appendfsync=no; all must have"):
        appended("no", "no")
    server = RedisServer("valkey", fsync=None).start()

    async def ask() -> str:
        look = await Looks.connect(server.url)
        try:
            return await look.durability()
        finally:
            await look.close()

    try:
        with pytest.raises(SystemExit, match="appendonly=no"):
            asyncio.run(ask())
    finally:
        server.remove()


def test_every_run_has_a_server_of_its_own_and_the_pair_has_both(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from servers.for_tests import database_url

    monkeypatch.setenv("TEST_POSTGRES_URL", database_url())
    server_url()
    calls: list[dict[str, Any]] = []

    def spawn(_self: Runner, _contender: str, _job: str, _folder: str, parameters: dict[str, Any], _: float) -> Any:
        calls.append(parameters)
        return {"per_second": 1}

    monkeypatch.setattr(Runner, "_spawn", spawn)
    runner = Runner(tmp_path)
    for contender in ("arq", "arq", "mainspring-pair"):
        runner._run_part(Part(contender, "", "drain", {"n": 1}))
    runner.close()
    assert all(call["n"] == 1 for call in calls)
    assert len({call["url"] for call in calls}) == 3
    assert calls[2]["url"].startswith("postgresql://")
    assert calls[2]["broker"].startswith("redis://")


def test_the_tables_show_the_settings_of_the_server() -> None:
    server_url()
    said = store({"server": Keyspaces().about()})
    assert said.startswith(("Valkey ", "Redis "))
    assert "appendonly=yes, appendfsync=everysec, save=none" in said


def _measured(contender: str, rate: float, job: str = "drain", **parameters: Any) -> Measured:
    return Measured(Part(contender, contender, job, parameters), [{"per_second": rate, "p50_ms": 2.0, "p99_ms": 11.0}])


def _judged(results: Results) -> dict[str, Verdict]:
    return {verdict.what: verdict for verdict in SUITE.verdicts(results)}


def test_the_best_peer_that_was_run_is_the_measure() -> None:
    ours = _measured("mainspring-redis", 5_000)
    peers = [_measured("taskiq", 2_001), _measured("celery", 700), _measured("rq", 9_000)]
    judged = _judged({"redis-drain": [ours, *peers, _measured("huey-redis", 3_000)]})
    assert judged["drain ÷ best at-least-once peer"].ok is False, "2.4988 of taskiq; RQ does not count"
    assert judged["drain ÷ Huey (at most once)"].ok is True
    assert judged["drain ÷ floor"].ok is None, "it was not run"


def test_enqueue_latency_and_the_pair_are_judged() -> None:
    enqueue = [
        _measured("mainspring-redis", 1_000, "enqueue_one"),
        _measured("floor-redis", 1_600, "enqueue_one"),
        _measured("arq", 900, "enqueue_one"),
        _measured("huey-redis", 4_000, "enqueue_one"),
        _measured("mainspring-redis", 2_900, "enqueue_coroutines"),
        _measured("saq-redis", 5_000, "enqueue_coroutines"),
    ]
    pair = [_measured("mainspring-pair", 790, streams=True), _measured("mainspring-pair", 1_000, streams=False)]
    latency = [_measured("mainspring-redis", 1, "latency"), _measured("taskiq", 1, "latency")]
    judged = _judged({"redis-enqueue": enqueue, "redis-pair": pair, "redis-latency": latency})
    assert judged["one by one ÷ best asyncio peer"].ok is True
    assert judged["one by one ÷ bare Lua call"].ok is True
    assert judged["100 coroutines ÷ our one by one"].ok is False
    assert judged["PostgreSQL + Redis Streams ÷ PostgreSQL"].ok is False
    assert judged["enqueue → start p50"].ok is True
    assert judged["enqueue → start p99"].ok is False


def test_every_peer_takes_part() -> None:
    wanted = {"taskiq", "dramatiq", "saq-redis", "arq", "celery", "rq", "huey-redis", "mainspring-redis", "floor-redis"}
    for quick in (True, False):
        plan = {scenario.key: scenario for scenario in SUITE.plan(quick=quick)}
        assert {part.contender for part in plan["redis-drain"].parts} == wanted
        assert {part.contender for part in plan["redis-pair"].parts} == {"mainspring-pair"}
        assert all(CONTENDERS[part.contender].on_redis for scenario in plan.values() for part in scenario.parts)
