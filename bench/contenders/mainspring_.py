"""Mainspring, through its public door; defaults unless a scenario says otherwise."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import sys
import time
from datetime import UTC, datetime
from typing import Any

from bench.contenders import mainspring_schedules as schedules
from bench.contenders.common import Figures, Meter, main, memory, path_in, rate, sorted_ms
from bench.contenders.mainspring_kit import durability_in, ended_in_file, until, url_of
from bench.contenders.rows import event_bytes
from mainspring import Context, Mainspring
from mainspring.app.internals import host_of

#: Runs at once while draining; a worker that only drains wants more than the default of 10.
DRAIN_CONCURRENCY = int(os.environ.get("MAINSPRING_CONCURRENCY", "200"))
#: Beside a busy thread: time for enqueueing before the drain begins.
FILL_SECONDS = 5


# ── drain ───────────────────────────────────────────────────────────────────


async def _drain(folder: str, n: int, store: str = "sqlite") -> Figures:
    """Enqueue in bulk, then start a worker; the end is the commit of the last outcome."""
    ms = Mainspring(url_of(folder, store), concurrency=DRAIN_CONCURRENCY)
    drained = asyncio.Event()
    left = n

    @ms.task(timeout=None)
    async def nothing() -> None:
        nonlocal left
        left -= 1
        if not left:
            drained.set()

    durability = await durability_in(ms)
    meter = Meter()
    await nothing.enqueue_many(() for _ in range(n))
    filled = meter.wall()
    meter = Meter()
    async with ms.running():
        await drained.wait()
        await _all_ended(ms, folder, store)
        seconds, cpu = meter.wall(), meter.cpu()
    figures: Figures = {
        "n": n,
        "per_second": rate(n, seconds),
        "cpu_us": cpu / n * 1e6,
        "fill_per_second": rate(n, filled),
        "durability": durability,
        "concurrency": DRAIN_CONCURRENCY,
        **memory(),
    }
    if store == "memory":
        figures["events"] = await events_kept(ms)
        if figures["events"] < 3 * n:
            raise SystemExit(f"only {figures['events']} events are kept of {n} runs")
    else:
        figures |= _check_ended(folder, n) | event_bytes(path_in(folder, "mainspring.db"))
    return figures


async def _all_ended(ms: Mainspring, folder: str, store: str) -> None:
    """Every handler has returned; wait until the store says so too."""
    if store == "memory":
        while await ms.find_by_status("running", limit=1):  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.001)
        return
    await ended_in_file(folder, "nothing")


async def events_kept(ms: Mainspring) -> int:
    async def count(runtime: Any) -> int:
        seen = after = 0
        while page := await runtime.store.tail(after, 5_000):
            seen, after = seen + len(page), page[-1].seq
        return seen

    return await host_of(ms).call(count)


def _check_ended(folder: str, n: int) -> Figures:
    db = sqlite3.connect(path_in(folder, "mainspring.db"))
    succeeded = db.execute("SELECT count(*) FROM run WHERE state = 'succeeded' AND attempt = 1").fetchone()[0]
    events = db.execute("SELECT count(*) FROM event WHERE rid IS NOT NULL").fetchone()[0]
    db.close()
    if succeeded != n or events != 3 * n:
        raise SystemExit(f"of {n} runs {succeeded} succeeded at the first attempt, with {events} events")
    return {"events": events}


# ── enqueue ─────────────────────────────────────────────────────────────────


def _enqueue_app(folder: str, store: str) -> tuple[Mainspring, Any]:
    ms = Mainspring(url_of(folder, store))

    @ms.task
    async def nothing() -> None: ...

    return ms, nothing


async def enqueue_one(folder: str, n: int, store: str = "sqlite") -> Figures:
    """Each awaited, that is committed, before the next."""
    ms, nothing = _enqueue_app(folder, store)
    for _ in range(100):
        await nothing.enqueue()
    meter = Meter()
    for _ in range(n):
        await nothing.enqueue()
    figures = {"n": n, "per_second": rate(n, meter.wall()), "cpu_us": meter.cpu() / n * 1e6}
    durability = await durability_in(ms)
    await ms.close()
    return figures | {"durability": durability}


async def enqueue_coroutines(folder: str, n: int, store: str = "sqlite", coroutines: int = 100) -> Figures:
    """Enqueue from `coroutines` coroutines at once, each one run after the other."""
    ms, nothing = _enqueue_app(folder, store)
    for _ in range(100):
        await nothing.enqueue()

    async def one(count: int) -> None:
        for _ in range(count):
            await nothing.enqueue()

    share = n // coroutines
    meter = Meter()
    await asyncio.gather(*(one(share) for _ in range(coroutines)))
    done = share * coroutines
    figures = {"n": done, "per_second": rate(done, meter.wall()), "cpu_us": meter.cpu() / done * 1e6}
    durability = await durability_in(ms)
    await ms.close()
    return figures | {"durability": durability, "coroutines": coroutines}


async def enqueue_bulk(folder: str, n: int, store: str = "sqlite") -> Figures:
    ms, nothing = _enqueue_app(folder, store)
    durability = await durability_in(ms)
    meter = Meter()
    await nothing.enqueue_many(() for _ in range(n))
    figures = {"n": n, "per_second": rate(n, meter.wall()), "cpu_us": meter.cpu() / n * 1e6}
    await ms.close()
    return figures | {"durability": durability}


# ── latency ─────────────────────────────────────────────────────────────────


async def latency(folder: str, n: int, store: str = "sqlite", per_second: float = 50) -> Figures:
    """From the call of enqueue to the first line of the handler, in one process; the first second is warm-up."""
    ms = Mainspring(url_of(folder, store))
    seen: dict[int, float] = {}

    @ms.task
    async def note(number: int) -> None:
        seen[number] = time.perf_counter()

    warm = int(per_second)
    sent: list[float] = []
    meter = Meter()
    async with ms.running():
        begin = time.perf_counter()
        for number in range(n + warm):
            await asyncio.sleep(begin + number / per_second - time.perf_counter())
            sent.append(time.perf_counter())
            await note.enqueue(number)
        cpu = meter.cpu()
        await until(lambda: len(seen) == n + warm, 10)
        durability = await durability_in(ms)
    latencies = sorted_ms(seen[number] - sent[number] for number in range(warm, n + warm))
    return {"n": n, "ms": latencies, "cpu_us": cpu / (n + warm) * 1e6, "durability": durability}


async def _priority(folder: str, low: int, critical: int) -> Figures:
    """Critical runs enqueued while low ones, 50 ms each, hold every slot."""
    ms = Mainspring(url_of(folder))
    latencies: list[float] = []
    busy = 0

    @ms.task(timeout=None)
    async def work() -> None:
        nonlocal busy
        busy += 1
        await asyncio.sleep(0.05)
        busy -= 1

    @ms.task(timeout=None)
    async def alarm(sent: float) -> None:
        latencies.append(time.perf_counter() - sent)
        await asyncio.sleep(0.05)

    slots = ms.settings.concurrency
    await work.using(priority="low").enqueue_many(() for _ in range(low))
    rng = random.Random(3)
    free = 0
    async with ms.running():
        await until(lambda: busy == slots, 10)
        urgent = alarm.using(priority="critical")
        for _ in range(critical):
            await asyncio.sleep(rng.uniform(0.01, 0.09))  # at any phase of the 50 ms
            free += busy == 0
            await urgent.enqueue(time.perf_counter())
        await until(lambda: len(latencies) == critical, 30)
        waiting = len(await ms.runs(state="waiting", limit=1))
        durability = await durability_in(ms)
    if not waiting:
        raise SystemExit("the low runs came to an end before the critical ones: give more of them")
    return {
        "n": critical,
        "low": low,
        "slots": slots,
        "idle_moments": free,
        "ms": sorted_ms(latencies),
        "durability": durability,
    }


# ── a busy thread beside it ─────────────────────────────────────────────────


async def _busy_thread(folder: str, seconds: int, n: int) -> Figures:
    """One thread handler that computes all the time: how late is a cron, how fast a drain.

    The process is run as `mainspring run` runs it, which means a shorter switch interval.
    """
    from mainspring.cli.run import SWITCH_INTERVAL_SECONDS

    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    ms = Mainspring(url_of(folder), concurrency=DRAIN_CONCURRENCY)
    stop = False
    rounds = 0
    late: list[tuple[float, float]] = []
    drained = asyncio.Event()
    left = n

    @ms.task(timeout=None)
    def compute() -> None:
        nonlocal rounds
        value = 1
        while not stop:
            for _ in range(10_000):
                value = (value * 1_103_515_245 + 12_345) & 0x7FFFFFFF
            rounds += 1

    @ms.cron("* * * * * *")
    async def second(ctx: Context) -> None:
        late.append((ctx.fire_time.timestamp(), time.time()))

    @ms.task(timeout=None)
    async def nothing() -> None:
        nonlocal left
        left -= 1
        if not left:
            drained.set()

    async with ms.running():
        await compute.enqueue()
        await until(lambda: rounds > 0, 10)
        begin = time.time() + 1
        await asyncio.sleep(seconds + 1.5)
        fires = {fire: now for fire, now in late if begin < fire <= begin + seconds}
        due = time.time() + FILL_SECONDS  # all of them at once, so that nothing is drained while it is enqueued
        await nothing.using(at=datetime.fromtimestamp(due, UTC)).enqueue_many(() for _ in range(n))
        if time.time() > due:
            raise SystemExit(f"enqueueing {n} runs took more than {FILL_SECONDS} s")
        await asyncio.sleep(due - time.time())
        before = rounds
        await drained.wait()
        await ended_in_file(folder, "nothing")
        drain_seconds = time.time() - due
        computed = rounds - before
        durability = await durability_in(ms)
        stop = True
    return {
        "n": n,
        "fires": len(fires),
        "expected": seconds,
        "ms": sorted_ms(now - fire for fire, now in fires.items()),
        "per_second": rate(n, drain_seconds),
        "rounds_while_draining": computed,
        "durability": durability,
    }


if __name__ == "__main__":
    main(
        {
            "drain": lambda **p: asyncio.run(_drain(**p)),
            "enqueue_one": lambda **p: asyncio.run(enqueue_one(**p)),
            "enqueue_coroutines": lambda **p: asyncio.run(enqueue_coroutines(**p)),
            "enqueue_bulk": lambda **p: asyncio.run(enqueue_bulk(**p)),
            "latency": lambda **p: asyncio.run(latency(**p)),
            "priority": lambda **p: asyncio.run(_priority(**p)),
            "busy_thread": lambda **p: asyncio.run(_busy_thread(**p)),
            "add_schedules": lambda **p: asyncio.run(schedules.add_schedules(**p)),
            "tick": lambda **p: asyncio.run(schedules.tick(**p)),
            "prepare_herd": lambda **p: asyncio.run(schedules.prepare_herd(**p)),
            "herd": lambda **p: asyncio.run(schedules.herd(**p)),
            "cron": lambda **p: asyncio.run(schedules.cron(**p)),
        }
    )
