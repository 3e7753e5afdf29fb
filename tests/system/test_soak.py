"""Steady work with retention, restarts and short-lived schedules: nothing grows. `make chaos` soaks for ten minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).with_name("soak.py")
SECONDS = float(os.environ.get("MAINSPRING_SOAK_SECONDS", "8"))


@pytest.mark.chaos
@pytest.mark.timeout(120 + SECONDS)
def test_memory_threads_files_and_tables_stay_flat() -> None:
    soak = subprocess.Popen([sys.executable, str(SOAK), "--seconds", str(SECONDS)], stdout=subprocess.PIPE, text=True)
    assert soak.stdout is not None
    said = []
    with soak:
        for line in soak.stdout:
            print(line, end="", flush=True)
            said.append(line)
    assert soak.returncode == 0, "".join(said)[-5_000:]
