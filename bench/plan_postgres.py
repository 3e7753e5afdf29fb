"""The plan of the benchmark on PostgreSQL: the scenarios, their contenders, and the number of items."""

from __future__ import annotations

from bench.plan import CPU_FIGURE, LATENCY_FIGURES, RATE_FIGURE, Part, Scenario, part

#: Rounds of a drain, in which contenders alternate; the target counts the rounds that Mainspring wins.
ROUNDS = 5


def plan(*, quick: bool, n: int | None = None) -> list[Scenario]:
    """Return every scenario; `quick` lowers items and runs, `n` overrides the items where they are one number."""

    def size(full: int, less: int, most: int | None = None) -> int:
        chosen = n if n is not None else less if quick else full
        return chosen if most is None else min(chosen, most)

    runs = 1 if quick else 3
    million, window = size(1_000_000, 50_000), 8 if quick else 30
    earlier = size(60_000, 30_000)
    twenty = size(20_000, 20_000)
    singles = size(3_000, 1_000)
    return [
        Scenario(
            "pg-drain",
            "Drain no-op runs, one worker process",
            (
                part("mainspring-pg", "drain", n=twenty),
                part("pgqueuer", "drain", n=twenty),
                part("floor-pg", "drain", n=twenty),
                part("chancy", "drain", n=size(10_000, 3_000, 10_000), runs=runs),
                part("oban", "drain", n=size(10_000, 3_000, 10_000), runs=runs),
                part("procrastinate", "drain", n=size(2_000, 1_000, 2_000), runs=runs),
                part("dbos", "drain", n=size(1_000, 500, 1_000), runs=runs),
                part("saq", "drain", n=size(1_000, 300, 1_000), runs=runs),
            ),
            (("n", "N", 0), RATE_FIGURE, CPU_FIGURE),
            runs=2 if quick else ROUNDS,
            note="Enqueued first, then the worker is started; the clock stops when the last outcome is committed.",
        ),
        Scenario(
            "pg-held",
            "The same after earlier runs, with and without a snapshot held open since before them",
            (
                part("mainspring-pg", "drain", "no snapshot", n=twenty, earlier=earlier),
                part("mainspring-pg", "drain", "snapshot held", n=twenty, earlier=earlier, held=True),
            ),
            (("n", "N", 0), ("earlier", "earlier", 0), RATE_FIGURE, CPU_FIGURE),
            runs=runs,
            note="As long as a snapshot is open, no dead row of the earlier runs can be removed.",
        ),
        Scenario(
            "pg-workers",
            "One and two worker processes",
            (
                *_workers("mainspring-pg", "no-op", n=twenty),
                *_workers("mainspring-pg", "1 ms of CPU each", n=size(4_000, 2_000), cpu_ms=1),
                *_workers("pgqueuer", "no-op", n=twenty),
            ),
            (("n", "N", 0), RATE_FIGURE, CPU_FIGURE, ("twice", "twice", 0), ("least_share", "least share", 2)),
            runs=runs,
            note="Workers are ready and let go together; CPU is that of all workers.",
        ),
        Scenario(
            "pg-enqueue",
            "Enqueue, every call durable when it returns",
            (
                part("mainspring-pg", "enqueue_one", "one by one", n=singles),
                part("floor-pg", "enqueue_one", "bare single insert", n=singles),
                part("pgqueuer", "enqueue_one", "one by one", n=singles),
                part("procrastinate", "enqueue_one", "one by one", n=size(1_000, 500, 1_000), runs=1),
                part("oban", "enqueue_one", "one by one", n=size(1_000, 500, 1_000), runs=1),
                part("mainspring-pg", "enqueue_coroutines", "100 coroutines", n=size(20_000, 10_000)),
                part("mainspring-pg", "enqueue_bulk", "bulk", n=twenty),
                part("pgqueuer", "enqueue_bulk", "bulk", n=twenty),
                part("floor-pg", "enqueue_bulk", "bulk", n=twenty),
                part("procrastinate", "enqueue_bulk", "bulk", n=size(10_000, 5_000, 10_000), runs=1),
                part("oban", "enqueue_bulk", "bulk", n=size(10_000, 5_000, 10_000), runs=1),
            ),
            (("n", "N", 0), RATE_FIGURE, CPU_FIGURE),
            runs=runs,
            note="A run of ours is a row and an event; the bare insert is the row alone.",
        ),
        Scenario(
            "pg-latency",
            "Enqueue to start at 50 per second, one process",
            (
                part("mainspring-pg", "latency", n=size(500, 250)),
                part("pgqueuer", "latency", n=size(250, 150, 250), runs=1),
                part("procrastinate", "latency", n=size(250, 100, 250), runs=1),
                part("oban", "latency", n=size(250, 100, 250), runs=1),
            ),
            (("n", "N", 0), *LATENCY_FIGURES, CPU_FIGURE),
            runs=runs,
        ),
        Scenario(
            "pg-schedules",
            "Many schedules, 100 due per second",
            (
                *(
                    part(
                        "mainspring-pg",
                        "tick",
                        f"{count:,} schedules",
                        schedules=count,
                        seconds=window,
                        prepare=("add_schedules", {"n": count}),
                    )
                    for count in (million, 1_000)
                ),
                part(
                    "apscheduler4-pg",
                    "tick",
                    f"{size(2_000, 1_000, 2_000):,} schedules",
                    schedules=size(2_000, 1_000, 2_000),
                    seconds=min(window, 15),
                    runs=1,
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
            note="APScheduler 4 does not keep up; its CPU is per fire that it made.",
        ),
    ]


def _workers(contender: str, label: str, **parameters: float) -> tuple[Part, Part]:
    one = part(contender, "workers", f"{label}, 1 process", processes=1, **parameters)
    two = part(contender, "workers", f"{label}, 2 processes", processes=2, **parameters)
    return one, two
