"""Autoscaling: how many worker processes a pool should have.

The pool grows while work waits and shrinks after a longer time without a backlog, and does not flap between the two.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from mainspring.model.errors import InvalidInput

MAX_PROCESSES = 256
#: Looks in a row that must find a backlog before the pool grows. A backlog that is gone at the next look needs no
#: further process.
LOOKS_BEFORE_GROWING = 2
#: Looks in a row without a backlog before the pool shrinks. The number doubles, up to the second one, each time
#: shrinking proved too early.
LOOKS_BEFORE_SHRINKING, MAX_LOOKS_BEFORE_SHRINKING = 10, 160
#: Seconds before a process that died is started again; they double with each death in a row.
RESTART_SECONDS, MAX_RESTART_SECONDS = 0.5, 30.0
#: Seconds of life after which a process counts as stable: its death is then the first one in a row.
STABLE_AFTER_SECONDS = 30.0


class Bounds(Struct, frozen=True):
    """The smallest and the largest number of processes, and the number at the start."""

    low: int
    high: int
    start: int


class Demand(Struct, frozen=True):
    """The result of one look: due runs that no worker has claimed, and runs that the pool's processes hold."""

    backlog: int
    running: int


class PoolState(Struct, frozen=True):
    """The number of processes there should be, and what the looks so far have shown."""

    size: int
    #: Looks in a row with a backlog.
    pressed: int = 0
    #: Looks in a row without a backlog, and the largest number of processes needed meanwhile.
    calm: int = 0
    peak: int = 0
    #: Looks in a row without a backlog that it takes to shrink.
    patience: int = LOOKS_BEFORE_SHRINKING
    #: Looks since the pool shrank last; None after it has grown.
    since_shrunk: int | None = None


def parse_bounds(processes: int | None, low: int | None, high: int | None) -> Bounds:
    """Return the bounds for `--processes`, `--min-processes` and `--max-processes`, each None if not given.

    Raises `InvalidInput`, with the name of the option, if they are out of range or contradict each other.
    """
    for name, given in (("--processes", processes), ("--min-processes", low), ("--max-processes", high)):
        if given is not None and not 1 <= given <= MAX_PROCESSES:
            raise InvalidInput(name, f"{given} is out of range", f"Use 1 to {MAX_PROCESSES}")
    if low is None:
        low = processes if processes is not None and high is None else 1
    if high is None:
        high = max(low, processes or low)
    start = low if processes is None else processes
    return _check_bounds(Bounds(low, high, start))


def _check_bounds(bounds: Bounds) -> Bounds:
    low, high, start = bounds.low, bounds.high, bounds.start
    if low > high:
        raise InvalidInput(
            "--min-processes", f"{low} is more than --max-processes, {high}", "Give the smaller one here"
        )
    if not low <= start <= high:
        raise InvalidInput(
            "--processes", f"{start} is not between {low} and {high}", "Leave it out, or change the bounds"
        )
    return bounds


def resize(pool: PoolState, demand: Demand, slots: int, bounds: Bounds) -> PoolState:
    """Return the pool after one more look; `slots` is the concurrency of one process.

    The pool grows by the processes that the backlog would fill, at most to twice its size. It shrinks to the number
    that was needed while there was no backlog.
    """
    since = None if pool.since_shrunk is None else pool.since_shrunk + 1
    if demand.backlog > 0:
        pool = replace(pool, pressed=pool.pressed + 1, calm=0, peak=0, since_shrunk=since)
        return _grow(pool, demand, slots, bounds)
    peak = max(pool.peak, _processes_for(demand.running, slots), bounds.low)
    return _shrink(replace(pool, pressed=0, calm=pool.calm + 1, peak=peak, since_shrunk=since))


def _grow(pool: PoolState, demand: Demand, slots: int, bounds: Bounds) -> PoolState:
    if pool.pressed < LOOKS_BEFORE_GROWING or pool.size >= bounds.high:
        return pool
    size = min(pool.size + _processes_for(demand.backlog, slots), 2 * pool.size, bounds.high)
    too_early = pool.since_shrunk is not None and pool.since_shrunk <= 4 * pool.patience
    patience = min(2 * pool.patience, MAX_LOOKS_BEFORE_SHRINKING) if too_early else pool.patience
    return replace(pool, size=size, patience=patience, since_shrunk=None)


def _shrink(pool: PoolState) -> PoolState:
    if pool.calm < pool.patience:
        return pool
    if pool.peak >= pool.size:
        # All processes were needed. Begin a new window, so that one old peak does not hold the pool for ever.
        return replace(pool, calm=0, peak=0)
    return replace(pool, size=pool.peak, calm=0, peak=0, since_shrunk=0)


def _processes_for(runs: int, slots: int) -> int:
    """Return the number of processes that `runs` runs fill: runs / slots, rounded up."""
    return -(-runs // slots)


def restart_delay(deaths: int) -> float:
    """Return the seconds before a restart after `deaths` deaths in a row."""
    return min(RESTART_SECONDS * 2.0 ** min(deaths - 1, 30), MAX_RESTART_SECONDS)
