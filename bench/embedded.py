"""Our own figures on the embedded stores, medians of several runs; SQLite is WAL with synchronous=FULL.

python bench/embedded.py [--runs 3] [--items 20000] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from mainspring import Mainspring


async def drain(url: str, items: int) -> dict[str, float]:
    """Enqueue no-op runs in one call, then work them off in this process."""
    ms = Mainspring(url, concurrency=200)

    @ms.task(timeout=None)
    async def nothing() -> None: ...

    begin = time.perf_counter()
    await nothing.enqueue_many(() for _ in range(items))
    enqueued = time.perf_counter()
    if url.startswith("sqlite"):
        await ms.close()
    cpu = time.process_time()
    started = time.perf_counter()
    await ms.run_async(until_idle=True, signals=False)
    ended = time.perf_counter()
    return {
        "bulk enqueue /s": items / (enqueued - begin),
        "drain /s": items / (ended - started),
        "µs CPU per run": (time.process_time() - cpu) / items * 1e6,
    }


async def one_by_one(url: str, items: int) -> dict[str, float]:
    """Enqueue awaited one after the other."""
    ms = Mainspring(url)

    @ms.task
    async def nothing() -> None: ...

    await nothing.enqueue()
    begin = time.perf_counter()
    for _ in range(items):
        await nothing.enqueue()
    rate = items / (time.perf_counter() - begin)
    await ms.close()
    return {"enqueue one by one /s": rate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures: dict[str, dict[str, list[float]]] = {}
    for _ in range(options.runs):
        for store in ("sqlite", "memory"):
            with tempfile.TemporaryDirectory() as folder:
                url = f"sqlite:///{Path(folder) / 'bench.db'}" if store == "sqlite" else "memory://"
                for name, value in asyncio.run(drain(url, options.items)).items():
                    figures.setdefault(store, {}).setdefault(name, []).append(value)
            with tempfile.TemporaryDirectory() as folder:
                url = f"sqlite:///{Path(folder) / 'bench.db'}" if store == "sqlite" else "memory://"
                for name, value in asyncio.run(one_by_one(url, 1_000)).items():
                    figures[store].setdefault(name, []).append(value)
    medians = {s: {n: statistics.median(v) for n, v in rows.items()} for s, rows in figures.items()}
    if options.json:
        print(json.dumps({"items": options.items, "runs": options.runs, "cores": os.cpu_count(), **medians}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{options.items} no-op runs, median of {options.runs}; SQLite: WAL, synchronous=FULL")
    table.add_column("store")
    for name in medians["sqlite"]:
        table.add_column(name, justify="right")
    for store, row in medians.items():
        table.add_row(store, *(f"{value:,.0f}" for value in row.values()))
    Console(file=sys.stdout).print(table)


if __name__ == "__main__":
    main()
