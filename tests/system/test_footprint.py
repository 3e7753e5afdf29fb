"""Memory and CPU of an idle process, and the time to import the package (Must show 10)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone

#: Prints CPU seconds, wall seconds and resident kilobytes each time it fires; between two fires it is idle.
IDLE = """
import re, time
from datetime import UTC, datetime, timedelta
soon = datetime.now(UTC)
from mainspring import Mainspring
ms = Mainspring("sqlite:///idle.db")
@ms.at([soon + timedelta(seconds=s) for s in (1, 6)])
def report():
    rss = re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read()).group(1)
    print(time.process_time(), time.monotonic(), rss, flush=True)
ms.run()
"""


def test_an_idle_process_takes_at_most_45_mb_and_half_a_percent_of_a_core(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", IDLE], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        (cpu_1, wall_1, _), (cpu_2, wall_2, rss) = (map(float, process.stdout.readline().split()) for _ in range(2))
        process.terminate()
    share = (cpu_2 - cpu_1) / (wall_2 - wall_1)
    print(f"idle: {rss / 1024:.1f} MB, {share:.2%} of a core")
    assert rss / 1024 <= 45
    assert share <= 0.005


def test_importing_mainspring_takes_at_most_150_ms(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path)

    def milliseconds(code: str) -> float:
        timed = f"import time; t = time.process_time(); {code}; print((time.process_time() - t) * 1000)"
        answer = subprocess.run(
            [sys.executable, "-c", timed], capture_output=True, text=True, check=True, env=environment
        )
        return float(answer.stdout)

    milliseconds("import mainspring; mainspring.Mainspring")  # byte code is written once
    least = min(milliseconds("import mainspring; mainspring.Mainspring") for _ in range(9))  # a busy machine only adds
    print(f"import mainspring, with everything behind Mainspring: {least:.0f} ms")
    assert least <= 150
