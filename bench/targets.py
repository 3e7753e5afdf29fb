"""The targets on SQLite: limits that the figures of one run of the benchmark must meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.runner import Measured, Results
from bench.stats import median, spread


@dataclass(frozen=True)
class Verdict:
    """One judged target: its name, the goal and the measured value; `ok` is None if this run did not measure it."""

    scenario: str
    what: str
    goal: str
    measured: str
    ok: bool | None


class Read:
    """Reads medians or extremes by contender, job and group; the result is None for a part that was not run."""

    def __init__(self, results: Results) -> None:
        self._results = results

    def parts(self, scenario: str, contender: str, job: str = "") -> list[Measured]:
        return [
            one
            for one in self._results.get(scenario, ())
            if one.part.contender == contender and one.runs and (not job or one.part.job == job)
        ]

    def median(self, scenario: str, contender: str, figure: str = "per_second", job: str = "") -> float | None:
        """Return a median; if a contender was run with several settings, that of the best one."""
        found = [median(one.runs, figure) for one in self.parts(scenario, contender, job)]
        return max((value for value in found if value is not None), default=None)

    def most(self, scenario: str, figure: str) -> float | None:
        ends = spread(self._ours(scenario), figure)
        return None if ends is None else ends[1]

    def least(self, scenario: str, figure: str) -> float | None:
        ends = spread(self._ours(scenario), figure)
        return None if ends is None else ends[0]

    def _ours(self, scenario: str) -> list[dict[str, float]]:
        return [run for one in self.parts(scenario, "mainspring") for run in one.runs]


def verdicts(results: Results) -> list[Verdict]:
    """Judge every target, in the order of the scenarios."""
    read = Read(results)
    return [
        *_drain(read),
        *_latencies(read),
        *_enqueue(read),
        *_schedules(read),
        *_fires(read),
        *_event_rows(read),
    ]


def at_least(
    scenario: str, what: str, goal: float, value: float | None, unit: str = "", base: float | None = None
) -> Verdict:
    """Judge `value`, or the ratio value ÷ `base` if `base` is given, against a lower limit."""
    if base is not None and value is not None:
        return _verdict(scenario, what, f"≥ {goal:g} ×", value / base, value / base >= goal, " ×")
    if unit == " ×":
        value = None  # the base of the ratio was not run
    return _verdict(scenario, what, f"≥ {goal:,g}{unit}", value, value is not None and value >= goal, unit)


def at_most(scenario: str, what: str, goal: float, value: float | None, unit: str) -> Verdict:
    return _verdict(scenario, what, f"≤ {goal:g}{unit}", value, value is not None and value <= goal, unit)


def _verdict(scenario: str, what: str, goal: str, value: float | None, ok: bool, unit: str) -> Verdict:
    if value is None:
        return Verdict(scenario, what, goal, "not measured", None)
    digits = 0 if abs(value) >= 1000 or value == int(value) else 1 if abs(value) >= 100 else 2
    return Verdict(scenario, what, goal, f"{value:,.{digits}f}{unit}", ok)


def ratio(scenario: str, what: str, goal: float, ours: float | None, other: float | None) -> Verdict:
    return at_least(scenario, what, goal, ours, " ×", other)


def _drain(read: Read) -> Iterator[Verdict]:
    ours = read.median("drain", "mainspring")
    yield ratio("drain", "drain ÷ SqliteHuey", 5, ours, read.median("drain", "huey"))
    yield ratio("drain", "drain ÷ APScheduler 3 on SQLite", 10, ours, read.median("drain", "apscheduler3"))
    yield ratio("drain", "drain ÷ floor", 0.25, ours, read.median("drain", "floor"))
    yield at_most("drain", "CPU per run", 60, read.median("drain", "mainspring", "cpu_us"), " µs")
    yield ratio(
        "memory",
        "memory drain ÷ APScheduler 3's memory store",
        1.5,
        read.median("memory", "mainspring"),
        read.median("memory", "apscheduler3"),
    )


def _latencies(read: Read) -> Iterator[Verdict]:
    yield at_most("priority", "critical: start p99", 100, read.median("priority", "mainspring", "p99_ms"), " ms")
    busy = "busy-thread"
    yield at_most(busy, "cron beside a busy thread: p99 late", 100, read.median(busy, "mainspring", "p99_ms"), " ms")
    yield at_least(busy, "drain beside a busy thread", 3_000, read.median(busy, "mainspring"), "/s")
    yield at_most("latency", "enqueue → start p50", 3, read.median("latency", "mainspring", "p50_ms"), " ms")
    yield at_most("latency", "enqueue → start p99", 15, read.median("latency", "mainspring", "p99_ms"), " ms")


def _enqueue(read: Read) -> Iterator[Verdict]:
    one = read.median("enqueue", "mainspring", job="enqueue_one")
    bare = read.median("enqueue", "floor", job="enqueue_one")
    many = read.median("enqueue", "mainspring", job="enqueue_coroutines")
    bulk = read.median("enqueue", "mainspring", job="enqueue_bulk")
    yield ratio("enqueue", "one by one ÷ bare single-row commit", 0.6, one, bare)
    yield ratio("enqueue", "100 coroutines ÷ our one by one", 4, many, one)
    yield ratio("enqueue", "bulk ÷ SqliteHuey", 10, bulk, read.median("enqueue", "huey", job="enqueue_one"))


def _schedules(read: Read) -> Iterator[Verdict]:
    parts = sorted(read.parts("million", "mainspring"), key=lambda one: -one.part.parameters["schedules"])
    runs = parts[0].runs if parts else []
    count = f"{parts[0].part.parameters['schedules']:,}" if parts else "1,000,000"
    yield at_most("million", f"{count} schedules: late p50", 5, median(runs, "p50_ms"), " ms")
    yield at_most("million", f"{count} schedules: late p99", 25, median(runs, "p99_ms"), " ms")
    cpu = median(runs, "cpu_us")
    peers = read.parts("million", "apscheduler3")
    other = median(peers[0].runs, "cpu_us") if peers else None
    peer = f"{peers[0].part.parameters['schedules']:,}" if peers else "10,000"
    fewer = median(parts[-1].runs, "cpu_us") if len(parts) > 1 else None
    yield at_most("million", f"CPU per fire ÷ APScheduler 3 with {peer}", 0.25, over(cpu, other), " ×")
    yield at_most("million", "CPU per fire ÷ ours with 1,000", 1.3, over(cpu, fewer), " ×")
    yield at_most("million", "memory", 150, median(runs, "rss_peak_mb"), " MB")
    yield at_most("million", "start-up", 1, median(runs, "start_seconds"), " s")
    complete = all(run["fires"] == run["expected"] and not run["doubled"] for run in runs)
    yield Verdict("million", "every fire once", "all", said(runs, complete), complete if runs else None)
    yield ratio(
        "add",
        "adding schedules ÷ APScheduler 3 on SQLite",
        10,
        read.median("add", "mainspring"),
        read.median("add", "apscheduler3"),
    )


def over(value: float | None, base: float | None) -> float | None:
    return None if value is None or base is None else value / base


def said(runs: list[dict[str, float]], ok: bool) -> str:
    return "not measured" if not runs else "all" if ok else "not all"


def _fires(read: Read) -> Iterator[Verdict]:
    ours = read.parts("cron", "mainspring")
    runs = ours[0].runs if ours else []
    seconds = int(runs[0]["expected"]) if runs else 60
    yield at_least("cron", f"cron, {seconds} s: fires", seconds, read.least("cron", "fires"))
    yield at_most("cron", "cron: doubled", 0, read.most("cron", "doubled"), "")
    yield at_least("cron", "cron: within 10 ms", seconds * 58 // 60, median(runs, "within_10ms"))
    yield at_most("cron", "cron: latest", 200, read.most("cron", "max_ms"), " ms")
    yield at_most("herd", "herd: dropped", 0, read.most("herd", "dropped"), "")
    yield at_most("herd", "herd: doubled", 0, read.most("herd", "doubled"), "")
    for one in read.parts("herd", "mainspring"):
        said = one.part.label.partition(", ")[2]
        yield at_most("herd", f"herd: all started within ({said})", 5, median(one.runs, "last_seconds"), " s")


def _event_rows(read: Read) -> Iterator[Verdict]:
    for kind in ("RunStarted", "RunSucceeded"):
        largest = read.most("drain", f"{kind}_bytes")
        yield at_most("drain", f"row of an empty {kind} event", 200, largest, " B")
