"""The conditions of a measurement: machine, file system, versions, commit."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.envs import ROOT


def machine(folder: Path) -> dict[str, Any]:
    """Describe the conditions under which figures are measured in `folder`."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "cores": os.cpu_count(),
        "cpu": _cpu_name(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "kernel": platform.release(),
        "filesystem": _filesystem(folder),
        "fsync_us": round(fsync_us(folder)),
    }


def fsync_us(folder: Path, times: int = 200) -> float:
    """Measure a 4 KiB append with its fdatasync, in microseconds."""
    with tempfile.TemporaryFile(dir=folder) as file:
        costs = []
        for _ in range(times):
            begin = time.perf_counter()
            os.write(file.fileno(), b"\0" * 4096)
            os.fdatasync(file.fileno())
            costs.append(time.perf_counter() - begin)
    return statistics.median(costs) * 1e6


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"],
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _filesystem(folder: Path) -> str:
    """Return the type of the file system that contains a folder."""
    path = folder.resolve()
    best, kind = "", "unknown"
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return kind
    for line in mounts.splitlines():
        _, mount, fstype, *_ = line.split()
        if path.is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, fstype
    return kind
