"""The memory store's `purge`: `rules/retention.py` applied to every row. The other stores must agree with it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from mainspring.backends.memory.tables import MemoryTables
from mainspring.model.events import Event
from mainspring.model.ids import ScheduleId
from mainspring.model.instant import Ms
from mainspring.model.retention import Purged, Retention
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule
from mainspring.rules.lanes import schedule_gate
from mainspring.rules.retention import (
    Removable,
    RemovedRun,
    RemovedSpan,
    compaction_note,
    count_tallies,
    is_keyvalue_expired,
    is_lease_removable,
    is_run_removable,
    is_schedule_removable,
    is_span_removable,
    removable_notes,
    schedules_to_compact,
    snapshot_schedule,
)


class MemoryPurge(MemoryTables):
    """The part of `MemoryStore` that implements the port's `purge`."""

    async def purge(self, policy: Retention, limit: int, *, now: Ms | None = None) -> Purged:
        wall, lease_now = self._clocks(now)
        found = self._find_removable(policy, limit + 1, wall, lease_now)
        spans = [span for span in self._spans if is_span_removable(span, policy)]
        if not (spans or any(found)):
            return Purged()
        rows = found.first(limit)
        for name in rows.leases:
            del self._leases[name]
        for key in rows.kept:
            del self._kept[key]
        removed_runs, removed_spans = list(map(RemovedRun.of, rows.runs)), list(map(RemovedSpan.of, spans))
        tallies = count_tallies(removed_runs, removed_spans)
        for tally, count in tallies.items():
            self._tallies[tally] += count
        self._spans = [span for span in self._spans if not is_span_removable(span, policy)]
        removed = self._remove_runs(rows.runs) | self._remove_schedules(rows.schedules)
        bodies = self._remove_bodies(rows.runs, rows.schedules)
        removed |= self._compact_streams(schedules_to_compact(removed_runs, removed_spans), wall)
        self._remove_events(removed, rows.notes)
        if rows.runs or spans or rows.schedules:
            self._record(compaction_note(removed, runs=len(rows.runs), tallies=len(tallies)), wall, None, None)
        return rows.report(events=len(removed), spans=len(spans), bodies=bodies, more=found.exceeds(limit))

    def _find_removable(self, policy: Retention, most: int, wall: Ms, lease_now: Ms) -> Removable:
        """Return the removable rows of all kinds but spans: at most `most` runs, and all rows of each other kind.

        `wall`: the present time. `lease_now`: the present time by the clock of leases.
        """
        with_spans = {span.schedule_id for span in self._spans}
        return Removable(
            runs=list(self._removable_runs(policy, most)),
            notes=removable_notes(self._notes, policy),
            schedules=[
                row
                for row in self._schedules.values()
                if is_schedule_removable(
                    row, policy, has_runs=bool(self._of_schedule.get(row.id)), has_spans=row.id in with_spans
                )
            ],
            leases=[name for name, lease in self._leases.items() if is_lease_removable(lease, policy, lease_now)],
            kept=[key for key, entry in self._kept.items() if is_keyvalue_expired(entry, wall)],
        )

    def _removable_runs(self, policy: Retention, most: int) -> Iterator[Run]:
        """Yield at most `most` removable runs.

        If no run ended early enough, the head of the heap of ended runs shows it, and the table need not be read.
        Entries at the head whose run is gone or has another `ended_at` are removed first.
        """
        while self._ended and getattr(self._runs.get(self._ended[0][1]), "ended_at", None) != self._ended[0][0]:
            heapq.heappop(self._ended)
        if not self._ended or self._ended[0][0] >= policy.ended_before:
            return
        found = (run for run in self._runs.values() if is_run_removable(run, policy))
        for _, run in zip(range(most), found, strict=False):
            yield run

    def _remove_runs(self, runs: list[Run]) -> set[int]:
        """Delete runs with their logs and lists of events; return the numbers of these events.

        The event log still has them.
        """
        removed: set[int] = set()
        for run in runs:
            removed.update(event.seq for event in self._run_events.pop(run.id, ()))
            del self._runs[run.id]
            self._logs.pop(run.id, None)
            self._log_sizes.pop(run.id, None)
            if run.schedule_id is not None:
                self._of_schedule[run.schedule_id].pop(run.id, None)
            self._fire_keys.pop((run.schedule_id, run.fire_key), None)
        return removed

    def _remove_schedules(self, schedules: list[Schedule]) -> set[int]:
        """Delete schedules, their lists of events and their own gates; return the numbers of these events.

        The log still has these events. A gate that a run holds stays. The schedules' tallies (counts of removed rows)
        are added to the tallies without a schedule (None).
        """
        removed: set[int] = set()
        for row in schedules:
            del self._schedules[row.id]
            self._of_schedule.pop(row.id, None)
            self._touched.pop(row.id, None)
            for key in [key for key in self._tallies if key[0] == row.id]:
                self._tallies[None, key[1], key[2]] += self._tallies.pop(key)
            gate = self._gates.get(schedule_gate(row.id))
            if gate is not None and gate.held == 0:
                del self._gates[gate.name]
            removed.update(event.seq for event in self._schedule_events.pop(row.id, ()))
        return removed

    def _remove_bodies(self, runs: list[Run], schedules: list[Schedule]) -> int:
        """Delete the payloads of the removed rows unless another row uses them; return how many were deleted."""
        used = {run.body for run in self._runs.values()} | {row.spec.body for row in self._schedules.values()}
        bodies = {run.body for run in runs} | {row.spec.body for row in schedules}
        orphans = [body for body in bodies if body is not None and body not in used]
        for orphan in orphans:
            self._bodies.pop(orphan, None)
        return len(orphans)

    def _compact_streams(self, schedules: Iterable[ScheduleId], wall: Ms) -> set[int]:
        """Replace the events of each schedule that exists by one snapshot; return the numbers of the old events.

        The snapshot is appended to the log, which still has the old events. `wall`: the present time.
        """
        removed: set[int] = set()
        for schedule_id in schedules:
            row = self._schedules.get(schedule_id)
            if row is None:
                continue
            stream = self._schedule_events.pop(schedule_id, [])
            removed.update(event.seq for event in stream)
            self._record(snapshot_schedule(row, stream), wall, row.n, None)
        return removed

    def _remove_events(self, removed: set[int], notes: list[Event]) -> None:
        """Delete events from the log: those with the numbers `removed`, and `notes`, which are events without an `n`.

        The events `removed` are in no list of a run or schedule any more. Notes are removed from their run's list here.
        """
        for note in notes:
            if note.run_id in self._run_events:
                self._run_events[note.run_id].remove(note)
        dropped = removed.union(note.seq for note in notes)
        self._log = [event for event in self._log if event.seq not in dropped]
        self._notes = [event for event in self._notes if event.seq not in dropped]
