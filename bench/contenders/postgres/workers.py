"""Several worker processes of one contender: started and ready first, let go together, timed to the last commit.

A worker says `ready`, waits for a line, works, counts every handler it began in a file that the parent reads, and
stops at the next line; then it tells which items it ran.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.contenders.common import MARK, Figures, Meter, path_in, rate, wait_until

#: Seconds that workers may take for anything.
PATIENCE = 120.0


class Tally:
    """The items that this worker ran; how many is seen by the parent at once."""

    def __init__(self, folder: str, place: int) -> None:
        self.items: list[str] = []
        self._at = 8 * place
        self._file = _items(folder, place)
        with open(os.path.join(folder, "tally"), "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    def add(self, item: str) -> None:
        self.items.append(item)
        struct.pack_into("<q", self._memory, self._at, len(self.items))

    def save(self) -> None:
        """For the parent; there may be more of them than a pipe holds."""
        self._file.write_text(json.dumps(self.items), encoding="utf-8")


def _items(folder: str, place: int) -> Path:
    return Path(folder) / f"items-{place}.json"


def spin(cpu_ms: float) -> None:
    """Use this amount of CPU time, whatever else the machine does."""
    if cpu_ms:
        end = time.thread_time() + cpu_ms / 1000
        while time.thread_time() < end:
            pass


async def told() -> None:
    """The parent's next line."""
    await asyncio.to_thread(sys.stdin.readline)


async def ready() -> Meter:
    """Say so, and wait to be let go."""
    print("ready", flush=True)
    await told()
    return Meter()


async def race(
    module: str, folder: str, n: int, processes: int, parameters: dict[str, Any], ended: Callable[[], Awaitable[None]]
) -> Figures:
    """Let workers drain n items; `ended` waits until the last outcome is committed."""
    memory = _shared(path_in(folder, "tally"), processes)
    workers = [_start(module, {"folder": folder, "place": place, **parameters}) for place in range(processes)]
    try:
        for worker in workers:
            _read(worker, "ready")
        meter = Meter()
        for worker in workers:
            _tell(worker)
        layout = f"<{processes}q"
        wait_until(lambda: sum(struct.unpack_from(layout, memory)) >= n, PATIENCE, pause=0.002)
        await ended()
        seconds = meter.wall()
        items: list[str] = []
        shares: list[int] = []
        cpu = 0.0
        for worker in workers:
            _tell(worker)
        for place, worker in enumerate(workers):
            cpu += json.loads(_read(worker, MARK).removeprefix(MARK))["cpu"]
            ran = json.loads(_items(folder, place).read_text(encoding="utf-8"))
            shares.append(len(ran))
            items += ran
    finally:
        for worker in workers:
            with worker:  # closes its pipes and waits for it
                worker.kill()
    if len(set(items)) != n:
        raise SystemExit(f"of {n} items {len(set(items))} were run")
    return {
        "n": n,
        "processes": processes,
        "per_second": rate(n, seconds),
        "cpu_us": cpu / n * 1e6,
        "twice": len(items) - len(set(items)),
        "least_share": min(shares) / n,
    }


def _shared(path: str, places: int) -> mmap.mmap:
    with open(path, "w+b") as file:
        file.write(bytes(8 * places))
        file.flush()
        return mmap.mmap(file.fileno(), 0)


def _start(module: str, parameters: dict[str, Any]) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", module, "worker", json.dumps(parameters)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _tell(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()


def _read(worker: subprocess.Popen[str], beginning: str) -> str:
    """Its next line that begins so; the runner's time-out ends a wait for ever."""
    assert worker.stdout is not None
    for line in worker.stdout:
        if line.startswith(beginning):
            return line
    raise SystemExit(f"a worker ended with {worker.wait()} instead of saying {beginning!r}")
