"""Run one part of the proof with large counts and print how long it took; exits with 1 when a test or a mutant fails.

    python tools/chaos.py core                  # SQLite and the engine: kills, worlds, failpoints, zones, damages
    python tools/chaos.py postgres|redis|broker|service
    python tools/chaos.py                       # every part, one after the other
    python tools/chaos.py core --list           # print the commands only

The tests are those of `make test`; environment variables raise their counts. Each part also makes the mistakes of
tools/mutants.py in its own packages. A part takes at most 20 minutes on 2 quiet cores.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: A part that takes longer is reported as too long.
MAX_PART_SECONDS = 1_200


@dataclass(frozen=True)
class Part:
    """Tests with the counts they run with; `tests` are pytest arguments, run with the marker expression `marker`."""

    counts: dict[str, str]
    tests: tuple[str, ...]
    #: Tests that are not marked `chaos` because `make test` runs them in full, or runs a choice of them.
    whole: tuple[str, ...] = ()
    has_mutants: bool = True


PARTS = {
    "core": Part(
        counts={
            "MAINSPRING_KILLS": "300",
            "MAINSPRING_STOPS": "30",
            "MAINSPRING_RUNS": "50000",
            "MAINSPRING_FAILPOINT_NTH": "1,2,3",
            "MAINSPRING_WORLDS": "5000",
            "MAINSPRING_ZONES": "1000",
            "MAINSPRING_DAMAGES": "1000",
        },
        tests=(
            "tests/system/test_kill.py",
            "tests/proof/test_elections.py",
            "tests/proof/test_simulation.py",
            "tests/rules/triggers/test_cron_all_zones.py",
            "tests/system/test_disk_faults.py",
            "tests/system/test_failpoints.py::test_a_crash_or_failure_at_every_point_heals_with_nothing_lost_or_doubled",
            "tests/system/test_lock_processes.py::test_stopped_and_killed_holders[sqlite]",
        ),
    ),
    "postgres": Part(
        counts={
            "MAINSPRING_PG_KILLS": "200",
            "MAINSPRING_PG_STOPS": "40",
            "MAINSPRING_PG_BACKENDS": "20",
            "MAINSPRING_PG_RESTARTS": "6",
            "MAINSPRING_PG_FAULTS": "8",
            "MAINSPRING_PG_ROUNDS": "10",
            "MAINSPRING_PG_FAILPOINTS": "all",
            "MAINSPRING_PG_HERD": "10000",
            "MAINSPRING_PG_CROWD": "1000000",
            "MAINSPRING_PG_WORLDS": "500",
            "MAINSPRING_STOPS": "30",
        },
        tests=(
            "tests/system/test_postgres_chaos.py",
            "tests/system/test_postgres_scale.py",
            "tests/proof/test_simulation_postgres.py",
            "tests/system/test_failpoints.py::test_the_same_on_postgresql",
            "tests/system/test_lock_processes.py::test_stopped_and_killed_holders[postgres]",
        ),
        whole=("tests/backends/postgres/test_postgres_store.py::TestThroughPgBouncer",),
    ),
    "redis": Part(
        counts={
            "MAINSPRING_REDIS_KILLS": "100",
            "MAINSPRING_REDIS_STOPS": "20",
            "MAINSPRING_REDIS_BACKENDS": "10",
            "MAINSPRING_REDIS_RESTARTS": "12",
            "MAINSPRING_REDIS_FAULTS": "5",
            "MAINSPRING_REDIS_FAILPOINTS": "all",
            "MAINSPRING_REDIS_CUTS": "200",
            "MAINSPRING_STOPS": "30",
        },
        tests=(
            "tests/system/test_redis_chaos.py",
            "tests/system/test_redis_power.py",
            "tests/system/test_failpoints.py::test_the_same_on_redis",
            "tests/system/test_lock_processes.py::test_stopped_and_killed_holders[valkey]",
            "tests/system/test_lock_processes.py::test_stopped_and_killed_holders[redis]",
        ),
        whole=(
            "tests/backends/redis/test_redis_store.py::TestCluster",
            "tests/backends/redis/test_redis_store.py::TestSentinel",
            "tests/backends/redis/test_redis_store.py::TestTls",
        ),
    ),
    "broker": Part(
        counts={
            "MAINSPRING_BROKER_AWAY": "30",
            "MAINSPRING_BROKER_KILLS": "40",
            "MAINSPRING_BROKER_STOPS": "10",
            "MAINSPRING_BROKER_RESTARTS": "15",
            "MAINSPRING_BROKER_WIPES": "15",
        },
        tests=("tests/system/test_broker_chaos.py",),
        whole=("tests/system/test_broker_matrix.py", "tests/backends/test_brokers.py"),
        has_mutants=False,  # those of Redis Streams are in the part redis
    ),
    "service": Part(
        counts={
            "MAINSPRING_SOAK_SECONDS": "600",
            "MAINSPRING_AGENT_SECONDS": "60",
            "MAINSPRING_API_REQUESTS": "20000",
        },
        tests=("tests/system/test_soak.py", "tests/system/test_agent_loop.py", "tests/api/test_schemathesis.py"),
    ),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=PARTS, help="the part to run; every part without it")
    parser.add_argument("--list", action="store_true", help="print the commands and run nothing")
    options = parser.parse_args(arguments)
    lengths: dict[str, float] = {}
    failed = []
    for name in [options.part] if options.part else PARTS:
        started = time.monotonic()
        if not run_part(name, only_list=options.list):
            failed.append(name)
        lengths[name] = time.monotonic() - started
    for name, seconds in lengths.items():
        late = f", longer than {MAX_PART_SECONDS} s" if seconds > MAX_PART_SECONDS else ""
        print(f"chaos part {name}: {seconds:.0f} s{late}{', FAILED' if name in failed else ''}")
    return 1 if failed else 0


def run_part(name: str, *, only_list: bool) -> bool:
    """Run the commands of one part, each also when one before it failed; True when all of them passed."""
    part = PARTS[name]
    environment = {**os.environ, **part.counts, "MAINSPRING_WHOLE_CONTRACT": "1"}
    passed = True
    for command in commands(name, part):
        print("+", " ".join([*(f"{key}={value}" for key, value in part.counts.items()), *command]), flush=True)
        if not only_list:
            passed = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0 and passed
    return passed


def commands(name: str, part: Part) -> list[list[str]]:
    """Give the command lines of a part: its chaos tests, the tests it runs whole, its mutants."""
    pytest = [sys.executable, "-m", "pytest", "--durations=10", "-s", "-o", "faulthandler_timeout=0"]  # tests are long
    lines = [[*pytest, "-m", "chaos", *part.tests]]
    if part.whole:
        lines.append([*pytest, "-n", "2", "-q", *part.whole])
    if part.has_mutants:
        lines.append([sys.executable, "tools/mutants.py", "--part", name])
    return lines


if __name__ == "__main__":
    sys.exit(main())
