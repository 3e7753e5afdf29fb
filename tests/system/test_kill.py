"""kill -9 at random moments: nothing lost, no trigger doubled, the log still rebuilds the store.

`make chaos` runs the same with larger counts.
"""

from __future__ import annotations

import asyncio
import collections
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mainspring import Mainspring
from mainspring.ledger import ledger
from mainspring.model.run import State
from mainspring.ports.clock import SystemClock
from mainspring.ports.store import Runs
from mainspring.stores.sqlite import SqliteStore
from mainspring.verify import verify

APP = Path(__file__).with_name("worker_app.py")
KILLS = int(os.environ.get("MAINSPRING_KILLS", "20"))
RUNS = int(os.environ.get("MAINSPRING_RUNS", "20000"))


class Log:
    """The handlers' own words: key, attempt, argument."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def lines(self) -> list[tuple[str, int, int]]:
        found = []
        for line in self.path.read_text().splitlines():
            key, attempt, number = line.split()
            found.append((key, int(attempt), int(number)))
        return found

    def wait_for(self, count: int, seconds: float = 30.0) -> None:
        """Wait for a fact: so many executions in all."""
        end = time.monotonic() + seconds
        while self.path.read_bytes().count(b"\n") < count:
            assert time.monotonic() < end, f"only {len(self.lines())} executions, {count} expected"
            os.sched_yield()
            time.sleep(0.002)


def start(db: Path, log: Log, mode: str, lease: str = "900ms") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(APP), str(db), str(log.path), mode, lease])


@pytest.mark.chaos
@pytest.mark.timeout(60 + 4 * KILLS)
def test_two_processes_under_kill_9_lose_nothing_and_double_no_trigger(tmp_path: Path) -> None:
    rng = random.Random(20261115)
    db, log = tmp_path / "kill.db", Log(tmp_path / "log")
    nodes = [start(db, log, "fires"), start(db, log, "fires")]
    try:
        log.wait_for(5)
        for _ in range(KILLS):
            log.wait_for(len(log.lines()) + rng.randint(1, 8))
            victim = rng.randrange(2)
            nodes[victim].kill()
            nodes[victim].wait()
            nodes[victim] = start(db, log, "fires")
        log.wait_for(len(log.lines()) + 20)
    finally:
        for node in nodes:
            node.terminate()
        for node in nodes:
            assert node.wait(30) == 0
    finish = start(db, log, "drain")
    assert finish.wait(60) == 0
    executions = log.lines()
    asyncio.run(_account(db, executions))


async def _account(db: Path, executions: list[tuple[str, int, int]]) -> None:
    store = SqliteStore(str(db))
    await store.open()
    report = await verify(store)
    assert report.ok, report.differences
    book = await ledger(store, SystemClock().now())
    assert book.unexplained == 0, book
    runs = await store.find(Runs(limit=1_000_000))
    fires = [run for run in runs if run.origin == "fire"]
    assert len({(run.schedule_id, run.fire_key) for run in fires}) == len(fires), "a trigger was doubled"
    executed = {key for key, _, _ in executions}
    succeeded = {run.id for run in runs if run.state is State.SUCCEEDED}
    assert succeeded <= executed, "a run succeeded that no handler saw"
    assert executed <= {run.id for run in runs}, "a handler saw a run that the ledger does not know"
    open_runs = [run for run in runs if run.ended_at is None]
    assert not open_runs, f"lost: {open_runs[:3]}"
    attempts = collections.Counter((key, attempt) for key, attempt, _ in executions)
    assert max(attempts.values()) == 1, "one attempt was executed twice"
    repeated = len(executions) - len(executed)
    print(f"{len(fires)} fires, {len(executions)} executions, {repeated} repeated with the same key")
    await store.close()


@pytest.mark.chaos
@pytest.mark.timeout(60 + RUNS / 100)
def test_eight_processes_execute_each_of_many_runs_once(tmp_path: Path) -> None:
    db, log = tmp_path / "drain.db", Log(tmp_path / "log")

    async def enqueue() -> None:
        ms = Mainspring(f"sqlite:///{db}")

        @ms.task
        def work(number: int) -> None: ...

        await work.enqueue_many((number,) for number in range(RUNS))
        await ms.close()

    asyncio.run(enqueue())
    nodes = [start(db, log, "drain", "30s") for _ in range(8)]
    for node in nodes:
        assert node.wait(60 + RUNS / 100) == 0
    executions = log.lines()
    assert len(executions) == RUNS
    assert len({key for key, _, _ in executions}) == RUNS
    assert {number for _, _, number in executions} == set(range(RUNS))
    asyncio.run(_account(db, executions))
