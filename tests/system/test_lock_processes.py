"""Locks between real processes: stopped and killed while they hold one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers import for_tests_redis
from servers.for_tests import fresh_url

APP = Path(__file__).with_name("lock_app.py")
#: Real time that anything here may take on a busy machine.
LONG = 60.0


class Wanting:
    """Processes that compete for the lock, and the log that they write."""

    def __init__(self, url: str, tmp_path: Path) -> None:
        self.url = url
        self.log = tmp_path / "locks.log"
        self.log.touch()
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        process = subprocess.Popen([sys.executable, str(APP), self.url, str(self.log)])
        self.processes[process.pid] = process

    def lines(self) -> list[tuple[str, int, int]]:
        found = []
        for line in self.log.read_text().splitlines():
            word, token, pid = line.split()
            found.append((word, int(token), int(pid)))
        return found

    def tokens(self) -> list[int]:
        return [token for word, token, _ in self.lines() if word == "begin"]

    def holder_stopped(self) -> tuple[int, int]:
        """Stop a process inside its block; return its process id and its token."""
        deadline = time.monotonic() + LONG
        while time.monotonic() < deadline:
            word, token, pid = (self.lines() or [("", 0, 0)])[-1]
            if word == "begin":
                os.kill(pid, signal.SIGSTOP)
                if ("end", token, pid) not in self.lines():
                    return pid, token
                os.kill(pid, signal.SIGCONT)
        raise AssertionError("no process was caught inside")

    def wait_for(self, token: int) -> None:
        """Wait until a process has a token of at least this value."""
        deadline = time.monotonic() + LONG
        while max(self.tokens(), default=0) < token:
            assert time.monotonic() < deadline, self.lines()[-5:]
            time.sleep(0.01)

    def kill(self, pid: int) -> None:
        self.processes[pid].kill()
        self.processes.pop(pid).wait()


@pytest.fixture(params=["sqlite", "postgres", "valkey", "redis"])
def wanting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Wanting]:
    if request.param == "postgres":
        url = fresh_url()
    elif request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/x.db"
    else:
        url = for_tests_redis.fresh_url(for_tests_redis.server_url(request.param))
    found = Wanting(url, tmp_path)
    yield found
    for pid in list(found.processes):
        found.kill(pid)


@pytest.mark.chaos
@pytest.mark.timeout(1_800)
def test_stopped_and_killed_holders(wanting: Wanting) -> None:
    """Blocks overlap only if a holder was stopped beyond its lease, and that holder gets LockLost; tokens only grow."""
    for _ in range(3):
        wanting.start()
    stopped = []
    stops = int(os.environ.get("MAINSPRING_STOPS", "1"))
    for _ in range(stops):
        pid, token = wanting.holder_stopped()
        stopped.append(token)
        wanting.wait_for(token + 3)
        os.kill(pid, signal.SIGCONT)
    for _ in range(stops):
        pid, token = wanting.holder_stopped()
        wanting.kill(pid)
        wanting.start()
        wanting.wait_for(token + 3)
    wanting.wait_for(max(wanting.tokens()) + 5)
    lines = wanting.lines()
    tokens = wanting.tokens()
    assert tokens == sorted(set(tokens))
    lost = {token for word, token, _ in lines if word == "lost"}
    kept = {token for word, token, _ in lines if word == "kept"}
    assert set(stopped) <= lost
    assert not lost & kept
    inside: set[int] = set()
    for word, token, _ in lines:
        if word == "begin":
            assert not inside & kept, f"{inside & kept} were not told that {token} had it, too"
            inside.add(token)
        elif word == "end":
            inside.discard(token)
