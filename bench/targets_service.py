"""The targets of the service: limits that the figures of one run of the benchmark must meet."""

from __future__ import annotations

from bench.runner import Results
from bench.targets import Read, Verdict, at_most, ratio


def verdicts(results: Results) -> list[Verdict]:
    """Judge every target, in the order of the scenarios."""
    read = Read(results)
    ours, bare = read.median("calls", "service"), read.median("calls", "floor-calls")
    late = read.median("calls", "service", "planned_p99_ms")
    return [
        ratio("calls", "agent calls ÷ bare aiohttp", 0.25, ours, bare),
        at_most("calls", "a trigger beside them: late p99", 50, late, " ms"),
        at_most("idle", "idle: of a core", 1, read.median("idle", "service", "core_percent"), " %"),
        at_most("idle", "idle: memory", 120, read.median("idle", "service", "rss_mb"), " MB"),
        at_most("idle", "ready within", 2, read.median("idle", "service", "ready_seconds"), " s"),
    ] + [
        at_most("lists", f"GET /api/{name} p95", 50, read.median("lists", "service", f"{name}_p95_ms"), " ms")
        for name in ("schedules", "executions")
    ]
