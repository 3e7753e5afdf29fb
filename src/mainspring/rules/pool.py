"""How many worker processes: more while work waits, fewer once they have been idle for long, never to and fro."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from mainspring.model.errors import InvalidInput

MAX_PROCESSES = 256
#: Looks in a row that must find a backlog before the pool grows: what is gone by the next look needed nobody.
PRESSING = 2
#: Looks in a row without a backlog before it shrinks; doubled, up to so much, each time it proved too early.
PATIENCE, MAX_PATIENCE = 10, 160
#: Seconds before a process that died is started again: doubled each time, until one has lived for a while.
RESTART, MAX_RESTART, LIVED = 0.5, 30.0, 30.0


class Bounds(Struct, frozen=True):
    """The fewest and the most processes, and with how many they start."""

    low: int
    high: int
    start: int


class Demand(Struct, frozen=True):
    """What a look found: runs that are due and that nobody has taken, and runs that the pool's processes hold."""

    backlog: int
    running: int


class Pool(Struct, frozen=True):
    """How many processes there should be, and what the looks so far have shown."""

    size: int
    pressed: int = 0  # looks in a row with a backlog
    calm: int = 0  # looks in a row without
    peak: int = 0  # the most processes that were needed while calm
    patience: int = PATIENCE
    since_shrunk: int | None = None  # looks since it last shrank


def bounds_of(processes: int | None, low: int | None, high: int | None) -> Bounds:
    """What `--processes`, `--min-processes` and `--max-processes` mean together."""
    for name, given in (("--processes", processes), ("--min-processes", low), ("--max-processes", high)):
        if given is not None and not 1 <= given <= MAX_PROCESSES:
            raise InvalidInput(name, f"{given} is out of range", f"Use 1 to {MAX_PROCESSES}")
    if low is None:
        low = processes if processes is not None and high is None else 1
    if high is None:
        high = max(low, processes or low)
    if low > high:
        raise InvalidInput(
            "--min-processes", f"{low} is more than --max-processes, {high}", "Give the smaller one here"
        )
    start = low if processes is None else processes
    if not low <= start <= high:
        raise InvalidInput(
            "--processes", f"{start} is not between {low} and {high}", "Leave it out, or change the bounds"
        )
    return Bounds(low, high, start)


def resize(pool: Pool, demand: Demand, slots: int, bounds: Bounds) -> Pool:
    """One look later. Grows by what would take the backlog, at most twofold; shrinks to what was needed while calm."""
    since = None if pool.since_shrunk is None else pool.since_shrunk + 1
    if demand.backlog > 0:
        pool = replace(pool, pressed=pool.pressed + 1, calm=0, peak=0, since_shrunk=since)
        if pool.pressed < PRESSING or pool.size >= bounds.high:
            return pool
        size = min(pool.size + _processes(demand.backlog, slots), 2 * pool.size, bounds.high)
        too_early = since is not None and since <= 4 * pool.patience
        patience = min(2 * pool.patience, MAX_PATIENCE) if too_early else pool.patience
        return replace(pool, size=size, patience=patience, since_shrunk=None)
    peak = max(pool.peak, _processes(demand.running, slots), bounds.low)
    pool = replace(pool, pressed=0, calm=pool.calm + 1, peak=peak, since_shrunk=since)
    if pool.calm < pool.patience or peak >= pool.size:
        # A window that kept everybody busy begins anew, so that one old peak does not hold the pool for ever.
        return replace(pool, calm=0, peak=0) if pool.calm >= pool.patience else pool
    return replace(pool, size=peak, calm=0, peak=0, since_shrunk=0)


def _processes(runs: int, slots: int) -> int:
    return -(-runs // slots)


def restart_delay(deaths: int) -> float:
    """Seconds to wait after so many deaths in a row."""
    return min(RESTART * 2.0 ** min(deaths - 1, 30), MAX_RESTART)
