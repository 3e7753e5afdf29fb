"""Retention: what a purge may remove, what it removed, and the tallies that it writes in place of removed rows."""

from __future__ import annotations

from msgspec import Struct

from mainspring.model.ids import ScheduleId
from mainspring.model.instant import Ms


class Retention(Struct, frozen=True):
    """What `purge` may remove, beside the key-value entries that expired."""

    #: Runs that ended, spans whose last fire lies, and notes that were written before this instant; and schedules that
    #: were deleted before it, once no run or span of them is left.
    ended_before: Ms
    #: Dead letters stay, however old.
    keep_dead: bool = True
    #: Named leases that ended, whose name begins so and that were not renewed since `leases_before`.
    lease_prefix: str = ""
    leases_before: Ms = 0
    #: Also the runs that ended first, until no more than this many ended runs are left. None: no such limit. Only a
    #: store with the capability `ended_runs` must support it.
    at_most: int | None = None


class Purged(Struct, frozen=True):
    """The number of rows of each kind that a purge removed. `more` is True if the limit left some for another call."""

    runs: int = 0
    #: Moves of the removed runs and schedules, and moves that a snapshot replaces; removed notes are counted apart.
    events: int = 0
    spans: int = 0
    #: Payloads that no row uses any more.
    bodies: int = 0
    more: bool = False
    notes: int = 0
    schedules: int = 0
    #: Named leases.
    leases: int = 0
    #: Key-value entries.
    kept: int = 0


class Tally(Struct, frozen=True):
    """The number of removed runs, or of fires in removed spans, of one schedule, one day and one outcome.

    Why: tallies stand in for the removed rows, so that the ledger still adds up.
    """

    #: None: runs of no schedule, or of schedules that were removed.
    schedule_id: ScheduleId | None
    #: Days since 1970-01-01 in UTC, of the fire time, or of the creation of a run without one.
    day: int
    #: "fire/<state>" for planned fires, "adhoc/<state>" for other runs, "span/<reason>" for spans.
    outcome: str
    count: int
