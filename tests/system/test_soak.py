"""Work with retention, restarts and short-lived schedules: no resource grows. `make chaos` soaks for ten minutes."""

from __future__ import annotations

import os

import pytest

from tests.system.scripts import run_script

SOAK_SECONDS = float(os.environ.get("MAINSPRING_SOAK_SECONDS", "5"))


@pytest.mark.chaos
@pytest.mark.timeout(120 + SOAK_SECONDS)
def test_memory_threads_files_and_tables_stay_flat() -> None:
    run_script("soak.py", "--seconds", str(SOAK_SECONDS))
