"""SqliteHuey with thread workers; `fsync=True` makes it WAL with synchronous=FULL."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

from huey import SqliteHuey

from bench.contenders.common import Figures, Meter, durability_of, main, path_in, rate, sorted_ms, wait_until


def _huey(folder: str) -> Any:
    return SqliteHuey("bench", filename=path_in(folder, "huey.db"), fsync=True, cache_mb=16)


def _counting(huey: Any, n: int) -> tuple[Any, Callable[[], bool]]:
    """A no-op task, and whether it has run n times; counting is one atomic call."""
    numbers = itertools.count(1)
    done = False

    @huey.task()  # type: ignore[untyped-decorator]  # huey has no types
    def nothing() -> None:
        nonlocal done
        if next(numbers) == n:
            done = True

    return nothing, lambda: done


def drain(folder: str, n: int, threads: int) -> Figures:
    """Its consumer takes a task out of the table before it runs it; there is no outcome to commit."""
    huey = _huey(folder)
    nothing, done = _counting(huey, n)
    meter = Meter()
    for _ in range(n):
        nothing()
    filled = meter.wall()
    consumer = huey.create_consumer(workers=threads, periodic=False, check_worker_health=False)
    meter = Meter()
    consumer.start()
    wait_until(done, 200)
    seconds, cpu = meter.wall(), meter.cpu()
    durability = durability_of(huey.storage.conn)
    left = huey.storage.queue_size()
    consumer.stop(graceful=True)
    if left:
        raise SystemExit(f"{left} tasks are left")
    return {
        "n": n,
        "per_second": rate(n, seconds),
        "cpu_us": cpu / n * 1e6,
        "fill_per_second": rate(n, filled),
        "threads": threads,
        "durability": durability,
    }


def enqueue_one(folder: str, n: int) -> Figures:
    huey = _huey(folder)
    nothing, _ = _counting(huey, n)
    for _ in range(100):
        nothing()
    meter = Meter()
    for _ in range(n):
        nothing()
    return {
        "n": n,
        "per_second": rate(n, meter.wall()),
        "cpu_us": meter.cpu() / n * 1e6,
        "durability": durability_of(huey.storage.conn),
    }


def latency(folder: str, n: int, poll: float | None = None, per_second: float = 50) -> Figures:
    """Enqueue to start in one process; by default it polls with a growing pause, `poll` makes it a fixed one."""
    huey = _huey(folder)
    seen: dict[int, float] = {}

    @huey.task()  # type: ignore[untyped-decorator]  # huey has no types
    def note(number: int) -> None:
        seen[number] = time.perf_counter()

    polling = {} if poll is None else {"initial_delay": poll, "backoff": 1.0, "max_delay": poll}
    consumer = huey.create_consumer(workers=2, periodic=False, check_worker_health=False, **polling)
    consumer.start()
    warm = int(per_second)
    sent: list[float] = []
    meter = Meter()
    begin = time.perf_counter()
    for number in range(n + warm):
        time.sleep(max(0.0, begin + number / per_second - time.perf_counter()))
        sent.append(time.perf_counter())
        note(number)
    cpu = meter.cpu()
    wait_until(lambda: len(seen) == n + warm, 30)
    durability = durability_of(huey.storage.conn)
    consumer.stop(graceful=True)
    return {
        "n": n,
        "ms": sorted_ms(seen[number] - sent[number] for number in range(warm, n + warm)),
        "cpu_us": cpu / (n + warm) * 1e6,
        "durability": durability,
    }


if __name__ == "__main__":
    main({"drain": drain, "enqueue_one": enqueue_one, "latency": latency})
