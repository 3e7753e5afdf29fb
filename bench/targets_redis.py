"""The targets on Redis and Valkey: limits that the figures of one run of the benchmark must meet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bench.runner import Results
from bench.stats import median
from bench.targets import Read, Verdict, at_most, ratio

OURS, FLOOR, PAIR = "mainspring-redis", "floor-redis", "mainspring-pair"
#: Peers that repeat a run after its worker has died; RQ marks it as failed instead.
AT_LEAST_ONCE = ("taskiq", "dramatiq", "saq-redis", "arq", "celery")
ASYNCIO = ("taskiq", "saq-redis", "arq")


def verdicts(results: Results) -> list[Verdict]:
    """Judge every target, in the order of the scenarios."""
    read = Read(results)
    return [*_drain(read), *_enqueue(read), *_latency(read), *_pair(read)]


def _best(read: Read, key: str, peers: Iterable[str], job: str = "") -> float | None:
    found = [read.median(key, peer, job=job) for peer in peers]
    return max((value for value in found if value is not None), default=None)


def _drain(read: Read) -> Iterator[Verdict]:
    key = "redis-drain"
    ours = read.median(key, OURS)
    yield ratio(key, "drain ÷ best at-least-once peer", 2.5, ours, _best(read, key, AT_LEAST_ONCE))
    yield ratio(key, "drain ÷ Huey (at most once)", 1.5, ours, read.median(key, "huey-redis"))
    yield ratio(key, "drain ÷ floor", 0.3, ours, read.median(key, FLOOR))


def _enqueue(read: Read) -> Iterator[Verdict]:
    key = "redis-enqueue"
    one = read.median(key, OURS, job="enqueue_one")
    yield ratio(key, "one by one ÷ best asyncio peer", 1, one, _best(read, key, ASYNCIO, "enqueue_one"))
    yield ratio(key, "one by one ÷ bare Lua call", 0.6, one, read.median(key, FLOOR, job="enqueue_one"))
    many = read.median(key, OURS, job="enqueue_coroutines")
    yield ratio(key, "100 coroutines ÷ our one by one", 3, many, one)


def _latency(read: Read) -> Iterator[Verdict]:
    key = "redis-latency"
    yield at_most(key, "enqueue → start p50", 3, read.median(key, OURS, "p50_ms"), " ms")
    yield at_most(key, "enqueue → start p99", 10, read.median(key, OURS, "p99_ms"), " ms")


def _pair(read: Read) -> Iterator[Verdict]:
    key = "redis-pair"
    found = {bool(one.part.parameters["streams"]): median(one.runs, "per_second") for one in read.parts(key, PAIR)}
    what = "PostgreSQL + Redis Streams ÷ PostgreSQL"
    yield ratio(key, what, 0.8, found.get(True), found.get(False))
