"""Valkey, its network and its clients fail at random moments: no run is lost or doubled, and work resumes in seconds.

`make chaos` runs this test with larger counts.
"""

from __future__ import annotations

import os

import pytest

from tests.system.scripts import run_script

KILLS = int(os.environ.get("MAINSPRING_REDIS_KILLS", "2"))
STOPS = int(os.environ.get("MAINSPRING_REDIS_STOPS", "1"))
BACKENDS = int(os.environ.get("MAINSPRING_REDIS_BACKENDS", "1"))
RESTARTS = int(os.environ.get("MAINSPRING_REDIS_RESTARTS", "1"))
FAULTS = int(os.environ.get("MAINSPRING_REDIS_FAULTS", "0"))
BLOWS = KILLS + STOPS + BACKENDS + RESTARTS + 5 * FAULTS


@pytest.mark.chaos
@pytest.mark.timeout(240 + 8 * BLOWS)
def test_instances_and_the_server_die_and_nothing_is_lost_doubled_or_stale_on_redis() -> None:
    counts = {"kills": KILLS, "stops": STOPS, "backends": BACKENDS, "restarts": RESTARTS, "faults": FAULTS}
    lines = run_script("redis_kill_loop.py", *(f"--{name}={count}" for name, count in counts.items()))
    assert "0 violations" in lines[-1]
