"""Retention: which rows a purge may remove, and the tallies, snapshots and note that it writes in their place.

Memory, SQLite and PostgreSQL write what these functions return. Memory also selects its rows by the `is_…` functions.
The SQL stores repeat these conditions in their statements, so that they need not read rows that stay. Redis counts
inside its server (`purge.lua`) and takes only the snapshots from here. The contract suite
(`testing/contract/purge.py`) and the state machine of the tests compare every store with memory.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from mainspring.model.events import Event, LogCompacted, ScheduleSnapshot, fold_definitions
from mainspring.model.ids import ScheduleId
from mainspring.model.instant import Ms
from mainspring.model.keyvalue import KeyValue
from mainspring.model.lease import Lease
from mainspring.model.retention import Purged, Retention
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule, Span

DAY_MS: Ms = 86_400_000
#: The key of a tally: schedule (None: of no schedule), number of the day since 1970-01-01, outcome.
TallyKey = tuple[ScheduleId | None, int, str]

# ── which rows may be removed ───────────────────────────────────────────────


def is_run_removable(run: Run, policy: Retention) -> bool:
    """Return True if the run ended before `policy.ended_before` and is no dead letter that the policy keeps."""
    return run.ended_at is not None and run.ended_at < policy.ended_before and not (policy.keep_dead and run.dead)


def is_span_removable(span: Span, policy: Retention) -> bool:
    """Return True if the span ends before `policy.ended_before`."""
    return span.through < policy.ended_before


def is_schedule_removable(schedule: Schedule, policy: Retention, *, has_runs: bool, has_spans: bool) -> bool:
    """Return True if the schedule was deleted before `policy.ended_before`, and no run or span of it is left."""
    return schedule.state == "deleted" and schedule.updated_at < policy.ended_before and not has_runs and not has_spans


def is_lease_removable(lease: Lease, policy: Retention, lease_now: Ms) -> bool:
    """Return True if the lease ended, has the prefix of the policy, and was not renewed since `policy.leases_before`.

    `lease_now` is the time of the clock that leases end by, which no step of the wall clock moves.
    """
    ended = not lease.live or lease.expires_at <= lease_now
    return ended and lease.name.startswith(policy.lease_prefix) and lease.renewed_at < policy.leases_before


def is_keyvalue_expired(entry: KeyValue, now: Ms) -> bool:
    """Return True if the entry has expired: `find` no longer returns it, and `put` may overwrite it."""
    return entry.expires_at is not None and entry.expires_at <= now


def removable_notes(notes: Iterable[Event], policy: Retention) -> list[Event]:
    """Return the notes older than `policy.ended_before`, but never the newest LogCompacted: it explains the tallies."""
    found = list(notes)
    newest = max((note.seq for note in found if isinstance(note, LogCompacted)), default=0)
    return [note for note in found if note.at < policy.ended_before and note.seq != newest]


class Removable(NamedTuple):
    """The rows of each kind that a purge may remove, each in the form that its store needs to delete it (row, id, key).

    A store looks for one row more than its limit, so that `exceeds` shows whether a further purge is needed.
    """

    runs: list[Any]
    notes: list[Any]
    schedules: list[Any]
    leases: list[Any]
    #: Key-value entries.
    kept: list[Any]

    def exceeds(self, limit: int) -> bool:
        """Return True if more than `limit` rows of any one kind were found."""
        return any(len(rows) > limit for rows in self)

    def first(self, limit: int) -> Removable:
        """Return the first `limit` rows of each kind."""
        return Removable(*(rows[:limit] for rows in self))

    def report(self, *, events: int, spans: int, bodies: int, more: bool) -> Purged:
        """Return the answer of a purge that removed all these rows and the given numbers of other rows."""
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


# ── what is written in their place ──────────────────────────────────────────


class RemovedRun(NamedTuple):
    """The values of a removed run that `count_tallies` needs. `at` is its fire time, without one its creation."""

    schedule_id: ScheduleId | None
    origin: str
    at: Ms
    state: str

    @classmethod
    def of(cls, run: Run) -> RemovedRun:
        """Return the values of a stored run."""
        return cls(run.schedule_id, run.origin, run.created_at if run.fire_time is None else run.fire_time, run.state)


class RemovedSpan(NamedTuple):
    """The values of a removed span that `count_tallies` needs; `fires` is the number of its fires."""

    schedule_id: ScheduleId
    through: Ms
    reason: str
    fires: int

    @classmethod
    def of(cls, span: Span) -> RemovedSpan:
        """Return the values of a stored span."""
        return cls(span.schedule_id, span.through, span.reason, span.count)


def count_tallies(runs: Iterable[RemovedRun], spans: Iterable[RemovedSpan]) -> Counter[TallyKey]:
    """Return the counts to add to the stored tallies for removed rows: 1 for each run, and the fires of each span.

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
    """Return the sorted ids of the schedules of removed rows: the purge replaces their event streams by snapshots.

    Why: without it, the stream of a schedule that is never deleted would grow for ever.
    """
    ids = {run.schedule_id for run in runs if run.schedule_id is not None}
    return sorted(ids.union(span.schedule_id for span in spans))


def snapshot_schedule(schedule: Schedule, stream: Iterable[Event]) -> ScheduleSnapshot:
    """Return the event that replaces a schedule's event stream: it holds the row, and the definitions in the stream.

    The store writes it with the row's number `n`, so that later events of the schedule keep their numbers.
    """
    return ScheduleSnapshot(
        ns=schedule.ns, schedule_id=schedule.id, state=schedule, definitions=fold_definitions(stream)
    )


def snapshot_schedules(schedules: Iterable[Schedule], streams: Iterable[Event]) -> list[ScheduleSnapshot]:
    """Return the snapshot of each schedule; `streams` holds the events of all schedules, in the order of the log."""
    by_schedule: dict[ScheduleId | None, list[Event]] = defaultdict(list)
    for event in streams:
        by_schedule[event.schedule_id].append(event)
    return [snapshot_schedule(row, by_schedule[row.id]) for row in schedules]


def compaction_note(removed: Collection[int], *, runs: int, tallies: int) -> LogCompacted:
    """Return the note that a purge adds to the log, so that the gap it leaves is explained.

    `removed` are the seqs of the removed events, `runs` the number of removed run streams, `tallies` the number of
    tallies that grew. The note's digest is over the sorted seqs, so that two copies of a log can be compared.
    """
    numbers = ",".join(map(str, sorted(removed)))
    return LogCompacted(
        through=max(removed, default=0),
        streams=runs,
        events=len(removed),
        tallies=tallies,
        digest=hashlib.blake2b(numbers.encode(), digest_size=16).hexdigest(),
    )
