"""The suites of the benchmark: each has its scenarios, its targets, its chart and its place in bench/README.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bench import (
    plan,
    plan_postgres,
    plan_redis,
    plan_service,
    targets,
    targets_postgres,
    targets_redis,
    targets_service,
)
from bench.chart import Panel
from bench.plan import Scenario
from bench.runner import Results
from bench.targets import Verdict


class Planned(Protocol):
    """Function that returns the scenarios of a suite."""

    def __call__(self, *, quick: bool, n: int | None = None) -> list[Scenario]: ...


@dataclass(frozen=True)
class Suite:
    """One suite of the benchmark."""

    key: str
    plan: Planned
    verdicts: Callable[[Results], list[Verdict]]
    panels: tuple[Panel, ...]
    #: Durability setting under which every figure of the chart was measured.
    durability: str
    #: True if it needs the PostgreSQL server of the harness.
    on_server: bool = False
    #: True if it needs the Redis or Valkey server of the harness.
    on_redis: bool = False


_DRAIN = "runs per second, more is better"
SUITES = {
    suite.key: suite
    for suite in (
        Suite(
            "embedded",
            plan.plan,
            targets.verdicts,
            (
                Panel("drain", "per_second", f"Drain no-op runs ({_DRAIN})", "{:,.0f}/s"),
                Panel("memory", "per_second", f"Drain from the memory store ({_DRAIN})", "{:,.0f}/s"),
                Panel("enqueue", "per_second", "Enqueue (per second, more is better)", "{:,.0f}/s"),
                Panel("latency", "p99_ms", "Enqueue to start, p99 (ms, less is better)", "{:,.1f} ms"),
                Panel("million", "cpu_us", "CPU of one fire, 100 due per second (µs, less is better)", "{:,.0f} µs"),
                Panel("add", "per_second", "Adding schedules (per second, more is better)", "{:,.0f}/s"),
            ),
            "WAL, synchronous=FULL",
        ),
        Suite(
            "postgres",
            plan_postgres.plan,
            targets_postgres.verdicts,
            (
                Panel("pg-drain", "per_second", f"Drain no-op runs ({_DRAIN})", "{:,.0f}/s"),
                Panel("pg-held", "per_second", f"Drain beside a held snapshot ({_DRAIN})", "{:,.0f}/s"),
                Panel("pg-workers", "per_second", f"Drain with 1 and 2 processes ({_DRAIN})", "{:,.0f}/s"),
                Panel("pg-enqueue", "per_second", "Enqueue (per second, more is better)", "{:,.0f}/s"),
                Panel("pg-latency", "p99_ms", "Enqueue to start, p99 (ms, less is better)", "{:,.1f} ms"),
                Panel(
                    "pg-schedules", "cpu_us", "CPU of one fire, 100 due per second (µs, less is better)", "{:,.0f} µs"
                ),
            ),
            "PostgreSQL, fsync=on, synchronous_commit=on",
            on_server=True,
        ),
        Suite(
            "redis",
            plan_redis.plan,
            targets_redis.verdicts,
            (
                Panel("redis-drain", "per_second", f"Drain no-op runs ({_DRAIN})", "{:,.0f}/s"),
                Panel("redis-enqueue", "per_second", "Enqueue (per second, more is better)", "{:,.0f}/s"),
                Panel("redis-latency", "p99_ms", "Enqueue to start, p99 (ms, less is better)", "{:,.1f} ms"),
                Panel("redis-pair", "per_second", f"PostgreSQL, told by Redis Streams ({_DRAIN})", "{:,.0f}/s"),
            ),
            "append-only file, flushed every second",
            on_server=True,  # for the pair of both
            on_redis=True,
        ),
        Suite(
            "service",
            plan_service.plan,
            targets_service.verdicts,
            (
                Panel("calls", "per_second", "Calls to an agent (per second, more is better)", "{:,.0f}/s"),
                Panel("lists", "executions_p95_ms", "GET /api/executions, p95 (ms, less is better)", "{:,.1f} ms"),
            ),
            "WAL, synchronous=FULL",
        ),
    )
}
