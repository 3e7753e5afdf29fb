"""Mainspring, through its public door; defaults unless a scenario says otherwise."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from bench.contenders.common import Figures, Meter, durable, main, memory, path_in, rate, sorted_ms
from bench.contenders.rows import event_bytes
from mainspring import Context, Every, Mainspring
from mainspring.ports.clock import SystemClock

#: Runs at once while draining; a worker that only drains wants more than the default of 10.
DRAIN_CONCURRENCY = int(os.environ.get("MAINSPRING_CONCURRENCY", "200"))
#: Schedules fire so many times in a second, ten milliseconds apart.
DUE_PER_SECOND = 100


def url_of(folder: str, store: str = "sqlite") -> str:
    return "memory://" if store == "memory" else "sqlite:///" + path_in(folder, "mainspring.db")


async def _durability(ms: Mainspring) -> str:
    async def ask(runtime: Any) -> str:
        db = runtime.store._db  # no door says this, and a claim about durability must be read, not believed
        return durable(db.value("PRAGMA journal_mode"), db.value("PRAGMA synchronous"))

    return "none (memory)" if ms.url.startswith("memory") else await ms.call(ask)


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

    durability = await _durability(ms)
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
        figures["events"] = await _events_kept(ms)
        if figures["events"] < 3 * n:
            raise SystemExit(f"only {figures['events']} events are kept of {n} runs")
    else:
        figures |= _check_ended(folder, n) | event_bytes(path_in(folder, "mainspring.db"))
    return figures


async def _all_ended(ms: Mainspring, folder: str, store: str) -> None:
    """Every handler has returned; wait until the store says so too."""
    if store == "memory":
        while await ms.find_by_status("running", limit=1):  # noqa: ASYNC110 - nobody signals it
            await asyncio.sleep(0.001)
        return
    await _ended_in_file(folder, "nothing")


async def _ended_in_file(folder: str, task: str) -> None:
    """No run of the task is open any more, asked on a connection of our own."""
    reader = _reader(folder)
    still = "SELECT EXISTS (SELECT 1 FROM run WHERE ended_at IS NULL AND task = ?)"
    await _until(lambda: not reader.execute(still, (task,)).fetchone()[0], 60)
    reader.close()


def _reader(folder: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{path_in(folder, 'mainspring.db')}?mode=ro", uri=True)


async def _events_kept(ms: Mainspring) -> int:
    async def count(runtime: Any) -> int:
        seen = after = 0
        while page := await runtime.store.tail(after, 5_000):
            seen, after = seen + len(page), page[-1].seq
        return seen

    return await ms.call(count)


def _check_ended(folder: str, n: int) -> Figures:
    db = sqlite3.connect(path_in(folder, "mainspring.db"))
    succeeded = db.execute("SELECT count(*) FROM run WHERE state = 'succeeded' AND attempt = 1").fetchone()[0]
    events = db.execute("SELECT count(*) FROM event WHERE rid IS NOT NULL").fetchone()[0]
    db.close()
    if succeeded != n or events != 3 * n:
        raise SystemExit(f"of {n} runs {succeeded} succeeded at the first attempt, with {events} events")
    return {"events": events}


# ── enqueue ─────────────────────────────────────────────────────────────────


def _enqueue_app(folder: str) -> tuple[Mainspring, Any]:
    ms = Mainspring(url_of(folder))

    @ms.task
    async def nothing() -> None: ...

    return ms, nothing


async def _enqueue_one(folder: str, n: int) -> Figures:
    """Each awaited, that is committed, before the next."""
    ms, nothing = _enqueue_app(folder)
    for _ in range(100):
        await nothing.enqueue()
    meter = Meter()
    for _ in range(n):
        await nothing.enqueue()
    figures = {"n": n, "per_second": rate(n, meter.wall()), "cpu_us": meter.cpu() / n * 1e6}
    durability = await _durability(ms)
    await ms.close()
    return figures | {"durability": durability}


async def _enqueue_coroutines(folder: str, n: int, coroutines: int = 100) -> Figures:
    """So many coroutines, each enqueueing one after the other."""
    ms, nothing = _enqueue_app(folder)
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
    durability = await _durability(ms)
    await ms.close()
    return figures | {"durability": durability, "coroutines": coroutines}


async def _enqueue_bulk(folder: str, n: int) -> Figures:
    ms, nothing = _enqueue_app(folder)
    durability = await _durability(ms)
    meter = Meter()
    await nothing.enqueue_many(() for _ in range(n))
    figures = {"n": n, "per_second": rate(n, meter.wall()), "cpu_us": meter.cpu() / n * 1e6}
    await ms.close()
    return figures | {"durability": durability}


# ── latency ─────────────────────────────────────────────────────────────────


async def _latency(folder: str, n: int, per_second: float = 50) -> Figures:
    """From the call of enqueue to the first line of the handler, in one process; the first second is warm-up."""
    ms = Mainspring(url_of(folder))
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
        await _until(lambda: len(seen) == n + warm, 10)
        durability = await _durability(ms)
    latencies = sorted_ms(seen[number] - sent[number] for number in range(warm, n + warm))
    return {"n": n, "ms": latencies, "cpu_us": cpu / (n + warm) * 1e6, "durability": durability}


async def _until(is_so: Any, timeout: float) -> None:
    async with asyncio.timeout(timeout):
        while not is_so():  # noqa: ASYNC110 - facts of other threads and files, nobody signals them
            await asyncio.sleep(0.001)


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
        await _until(lambda: busy == slots, 10)
        urgent = alarm.using(priority="critical")
        for _ in range(critical):
            await asyncio.sleep(rng.uniform(0.01, 0.09))  # at any phase of the 50 ms
            free += busy == 0
            await urgent.enqueue(time.perf_counter())
        await _until(lambda: len(latencies) == critical, 30)
        waiting = len(await ms.runs(state="waiting", limit=1))
        durability = await _durability(ms)
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
    from mainspring.cli.run import SWITCH_INTERVAL

    sys.setswitchinterval(SWITCH_INTERVAL)
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
        await _until(lambda: rounds > 0, 10)
        begin = time.time() + 1
        await asyncio.sleep(seconds + 1.5)
        fires = {fire: now for fire, now in late if begin < fire <= begin + seconds}
        before = rounds
        await nothing.enqueue_many(() for _ in range(n))
        meter = Meter()
        await drained.wait()
        await _ended_in_file(folder, "nothing")
        drain_seconds = meter.wall()
        computed = rounds - before
        durability = await _durability(ms)
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


# ── schedules ───────────────────────────────────────────────────────────────


class ShiftedClock(SystemClock):
    """The machine's clock some hours on, so that one file of schedules serves any number of runs."""

    def __init__(self, shift_ms: int) -> None:
        self.shift = shift_ms

    def now(self) -> int:
        return super().now() + self.shift


def _noon(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _phased(n: int, first_ms: int) -> Iterator[dict[str, Any]]:
    """n schedules of which 100 are due every second from `first_ms` on; in no order, as they are in life."""
    phases = list(range(n))
    random.Random(n).shuffle(phases)
    gap = 1000 // DUE_PER_SECOND
    for phase in phases:
        anchor = _noon(first_ms + phase * gap - n * gap)
        yield {"name": f"schedule-{phase}", "trigger": Every(f"{n * gap}ms", anchor=anchor)}


async def _add(ms: Mainspring, task: Any, items: Iterator[dict[str, Any]]) -> str:
    """Through the bulk door; while there is none, 500 single calls at once."""
    if (many := getattr(ms, "schedule_many", None)) is not None:
        await many(task, items)
        return "in bulk"
    waiting: list[Coroutine[Any, Any, Any]] = []
    for item in items:
        waiting.append(ms.schedule(item.pop("name"), task, **item))
        if len(waiting) == 500:
            await asyncio.gather(*waiting)
            waiting.clear()
    await asyncio.gather(*waiting)
    return "one by one, 500 at once"


async def _add_schedules(folder: str, n: int) -> Figures:
    ms = Mainspring(url_of(folder))

    @ms.task
    async def nothing() -> None: ...

    durability = await _durability(ms)
    first = SystemClock().now() + 3_600_000
    meter = Meter()
    how = await _add(ms, nothing, _phased(n, first))
    figures = {"n": n, "per_second": rate(n, meter.wall()), "cpu_us": meter.cpu() / n * 1e6, **memory()}
    stored = _count_schedules(folder)
    await ms.close()
    if stored != n:
        raise SystemExit(f"{stored} of {n} schedules are stored")
    return figures | {"how": how, "durability": durability, "first_ms": first}


def _count_schedules(folder: str) -> int:
    reader = _reader(folder)
    count: int = reader.execute("SELECT count(*) FROM schedule WHERE next_at IS NOT NULL").fetchone()[0]
    reader.close()
    return count


@asynccontextmanager
async def _firing(
    folder: str, first_ms: int, lead_ms: int
) -> AsyncIterator[tuple[Mainspring, ShiftedClock, list[Any], float]]:
    """A worker whose clock stands `lead_ms` before the first fire of a file; the fires it makes; how long it took."""
    clock = ShiftedClock(first_ms - lead_ms - SystemClock().now())
    meter = Meter()
    ms = Mainspring(url_of(folder), clock=clock)
    fires: list[tuple[str, float, float]] = []

    @ms.task(timeout=None)
    async def nothing(ctx: Context) -> None:
        fires.append((ctx.run_id, ctx.fire_time.timestamp(), time.time()))

    async with ms.running():
        yield ms, clock, fires, meter.wall()


async def _tick(folder: str, schedules: int, seconds: int, first_ms: int) -> Figures:
    """100 due in every second of the window: lateness to the handler's first line, CPU, memory, start-up."""
    async with _firing(folder, first_ms, 3_000) as (ms, clock, fires, started):
        await asyncio.sleep((first_ms - clock.now() - 20) / 1000)
        meter = Meter()
        await asyncio.sleep(seconds)
        cpu = meter.cpu()
        await asyncio.sleep(1)
        used = memory()
        durability = await _durability(ms)
    end = first_ms / 1000 + seconds
    late = [now + clock.shift / 1000 - fire for _, fire, now in fires if fire < end]
    return {
        "schedules": schedules,
        "expected": seconds * DUE_PER_SECOND,
        "fires": len(late),
        "doubled": len(late) - len({fire for _, fire, _ in fires if fire < end}),
        "ms": sorted_ms(late),
        "cpu_us": cpu / (seconds * DUE_PER_SECOND) * 1e6,
        "start_seconds": started,
        "durability": durability,
        **used,
    }


async def _prepare_herd(folder: str, n: int) -> Figures:
    ms = Mainspring(url_of(folder))

    @ms.task(timeout=None)
    async def nothing(ctx: Context) -> None: ...

    first = (SystemClock().now() // 1000 + 3_600) * 1000
    await _add(ms, nothing, ({"name": f"herd-{i}", "at": _noon(first)} for i in range(n)))
    await ms.close()
    return {"n": n, "first_ms": first}


async def _herd(folder: str, n: int, first_ms: int) -> Figures:
    """All due at the same instant."""
    async with _firing(folder, first_ms, 2_000) as (ms, clock, fires, _):
        await asyncio.sleep((first_ms - clock.now()) / 1000)
        meter = Meter()
        while len(fires) < n and meter.wall() < 30:  # noqa: ASYNC110 - a deadline, then what came in time
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        durability = await _durability(ms)
    ids = {run_id for run_id, _, _ in fires}
    last = max((now + clock.shift / 1000 - first_ms / 1000 for _, _, now in fires), default=99.0)
    return {
        "n": n,
        "fires": len(ids),
        "dropped": n - len(ids),
        "doubled": len(fires) - len(ids),
        "last_seconds": last,
        "durability": durability,
    }


async def _cron(folder: str, seconds: int) -> Figures:
    """An every-second cron, nothing else to do."""
    ms = Mainspring(url_of(folder))
    fires: list[tuple[float, float]] = []

    @ms.cron("* * * * * *")
    async def second(ctx: Context) -> None:
        fires.append((ctx.fire_time.timestamp(), time.time()))

    async with ms.running():
        begin = int(time.time()) + 1
        meter = Meter()
        await asyncio.sleep(begin + seconds + 0.5 - time.time())
        cpu = meter.cpu()
        durability = await _durability(ms)
    seen = [(fire, now) for fire, now in fires if begin < fire <= begin + seconds]
    return {
        "expected": seconds,
        "fires": len({fire for fire, _ in seen}),
        "doubled": len(seen) - len({fire for fire, _ in seen}),
        "ms": sorted_ms(now - fire for fire, now in seen),
        "cpu_us": cpu / seconds * 1e6,
        "durability": durability,
    }


if __name__ == "__main__":
    main(
        {
            "drain": lambda **p: asyncio.run(_drain(**p)),
            "enqueue_one": lambda **p: asyncio.run(_enqueue_one(**p)),
            "enqueue_coroutines": lambda **p: asyncio.run(_enqueue_coroutines(**p)),
            "enqueue_bulk": lambda **p: asyncio.run(_enqueue_bulk(**p)),
            "latency": lambda **p: asyncio.run(_latency(**p)),
            "priority": lambda **p: asyncio.run(_priority(**p)),
            "busy_thread": lambda **p: asyncio.run(_busy_thread(**p)),
            "add_schedules": lambda **p: asyncio.run(_add_schedules(**p)),
            "tick": lambda **p: asyncio.run(_tick(**p)),
            "prepare_herd": lambda **p: asyncio.run(_prepare_herd(**p)),
            "herd": lambda **p: asyncio.run(_herd(**p)),
            "cron": lambda **p: asyncio.run(_cron(**p)),
        }
    )
