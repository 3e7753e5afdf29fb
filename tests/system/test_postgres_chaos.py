"""PostgreSQL, its network and its clients die at random moments: no run is lost or doubled, all work on in seconds.

`make chaos` runs the same with larger counts.
"""

from __future__ import annotations

import json
import os

import pytest

from tests.system.scripts import run_script

KILLS = int(os.environ.get("MAINSPRING_PG_KILLS", "2"))
STOPS = int(os.environ.get("MAINSPRING_PG_STOPS", "1"))
BACKENDS = int(os.environ.get("MAINSPRING_PG_BACKENDS", "1"))
RESTARTS = int(os.environ.get("MAINSPRING_PG_RESTARTS", "1"))
FAULTS = int(os.environ.get("MAINSPRING_PG_FAULTS", "1"))
#: Rounds of the failover, all told; without it until one keeps the times.
ROUNDS = os.environ.get("MAINSPRING_PG_ROUNDS")
BLOWS = KILLS + STOPS + BACKENDS + RESTARTS + 5 * FAULTS


@pytest.mark.chaos
@pytest.mark.timeout(240 + 8 * BLOWS)
def test_instances_connections_and_the_server_die_and_nothing_is_lost_doubled_or_stale() -> None:
    counts = {"kills": KILLS, "stops": STOPS, "backends": BACKENDS, "restarts": RESTARTS, "faults": FAULTS}
    lines = run_script("pg_kill_loop.py", *(f"--{name}={count}" for name, count in counts.items()))
    assert "0 violations" in lines[-1]


@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_a_dead_instances_runs_and_fires_are_taken_over_in_time_and_never_before() -> None:
    """Re-claimed within TTL + poll + 1 s and never before the lease has ended; fires late by poll + 1 s at most."""
    lines = run_script("pg_failover.py", f"--rounds={ROUNDS or 3}", *(["--all"] if ROUNDS else []))
    measured = [json.loads(line) for line in lines if line.startswith("{")]
    assert measured
    assert min(one["taken_sooner"] for one in measured) >= 0
