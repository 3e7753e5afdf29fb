"""The documentation says what the code does: the diagram is printed from the table, the snippets run."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.rules.lifecycle import diagram

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.S)


def test_the_state_diagram_in_the_architecture_page_is_printed_from_the_table() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- diagram:begin -->\n```mermaid\n(.*?)\n```\n<!-- diagram:end -->", page, re.S)
    assert shown is not None, "the page has no diagram"
    assert shown.group(1) == diagram(), "print it anew: python tools/print_diagram.py"


def test_the_first_program_of_the_readme_has_five_lines_and_fires_every_second(tmp_path: Path) -> None:
    program = SNIPPETS[0]
    assert len(program.strip().splitlines()) == 5
    (tmp_path / "five.py").write_text(program)
    for _ in range(2):
        with subprocess.Popen([sys.executable, "five.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            first = [process.stdout.readline() for _ in range(2)]
            _wait_until_nothing_is_open(tmp_path / "five.db")  # else its lease, 30 s, holds up the next start
            process.kill()
        assert all(line.startswith("tick 20") for line in first), first
    answer = subprocess.run(
        [sys.executable, "-m", "mainspring.cli.main", "ledger", "--store", "sqlite:///five.db", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert '"unexplained": 0' in answer.stdout.replace('":0', '": 0')


def test_the_hello_program_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Not the file of `make run`: the service would plan its schedule, and has no such task."""
    command = [sys.executable, str(ROOT / "examples" / "hello.py")]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        ledger = next(line for line in lines if line.startswith("Then read the ledger")).split(": ")[1].split()
        next(line for line in lines if line.startswith("tick "))
        process.send_signal(signal.SIGINT)
        assert "Stopped in order.\n" in lines
    assert [path.name for path in tmp_path.glob("*.db")] == ["hello.db"]
    answer = subprocess.run(
        [sys.executable, "-m", "mainspring.cli.main", *ledger[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.returncode, "1 schedule " in answer.stdout) == (0, True), answer.stdout + answer.stderr


def _wait_until_nothing_is_open(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        while db.execute("SELECT count(*) FROM run WHERE ended_at IS NULL").fetchone() != (0,):
            os.sched_yield()


def test_the_long_example_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(SNIPPETS[1], "README", "exec"), names)
    asyncio.run(names["shop"]())  # type: ignore[operator]
    asyncio.run(names["ms"].close())  # type: ignore[attr-defined]


def test_the_test_example_of_the_readme_passes() -> None:
    names: dict[str, object] = {}
    exec(compile(SNIPPETS[2], "README", "exec"), names)
    asyncio.run(names["test_the_night_of_the_clock_change"]())  # type: ignore[operator]


def test_every_snippet_of_the_readme_is_tested() -> None:
    assert len(SNIPPETS) == 4
    for snippet in SNIPPETS:
        ast.parse(snippet)


def test_every_command_of_the_readme_exists() -> None:
    commands = re.findall(r"^\$ mainspring (cron \w+ .*)$", README, re.M)
    assert len(commands) == 3
    for command in commands:
        answer = subprocess.run(
            f"{sys.executable} -m mainspring.cli.main {command}",
            shell=True,
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode in (0, 7), (command, answer.stderr)


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#]+)\)", README))
def test_every_link_of_the_readme_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()
