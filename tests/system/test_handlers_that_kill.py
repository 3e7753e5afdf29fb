"""A handler that kills its worker: the run is claimed again after the lease, and becomes a dead letter in the end."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import Mainspring, State
from mainspring.model.events import LeaseExpired, RunFailed

PROGRAM = """
    import asyncio, os, signal
    from mainspring import Context, Mainspring

    ms = Mainspring("sqlite:///{db}", lease_ttl="900ms", poll_interval="100ms", concurrency=4)

    @ms.task
    async def kill_coroutine(log: str) -> None:
        note(log)
        os.kill(os.getpid(), signal.SIGKILL)

    @ms.task
    def kill_thread(log: str) -> None:
        note(log)
        os._exit(1)

    @ms.task
    async def neighbour(number: int) -> int:
        await asyncio.sleep(0.02)
        return number

    def note(log: str) -> None:
        with open(log, "a") as file:
            file.write("x")

    ms.run(until_idle=True)
"""


@pytest.fixture
def ms(tmp_path: Path) -> Iterator[Mainspring]:
    app = Mainspring(f"sqlite:///{tmp_path}/x.db")
    yield app
    app.sync.close()


def run_as_a_supervisor_does(folder: Path) -> int:
    """Restart the program until it ends in order; return how often it died."""
    program = folder / "program.py"
    program.write_text(textwrap.dedent(PROGRAM).format(db=folder / "x.db"))
    deaths, end = 0, time.monotonic() + 45
    while subprocess.run([sys.executable, str(program)], timeout=45, check=False).returncode != 0:
        deaths += 1
        assert time.monotonic() < end, "the killer never ended"
    return deaths


def test_a_handler_that_kills_its_worker_comes_back_after_the_lease_and_ends_in_the_dead_letters(
    ms: Mainspring, tmp_path: Path
) -> None:
    @ms.task(name="kill_coroutine")
    def killer(log: str) -> None: ...

    log = tmp_path / "log"
    handle = killer.sync.enqueue(str(log))
    assert run_as_a_supervisor_does(tmp_path) == 3
    assert log.read_text() == "xxx"
    run = ms.sync.find_by_id(handle.id)
    assert (run.state, run.reason, run.dead) == (State.FAILED, "crashed", True)
    assert (run.crashes, run.failures, run.attempt) == (3, 0, 3)
    assert len(ms.sync.events(run=handle.id, types=[LeaseExpired])) == 2
    assert len(ms.sync.events(run=handle.id, types=[RunFailed])) == 1


def test_the_neighbours_of_a_handler_that_kills_its_worker_succeed_in_the_end(ms: Mainspring, tmp_path: Path) -> None:
    @ms.task(name="kill_thread")
    def killer(log: str) -> None: ...

    @ms.task
    def neighbour(number: int) -> int:
        return number

    before = neighbour.sync.enqueue_many((number,) for number in range(10))
    dead = killer.sync.enqueue(str(tmp_path / "log"))
    after = neighbour.sync.enqueue_many((number,) for number in range(10, 20))
    assert run_as_a_supervisor_does(tmp_path) == 3
    assert ms.sync.find_by_id(dead.id).reason == "crashed"
    ended = [ms.sync.find_by_id(handle.id) for handle in (*before, *after)]
    assert {run.state for run in ended} == {State.SUCCEEDED}
    assert [run.result for run in ended] == list(range(20))
