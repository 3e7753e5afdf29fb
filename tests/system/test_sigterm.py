"""SIGTERM and SIGINT to a process full of work: it stops claiming at once, leaves soon, and another takes over."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import Mainspring, State
from mainspring.model.events import Event, LeaseExpired, RunHandedBack, RunStarted

POLL = 500
HELD = 6
SHORT = 600
#: A busy machine may delay a process for longer than this, but hardly three times in a row.
CLAIMS_END, TRIES = 100, 3
PROGRAM = r"""
    import asyncio, os, sys, threading, time
    from mainspring import Mainspring

    timeout, slots = sys.argv[1:3]
    ms = Mainspring("sqlite:///{db}", lease_ttl="30s", poll_interval="{poll}ms", shutdown_timeout=timeout,
                    concurrency=int(slots))

    def say(word: str) -> None:
        os.write(1, f"{{word}}\n".encode())  # in one piece, whatever thread says it

    @ms.task(priority="high")
    async def coroutine(mark: str) -> None:
        say("held")
        while not os.path.exists(mark):
            await asyncio.sleep(0.01)

    @ms.task(priority="high")
    def thread(mark: str) -> None:
        say("held")
        while not os.path.exists(mark):
            threading.Event().wait(0.01)

    @ms.task(executor="loop")
    def block(seconds: float) -> None:
        say("held")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.05)

    @ms.task
    async def short() -> None:
        say("short")
        await asyncio.sleep(0.02)

    @ms.task
    def short_thread() -> None:
        say("short")
        threading.Event().wait(0.02)

    say("ready")
    ms.run()
    say("stopped")
"""


class Place:
    """A store with runs, and the processes that execute them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "program.py"
        self.program.write_text(textwrap.dedent(PROGRAM).format(db=folder / "x.db", poll=POLL))
        self.mark = str(folder / "go")
        self.ms = Mainspring(f"sqlite:///{folder / 'x.db'}")
        for name in ("coroutine", "thread", "short", "short_thread"):
            self.ms.task(name=name)(_elsewhere if name in ("coroutine", "thread") else _nothing)
        self.ms.task(name="block")(_blocks)
        self.processes: list[subprocess.Popen[str]] = []

    def enqueue(self, **counts: int) -> list[str]:
        """Enqueue runs of several tasks and return their ids."""
        return [
            handle.id
            for name, count in counts.items()
            for handle in self.ms.tasks[name]
            .using(priority="high" if name in ("coroutine", "thread") else "normal")
            .sync.enqueue_many([(self.mark,) if name in ("coroutine", "thread") else () for _ in range(count)])
        ]

    def start(self, timeout: str, slots: int = 10) -> subprocess.Popen[str]:
        arguments = [sys.executable, str(self.program), timeout, str(slots)]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def wait_for(self, process: subprocess.Popen[str], **counts: int) -> None:
        assert process.stdout is not None
        while any(count > 0 for count in counts.values()):
            line = process.stdout.readline()
            assert line, f"ended early: {process.communicate()[1]}"
            word = line.strip()
            counts[word] = counts.get(word, 0) - 1

    def events(self, *types: type[Event]) -> list[Event]:
        found: list[Event] = self.ms.sync.events(types=types, limit=100_000)
        return found


def _elsewhere(mark: str) -> None:
    raise AssertionError("runs in the other process")


def _nothing() -> None: ...


def _blocks(seconds: float) -> None: ...


@contextlib.contextmanager
def somewhere(folder: Path) -> Iterator[Place]:
    folder.mkdir()
    here = Place(folder)
    try:
        yield here
    finally:
        for process in here.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        here.ms.sync.close()


def now() -> int:
    return time.time_ns() // 1_000_000


def signalled(place: Place, process: subprocess.Popen[str], *numbers: signal.Signals) -> tuple[int, float]:
    """Send the signals; return the instant of the first one and the seconds until the process had ended."""
    at, began = now(), time.monotonic()
    process.send_signal(numbers[0])
    for number in numbers[1:]:
        # The kernel makes one of two that are pending together: the second waits until claiming has stopped.
        time.sleep(0.2)
        process.send_signal(number)
    _, errors = process.communicate(timeout=25)
    took = time.monotonic() - began
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    return at, took


def claimed_after(place: Place, process: subprocess.Popen[str], at: int) -> int:
    """Return the milliseconds from the signal to the last claim of the process; negative if there was none."""
    mine = f":{process.pid}:"
    return max(e.at - at for e in place.events(RunStarted) if mine in (e.owner or ""))


@pytest.mark.alone
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("timeout", "numbers"),
    [
        ("1s", (signal.SIGTERM,)),
        ("10m", (signal.SIGTERM, signal.SIGTERM)),
        ("10m", (signal.SIGINT, signal.SIGTERM)),
    ],
)
def test_a_process_full_of_work_stops_claiming_leaves_and_is_followed(
    tmp_path: Path, timeout: str, numbers: tuple[signal.Signals, ...]
) -> None:
    lasts: list[int] = []
    while not lasts or (lasts[-1] > CLAIMS_END and len(lasts) < TRIES):
        with somewhere(tmp_path / str(len(lasts))) as place:
            lasts.append(full_of_work(place, timeout, *numbers))
    assert min(lasts) <= CLAIMS_END


def full_of_work(place: Place, timeout: str, *numbers: signal.Signals) -> int:
    """Stop one process and start another; return the milliseconds from the signal to the last claim of the first."""
    held = place.enqueue(coroutine=HELD // 2, thread=HELD // 2)
    full = place.start(timeout)
    place.wait_for(full, held=HELD)
    short = place.enqueue(short=SHORT)
    other = place.start("30s")
    place.wait_for(other, short=5)
    at, took = signalled(place, full, *numbers)
    last = claimed_after(place, full, at)
    print(f"{'+'.join(n.name for n in numbers)}: last claim {last} ms after the signal, gone after {took:.2f} s")
    assert took <= 10
    backs = {event.run_id: event for event in place.events(RunHandedBack) if event.run_id in held}
    assert len(backs) == HELD
    place.wait_for(other, held=HELD)
    (place.folder / "go").touch()
    again = {e.run_id: e for e in place.events(RunStarted) if e.run_id in held and (e.attempt or 0) > 1}
    waits = [again[run_id].at - back.at for run_id, back in backs.items()]
    print("re-claimed after", waits, "ms")
    assert max(waits) <= POLL + 1_000
    assert place.events(LeaseExpired) == []
    everything_is_done(place, other, held + short)
    return last


def everything_is_done(place: Place, process: subprocess.Popen[str], wanted: list[str]) -> None:
    """Check that no run was lost: another process finishes the rest, and each run succeeded."""
    end = time.monotonic() + 30
    while place.ms.sync.runs(state=State.WAITING, limit=1) or place.ms.sync.runs(state=State.RUNNING, limit=1):
        assert time.monotonic() < end, "work is left"
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=25)
    assert process.returncode == 0
    runs = {run.id: run for run in place.ms.sync.runs(limit=100_000)}
    assert set(runs) == set(wanted)
    assert {run.state for run in runs.values()} == {State.SUCCEEDED}
    assert all((run.failures, run.crashes) == (0, 0) for run in runs.values())


@pytest.mark.alone
@pytest.mark.timeout(120)
def test_a_blocked_handler_loop_does_not_delay_the_end_of_claiming(tmp_path: Path) -> None:
    """While a handler blocks the handlers' loop, the engine must still receive the signal."""
    lasts: list[int] = []
    while not lasts or (lasts[-1] > CLAIMS_END and len(lasts) < TRIES):
        with somewhere(tmp_path / str(len(lasts))) as place:
            process = place.start("5s")
            place.wait_for(process, ready=1)
            place.enqueue(short_thread=SHORT)
            place.wait_for(process, short=10)
            place.ms.tasks["block"].using(priority="critical").sync.enqueue(1.0)
            place.wait_for(process, held=1)
            place.wait_for(process, short=10)
            at, took = signalled(place, process, signal.SIGTERM)
            lasts.append(claimed_after(place, process, at))
            print(f"loop blocked: last claim {lasts[-1]} ms after the signal, gone after {took:.2f} s")
            left = place.ms.sync.runs(state=State.WAITING, limit=SHORT)
            assert len(left) > 10, "the process had nothing more to claim: the test shows nothing"
    assert min(lasts) <= CLAIMS_END
