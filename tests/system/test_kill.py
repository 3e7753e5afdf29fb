"""kill -9 and SIGSTOP at random moments: no run is lost, no fire runs twice, no stale result is accepted.

`make chaos` runs these tests with larger counts.
"""

from __future__ import annotations

import asyncio
import collections
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring import Mainspring
from mainspring.backends.sqlite import SqliteStore
from mainspring.ledger.account import ledger
from mainspring.ledger.verify import verify
from mainspring.model.run import State
from mainspring.ports.clock import SystemClock
from mainspring.ports.store import Runs
from tests.system.scripts import run_script

APP = Path(__file__).with_name("worker_app.py")
KILLS = int(os.environ.get("MAINSPRING_KILLS", "8"))
STOPS = int(os.environ.get("MAINSPRING_STOPS", "2"))
RUNS = int(os.environ.get("MAINSPRING_RUNS", "8000"))


def lines(log: Path) -> list[tuple[str, int, int]]:
    """Read the handlers' own log: key, attempt, argument of each call."""
    return [(key, int(attempt), int(number)) for key, attempt, number in map(str.split, log.read_text().splitlines())]


@pytest.mark.chaos
@pytest.mark.timeout(120 + 4 * (KILLS + STOPS))
def test_two_processes_killed_and_stopped_lose_nothing_double_nothing_and_take_no_stale_result() -> None:
    arguments = ["--kills", str(KILLS), "--stops", str(STOPS)]
    assert "0 violations" in run_script("kill_loop.py", *arguments)[-1]


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
    db, log = tmp_path / "drain.db", tmp_path / "log"

    async def enqueue() -> None:
        ms = Mainspring(f"sqlite:///{db}")

        @ms.task
        def work(number: int) -> None: ...

        await work.enqueue_many((number,) for number in range(RUNS))
        await ms.close()

    asyncio.run(enqueue())
    nodes = [subprocess.Popen([sys.executable, str(APP), str(db), str(log)]) for _ in range(8)]
    for node in nodes:
        assert node.wait(60 + RUNS / 100) == 0
    executions = lines(log)
    assert len(executions) == RUNS
    assert len({key for key, _, _ in executions}) == RUNS
    assert {number for _, _, number in executions} == set(range(RUNS))
    asyncio.run(_account(db, executions))
