"""Autoscaling: compute how many worker processes a pool should have from repeated polls of its load.

The supervisor measures the load (`Demand`) once in each poll interval. The pool grows after two polls with a backlog
and shrinks after many polls without a backlog, so that it does not flap between two sizes.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from mainspring.model.errors import InvalidInput

#: Upper bound of the options for the size of a pool, in processes.
MAX_PROCESSES = 256
#: Polls in a row with a backlog before the pool grows: a backlog that is gone at the next poll needs no more processes.
POLLS_BEFORE_GROWING = 2
#: Polls in a row without a backlog before the pool shrinks. Each time the pool had to grow again soon after it shrank,
#: the number doubles, up to the maximum.
POLLS_BEFORE_SHRINKING, MAX_POLLS_BEFORE_SHRINKING = 10, 160
#: Seconds before a process that died is started again. They double with each further death in a row, up to the maximum.
RESTART_SECONDS, MAX_RESTART_SECONDS = 0.5, 30.0
#: Seconds of life after which a process counts as stable: its death then counts as the first in a row.
STABLE_AFTER_SECONDS = 30.0


class Bounds(Struct, frozen=True):
    """The smallest (`low`) and largest (`high`) number of processes of a pool, and the number with which it starts."""

    low: int
    high: int
    start: int


class Demand(Struct, frozen=True):
    """The load at one poll: how many due runs wait to be claimed, and how many runs the pool's processes hold."""

    backlog: int
    running: int
    #: True if more runs may wait, because counting stopped at `backlog`.
    at_least: bool = False


class PoolState(Struct, frozen=True):
    """The state of a pool between two polls: its size, and counters of the polls so far."""

    #: Number of processes that the pool should have.
    size: int
    #: Polls in a row with a backlog, up to now.
    pressed: int = 0
    #: Polls in a row without a backlog, and the largest number of processes that the running runs needed in them.
    calm: int = 0
    peak: int = 0
    #: The pool shrinks after this number of polls in a row without a backlog.
    patience: int = POLLS_BEFORE_SHRINKING
    #: Polls since the pool shrank last; None if it never shrank or has grown since.
    since_shrunk: int | None = None


def parse_bounds(processes: int | None, low: int | None, high: int | None) -> Bounds:
    """Return the bounds for `--processes`, `--min-processes` (low) and `--max-processes` (high); None: not given.

    `--processes` alone fixes the size of the pool. Without any option, the size is 1. With a minimum or a maximum,
    `--processes` is the number at the start; its default is the minimum. A minimum that is not given is 1; a maximum
    that is not given is the greater of the minimum and `--processes`. Raises `InvalidInput`, with the name of the
    option, if a value is out of range or contradicts another value.
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
    """Return the bounds. Raises `InvalidInput` unless low ≤ start ≤ high."""
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
    """Return the pool's state after a poll that measured `demand`. Its `size` is the number of processes to have now.

    `slots` is the number of runs that one process executes at a time. The pool grows by the processes that the backlog
    would fill, at most to twice its size. It shrinks to the number that was needed while there was no backlog.
    """
    since = None if pool.since_shrunk is None else pool.since_shrunk + 1
    if demand.backlog > 0:
        pool = replace(pool, pressed=pool.pressed + 1, calm=0, peak=0, since_shrunk=since)
        return _grow(pool, demand, slots, bounds)
    peak = max(pool.peak, _processes_for(demand.running, slots), bounds.low)
    return _shrink(replace(pool, pressed=0, calm=pool.calm + 1, peak=peak, since_shrunk=since))


def _grow(pool: PoolState, demand: Demand, slots: int, bounds: Bounds) -> PoolState:
    """Return the pool after a poll with a backlog: larger if there were enough such polls in a row.

    If the pool grows within `4 × patience` polls after it shrank, it shrank too early: `patience` then doubles.
    """
    if pool.pressed < POLLS_BEFORE_GROWING or pool.size >= bounds.high:
        return pool
    size = min(pool.size + _processes_for(demand.backlog, slots), 2 * pool.size, bounds.high)
    too_early = pool.since_shrunk is not None and pool.since_shrunk <= 4 * pool.patience
    patience = min(2 * pool.patience, MAX_POLLS_BEFORE_SHRINKING) if too_early else pool.patience
    return replace(pool, size=size, patience=patience, since_shrunk=None)


def _shrink(pool: PoolState) -> PoolState:
    """Return the pool after a poll without a backlog: smaller if there were enough such polls in a row."""
    if pool.calm < pool.patience:
        return pool
    if pool.peak >= pool.size:
        # All processes were needed. Start to count again, so that one old peak does not keep the pool large for ever.
        return replace(pool, calm=0, peak=0)
    return replace(pool, size=pool.peak, calm=0, peak=0, since_shrunk=0)


def _processes_for(runs: int, slots: int) -> int:
    """Return the number of processes that `runs` runs fill: runs / slots, rounded up."""
    return -(-runs // slots)


def restart_delay(deaths: int) -> float:
    """Return the seconds to wait before a process that died `deaths` times in a row is started again."""
    return min(RESTART_SECONDS * 2.0 ** min(deaths - 1, 30), MAX_RESTART_SECONDS)
