"""Retention as values: what a purge may remove, what it removed, and the tallies (counts) that replace removed rows."""

from __future__ import annotations

from msgspec import Struct

from mainspring.model.ids import ScheduleId
from mainspring.model.instant import Ms


class Retention(Struct, frozen=True):
    """Which rows `purge` may remove. It also removes the key-value entries that have expired."""

    #: A row is removed only if its end lies before this instant: the end of a run, the end of a span's range, the time
    #: of a note, the deletion of a schedule. A deleted schedule is removed when no run or span of it is left.
    ended_before: Ms
    #: True: dead letters are not removed, whatever their age.
    keep_dead: bool = True
    #: Named leases that ended are removed if their name begins with this text and they were not renewed since
    #: `leases_before`.
    lease_prefix: str = ""
    leases_before: Ms = 0
    #: Further runs are removed, oldest end first, until at most this number of ended runs is left. None: no such limit.
    #: Only a store with the capability `ended_runs` must support it.
    at_most: int | None = None


class Purged(Struct, frozen=True):
    """The number of rows of each kind that a purge removed. `more`: True if further rows are left for another call."""

    runs: int = 0
    #: Events of the removed runs and schedules, and events that a snapshot replaces. Removed notes do not count here.
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
    """The number of removed runs, or of the fires in removed spans, with one schedule, one day and one outcome.

    Why: tallies take the place of the removed rows, so that the ledger still adds up.
    """

    #: None: the runs had no schedule, or their schedule was removed.
    schedule_id: ScheduleId | None
    #: The day of the fire time, as the number of days since 1970-01-01 in UTC; for a run without a fire time, the day
    #: of its creation.
    day: int
    #: "fire/<state>" for runs of planned fires, "adhoc/<state>" for all other runs, "span/<reason>" for spans.
    outcome: str
    count: int
