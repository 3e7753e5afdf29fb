"""Source 003 through its door, with real processes: one is killed, the next goes on from the stored state."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

PROGRAM = str(Path(__file__).with_name("job_app.py"))


def test_a_second_process_goes_on_where_a_killed_one_was(tmp_path: Path) -> None:
    arguments = [sys.executable, PROGRAM, str(tmp_path / "state.db")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as first:
        assert first.stdout is not None
        before = [float(first.stdout.readline()) for _ in range(3)]
        first.kill()
        rest, _ = first.communicate()
        before += [float(line) for line in rest.splitlines() if not line.startswith("total")]
    second = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=50)
    *after, total = second.stdout.splitlines()
    assert total == "total 12 12"
    fires = sorted({*before, *map(float, after)})
    assert [round(b - a, 3) for a, b in itertools.pairwise(fires)] == [0.15] * 11  # none lost, one rhythm
    assert len(before) + len(after) <= 13  # at most the one that was cut short is run again
