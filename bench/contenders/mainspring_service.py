"""The service: its lists, over HTTP from a process of their own, in a store with a long history."""

from __future__ import annotations

import asyncio
import http.client
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from bench.contenders.common import Figures, main, rate, wait_until
from bench.contenders.mainspring_agents import calls, idle
from bench.contenders.mainspring_kit import durability_in, url_of
from mainspring import Mainspring, State
from mainspring.app.internals import host_of
from mainspring.model.ids import fire_id
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule
from mainspring.ports.paging import find_log_end, iterate_rows
from mainspring.ports.store import Page, Schedules

PAGE = 5_000
#: What ended how, of a hundred.
OUTCOMES = (State.SUCCEEDED,) * 94 + (State.FAILED,) * 3 + (State.SKIPPED,) * 2 + (State.CANCELLED,)
#: A name for the figures, and what is asked for.
LISTS = {
    "schedules": "/api/schedules",
    "executions": "/api/executions",
    "schedules_500": "/api/schedules?limit=500",
    "executions_500": "/api/executions?limit=500",
    "of_one": "/api/schedules/schedule%207/executions",
}


# ── a store with a past ─────────────────────────────────────────────────────


async def fill(folder: str, schedules: int, runs: int, store: str = "sqlite") -> Figures:
    """Schedules by the door; their history as rows, since only a list's speed is asked for."""
    ms = Mainspring(url_of(folder, store))
    ms.task(name="nothing")(lambda: None)
    began = time.perf_counter()
    items = ({"name": f"schedule {i}", "cron": f"{i % 60} {i % 24} * * *"} for i in range(schedules))
    await ms.schedule_many("nothing", items)

    async def write(runtime: Any) -> None:
        found = [one async for one in iterate_rows(runtime.store, Schedules(limit=10_000), lambda one: one.id)]
        past = _past(found, runs, host_of(ms).now())
        while page := tuple(islice(past, PAGE)):
            if not await runtime.store.restore(Page(after=await find_log_end(runtime.store), runs=page)):
                raise SystemExit("the store's log ends elsewhere")

    await host_of(ms).call(write)
    await ms.close()
    seconds = time.perf_counter() - began
    return {"n": runs, "schedules": schedules, "per_second": rate(runs, seconds), "first_ms": 0}


def _past(schedules: list[Schedule], runs: int, now: int) -> Iterator[Run]:
    rng = random.Random(1)
    for number in range(runs):
        schedule = schedules[number % len(schedules)]
        at = now - (runs - number) * 1_000
        yield Run(
            id=fire_id(schedule.id, str(at), at),
            schedule_id=schedule.id,
            task="nothing",
            origin="fire",
            fire_time=at,
            fire_key=str(at),
            revision=1,
            state=rng.choice(OUTCOMES),
            n=3,
            due_at=at,
            ready_at=at,
            epoch=1,
            attempt=1,
            created_at=at,
            started_at=at + 5,
            ended_at=at + 25,
            ms=20,
        )


# ── lists ───────────────────────────────────────────────────────────────────


def lists(folder: str, asks: int, store: str = "sqlite", **_: Any) -> Figures:
    """Each list again and again, its pages in turn, one request at a time."""
    url = url_of(folder, store)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "bench.contenders.mainspring_service", "serve", f'{{"url":"{url}","port":{port}}}']
    server = subprocess.Popen(command)
    try:
        wait_until(lambda: _listens(port), 60, 0.02)
        figures: Figures = {"asks": asks, "durability": asyncio.run(_durability(url))}
        for name, path in LISTS.items():
            figures |= _figures(name, _asked(port, path, asks))
        return figures
    finally:
        server.terminate()
        server.wait(30)


def _asked(port: int, path: str, asks: int) -> Iterable[float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    following = path
    for _ in range(asks):
        began = time.perf_counter()
        connection.request("GET", following)
        answer = connection.getresponse()
        data = answer.read()
        yield (time.perf_counter() - began) * 1_000
        if answer.status != 200 or not data.startswith(b"[{"):
            raise SystemExit(f"{following} answered {answer.status}: {data[:200]!r}")
        link = answer.headers.get("Link", "")
        following = link.partition("<")[2].partition(">")[0] or path
    connection.close()


def _figures(name: str, ms: Iterable[float]) -> Figures:
    found = sorted(ms)
    return {f"{name}_p50_ms": found[len(found) // 2], f"{name}_p95_ms": found[int(len(found) * 0.95)]}


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def _durability(url: str) -> str:
    ms = Mainspring(url)
    try:
        return await durability_in(ms)
    finally:
        await ms.close()


def serve(url: str, port: int) -> Figures:
    """The API with its engine, until it is told to stop."""
    import uvicorn

    from mainspring.api.app import build

    ms = Mainspring(url)
    ms.task(name="nothing")(lambda: None)

    async def both() -> None:
        async with ms.running():
            await uvicorn.Server(uvicorn.Config(build(ms), port=port, log_level="error", lifespan="off")).serve()

    asyncio.run(both())
    return {}


if __name__ == "__main__":
    main({"fill": lambda **p: asyncio.run(fill(**p)), "lists": lists, "serve": serve, "calls": calls, "idle": idle})
