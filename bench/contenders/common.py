"""What every contender shares; the standard library only, since each runs in an environment of its own."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Figures = dict[str, Any]
Scenario = Callable[..., Figures]

#: What the harness reads is the last line that begins with this; a chatty package cannot spoil it.
MARK = "bench-result "


def main(scenarios: Mapping[str, Scenario]) -> None:
    """Run the scenario named on the command line with its JSON parameters and print its figures."""
    name, parameters = sys.argv[1], json.loads(sys.argv[2])
    if name not in scenarios:
        raise SystemExit(f"no scenario {name!r} here; there are {', '.join(scenarios)}")
    figures = scenarios[name](**parameters)
    print(MARK + json.dumps(figures), flush=True)


class Meter:
    """Wall and CPU seconds since it was made, children's CPU included."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = _cpu()

    def wall(self) -> float:
        return time.perf_counter() - self._wall

    def cpu(self) -> float:
        return _cpu() - self._cpu


def _cpu() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def memory() -> Figures:
    """This process's memory in MB, now and at its highest."""
    with open("/proc/self/status", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file if line.startswith(("VmRSS", "VmHWM")))
    now, peak = (int(lines[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))
    return {"rss_mb": now, "rss_peak_mb": peak}


def rate(n: int, seconds: float) -> float:
    return n / seconds


def durable(journal_mode: str, synchronous: int) -> str:
    """The durability a connection was asked to show; anything but WAL and FULL is no fair run."""
    said = f"{journal_mode}, synchronous={synchronous}"
    if (journal_mode.lower(), synchronous) != ("wal", 2):
        raise SystemExit(f"this connection runs with {said}; all must have wal, synchronous=2 (FULL)")
    return "WAL, synchronous=FULL"


def durability_of(connection: sqlite3.Connection) -> str:
    """`durable` of a plain connection."""
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    return durable(mode, connection.execute("PRAGMA synchronous").fetchone()[0])


#: A session's answer is `committed`'s arguments.
SETTINGS = "SELECT current_setting('fsync'), current_setting('synchronous_commit')"


def committed(fsync: str, synchronous_commit: str) -> str:
    """The durability a session of a server has; anything but on and on is no fair run."""
    said = f"fsync={fsync}, synchronous_commit={synchronous_commit}"
    if (fsync, synchronous_commit) != ("on", "on"):
        raise SystemExit(f"this session runs with {said}; all must have fsync=on, synchronous_commit=on")
    return said


def appended(appendonly: str, appendfsync: str) -> str:
    """The durability a Redis or Valkey has; anything but an AOF flushed every second is no fair run."""
    said = f"appendonly={appendonly}, appendfsync={appendfsync}"
    if (appendonly, appendfsync) != ("yes", "everysec"):
        raise SystemExit(f"this server runs with {said}; all must have appendonly=yes, appendfsync=everysec")
    return "AOF, appendfsync=everysec"


def wait_until(is_so: Callable[[], bool], timeout: float, pause: float = 0.001) -> None:
    """Look again and again from a thread that has nothing else to do."""
    deadline = time.monotonic() + timeout
    while not is_so():
        if time.monotonic() > deadline:
            raise SystemExit(f"not done within {timeout:g} s")
        time.sleep(pause)


def sorted_ms(seconds: Iterable[float]) -> list[float]:
    """Durations as milliseconds, rounded to a microsecond, in order."""
    return sorted(round(value * 1000, 3) for value in seconds)


def path_in(folder: str, name: str) -> str:
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, name)
