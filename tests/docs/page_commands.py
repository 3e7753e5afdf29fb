"""Run a page of the documentation: write its files, run its commands in order, compare what they print.

A block that begins with `# NAME.py` is a file; a second block of the same name is added to the first one's end.
In a console block, a line after `$ ` is a command, and the lines below it are what it prints; without any, the command
must succeed. `…` stands for any text, as a line for any lines. A command that ends with `&` goes on while the next ones
run, until `kill %1` or the page's end. `^C` stands for SIGINT, once the lines above it were printed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from click.testing import CliRunner

from mainspring.cli.main import mainspring

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BIN = Path(sys.executable).parent
#: Commands that need a network or a place of their own: a test does not run them.
NOT_RUN = ("pip install", "python -m venv", ". .venv", "git ", "make ", "cd ", "sudo ", "gunicorn ", "pytest")
#: Commands that only look at a store or change it: they run in this process, which saves the start of another.
IN_PROCESS = ("cron", "events", "ledger", "schedules", "workers", "--version")
SECONDS = 60.0
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.S | re.M)


@dataclass
class Command:
    """A command of a page, with the lines that the page shows below it."""

    text: str
    shown: list[str] = field(default_factory=list)


def blocks_of(text: str) -> list[Command | tuple[str, str]]:
    """Return the commands and files of a page in their order, each file as its name and text."""
    blocks: list[Command | tuple[str, str]] = []
    for language, block in _BLOCK.findall(text):
        if language == "console":
            commands: list[Command] = []
            for line in block.splitlines():
                if line.startswith("$ "):
                    commands.append(Command(line[2:].split("  # ")[0].strip()))
                else:
                    commands[-1].shown.append(line)
            blocks += commands
        elif language in ("python", "yaml", "ini"):
            head, _, body = block.partition("\n")
            name = re.fullmatch(r"# (\S+\.\w+)", head)
            assert name is not None, f"a block does not begin with the name of its file: {head}"
            blocks.append((name[1], body))
    return blocks


class _Process:
    """A command that runs, with the lines that it has printed."""

    def __init__(self, command: str, folder: Path, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            f"exec {command}",
            shell=True,
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._grown = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._grown:
                self.lines.append(line.rstrip("\n"))
                self._grown.notify_all()
        with self._grown:
            self._grown.notify_all()

    def wait_for(self, shown: list[str]) -> None:
        """Wait until the shown lines were printed, in their order, among others."""
        with self._grown:
            self._grown.wait_for(lambda: _in_order(shown, self.lines) or not self._reader.is_alive(), timeout=SECONDS)
        assert _in_order(shown, self.lines), f"expected {shown}, printed {self.lines}"

    def end(self, number: int) -> None:
        """Send a signal, and wait until the process has ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(timeout=SECONDS)
        self._reader.join(timeout=SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()


def run_page(text: str, folder: Path) -> None:
    """Write the files of a page into a folder and run its commands there, in their order. Raises: AssertionError."""
    env = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "TZ": "UTC", "COLUMNS": "200"}
    jobs: list[_Process] = []
    try:
        for block in blocks_of(text):
            if isinstance(block, Command):
                _run(block, folder, env, jobs)
            else:
                _write(folder / block[0], block[1])
    finally:
        for job in jobs:
            job.end(signal.SIGINT)


def _write(path: Path, text: str) -> None:
    """Write a file, or add to its end if the page has shown its beginning."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        text = f"{path.read_text(encoding='utf-8')}\n\n{text}"
    path.write_text(text, encoding="utf-8")


def _run(command: Command, folder: Path, env: dict[str, str], jobs: list[_Process]) -> None:
    words = command.text.split()
    if command.text.startswith(NOT_RUN):
        return
    if words[0] == "export":
        name, _, value = words[1].partition("=")
        env[name] = value
    elif words[0] == "kill":
        jobs.pop(0).end(signal.SIGKILL if "-9" in words else signal.SIGTERM)
    elif words[-1] == "&":
        jobs.append(_Process(command.text[:-1], folder, env))
        jobs[-1].wait_for(command.shown)
    elif "^C" in command.shown:
        process = _Process(command.text, folder, env)
        middle = command.shown.index("^C")
        try:
            process.wait_for(command.shown[:middle])
        finally:
            process.end(signal.SIGINT)
        process.wait_for(command.shown)
    else:
        code, lines = _finish(command.text, folder, env)
        if not command.shown:
            assert code == 0, f"$ {command.text}\nprinted\n{lines}"
            return
        assert _pattern(command.shown).fullmatch("".join(f"{line}\n" for line in lines)), (
            f"$ {command.text}\nthe page shows\n{command.shown}\nprinted\n{lines}"
        )


def _finish(command: str, folder: Path, env: dict[str, str]) -> tuple[int, list[str]]:
    """Run a command to its end; return its exit code and the lines that it printed."""
    words = shlex.split(command)
    if words[0] == "mainspring" and words[1] in IN_PROCESS:
        with contextlib.chdir(folder):
            done = CliRunner().invoke(mainspring, words[1:], env=env)
        return done.exit_code, done.output.splitlines()
    process = _Process(command, folder, env)
    process.process.wait(timeout=SECONDS)
    process.end(signal.SIGTERM)
    return process.process.returncode, process.lines


def _in_order(shown: list[str], printed: list[str]) -> bool:
    """Return True if the shown lines are among the printed ones, in their order."""
    left = iter(printed)
    return all(line in ("…", "^C") or any(_pattern([line]).fullmatch(f"{p}\n") for p in left) for line in shown)


def _pattern(shown: list[str]) -> re.Pattern[str]:
    """Return a pattern for what a page shows: `…` is any text, as a line of its own any lines."""
    parts = [re.sub(r"(?:\\ )+", r" +", re.escape(line.rstrip())).replace("…", ".*") for line in shown]
    return re.compile("".join("(?:.*\n)*" if part == ".*" else f"{part} *\n" for part in parts))
