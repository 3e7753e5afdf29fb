"""What is timed for every peer, in the same way; a peer's own file says how it enqueues and works."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from bench.contenders.common import Figures, Meter, main, rate, sorted_ms
from bench.contenders.postgres.drivers import Look, Psycopg, until_none
from bench.contenders.postgres.workers import Tally, race, ready, told

#: Seconds that a peer may take to run everything.
PATIENCE = 150.0


class Ran:
    """Counts handlers that ran, from any thread's loop; the last of them sets `done`."""

    def __init__(self) -> None:
        self.left = 0
        self.done = asyncio.Event()
        self.seen: dict[int, float] = {}
        self._loop = asyncio.get_running_loop()

    def expect(self, n: int) -> None:
        self.left = n
        self.done.clear()

    def one(self, number: int | None = None) -> None:
        """The whole of a handler."""
        if number is not None:
            self.seen[number] = time.perf_counter()
        self.left -= 1
        if not self.left:
            self._loop.call_soon_threadsafe(self.done.set)


class _Counted(Ran):
    """For a worker that is one of several: a peer's items have no names here, so each gets one of its own."""

    def __init__(self, tally: Tally, place: int) -> None:
        super().__init__()
        self._tally = tally
        self._place = place

    def one(self, number: int | None = None) -> None:
        self._tally.add(f"{self._place}-{len(self._tally.items)}")


class Peer:
    """A queue on one database."""

    #: Which driver looks at the database beside it.
    looks: type[Look] = Psycopg
    #: The rows of what has not ended, in the words of the look.
    open_rows = ""

    def __init__(self, url: str) -> None:
        self.url = url
        self.ran = Ran()

    async def open(self) -> None:
        """Make the tables and connect, without working."""
        raise NotImplementedError

    async def enqueue(self, number: int | None = None) -> None:
        """One, committed when this returns; its handler is `self.ran.one(number)`."""
        raise NotImplementedError

    async def enqueue_many(self, n: int) -> None:
        """In bulk where the peer can."""
        for _ in range(n):
            await self.enqueue()

    def working(self) -> AbstractAsyncContextManager[None]:
        """A worker in this process."""
        raise NotImplementedError

    async def durability(self) -> str:
        """Read on a connection of the peer's own."""
        raise NotImplementedError

    async def close(self) -> None: ...


async def _drain(kind: type[Peer], url: str, n: int, **_: Any) -> Figures:
    peer = kind(url)
    await peer.open()
    durability = await peer.durability()
    look = await kind.looks.connect(url)
    meter = Meter()
    await peer.enqueue_many(n)
    filled = meter.wall()
    peer.ran.expect(n)
    meter = Meter()
    async with asyncio.timeout(PATIENCE), peer.working():
        await peer.ran.done.wait()
        await until_none(look, kind.open_rows)
        seconds, cpu = meter.wall(), meter.cpu()
    await look.close()
    await peer.close()
    return {
        "n": n,
        "per_second": rate(n, seconds),
        "cpu_us": cpu / n * 1e6,
        "fill_per_second": rate(n, filled),
        "durability": durability,
    }


async def _enqueue_one(kind: type[Peer], url: str, n: int, **_: Any) -> Figures:
    peer = kind(url)
    await peer.open()
    for _number in range(50):
        await peer.enqueue()
    meter = Meter()
    for _number in range(n):
        await peer.enqueue()
    figures: Figures = {"n": n, "per_second": rate(n, meter.wall()), "cpu_us": meter.cpu() / n * 1e6}
    figures["durability"] = await peer.durability()
    await peer.close()
    return figures


async def _enqueue_coroutines(kind: type[Peer], url: str, n: int, coroutines: int = 100, **_: Any) -> Figures:
    """Enqueue from `coroutines` coroutines at once, each one run after the other."""
    peer = kind(url)
    await peer.open()
    for _number in range(50):
        await peer.enqueue()

    async def several(count: int) -> None:
        for _number in range(count):
            await peer.enqueue()

    share = n // coroutines
    done = share * coroutines
    meter = Meter()
    await asyncio.gather(*(several(share) for _number in range(coroutines)))
    figures: Figures = {"n": done, "per_second": rate(done, meter.wall()), "cpu_us": meter.cpu() / done * 1e6}
    figures["durability"] = await peer.durability()
    await peer.close()
    return figures


async def _enqueue_bulk(kind: type[Peer], url: str, n: int, **_: Any) -> Figures:
    peer = kind(url)
    await peer.open()
    meter = Meter()
    await peer.enqueue_many(n)
    figures: Figures = {"n": n, "per_second": rate(n, meter.wall()), "cpu_us": meter.cpu() / n * 1e6}
    figures["durability"] = await peer.durability()
    await peer.close()
    return figures


async def _latency(kind: type[Peer], url: str, n: int, per_second: float = 50, **_: Any) -> Figures:
    """From the call that enqueues to the first line of the handler, in one process; the first second is warm-up."""
    peer = kind(url)
    await peer.open()
    durability = await peer.durability()
    warm = int(per_second)
    sent: list[float] = []
    peer.ran.expect(n + warm)
    async with asyncio.timeout(PATIENCE), peer.working():
        await asyncio.sleep(1)
        meter = Meter()
        begin = time.perf_counter()
        for number in range(n + warm):
            await asyncio.sleep(begin + number / per_second - time.perf_counter())
            sent.append(time.perf_counter())
            await peer.enqueue(number)
        cpu = meter.cpu()
        await peer.ran.done.wait()
    await peer.close()
    latencies = sorted_ms(peer.ran.seen[number] - sent[number] for number in range(warm, n + warm))
    return {"n": n, "ms": latencies, "cpu_us": cpu / (n + warm) * 1e6, "durability": durability}


async def _workers(kind: type[Peer], module: str, url: str, folder: str, n: int, processes: int) -> Figures:
    peer = kind(url)
    await peer.open()
    durability = await peer.durability()
    await peer.enqueue_many(n)
    await peer.close()
    look = await kind.looks.connect(url)
    figures = await race(module, folder, n, processes, {"url": url}, lambda: until_none(look, kind.open_rows))
    await look.close()
    return figures | {"durability": durability}


async def _worker(kind: type[Peer], url: str, folder: str, place: int) -> Figures:
    """A process of `_workers`."""
    peer = kind(url)
    tally = Tally(folder, place)
    peer.ran = _Counted(tally, place)
    await peer.open()
    meter = await ready()
    async with peer.working():
        await told()
        cpu = meter.cpu()
    await peer.close()
    tally.save()
    return {"cpu": cpu}


def run(kind: type[Peer], module: str, runner: Callable[[Any], Figures] = asyncio.run) -> None:
    """The command line of a peer."""
    main(
        {
            "drain": lambda **p: runner(_drain(kind, **p)),
            "enqueue_one": lambda **p: runner(_enqueue_one(kind, **p)),
            "enqueue_coroutines": lambda **p: runner(_enqueue_coroutines(kind, **p)),
            "enqueue_bulk": lambda **p: runner(_enqueue_bulk(kind, **p)),
            "latency": lambda **p: runner(_latency(kind, **p)),
            "workers": lambda **p: runner(_workers(kind, module, **p)),
            "worker": lambda **p: runner(_worker(kind, **p)),
        }
    )
