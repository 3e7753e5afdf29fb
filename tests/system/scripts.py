"""The scripts of this folder as parts of a test: run in a process of their own, with their output shown as it comes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
#: Exit code of a script that finds no server to work with.
NO_SERVER_EXIT_CODE = 3


def run_script(name: str, *arguments: str) -> list[str]:
    """Run a script and return the lines that it printed; fail unless it exits with 0.

    A script that finds no server skips the test, except in CI.
    """
    paths = [str(FOLDER.parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, str(FOLDER / name), *arguments]
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode == NO_SERVER_EXIT_CODE and os.environ.get("CI") != "true":
        pytest.skip("".join(lines[-1:]))
    assert process.returncode == 0, "".join(lines)[:20_000]
    return lines
