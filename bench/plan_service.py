"""What is measured of the service."""

from __future__ import annotations

from bench.plan import Scenario, part

COLUMNS = (
    ("schedules_p50_ms", "schedules p50 ms", 1),
    ("schedules_p95_ms", "p95 ms", 1),
    ("executions_p50_ms", "executions p50 ms", 1),
    ("executions_p95_ms", "p95 ms", 1),
    ("schedules_500_p95_ms", "500 schedules p95 ms", 1),
    ("executions_500_p95_ms", "500 executions p95 ms", 1),
    ("of_one_p95_ms", "of one p95 ms", 1),
)


def plan(*, quick: bool, n: int | None = None) -> list[Scenario]:
    """`n` is the number of runs in the store."""
    runs = n if n is not None else 100_000 if quick else 1_000_000
    stored = {"schedules": max(10, runs // 10), "runs": runs}
    return [
        Scenario(
            "lists",
            f"Lists over HTTP, {stored['schedules']:,} schedules and {runs:,} executions in the store",
            (part("service", "lists", asks=100 if quick else 400, prepare=("fill", stored), timeout=900),),
            COLUMNS,
            runs=1 if quick else 3,
            note="Pages in turn, one request at a time; the engine runs beside it. The last list is of one schedule.",
        ),
    ]
