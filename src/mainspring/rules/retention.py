"""Retention: which rows a purge may remove, and what it writes in place of them.

It writes tallies (counts of removed rows), a snapshot of each schedule concerned, and a note about removed events.

The stores for memory, SQLite and PostgreSQL write what these functions return. The memory store also selects its rows
by the `is_…` functions. The SQL stores repeat these conditions in their statements, so that they need not read rows
that stay. The Redis store counts inside its server (`purge.lua`) and takes only the snapshots from this module. The
contract suite (`testing/contract/purge.py`) and the state machine of the tests compare every store with memory.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from mainspring.model.events import Event, LogCompacted, ScheduleSnapshot
from mainspring.model.ids import ScheduleId
from mainspring.model.instant import DAY_MS, Ms
from mainspring.model.keyvalue import KeyValue
from mainspring.model.lease import Lease
from mainspring.model.retention import Purged, Retention
from mainspring.model.revisions import fold_definitions
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule, Span

#: The key of a tally: schedule id (None: the runs have no schedule), days since 1970-01-01, outcome.
TallyKey = tuple[ScheduleId | None, int, str]

# ── which rows may be removed ───────────────────────────────────────────────


def is_run_removable(run: Run, policy: Retention) -> bool:
    """Return True if the run ended before `policy.ended_before`, unless it is a dead letter that the policy keeps."""
    return run.ended_at is not None and run.ended_at < policy.ended_before and not (policy.keep_dead and run.dead)


def is_span_removable(span: Span, policy: Retention) -> bool:
    """Return True if the span ends before `policy.ended_before`."""
    return span.through < policy.ended_before


def is_schedule_removable(schedule: Schedule, policy: Retention, *, has_runs: bool, has_spans: bool) -> bool:
    """Return True if the schedule was deleted before `policy.ended_before`, and no run or span of it is left."""
    return schedule.state == "deleted" and schedule.updated_at < policy.ended_before and not has_runs and not has_spans


def is_lease_removable(lease: Lease, policy: Retention, lease_now: Ms) -> bool:
    """Return True if the lease ended, has the prefix of the policy, and was not renewed since `policy.leases_before`.

    `lease_now` is the time of the clock for leases, which does not step when the wall clock does.
    """
    ended = not lease.live or lease.expires_at <= lease_now
    return ended and lease.name.startswith(policy.lease_prefix) and lease.renewed_at < policy.leases_before


def is_keyvalue_expired(entry: KeyValue, now: Ms) -> bool:
    """Return True if the entry has expired at `now`. Then `find` does not return it, and `put` may overwrite it."""
    return entry.expires_at is not None and entry.expires_at <= now


def removable_notes(notes: Iterable[Event], policy: Retention) -> list[Event]:
    """Return the notes older than `policy.ended_before`, except the newest LogCompacted: it tells of removed events."""
    found = list(notes)
    newest = max((note.seq for note in found if isinstance(note, LogCompacted)), default=0)
    return [note for note in found if note.at < policy.ended_before and note.seq != newest]


class Removable(NamedTuple):
    """The rows of each kind that a purge may remove. A store puts in what it needs to delete a row: the row, id or key.

    The store searches for one row more than its limit, so that `exceeds` shows whether a further purge is needed.
    """

    runs: list[Any]
    notes: list[Any]
    schedules: list[Any]
    leases: list[Any]
    #: Key-value entries.
    kept: list[Any]

    def exceeds(self, limit: int) -> bool:
        """Return True if more than `limit` rows of at least one kind were found."""
        return any(len(rows) > limit for rows in self)

    def first(self, limit: int) -> Removable:
        """Return an object with only the first `limit` rows of each kind."""
        return Removable(*(rows[:limit] for rows in self))

    def report(self, *, events: int, spans: int, bodies: int, more: bool) -> Purged:
        """Return the answer of a purge that removed all rows in this object and the given numbers of other rows.

        `more`: True if further rows are left for another purge.
        """
        return Purged(
            runs=len(self.runs),
            events=events,
            spans=spans,
            bodies=bodies,
            more=more,
            notes=len(self.notes),
            schedules=len(self.schedules),
            leases=len(self.leases),
            kept=len(self.kept),
        )


# ── what is written in place of removed rows ────────────────────────────────


class RemovedRun(NamedTuple):
    """The values of a removed run that `count_tallies` needs. `at` is the fire time, else the time of the creation."""

    schedule_id: ScheduleId | None
    origin: str
    at: Ms
    state: str

    @classmethod
    def of(cls, run: Run) -> RemovedRun:
        """Return these values of a run."""
        return cls(run.schedule_id, run.origin, run.created_at if run.fire_time is None else run.fire_time, run.state)


class RemovedSpan(NamedTuple):
    """The values of a removed span that `count_tallies` needs. `fires` is the number of fires in the span."""

    schedule_id: ScheduleId
    through: Ms
    reason: str
    fires: int

    @classmethod
    def of(cls, span: Span) -> RemovedSpan:
        """Return these values of a span."""
        return cls(span.schedule_id, span.through, span.reason, span.count)


def count_tallies(runs: Iterable[RemovedRun], spans: Iterable[RemovedSpan]) -> Counter[TallyKey]:
    """Return tally key → number to add to that tally: 1 for each removed run, and the fires of each removed span.

    Outcomes are "fire/<state>" for planned fires, "adhoc/<state>" for all other runs, "span/<reason>" for spans.
    """
    tallies: Counter[TallyKey] = Counter()
    for run in runs:
        kind = "fire" if run.origin == "fire" else "adhoc"
        tallies[run.schedule_id, run.at // DAY_MS, f"{kind}/{run.state}"] += 1
    for span in spans:
        tallies[span.schedule_id, span.through // DAY_MS, f"span/{span.reason}"] += span.fires
    return tallies


def schedules_to_compact(runs: Iterable[RemovedRun], spans: Iterable[RemovedSpan]) -> list[ScheduleId]:
    """Return the sorted ids of the schedules of removed rows. The purge replaces the events of each by a snapshot.

    Why: else the events of a schedule that is never deleted would fill the log without limit.
    """
    ids = {run.schedule_id for run in runs if run.schedule_id is not None}
    return sorted(ids.union(span.schedule_id for span in spans))


def snapshot_schedule(schedule: Schedule, stream: Iterable[Event]) -> ScheduleSnapshot:
    """Return the event that replaces all earlier events of a schedule: it holds the row and the schedule's revisions.

    `stream` are these earlier events, in order. The store writes the snapshot with the row's number `n`, so that later
    events of the schedule keep their numbers.
    """
    return ScheduleSnapshot(
        ns=schedule.ns, schedule_id=schedule.id, state=schedule, definitions=fold_definitions(stream)
    )


def snapshot_schedules(schedules: Iterable[Schedule], streams: Iterable[Event]) -> list[ScheduleSnapshot]:
    """Return the snapshot of each schedule. `streams` are the events of all these schedules, in order of the log."""
    by_schedule: dict[ScheduleId | None, list[Event]] = defaultdict(list)
    for event in streams:
        by_schedule[event.schedule_id].append(event)
    return [snapshot_schedule(row, by_schedule[row.id]) for row in schedules]


def compaction_note(removed: Collection[int], *, runs: int, tallies: int) -> LogCompacted:
    """Return the note that a purge adds to the log to explain why events are missing.

    `removed` are the numbers (`seq`) of the removed events, `runs` is the number of runs whose events were removed, and
    `tallies` the number of tallies (counts of removed rows) that grew. The note's digest is a hash of the sorted
    numbers, so that two copies of a log can be compared.
    """
    numbers = ",".join(map(str, sorted(removed)))
    return LogCompacted(
        through=max(removed, default=0),
        streams=runs,
        events=len(removed),
        tallies=tallies,
        digest=hashlib.blake2b(numbers.encode(), digest_size=16).hexdigest(),
    )
