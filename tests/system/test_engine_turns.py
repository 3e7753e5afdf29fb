"""While agents and clients attack, no turn of the engine's event loop takes 50 ms."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainspring import AgentSettings, Http, Mainspring, Retry
from mainspring.api.app import build
from mainspring.app.internals import host_of

pytestmark = pytest.mark.alone

#: The engine must be able to renew leases and plan fires in time.
MAX_TURN_SECONDS = 0.05
MEASURED_SECONDS = 3.0


class TurnMeter:
    """Measures how long the engine's loop cannot run a timer, also because another thread holds the interpreter's lock.

    Time in which the system gave the processor to other processes does not count.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self.turns = 0

    async def measure(self, runtime: Any) -> None:
        loop = asyncio.get_running_loop()
        statistics = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        end = loop.time() + MEASURED_SECONDS
        before, waited_before = loop.time(), _queued_seconds(statistics)
        while before < end:
            await asyncio.sleep(0.001)
            now, waited = loop.time(), _queued_seconds(statistics)
            self.longest = max(self.longest, now - before - (waited - waited_before))
            before, waited_before = now, waited
            self.turns += 1


def _queued_seconds(statistics: Path) -> float:
    """Return how long a thread has waited for a processor in all."""
    return int(statistics.read_text().split()[1]) / 1e9


@contextlib.asynccontextmanager
async def evil_agent(body: bytes) -> AsyncIterator[str]:
    """Serve an agent whose answer to every call is `body`; yield its URL."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head + body)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


@contextlib.asynccontextmanager
async def measured(ms: Mainspring) -> AsyncIterator[TurnMeter]:
    """Run the engine and measure its loop; the block ends when `MEASURED_SECONDS` have passed."""
    meter = TurnMeter()
    async with ms.running():
        measuring = asyncio.create_task(host_of(ms).call(meter.measure))
        yield meter
        await measuring


@pytest.mark.parametrize(
    "body",
    [
        b'"' + b"token" * 13_000 + b'"' + b" " * 500,
        b'"' * 65_536,
        b'"apiKey" : "x" ,' * 4_000,
        b"bearer " * 9_000,
    ],
    ids=["one-long-name", "quotation-marks", "secrets", "bearers"],
)
async def test_answers_that_are_hard_to_redact(body: bytes) -> None:
    ms = Mainspring("memory://", agents=AgentSettings(allow_private=True))
    async with evil_agent(body) as url, measured(ms) as meter:
        for number in range(4):
            await ms.schedule(f"evil{number}", Http(url), every="100ms", retry=Retry(max_attempts=1))
    assert meter.turns > 200
    assert meter.longest < MAX_TURN_SECONDS


async def test_callbacks_that_are_hard_to_redact() -> None:
    """An agent that answers 202 calls back with a body of 64 KiB."""
    calls: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        values = dict(line.split(": ", 1) for line in head.splitlines()[1:] if line)
        calls.put_nowait((values["X-Callback-Url"], values["X-Callback-Token"]))
        writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    ms = Mainspring("memory://", agents=AgentSettings(allow_private=True, public_url="http://127.0.0.1:3000"))
    transport = httpx.ASGITransport(build(ms))
    async with (
        measured(ms) as meter,
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:3000") as client,
    ):
        await ms.schedule("evil", Http(url), every="50ms", overlap="allow_parallel")
        for _ in range(20):
            callback, token = await calls.get()
            body = b'"apiKey" : "x" ,' * 4_000
            done = await client.post(f"{callback}/complete", content=body, headers={"Authorization": f"Bearer {token}"})
            assert done.status_code == 200, done.text
        await ms.delete("evil")
    server.close()
    assert meter.longest < MAX_TURN_SECONDS


async def test_unknown_names_among_long_ones() -> None:
    """An unknown name is compared with 1 000 names that are hard to compare."""
    ms = Mainspring("memory://")

    @ms.task
    def work() -> None: ...

    rng = random.Random(1)
    names = ["".join(rng.choice("ab") for _ in range(199)) for _ in range(1_000)]
    await ms.schedule_many(work, ({"name": name, "every": "1h"} for name in names))
    transport = httpx.ASGITransport(build(ms), raise_app_exceptions=False)
    async with (
        measured(ms) as meter,
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:3000") as client,
    ):
        for name in names[:20]:
            assert (await client.get(f"/api/schedules/{name[:-1]}c")).status_code == 404
    assert meter.longest < MAX_TURN_SECONDS
