"""Faults between an instance and PostgreSQL, one per test: lost answers, cut connections, lost packets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import pytest

from mainspring import Mainspring, State
from mainspring.backends.postgres import PostgresStore
from mainspring.ledger.verify import verify
from servers.for_tests import fresh_url
from tests.stored_rows import stored
from tests.system.chaos_proxy import ChaosProxy, Frontend

#: `proxied` verifies the store itself: the proxy is gone when the fixture would.
pytestmark = pytest.mark.tampers


@asynccontextmanager
async def proxied(**options: object) -> AsyncIterator[tuple[ChaosProxy, str]]:
    """A proxy before the test's server, and the URL of a fresh schema through it."""
    parts = urlsplit(fresh_url(**options))
    assert parts.port is not None
    proxy = ChaosProxy(parts.port)
    port = await proxy.start()
    try:
        yield proxy, urlunsplit(parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}"))
    finally:
        await proxy.close()
    store = PostgresStore(urlunsplit(parts))
    await store.open()
    report = await verify(store)
    await store.close()
    assert report.ok, report.differences


async def until(fact: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not fact():  # noqa: ASYNC110 - the engine is on another thread
            await asyncio.sleep(0.01)


# ── lost answers of commits ─────────────────────────────────


async def test_an_enqueue_whose_answer_is_lost_is_stored_once_and_answered() -> None:
    async with proxied() as (proxy, url):
        ms = Mainspring(url)

        @ms.task
        async def work(number: int) -> None: ...

        await work.enqueue(0)
        for number in range(1, 6):
            proxy.lose_commits = 1
            handle = await work.enqueue(number)
            assert proxy.lost == number
            assert (await handle.run()).state is State.WAITING
        assert len(await ms.runs()) == 6
        await ms.close()


async def test_a_plan_a_claim_and_an_outcome_whose_answers_are_lost_leave_one_run_and_one_call() -> None:
    async with proxied() as (proxy, url):
        ms = Mainspring(url, lease_ttl="3s", poll_interval="100ms")
        calls: list[str] = []

        @ms.every("50ms", missed="replay_all", overlap="allow_parallel", max_runs=20)
        async def tick() -> None:
            calls.append("tick")

        async with ms.running():
            while proxy.lost < 15 and (await ms.get("tick")).state != "finished":
                proxy.lose_commits = 1
                await asyncio.sleep(0.02)
            proxy.heal()
            async with asyncio.timeout(30):
                while len(runs := await stored(ms, ms.runs(state="succeeded"))) < 20:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.05)
        assert proxy.lost >= 3
        assert len({run.fire_key for run in runs}) == len(runs) == 20
        # A claim whose answer is lost never began; an outcome is sent again under its own id.
        assert 20 <= len(calls) <= 20 + sum(run.crashes for run in runs)
        await ms.close()


# ── away and back ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("fault", ["refuse", "swallow"])
async def test_an_instance_reports_degraded_while_its_store_is_away_then_recovers(fault: str) -> None:
    async with proxied() as (proxy, url):
        ms = Mainspring(url, lease_ttl="1s", poll_interval="100ms")

        @ms.every("100ms", missed="replay_all")
        async def tick() -> None: ...

        async with ms.running():
            await until(lambda: ms.health().ok)
            if fault == "refuse":
                proxy.refusing = True
                proxy.cut()
            else:
                proxy.swallow()
            await until(lambda: ms.health().status == "degraded")
            assert ms.health().failing
            proxy.heal()
            await until(lambda: ms.health().ok)
            handle = await tick.enqueue()
            await handle.result(timeout="20s")
        assert ms.health().status == "stopped"
        await ms.close()


# ── the proxy itself ────────────────────────────────────────────────────────


def message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


def test_the_proxy_recognises_commits() -> None:
    client = Frontend()
    hello = b"\x00\x03\x00\x00user\x00me\x00\x00"
    assert [commits for _, commits in client.messages((len(hello) + 4).to_bytes(4, "big") + hello)] == [False]
    write = message(b"P", b"w\0UPDATE x SET y = 1\0\0\0")
    read = message(b"P", b"r\0SELECT 1\0\0\0")
    bind_write, bind_read, sync = message(b"B", b"\0w\0"), message(b"B", b"\0r\0"), message(b"S", b"")
    for said, commits in [
        (message(b"Q", b"COMMIT\0"), [True]),
        (message(b"Q", b"BEGIN\0"), [False]),
        (read + bind_read + sync, [False, False, False]),
        (write + bind_write + sync, [False, False, True]),
        (sync, [False]),
    ]:
        assert [found for _, found in client.messages(said)] == commits
    client.transaction = b"T"
    assert not any(found for _, found in client.messages(bind_write + sync))
    half = message(b"Q", b"COMMIT\0")
    assert list(client.messages(half[:4])) == []
    assert list(client.messages(half[4:])) == [(half, True)]
