"""How long after the commit `result()` returns in a process that did not execute the run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mainspring import Mainspring
from servers import for_tests_redis
from servers.for_tests import fresh_url

#: A worker in a process of its own. Its handlers return; after each commit it prints the run and the time.
WORKER = """
import sys, time
from mainspring import Mainspring, RunSucceeded

ms = Mainspring(sys.argv[1])

@ms.task(name="work")
async def work() -> None: ...

ms.on_event(RunSucceeded, lambda event: print(event.run_id, time.time(), flush=True))
ms.run(role="worker")
"""
#: `MAINSPRING_RESULTS` raises the number of runs.
RUNS = int(os.environ.get("MAINSPRING_RESULTS", "60"))
PLACES: dict[str, tuple[Callable[[Path], str], float]] = {
    "sqlite": (lambda folder: f"sqlite:///{folder}/x.db", 0.1),
    "postgresql": (lambda _: fresh_url(), 0.05),
    "valkey": (lambda _: for_tests_redis.fresh_url(), 0.05),
}


def start_worker(program: Path, url: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, str(program), url], stdout=subprocess.PIPE, text=True)


@pytest.mark.alone
@pytest.mark.parametrize("place", PLACES)
async def test_a_result_is_there_soon_after_the_commit_of_another_process(place: str, tmp_path: Path) -> None:
    make_url, p99 = PLACES[place]
    url = make_url(tmp_path)
    ms = Mainspring(url)

    @ms.task(name="work")
    async def work() -> None: ...

    await ms.runs()  # creates the store
    program = tmp_path / "worker.py"
    program.write_text(WORKER, encoding="utf-8")
    with start_worker(program, url) as worker:
        returned: dict[str, float] = {}
        try:
            await (await work.enqueue()).result(timeout="30s")  # the worker has started
            for _ in range(RUNS):
                handle = await work.enqueue()
                await handle.result(timeout="30s")
                returned[handle.id] = time.time()
        finally:
            worker.terminate()
            output, _ = worker.communicate(timeout=30)
    committed = {run_id: float(at) for run_id, at in (line.split() for line in output.splitlines())}
    delays = sorted(at - committed[run_id] for run_id, at in returned.items())
    print(f"{place}: median {delays[RUNS // 2] * 1000:.1f} ms, p99 {delays[RUNS * 99 // 100 - 1] * 1000:.1f} ms")
    assert delays[RUNS * 99 // 100 - 1] <= p99, delays[-5:]
    await ms.close()
