"""The plan of the benchmark on Redis or Valkey: the scenarios, their contenders, and the number of items."""

from __future__ import annotations

from bench.plan import CPU_FIGURE, LATENCY_FIGURES, RATE_FIGURE, Scenario, part


def plan(*, quick: bool, n: int | None = None) -> list[Scenario]:
    """Return every scenario; `quick` lowers items and runs, `n` overrides the items where they are one number."""

    def size(full: int, less: int, most: int | None = None) -> int:
        chosen = n if n is not None else less if quick else full
        return chosen if most is None else min(chosen, most)

    runs = 1 if quick else 3
    twenty = size(20_000, 20_000)
    singles = size(3_000, 1_000)
    beside = size(1_000, 500, 1_000)
    return [
        Scenario(
            "redis-drain",
            "Drain no-op runs, one worker process",
            (
                part("mainspring-redis", "drain", n=twenty),
                part("floor-redis", "drain", n=twenty),
                part("taskiq", "drain", n=size(20_000, 5_000)),
                part("dramatiq", "drain", n=size(20_000, 5_000)),
                part("huey-redis", "drain", n=size(20_000, 5_000)),
                part("saq-redis", "drain", n=size(10_000, 3_000, 10_000)),
                part("arq", "drain", n=size(5_000, 2_000, 5_000)),
                part("celery", "drain", n=size(3_000, 1_000, 3_000)),
                part("rq", "drain", n=size(1_000, 300, 1_000), runs=1),
            ),
            (("n", "N", 0), RATE_FIGURE, CPU_FIGURE),
            runs=runs,
            note="Enqueued first, then the worker is started; the clock stops when the server has the last outcome. "
            "Huey takes a task away before it runs it: at most once.",
        ),
        Scenario(
            "redis-enqueue",
            "Enqueue, every call answered by the server when it returns",
            (
                part("mainspring-redis", "enqueue_one", "one by one", n=singles),
                part("floor-redis", "enqueue_one", "bare Lua call", n=singles),
                part("taskiq", "enqueue_one", "one by one", n=singles),
                part("saq-redis", "enqueue_one", "one by one", n=singles),
                part("arq", "enqueue_one", "one by one", n=singles),
                part("dramatiq", "enqueue_one", "one by one", n=beside, runs=1),
                part("huey-redis", "enqueue_one", "one by one", n=beside, runs=1),
                part("celery", "enqueue_one", "one by one", n=beside, runs=1),
                part("rq", "enqueue_one", "one by one", n=beside, runs=1),
                part("mainspring-redis", "enqueue_coroutines", "100 coroutines", n=size(20_000, 10_000)),
                part("taskiq", "enqueue_coroutines", "100 coroutines", n=size(10_000, 5_000), runs=1),
                part("saq-redis", "enqueue_coroutines", "100 coroutines", n=size(10_000, 5_000), runs=1),
                part("arq", "enqueue_coroutines", "100 coroutines", n=size(5_000, 2_000), runs=1),
                part("mainspring-redis", "enqueue_bulk", "bulk", n=twenty),
            ),
            (("n", "N", 0), RATE_FIGURE, CPU_FIGURE),
            runs=runs,
            note="A run of ours is a row, its places in the indexes and an event; the bare Lua call writes the same.",
        ),
        Scenario(
            "redis-latency",
            "Enqueue to start at 50 per second, one process",
            (
                part("mainspring-redis", "latency", n=size(500, 250)),
                *(
                    part(peer, "latency", n=size(250, 100, 250), runs=1, timeout=60)
                    for peer in ("taskiq", "saq-redis", "arq", "dramatiq", "huey-redis", "celery", "rq")
                ),
            ),
            (("n", "N", 0), *LATENCY_FIGURES, CPU_FIGURE),
            runs=runs,
        ),
        Scenario(
            "redis-pair",
            "Drain from PostgreSQL, without and with Redis Streams telling of the runs",
            (
                part("mainspring-pair", "drain", "PostgreSQL", n=twenty, streams=False),
                part("mainspring-pair", "drain", "PostgreSQL + Redis Streams", n=twenty, streams=True),
            ),
            (("n", "N", 0), RATE_FIGURE, CPU_FIGURE, ("told", "messages", 0)),
            runs=2 if quick else 5,
            note="PostgreSQL with fsync=on and synchronous_commit=on; messages name runs, the rows are in PostgreSQL.",
        ),
    ]
