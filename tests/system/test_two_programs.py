"""Two programs on one store that use one name: processes, as users start them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PROGRAM = """
import logging, sys
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(levelname)s %(message)s")
from mainspring import Mainspring

ms = Mainspring("sqlite:///two.db", lease_ttl="2s", heartbeat="300ms", name={app!r})

@ms.every({every!r})
def {name}():
    print("{says} ran", flush=True)

if __name__ == "__main__":
    ms.run()
"""


class Programs:
    """Programs in a folder, started as processes; their output goes to files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []

    def write(self, file: str, *, name: str = "job", every: str = "300ms", says: str, app: str = "app") -> None:
        path = self.folder / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(PROGRAM.format(name=name, every=every, says=says, app=app))

    def start(self, log: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=self.folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self.running.append(process)
        return process

    def output(self, log: str) -> str:
        return (self.folder / log).read_text()

    def stop(self, process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM) -> None:
        process.send_signal(how)
        process.wait(20)


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    found = Programs(tmp_path)
    yield found
    for process in found.running:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_for(fact: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 30
    while not fact():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def test_the_second_of_two_programs_waits_until_the_first_is_gone(programs: Programs) -> None:
    programs.write("pa.py", says="A", app="a")
    programs.write("pb.py", says="B", app="b")
    first = programs.start("a.log", "pa.py")
    wait_for(lambda: "A ran" in programs.output("a.log"), "the first program runs")
    second = programs.start("b.log", "pb.py")
    wait_for(lambda: "ERROR" in programs.output("b.log"), "the second program says why it waits")
    seen = programs.output("a.log").count("A ran")
    wait_for(lambda: programs.output("a.log").count("A ran") > seen + 4, "the first program goes on")
    text = programs.output("b.log")
    assert "B ran" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("ERROR")]
    assert "(pa:job; here pb:job)" in line
    assert "namespace=…" in line
    assert "name=…" in line
    programs.stop(first, signal.SIGKILL)
    wait_for(lambda: "B ran" in programs.output("b.log"), "the second program takes over without a restart")
    programs.stop(second)


def test_a_script_and_the_command_agree_about_the_code(programs: Programs) -> None:
    programs.write("app.py", says="script")
    programs.write("pkg/__init__.py", says="package")
    (programs.folder / "pkg" / "__init__.py").write_text("")
    programs.write("pkg/jobs.py", name="other", says="jobs")
    for script, target in (("app.py", "app:ms"), ("pkg/jobs.py", "pkg.jobs:ms")):
        one = programs.start("script.log", script)
        wait_for(lambda: " ran" in programs.output("script.log"), "the script runs")
        other = programs.start("command.log", "-m", "mainspring.cli.main", "run", target)
        wait_for(lambda: " ran" in programs.output("command.log"), "runs are shared by both")
        third = programs.start("module.log", "-m", target.removesuffix(":ms"))
        wait_for(lambda: " ran" in programs.output("module.log"), "runs are shared by all three")
        for log in ("script.log", "command.log", "module.log"):
            assert "ERROR" not in programs.output(log)
        for process in (one, other, third):
            programs.stop(process)
