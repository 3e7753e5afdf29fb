"""A real `mainspring serve` in a process of its own, and what tests do with it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

#: For anything that a loaded machine may be slow at.
PATIENCE = 40.0


def clean_env(**more: str) -> dict[str, str]:
    """The environment without what would configure a service."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAINSPRING_", "POSTGRES_"))}
    kept.pop("PORT", None)
    return kept | more


class Served:
    """One serving process; its lines are read as they come."""

    def __init__(self, folder: Path, *args: str, env: dict[str, str] | None = None) -> None:
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mainspring.cli.main", "serve", *args],
            cwd=folder,
            env=clean_env(**(env or {})),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = ""

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def line(self, pattern: str) -> re.Match[str]:
        """Wait for a line."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            found[:] = [hit for line in list(self.lines) if (hit := re.search(pattern, line))]
            return bool(found) or self.process.poll() is not None

        wait_for(look, f"a line {pattern!r}; there is {self.text}")
        if not found:
            self._reader.join(PATIENCE)
            look()
        assert found, self.text
        return found[0]

    def ready(self) -> Served:
        self.url = self.line(r"serves at (https?://\S+)")[1]
        return self

    def get(self, path: str, **more: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=PATIENCE, **more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        return httpx.post(self.url + path, timeout=PATIENCE, **more)

    def end(self) -> int:
        """Wait for the end of the process."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Stop it: the exit code and the seconds it took."""
        began = time.monotonic()
        self.process.send_signal(number)
        return self.end(), time.monotonic() - began

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(PATIENCE)
        if self.process.stdout is not None:
            self.process.stdout.close()


def wait_for(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Wait for a fact; it fails after a long time."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)
    return found


@contextlib.contextmanager
def serving(folder: Path, *args: str, port: str = "0", env: dict[str, str] | None = None) -> Iterator[Served]:
    """A service that is ready, killed in the end if it still runs."""
    one = Served(folder, "--port", port, *args, env=env)
    try:
        yield one.ready()
    finally:
        one.kill()


def cli(folder: Path, *args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A command that ends."""
    return subprocess.run(
        [sys.executable, "-m", "mainspring.cli.main", *args],
        cwd=folder,
        env=clean_env(**(env or {})),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def make_key(folder: Path, name: str = "ci", *args: str) -> str:
    done = cli(folder, "key", "create", name, *args)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
