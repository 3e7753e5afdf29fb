"""Every second one call of a real agent, by instances that are killed: one key for each fire, none missing.

`make chaos` runs the same for a minute.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOOP = Path(__file__).with_name("agent_loop.py")
SECONDS = int(os.environ.get("MAINSPRING_AGENT_SECONDS", "4"))
NO_SERVER = 3


@pytest.mark.chaos
@pytest.mark.timeout(180 + 2 * SECONDS)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_an_agent_sees_one_key_for_each_fire_and_every_fire(store: str) -> None:
    words = [sys.executable, str(LOOP), "--store", store, "--seconds", str(SECONDS)]
    words += ["--kill-every", "3"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == NO_SERVER and os.environ.get("CI") != "true":
        pytest.skip(done.stdout)
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    assert "0 violations" in done.stdout
