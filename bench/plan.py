"""The plan of the benchmark on SQLite: the scenarios, their contenders, and the number of items."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from bench.envs import CONTENDERS


@dataclass(frozen=True)
class Part:
    """One contender's part in a scenario."""

    contender: str
    label: str
    job: str
    parameters: dict[str, Any] = field(default_factory=dict)
    #: A job with parameters that prepares a folder; every run begins with a copy of that folder.
    prepare: tuple[str, dict[str, Any]] | None = None
    #: Number of runs, if fewer than the scenario's: for parts that only give orientation.
    runs: int | None = None
    timeout: float = 240
    #: Parts of one contender in one group differ in settings; the best part counts.
    group: str = ""


@dataclass(frozen=True)
class Scenario:
    """One question of the benchmark: the parts that answer it, and the figures of its table."""

    key: str
    title: str
    parts: tuple[Part, ...]
    #: (figure, heading, decimals)
    columns: tuple[tuple[str, str, int], ...]
    runs: int = 3
    note: str = ""


def part(contender: str, job: str, label: str = "", **more: Any) -> Part:
    """Return one part; `label` is added to the contender's name, other keywords are parameters of the job."""
    own = {key: more.pop(key) for key in ("prepare", "runs", "timeout") if key in more}
    name = CONTENDERS[contender].label
    return Part(contender, f"{name}, {label}" if label else name, job, more, group=name, **own)


RATE_FIGURE = ("per_second", "per second", 0)
CPU_FIGURE = ("cpu_us", "µs CPU each", 1)
LATENCY_FIGURES = (("p50_ms", "p50 ms", 2), ("p99_ms", "p99 ms", 2), ("max_ms", "max ms", 1))


def plan(*, quick: bool, n: int | None = None) -> list[Scenario]:
    """Return every scenario; `quick` lowers items and runs, `n` overrides the items where they are one number."""

    def size(full: int, less: int, most: int | None = None) -> int:
        chosen = n if n is not None else less if quick else full
        return chosen if most is None else min(chosen, most)

    runs = 1 if quick else 3
    huey_n, aps3_n, aps4_n = size(6_000, 3_000), size(2_000, 1_000, 2_000), size(500, 200, 500)
    threads = (1, 4) if quick else (1, 2, 4)
    herd, million = size(10_000, 3_000), size(1_000_000, 50_000)
    window = 10 if quick else 30
    return [
        Scenario(
            "drain",
            "Drain no-op runs, one process, SQLite",
            (
                part("mainspring", "drain", n=size(20_000, 20_000)),
                part("floor", "drain", n=size(20_000, 20_000)),
                *(part("huey", "drain", f"{t} thread{'s'[: t > 1]}", n=huey_n, threads=t) for t in threads),
                part("apscheduler3", "drain", n=aps3_n),
                part("apscheduler4", "drain", n=aps4_n),
            ),
            (("n", "N", 0), RATE_FIGURE, CPU_FIGURE),
            runs=2 if quick else 5,
            note="Enqueued first, then the worker is started; the clock stops when the last outcome is committed.",
        ),
        Scenario(
            "priority",
            "Critical enqueued behind low ones, all slots busy with 50 ms work",
            (part("mainspring", "priority", low=3_000 if quick else 10_000, critical=size(200, 60, 200)),),
            (("n", "critical", 0), ("low", "low", 0), *LATENCY_FIGURES),
            runs=runs,
        ),
        Scenario(
            "busy-thread",
            "One CPU-bound thread handler beside it",
            (part("mainspring", "busy_thread", seconds=5 if quick else 15, n=size(10_000, 5_000)),),
            (("fires", "fires", 0), *LATENCY_FIGURES, ("n", "drained", 0), ("per_second", "drain per second", 0)),
            runs=runs,
            note="Run as `mainspring run` runs it: a switch interval of 0.5 ms.",
        ),
        Scenario(
            "enqueue",
            "Enqueue, every call durable when it returns",
            (
                part("mainspring", "enqueue_one", "one by one", n=size(3_000, 1_000)),
                part("floor", "enqueue_one", "single-row commit", n=size(3_000, 1_000)),
                part("mainspring", "enqueue_coroutines", "100 coroutines", n=size(10_000, 5_000)),
                part("mainspring", "enqueue_bulk", "bulk", n=size(20_000, 10_000)),
                part("floor", "enqueue_bulk", "bulk", n=size(20_000, 10_000)),
                part("huey", "enqueue_one", "one by one", n=size(3_000, 1_000)),
                part("apscheduler3", "enqueue_one", "one by one", n=aps3_n),
            ),
            (("n", "N", 0), RATE_FIGURE, CPU_FIGURE),
            runs=runs,
            note="SqliteHuey and APScheduler have no bulk call. A run of ours is a row and an event.",
        ),
        Scenario(
            "latency",
            "Enqueue to start at 50 per second, one process",
            (
                part("mainspring", "latency", n=size(500, 250)),
                part("huey", "latency", "defaults", n=size(250, 100, 250), runs=1),
                part("huey", "latency", "polling every 5 ms", n=size(250, 100, 250), poll=0.005, runs=1),
            ),
            (("n", "N", 0), *LATENCY_FIGURES, CPU_FIGURE),
            runs=runs,
        ),
        Scenario(
            "million",
            "Many schedules, 100 due per second",
            (
                *(
                    part(
                        "mainspring",
                        "tick",
                        f"{count:,} schedules",
                        schedules=count,
                        seconds=window,
                        prepare=("add_schedules", {"n": count}),
                    )
                    for count in (million, 1_000)
                ),
                part(
                    "apscheduler3",
                    "tick",
                    f"{size(10_000, 2_000, 10_000):,} schedules",
                    schedules=size(10_000, 2_000, 10_000),
                    seconds=window,
                ),
            ),
            (
                ("fires", "fires", 0),
                ("expected", "of", 0),
                ("p50_ms", "p50 ms", 2),
                ("p99_ms", "p99 ms", 2),
                ("cpu_us", "µs CPU per fire", 0),
                ("rss_peak_mb", "peak MB", 0),
                ("start_seconds", "start s", 3),
            ),
            runs=runs,
        ),
        Scenario(
            "add",
            "Adding schedules",
            (
                part("mainspring", "add_schedules", n=size(100_000, 20_000)),
                part("apscheduler3", "add_schedules", n=size(3_000, 1_000, 3_000)),
                part("apscheduler4", "add_schedules", n=size(500, 200, 500)),
            ),
            (("n", "N", 0), RATE_FIGURE, CPU_FIGURE),
            runs=runs,
            note="Ours in bulk; APScheduler has no bulk call.",
        ),
        Scenario(
            "memory",
            "Drain no-op runs from the memory store",
            (
                part("mainspring", "drain", n=size(20_000, 20_000), store="memory"),
                part("apscheduler3", "drain", n=size(10_000, 10_000), store="memory"),
                part("apscheduler4", "drain", n=size(3_000, 1_000, 3_000), store="memory"),
            ),
            (("n", "N", 0), RATE_FIGURE, CPU_FIGURE),
            runs=runs,
            note="Ours keeps every event.",
        ),
        Scenario(
            "cron",
            "An every-second cron",
            (
                part("mainspring", "cron", seconds=size(60, 12, 60)),
                part("apscheduler3", "cron", seconds=size(20, 12, 20), runs=1),
            ),
            (
                ("fires", "fires", 0),
                ("expected", "of", 0),
                ("doubled", "doubled", 0),
                ("within_10ms", "within 10 ms", 0),
                *LATENCY_FIGURES,
            ),
            runs=runs,
        ),
        Scenario(
            "herd",
            "Schedules due at the same instant",
            (
                part("mainspring", "herd", "200 slots", n=herd, slots=200, prepare=("prepare_herd", {"n": herd})),
                part("mainspring", "herd", "10 slots, the default", n=herd, prepare=("prepare_herd", {"n": herd})),
                part("apscheduler3", "herd", n=size(3_000, 1_000, 3_000), runs=1),
            ),
            (
                ("n", "N", 0),
                ("fires", "started", 0),
                ("dropped", "dropped", 0),
                ("doubled", "doubled", 0),
                ("last_seconds", "last s", 2),
            ),
            runs=runs,
        ),
    ]


def chosen(scenarios: Iterable[Scenario], only: list[str], contenders: list[str]) -> list[Scenario]:
    """Return the named scenarios and contenders; all if none is named."""
    kept = []
    for scenario in scenarios:
        if only and scenario.key not in only:
            continue
        parts = tuple(one for one in scenario.parts if not contenders or one.contender in contenders)
        if parts:
            kept.append(replace(scenario, parts=parts))
    return kept
