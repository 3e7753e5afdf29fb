"""Real pools of worker processes on SQLite: each run once, a killed worker replaced, an orderly end, growth."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mainspring import Mainspring, State
from mainspring.cli.main import mainspring
from mainspring.model.events import LeaseExpired

PROGRAM = """
    import asyncio, os
    from mainspring import Context, Mainspring

    ms = Mainspring("sqlite:///{db}", name="shop", version="7", lease_ttl="{lease}", heartbeat="400ms",
                    poll_interval="100ms", concurrency=4, shutdown_timeout="20s")
    log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @ms.task
    async def work(ctx: Context, seconds: float = 0.0) -> None:
        os.write(log, f"{{ctx.idempotency_key}} {{ctx.attempt}} {{os.getpid()}}\\n".encode())
        await asyncio.sleep(seconds)

    @ms.task
    async def hold(ctx: Context, mark: str) -> None:
        os.write(log, f"{{ctx.idempotency_key}} {{ctx.attempt}} {{os.getpid()}}\\n".encode())
        while not os.path.exists(mark):
            await asyncio.sleep(0.02)

    @ms.cron("* * * * * *")
    async def planned() -> None:
        os.write(log, b"planned 1 0\\n")
"""
WAIT_SECONDS = 40.0


class Pool:
    """A program with its store and its log, and the worker pools started on it."""

    def __init__(self, folder: Path, lease: str = "20s") -> None:
        self.folder, self.log = folder, folder / "log"
        self.log.touch()
        program = textwrap.dedent(PROGRAM).format(db=folder / "x.db", log=str(self.log), lease=lease)
        (folder / "pool_app.py").write_text(program)
        self.url = f"sqlite:///{folder / 'x.db'}"
        self.ms = Mainspring(self.url)
        self.work = self.ms.task(name="work")(_elsewhere)
        self.hold = self.ms.task(name="hold")(_held_elsewhere)
        self.ms.sync.runs()  # the file is there
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "mainspring.cli.main", "worker", "pool_app:ms", *options]
        with (self.folder / "err").open("ab") as words:
            process = subprocess.Popen(command, cwd=self.folder, stderr=words)
        self.started.append(process)
        return process

    def said(self) -> str:
        """Return the log of the pool and its workers."""
        return (self.folder / "err").read_text()

    def listed(self) -> str:
        return CliRunner().invoke(mainspring, ["workers", "--store", self.url]).output

    def executions(self) -> list[tuple[str, int, int]]:
        """Read the handlers' own log: key, attempt, process of each call."""
        lines = self.log.read_text().splitlines()
        return [(key, int(attempt), int(pid)) for key, attempt, pid in map(str.split, lines)]

    def workers(self) -> list[dict[str, Any]]:
        """Return the live workers as listed by the command line."""
        done = CliRunner().invoke(mainspring, ["workers", "--json", "--store", self.url])
        assert done.exit_code == 0, done.output
        return [one for one in json.loads(done.output) if one["live"]]

    def states(self) -> Counter[State]:
        return Counter(run.state for run in self.ms.sync.runs(limit=10_000))


def _elsewhere(seconds: float = 0.0) -> None:
    raise AssertionError("runs in the worker")


def _held_elsewhere(mark: str) -> None:
    raise AssertionError("runs in the worker")


def until(fact: Callable[[], object]) -> None:
    """Wait until `fact()` is true; fail after 40 seconds."""
    end = time.monotonic() + WAIT_SECONDS
    while not fact():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.05)


@pytest.fixture
def pool(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pool]:
    pool = Pool(tmp_path, getattr(request, "param", "20s"))
    yield pool
    for process in pool.started:
        process.terminate()
        try:
            process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    pool.ms.sync.close()


@pytest.mark.parametrize("pool", ["3s"], indirect=True)
def test_two_processes_run_each_once_and_a_killed_one_is_replaced(pool: Pool) -> None:
    pool.work.sync.enqueue_many([(0.0,)] * 300)
    process = pool.start("--processes", "2", "--label", "zone=eu")
    until(lambda: pool.states()[State.SUCCEEDED] == 300)
    until(lambda: len(pool.workers()) == 2)
    assert len({key for key, _, _ in pool.executions()}) == len(pool.executions()) == 300
    told = pool.workers()
    assert {(one["app"], one["version"], one["role"], one["slots"]) for one in told} == {("shop", "7", "worker", 4)}
    assert all(one["labels"] == {"zone": "eu"} and one["queues"] == ["default"] for one in told)
    # One process is killed while it runs handlers: another one claims their runs when the leases have ended.
    pool.hold.sync.enqueue_many([(str(pool.folder / "go"),)] * 8)
    until(lambda: len({key for key, _, _ in pool.executions()}) == 308)
    victim = pool.executions()[-1][2]
    os.kill(victim, signal.SIGKILL)
    until(lambda: len({one["pid"] for one in pool.workers()} - {victim}) == 2)
    (pool.folder / "go").touch()
    until(lambda: pool.states()[State.SUCCEEDED] == 308)
    assert pool.ms.sync.events(types=[LeaseExpired])
    # A full pool is stopped: running handlers finish, the other runs stay, and none is lost.
    pool.work.sync.enqueue_many([(0.5,)] * 40)
    until(lambda: pool.states()[State.RUNNING] > 0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_SECONDS) == 0, pool.said()
    assert f"worker {victim} died (SIGKILL); another is started" in pool.said()
    assert pool.workers() == []
    left = pool.states()
    assert (left[State.RUNNING], left.total()) == (0, 348)
    assert "planned" not in {key for key, _, _ in pool.executions()}  # workers plan nothing


def test_a_second_signal_hands_everything_back_at_once(pool: Pool) -> None:
    pool.work.sync.enqueue_many([(600.0,)] * 8)
    process = pool.start("--processes", "2")
    until(lambda: len(pool.executions()) == 8)
    process.send_signal(signal.SIGINT)
    until(lambda: "stopping 2 workers" in pool.said())
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_SECONDS) == 0, pool.said()
    assert pool.states() == {State.WAITING: 8}


def test_a_pool_grows_with_the_backlog_and_shrinks_when_idle(pool: Pool) -> None:
    process = pool.start("--min-processes", "1", "--max-processes", "3")
    until(lambda: len(pool.workers()) == 1)
    # Twelve runs that wait for a mark, four slots in each: only three processes can begin them all.
    pool.hold.sync.enqueue_many([(str(pool.folder / "go"),)] * 12)
    until(lambda: len({key for key, _, _ in pool.executions()}) == 12)
    assert "to 3 workers" in pool.said()
    (pool.folder / "go").touch()
    until(lambda: pool.states()[State.SUCCEEDED] == 12)
    until(lambda: "to 1 worker" in pool.said())
    until(lambda: len(pool.workers()) == 1)
    assert len({pid for _, _, pid in pool.executions()}) == 3
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_SECONDS) == 0, pool.said()


def test_workers_end_after_their_supervisor_was_killed(pool: Pool) -> None:
    process = pool.start("--processes", "2")
    until(lambda: len(pool.workers()) == 2)
    process.kill()
    until(lambda: not pool.workers())
    until(lambda: pool.said().count("stopped cleanly") == 2)  # they ended in order, not by the end of their leases


def test_one_process_is_the_worker_itself(pool: Pool) -> None:
    pool.work.sync.enqueue(0.0)
    process = pool.start("--concurrency", "9")
    until(lambda: pool.states()[State.SUCCEEDED] == 1)
    ((_, _, pid),) = pool.executions()
    assert pid == process.pid
    (one,) = pool.workers()
    assert (one["pid"], one["slots"], one["running"]) == (pid, 9, 0)
    shown = pool.listed()
    assert all(word in shown for word in ("last seen", "shop", "worker", str(pid), "0/9", "default"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_SECONDS) == 0
    assert [line.split()[0] for line in pool.listed().splitlines()[1:]] == ["stopped"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["pool_app:ms", "--processes", "0"], "--processes: 0 is out of range"),
        (["pool_app:ms", "--min-processes", "3", "--max-processes", "2"], "--min-processes: 3 is more than"),
        (["pool_app:ms", "--concurrency", "0"], "concurrency: 0 is out of range"),
        (["pool_app:ms", "--label", "zone"], "--label: 'zone' is not a label. Write NAME=VALUE"),
        (["pool_app:ms", "--log-level", "loud"], "--log-level: 'loud' is not one of"),
        (["no_such_module:ms", "--processes", "2"], "there is no module 'no_such_module'"),
        (["pool_app:nobody"], "has no Mainspring object called 'nobody'"),
        (["in_memory:ms"], "memory:// lives inside one process"),
        (["no_tasks:ms"], "has no task"),
    ],
)
def test_a_pool_that_cannot_start_is_refused_before_any_process_starts(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, options: list[str], told: str
) -> None:
    for name, url in (("in_memory", "memory://"), ("no_tasks", pool.url)):
        words = f"from mainspring import Mainspring\nms = Mainspring({url!r})\n"
        (pool.folder / f"{name}.py").write_text(words)
    monkeypatch.chdir(pool.folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    try:
        done = CliRunner().invoke(mainspring, ["worker", *options])
    finally:
        for name in ("pool_app", "in_memory", "no_tasks"):
            sys.modules.pop(name, None)
    assert (done.exit_code, told in done.output) == (2, True), done.output


def test_a_list_without_workers_says_so(pool: Pool) -> None:
    assert "no instance has run in the last hour" in pool.listed()
