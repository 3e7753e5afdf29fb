"""Signals to real processes: the first drains, the second stops at once; whatever happens, no run is lost."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import Mainspring, Run, State
from mainspring.backends.sqlite import SqliteStore
from mainspring.ledger.verify import verify
from mainspring.model.events import InstanceLeft, LeaseExpired, RunHandedBack

PROGRAM = """
    import asyncio, os, sys, threading
    from mainspring import Context, Mainspring
    from mainspring.app.internals import runner_of

    ms = Mainspring("sqlite:///{db}", shutdown_timeout="{timeout}", lease_ttl="10m")

    def say(*words):
        print(*words, flush=True)

    @ms.task
    async def coroutine(ctx: Context, mark: str) -> str:
        say("began", ctx.attempt)
        while not os.path.exists(mark):
            await asyncio.sleep(0.01)
        return f"attempt {{ctx.attempt}}"

    @ms.task
    def thread(ctx: Context, mark: str) -> str:
        say("began", ctx.attempt)
        while not os.path.exists(mark):
            threading.Event().wait(0.01)
        return f"attempt {{ctx.attempt}}"

    @ms.task(executor="process")
    def process(ctx: Context, mark: str) -> str:
        say("began", ctx.attempt)
        while not os.path.exists(mark):
            threading.Event().wait(0.01)
        return f"attempt {{ctx.attempt}}"

    def tell():
        while runner_of(ms).stopper is None or not runner_of(ms).stopper.requests:
            threading.Event().wait(0.005)
        say("asked to stop")

    if not os.environ.get("MAINSPRING_CHILD"):
        threading.Thread(target=tell, daemon=True).start()
    ms.run(until_idle="idle" in sys.argv)
    say("stopped")
"""


class Program:
    """One process of the program above."""

    def __init__(self, folder: Path, timeout: str, *arguments: str) -> None:
        path = folder / "program.py"
        path.write_text(textwrap.dedent(PROGRAM).format(db=folder / "x.db", timeout=timeout))
        self.process = subprocess.Popen(
            [sys.executable, str(path), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def wait_for(self, line: str) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            if text.strip() == line:
                return
        raise AssertionError(f"ended without saying {line!r}: {self.process.communicate()[1]}")

    def end(self) -> int:
        """Wait for the process to end and return its exit code."""
        _, errors = self.process.communicate(timeout=25)
        assert "Traceback" not in errors, errors
        return self.process.returncode


class Place:
    """A folder with the store, the files that handlers wait for, and the processes that were started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs: list[Program] = []
        self.ms = Mainspring(f"sqlite:///{folder / 'x.db'}")
        self.tasks = {name: self.ms.task(_task(name)) for name in ("coroutine", "thread", "process")}

    def start(self, timeout: str = "30s", *arguments: str) -> Program:
        self.programs.append(Program(self.folder, timeout, *arguments))
        return self.programs[-1]

    def mark(self, name: str) -> str:
        return str(self.folder / name)

    def let_go(self, name: str) -> None:
        (self.folder / name).touch()

    def run(self, run_id: str) -> Run:
        found: Run = self.ms.sync.find_by_id(run_id)
        return found


def _task(name: str) -> object:
    def function(mark: str) -> str:
        raise AssertionError("runs in the other process")

    function.__name__ = function.__qualname__ = name
    return function


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    here = Place(tmp_path)
    yield here
    for program in here.programs:
        if program.process.poll() is None:
            program.process.kill()
        program.process.communicate()
    here.ms.sync.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["coroutine", "thread", "process"])
def test_the_first_signal_drains(place: Place, number: signal.Signals, kind: str) -> None:
    handle = place.tasks[kind].sync.enqueue(place.mark("go"))
    program = place.start()
    program.wait_for("began 1")
    waiting = place.tasks["coroutine"].using(delay="50ms").sync.enqueue(place.mark("never"))
    program.process.send_signal(number)
    place.let_go("go")
    program.wait_for("stopped")
    assert program.end() == 0
    run = place.run(handle.id)
    assert (run.state, run.attempt, run.result) == (State.SUCCEEDED, 1, "attempt 1")
    # the other is as it was, or was given back; it is there in any case
    other = place.run(waiting.id)
    assert (other.state, other.failures, other.crashes) == (State.WAITING, 0, 0)
    assert len(place.ms.sync.events(types=[InstanceLeft])) == 1


@pytest.mark.parametrize("kind", ["coroutine", "thread", "process"])
def test_a_run_that_outlasts_the_shutdown_timeout_is_handed_back_and_claimable_at_once(place: Place, kind: str) -> None:
    handle = place.tasks[kind].sync.enqueue(place.mark("go"))
    program = place.start("50ms")
    program.wait_for("began 1")
    program.process.send_signal(signal.SIGTERM)
    assert program.end() == 0
    run = place.run(handle.id)
    assert (run.state, run.worker, run.failures, run.crashes) == (State.WAITING, None, 0, 0)
    (back,) = place.ms.sync.events(run=handle.id, types=[RunHandedBack])
    assert (back.reason, back.began) == ("shutdown", True)
    # the next process does not wait for the lease, which is ten minutes
    place.let_go("go")
    assert place.start("30s", "idle").end() == 0
    run = place.run(handle.id)
    assert (run.state, run.result) == (State.SUCCEEDED, "attempt 2")
    assert place.ms.sync.events(types=[LeaseExpired]) == []


@pytest.mark.parametrize("signals", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)])
@pytest.mark.parametrize("kind", ["coroutine", "thread", "process"])
def test_the_second_signal_stops_at_once_and_loses_nothing(
    place: Place, kind: str, signals: tuple[signal.Signals, signal.Signals]
) -> None:
    handle = place.tasks[kind].sync.enqueue(place.mark("go"))
    program = place.start("10m")  # the first alone would wait for ten minutes
    program.wait_for("began 1")
    program.process.send_signal(signals[0])
    program.wait_for("asked to stop")  # the kernel would make one of two that are pending together
    program.process.send_signal(signals[1])
    assert program.end() == 0
    run = place.run(handle.id)
    assert (run.state, run.worker, run.failures, run.crashes) == (State.WAITING, None, 0, 0)
    assert len(place.ms.sync.events(run=handle.id, types=[RunHandedBack])) == 1
    place.let_go("go")
    assert place.start("30s", "idle").end() == 0
    assert place.run(handle.id).result == "attempt 2"


def test_a_signal_before_anything_runs_stops_an_idle_process(place: Place) -> None:
    handle = place.tasks["coroutine"].sync.enqueue(place.mark("go"))
    place.let_go("go")
    program = place.start()
    program.wait_for("began 1")
    program.process.send_signal(signal.SIGTERM)
    program.wait_for("stopped")
    assert program.end() == 0
    assert place.run(handle.id).state is State.SUCCEEDED


async def test_a_killed_process_leaves_a_store_that_verifies(place: Place, tmp_path: Path) -> None:
    handle = await place.tasks["coroutine"].enqueue(place.mark("go"))
    program = place.start()
    program.wait_for("began 1")
    program.process.kill()
    program.process.communicate()
    run = await place.ms.find_by_id(handle.id)
    assert run.state is State.RUNNING  # its lease tells when it is claimed again
    store = SqliteStore(tmp_path / "x.db")
    await store.open()
    assert (await verify(store)).ok
    await store.close()


WAITING = """
    import logging
    from mainspring import Mainspring

    logging.basicConfig(level=logging.WARNING)
    Mainspring("{url}").run()
    print("stopped", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("scheme", ["postgresql", "redis"])
def test_a_process_that_waits_for_an_absent_server_can_be_stopped(scheme: str, number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:  # nothing listens there any more
        port = taken.getsockname()[1]
    program = textwrap.dedent(WAITING).format(url=f"{scheme}://127.0.0.1:{port}")
    waiting = subprocess.Popen([sys.executable, "-c", program], stdout=-1, stderr=-1, text=True)
    assert waiting.stderr is not None
    assert "does not answer" in waiting.stderr.readline()
    waiting.send_signal(number)
    said, _ = waiting.communicate(timeout=10)
    assert (said, waiting.returncode) == ("stopped\n", 0)
