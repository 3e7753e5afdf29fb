"""The plan of the benchmark of the service."""

from __future__ import annotations

from bench.plan import CPU_FIGURE, LATENCY_FIGURES, RATE_FIGURE, Scenario, part

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
    """Return every scenario; `n` is the number of runs in the store."""
    runs = n if n is not None else 100_000 if quick else 1_000_000
    stored = {"schedules": max(10, runs // 10), "runs": runs}
    calls = n if n is not None else 3_000 if quick else 15_000
    return [
        Scenario(
            "calls",
            "Calls to an agent, 64 at once, and beside them one every 100 ms to another address",
            (part("service", "calls", n=calls), part("floor-calls", "bare", n=calls)),
            (
                ("n", "N", 0),
                RATE_FIGURE,
                CPU_FIGURE,
                ("ticks", "beside", 0),
                ("planned_p99_ms", "planned p99 ms", 0),
                *LATENCY_FIGURES,
            ),
            runs=1 if quick else 3,
            note="The call beside: how late it was planned, and how late it arrived. The load is of low priority.",
        ),
        Scenario(
            "idle",
            "`mainspring serve` with one hourly schedule",
            (part("service", "idle", seconds=10 if quick else 30),),
            (("ready_seconds", "ready s", 2), ("core_percent", "% of a core", 2), ("rss_mb", "MB", 0)),
            runs=1 if quick else 3,
        ),
        Scenario(
            "lists",
            f"Lists over HTTP, {stored['schedules']:,} schedules and {runs:,} executions in the store",
            (part("service", "lists", asks=40 if quick else 400, prepare=("fill", stored), timeout=900),),
            COLUMNS,
            runs=1 if quick else 3,
            note="Pages in turn, one request at a time; the engine runs beside it. The last list is of one schedule.",
        ),
    ]
