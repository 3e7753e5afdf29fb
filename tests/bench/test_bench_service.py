"""The service part of the benchmark: a tiny run of it, and its judgement."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.envs import ROOT
from bench.runner import Measured
from bench.suites import SUITES


def tiny_run(folder: Path, scenario: str, n: int) -> dict[str, Any]:
    """Run one scenario with few items and return the JSON that the harness prints."""
    asked = ("--here", "--part", "service", "--only", scenario, "--n", str(n), "--quick", "--runs", "1")
    command = [sys.executable, "-m", "bench", *asked, "--json", "--no-gate", "--no-write", "--dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=58)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["scenarios"][scenario]
    return found


def test_a_tiny_run_asks_every_list(tmp_path: Path) -> None:
    scenario = tiny_run(tmp_path, "lists", 700)
    assert "70 schedules and 700 executions" in scenario["title"]
    (run,) = scenario["parts"][0]["runs"]
    assert 0 < run["schedules_p50_ms"] <= run["schedules_p95_ms"]
    assert 0 < run["executions_p50_ms"] <= run["executions_p95_ms"]
    assert run["durability"] == "WAL, synchronous=FULL"


def test_a_tiny_run_calls_an_agent(tmp_path: Path) -> None:
    ours, bare = tiny_run(tmp_path, "calls", 2_000)["parts"]
    assert ours["runs"][0]["n"] == bare["runs"][0]["n"] == 2_000
    assert ours["runs"][0]["ticks"] > 0
    assert bare["runs"][0]["per_second"] > 0


def test_a_slow_list_misses_its_target() -> None:
    suite = SUITES["service"]
    part = next(one for one in suite.plan(quick=True) if one.key == "lists").parts[0]
    for p95, ok in ((49.0, True), (51.0, False)):
        runs = [{"schedules_p95_ms": p95, "executions_p95_ms": p95}]
        judged = suite.verdicts({"lists": [Measured(part, runs)]})
        assert [one.ok for one in judged if one.scenario == "lists"] == [ok, ok]
