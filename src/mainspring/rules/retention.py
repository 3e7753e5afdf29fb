"""Retention: which rows a purge may remove, and the tallies, snapshots and note that it writes in their place.

Memory, SQLite and PostgreSQL write what these functions return. Memory also selects its rows by the `is_…_removable`
functions. The SQL stores state the same conditions in their statements, so that rows that stay are not even read. Redis
counts inside its server (`purge.lua`) and takes the snapshots from here. The contract suite
(`testing/contract/purge.py`) and the state machine compare every store with memory.
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
#: The rows of a tally are unique by schedule (None: of no schedule), day since 1970, and outcome.
TallyKey = tuple[ScheduleId | None, int, str]

# ── which rows may be removed ───────────────────────────────────────────────


def is_run_removable(run: Run, policy: Retention) -> bool:
    """Return True if the run ended before the policy's limit and is no dead run that the policy keeps."""
    return run.ended_at is not None and run.ended_at < policy.ended_before and not (policy.keep_dead and run.dead)


def is_span_removable(span: Span, policy: Retention) -> bool:
    """Return True if the last fire of the span lies before the policy's limit."""
    return span.through < policy.ended_before


def is_schedule_removable(schedule: Schedule, policy: Retention, *, has_runs: bool, has_spans: bool) -> bool:
    """Return True if the schedule was deleted before the policy's limit and neither a run nor a span of it is left."""
    return schedule.state == "deleted" and schedule.updated_at < policy.ended_before and not has_runs and not has_spans


def is_lease_removable(lease: Lease, policy: Retention, lease_now: Ms) -> bool:
    """Return True if the lease has the policy's prefix, ended, and was not renewed since the policy's limit."""
    ended = not lease.live or lease.expires_at <= lease_now
    return ended and lease.name.startswith(policy.lease_prefix) and lease.renewed_at < policy.leases_before


def is_keyvalue_expired(entry: KeyValue, now: Ms) -> bool:
    """Return True if the entry expired; `find` no longer returns it, and `put` may overwrite it."""
    return entry.expires_at is not None and entry.expires_at <= now


def removable_notes(notes: Iterable[Event], policy: Retention) -> list[Event]:
    """Return the notes older than the policy's limit, except the newest LogCompacted, which explains the tallies."""
    found = list(notes)
    newest = max((note.seq for note in found if isinstance(note, LogCompacted)), default=0)
    return [note for note in found if note.at < policy.ended_before and note.seq != newest]


class Removable(NamedTuple):
    """Rows of each kind that a purge may remove, in the form in which its store deletes them.

    A store looks for one row more than its limit, so that `exceeds` can tell whether a further purge is needed.
    """

    runs: list[Any]
    notes: list[Any]
    schedules: list[Any]
    leases: list[Any]
    kept: list[Any]

    def exceeds(self, limit: int) -> bool:
        """Return True if more than `limit` rows of one kind were found."""
        return any(len(rows) > limit for rows in self)

    def first(self, limit: int) -> Removable:
        """Return at most `limit` rows of each kind."""
        return Removable(*(rows[:limit] for rows in self))

    def report(self, *, events: int, spans: int, bodies: int, more: bool) -> Purged:
        """Return the answer of a purge that removed these rows, and the given number of rows of the other kinds."""
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
    """What a tally needs of a run; `at` is its fire time, or its creation if it was no planned fire."""

    schedule_id: ScheduleId | None
    origin: str
    at: Ms
    state: str

    @classmethod
    def of(cls, run: Run) -> RemovedRun:
        """Return the values of a run."""
        return cls(run.schedule_id, run.origin, run.created_at if run.fire_time is None else run.fire_time, run.state)


class RemovedSpan(NamedTuple):
    """What a tally needs of a span."""

    schedule_id: ScheduleId
    through: Ms
    reason: str
    fires: int

    @classmethod
    def of(cls, span: Span) -> RemovedSpan:
        """Return the values of a span."""
        return cls(span.schedule_id, span.through, span.reason, span.count)


def count_tallies(runs: Iterable[RemovedRun], spans: Iterable[RemovedSpan]) -> Counter[TallyKey]:
    """Return the counts to add to the tallies: each run once, each span with its number of fires.

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
    """Return, by id, the schedules that lose a run or a span: the purge replaces their event streams by snapshots.

    Why: without it, the stream of a schedule that is never deleted would grow for ever.
    """
    ids = {run.schedule_id for run in runs if run.schedule_id is not None}
    return sorted(ids.union(span.schedule_id for span in spans))


def snapshot_schedule(schedule: Schedule, stream: Iterable[Event]) -> ScheduleSnapshot:
    """Return the event that replaces a schedule's event stream: its row, and the definitions found in the stream.

    The store writes it with the row's own number (`n`), so later events of the schedule keep their numbers.
    """
    return ScheduleSnapshot(
        ns=schedule.ns, schedule_id=schedule.id, state=schedule, definitions=fold_definitions(stream)
    )


def snapshot_schedules(schedules: Iterable[Schedule], streams: Iterable[Event]) -> list[ScheduleSnapshot]:
    """Return a snapshot of each schedule; `streams` holds the events of all of them in the order of the log."""
    by_schedule: dict[ScheduleId | None, list[Event]] = defaultdict(list)
    for event in streams:
        by_schedule[event.schedule_id].append(event)
    return [snapshot_schedule(row, by_schedule[row.id]) for row in schedules]


def compaction_note(removed: Collection[int], *, runs: int, tallies: int) -> LogCompacted:
    """Return the note that a purge leaves in the log.

    `removed`: seq of each event that was removed; `runs`: run streams removed; `tallies`: tallies added to. The digest
    is over the sorted numbers, so that two copies of a log can be compared.
    """
    numbers = ",".join(map(str, sorted(removed)))
    return LogCompacted(
        through=max(removed, default=0),
        streams=runs,
        events=len(removed),
        tallies=tallies,
        digest=hashlib.blake2b(numbers.encode(), digest_size=16).hexdigest(),
    )
