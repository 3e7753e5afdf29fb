"""The targets on PostgreSQL: limits that the figures of one run of the benchmark must meet."""

from __future__ import annotations

from collections.abc import Iterator

from bench.runner import Measured, Results
from bench.stats import median
from bench.targets import Read, Verdict, at_most, over, ratio, said

OURS, FLOOR = "mainspring-pg", "floor-pg"
#: Fraction of the rounds that Mainspring must win.
MIN_ROUNDS_AHEAD = 0.8


def verdicts(results: Results) -> list[Verdict]:
    """Judge every target, in the order of the scenarios."""
    read = Read(results)
    return [
        *_drain(read),
        *_held(read),
        *_workers(read),
        *_enqueue(read),
        *_latency(read),
        *_schedules(read),
    ]


def _drain(read: Read) -> Iterator[Verdict]:
    key = "pg-drain"
    ours = read.median(key, OURS)
    yield ratio(key, "drain ÷ pgqueuer", 1.2, ours, read.median(key, "pgqueuer"))
    yield _ahead(read, key)
    yield ratio(key, "drain ÷ Procrastinate", 10, ours, read.median(key, "procrastinate"))
    yield ratio(key, "drain ÷ floor", 0.6, ours, read.median(key, FLOOR))
    yield at_most(key, "worker CPU per run", 45, read.median(key, OURS, "cpu_us"), " µs")


def _ahead(read: Read, key: str) -> Verdict:
    """Compare two contenders round by round, as they alternated; return the fraction of rounds that ours won."""
    ours, peer = read.parts(key, OURS), read.parts(key, "pgqueuer")
    what = "rounds ahead of pgqueuer"
    if not ours or not peer:
        return Verdict(key, what, "≥ 4 of 5", "not measured", None)
    rounds = list(zip(ours[0].runs, peer[0].runs, strict=False))
    ahead = sum(one["per_second"] > other["per_second"] for one, other in rounds)
    return Verdict(key, what, "≥ 4 of 5", f"{ahead} of {len(rounds)}", ahead >= MIN_ROUNDS_AHEAD * len(rounds))


def _held(read: Read) -> Iterator[Verdict]:
    parts = {bool(one.part.parameters.get("held")): one for one in read.parts("pg-held", OURS)}
    values = {held: median(one.runs, "per_second") for held, one in parts.items()}
    yield ratio("pg-held", "drain with a snapshot held ÷ without", 0.7, values.get(True), values.get(False))


def _workers(read: Read) -> Iterator[Verdict]:
    key = "pg-workers"
    parts = read.parts(key, OURS)

    def rate(cpu_ms: float, processes: int) -> float | None:
        wanted = (cpu_ms, processes)
        found = [p for p in parts if (p.part.parameters.get("cpu_ms", 0), p.part.parameters["processes"]) == wanted]
        return median(found[0].runs, "per_second") if found else None

    yield ratio(key, "two workers ÷ one, no-op", 0.95, rate(0, 2), rate(0, 1))
    yield ratio(key, "two workers ÷ one, 1 ms of CPU", 1.6, rate(1, 2), rate(1, 1))
    twice = [run["twice"] for one in parts for run in one.runs]
    yield at_most(key, "runs run twice", 0, sum(twice) if twice else None, "")


def _enqueue(read: Read) -> Iterator[Verdict]:
    key = "pg-enqueue"
    one = read.median(key, OURS, job="enqueue_one")
    bulk = read.median(key, OURS, job="enqueue_bulk")
    yield ratio(key, "one by one ÷ bare single insert", 0.6, one, read.median(key, FLOOR, job="enqueue_one"))
    many = read.median(key, OURS, job="enqueue_coroutines")
    yield ratio(key, "100 coroutines ÷ our one by one", 4, many, one)
    yield ratio(key, "bulk ÷ pgqueuer's bulk", 1, bulk, read.median(key, "pgqueuer", job="enqueue_bulk"))


def _latency(read: Read) -> Iterator[Verdict]:
    key = "pg-latency"
    yield at_most(key, "enqueue → start p50", 5, read.median(key, OURS, "p50_ms"), " ms")
    yield at_most(key, "enqueue → start p99", 20, read.median(key, OURS, "p99_ms"), " ms")


def _schedules(read: Read) -> Iterator[Verdict]:
    key = "pg-schedules"
    parts = sorted(read.parts(key, OURS), key=_registered)
    runs = parts[-1].runs if parts else []
    count = f"{_registered(parts[-1]):,}" if parts else "1,000,000"
    yield at_most(key, f"{count} schedules: late p50", 10, median(runs, "p50_ms"), " ms")
    yield at_most(key, f"{count} schedules: late p99", 40, median(runs, "p99_ms"), " ms")
    cpu = median(runs, "cpu_us")
    peers = read.parts(key, "apscheduler4-pg")
    other = median(peers[0].runs, "cpu_us") if peers else None
    peer = f"{_registered(peers[0]):,}" if peers else "2,000"
    fewer = median(parts[0].runs, "cpu_us") if len(parts) > 1 else None
    yield at_most(key, f"CPU per fire ÷ APScheduler 4 with {peer}", 0.1, over(cpu, other), " ×")
    yield at_most(key, "CPU per fire ÷ ours with 1,000", 1.3, over(cpu, fewer), " ×")
    complete = all(run["fires"] == run["expected"] and not run["doubled"] for run in runs)
    yield Verdict(key, "every fire once", "all", said(runs, complete), complete if runs else None)


def _registered(one: Measured) -> int:
    count: int = one.part.parameters["schedules"]
    return count
