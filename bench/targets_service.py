"""The targets of the service."""

from __future__ import annotations

from bench.runner import Results
from bench.targets import Read, Verdict, at_most


def verdicts(results: Results) -> list[Verdict]:
    """Every target, in the order of the scenarios."""
    read = Read(results)
    return [
        at_most("lists", f"GET /api/{name} p95", 50, read.median("lists", "service", f"{name}_p95_ms"), " ms")
        for name in ("schedules", "executions")
    ]
