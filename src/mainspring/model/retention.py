"""Retention: what a purge may remove, what it removed, and the tallies that it leaves."""

from __future__ import annotations

from msgspec import Struct

from mainspring.model.ids import ScheduleId
from mainspring.model.instant import Ms


class Retention(Struct, frozen=True):
    """What `purge` may remove.

    Runs that ended before `ended_before` (dead letters only without `keep_dead`), older notes, and deleted schedules
    of which nothing else is left. Named leases that ended, whose name begins with `lease_prefix` and that were not
    renewed since `leases_before`. Key-value entries that expired. With `at_most`, also the runs that ended first, until
    no more than `at_most` ended runs are left; only a store with the capability `ended_runs` must support it.
    """

    ended_before: Ms
    keep_dead: bool = True
    lease_prefix: str = ""
    leases_before: Ms = 0
    at_most: int | None = None


class Purged(Struct, frozen=True):
    """The number of rows of each kind that a purge removed. `more` is True if the limit left some for another call."""

    runs: int = 0
    events: int = 0
    spans: int = 0
    bodies: int = 0
    more: bool = False
    notes: int = 0
    schedules: int = 0
    leases: int = 0
    kept: int = 0


class Tally(Struct, frozen=True):
    """A count of removed runs and of the fires of removed spans, by schedule (or none), day of the fire and outcome.

    Tallies stand in for the removed rows, so that the ledger still adds up.
    """

    schedule_id: ScheduleId | None
    day: int
    outcome: str
    count: int
