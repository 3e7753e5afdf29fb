"""The agent that is called, and a bare client that calls it: what any caller of agents can reach at most."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import aiohttp
from aiohttp import web

from bench.contenders.common import Figures, Meter, main, rate

#: Calls at once.
AT_ONCE = 64
PAYLOAD = {"reportType": "daily"}


class Agent:
    """Where a process of its own listens: one port for the load, one for the calls whose lateness counts."""

    def __init__(self, load: int, ticks: int) -> None:
        self.load = f"http://127.0.0.1:{load}/load"
        self.ticks = f"http://127.0.0.1:{ticks}/tick"
        self._seen = f"http://127.0.0.1:{load}/seen"

    async def seen(self) -> tuple[int, list[float]]:
        """How many calls came, and how late the others were, in seconds."""
        async with aiohttp.ClientSession() as session, session.get(self._seen) as answer:
            said = await answer.json()
            return said["calls"], said["late"]


@contextmanager
def agent_process() -> Iterator[Agent]:
    """An agent, until the block ends."""
    command = [sys.executable, "-m", "bench.contenders.agent_calls", "agent", "{}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Agent(*json.loads(process.stdout.readline()))
    finally:
        process.terminate()
        process.wait(30)


async def _agent() -> None:
    calls = 0
    late: list[float] = []

    async def load(request: web.Request) -> web.Response:
        nonlocal calls
        await request.read()
        calls += 1
        return web.json_response({"ok": True})

    async def tick(request: web.Request) -> web.Response:
        late.append(time.time() - datetime.fromisoformat(request.headers["X-Fire-Time"]).timestamp())
        return web.json_response({"ok": True})

    async def seen(_: web.Request) -> web.Response:
        return web.json_response({"calls": calls, "late": late})

    app = web.Application()
    app.router.add_post("/load", load)
    app.router.add_post("/tick", tick)
    app.router.add_get("/seen", seen)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    ports = []
    for _ in range(2):
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert isinstance(site._server, asyncio.Server)
        ports.append(site._server.sockets[0].getsockname()[1])
    print(json.dumps(ports), flush=True)
    await asyncio.Event().wait()


def agent() -> Figures:
    """Listens until it is told to stop; says where on its first line."""
    asyncio.run(_agent())
    return {}


def bare(folder: str, n: int) -> Figures:
    """The same calls by nothing but the client, from as many coroutines as there are calls at once."""
    return asyncio.run(_bare(n))


async def _bare(n: int) -> Figures:
    left = n
    body = json.dumps(PAYLOAD).encode()

    async def caller(session: aiohttp.ClientSession, url: str) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
                await answer.read()

    with agent_process() as there:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            meter = Meter()
            await asyncio.gather(*(caller(session, there.load) for _ in range(AT_ONCE)))
            seconds, cpu = meter.wall(), meter.cpu()
        calls, _ = await there.seen()
    if calls != n:
        raise SystemExit(f"{calls} of {n} calls came")
    return {"n": n, "per_second": rate(n, seconds), "cpu_us": cpu / n * 1e6, "durability": "none"}


if __name__ == "__main__":
    main({"agent": agent, "bare": bare})
