"""Replay of the log: fold its events into runs, schedules and spans, and compare rows with the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from operator import attrgetter

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from mainspring.model.errors import IllegalTransition
from mainspring.model.events import (
    Event,
    FiresElided,
    LogCompacted,
    RunEvent,
    RunScheduled,
    RunSkipped,
    ScheduleCreated,
    ScheduleEvent,
    ScheduleRewound,
    ScheduleSnapshot,
)
from mainspring.model.ids import fire_id
from mainspring.model.instant import Ms, isoformat
from mainspring.model.run import ENDED, Run, State
from mainspring.model.schedule import Schedule, Span
from mainspring.rules.lifecycle import evolve
from mainspring.rules.planning import is_fixed_delay
from mainspring.rules.schedule_draft import creates_fire_run, evolve_schedule

MAX_NAMED_MISMATCHES = 1_000  # most differences that a report names; further differences are only counted
#: Columns of a run that are not in the log, and so are not compared: lease, parking, progress.
OPERATIONAL = frozenset({"owner", "lease_until", "parked_on", "progress"})
_RUN_FIELDS = tuple(name for name in Run.__struct_fields__ if name not in OPERATIONAL)
_SCHEDULE_FIELDS = Schedule.__struct_fields__
_run_values = attrgetter(*_RUN_FIELDS)
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Run)


class Mismatch(Struct, frozen=True):
    """One difference between a row and the log, a row or event that cannot be read, or an event that is not allowed."""

    #: The kind of row (run, schedule, span, body, gate, tally), event, or transition (an event that is not allowed).
    kind: str
    #: Id or name of the row, event, run or schedule; "-" for an unreadable page of rows, and for tallies.
    id: str
    what: str


class Report(Struct):
    """Result of `verify`: the numbers of compared rows and events, the number of differences, and the first of them."""

    events: int = 0
    runs: int = 0
    schedules: int = 0
    spans: int = 0
    bodies: int = 0
    gates: int = 0
    tallies: int = 0
    found: int = 0
    differences: list[Mismatch] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if no difference was found: the rows are what the events of the log add up to."""
        return self.found == 0

    def add(self, kind: str, row_id: str, what: str) -> None:
        """Count a difference, and keep the first `MAX_NAMED_MISMATCHES` of them in `differences`."""
        self.found += 1
        if len(self.differences) < MAX_NAMED_MISMATCHES:
            self.differences.append(Mismatch(kind, row_id, what))


class Replay:
    """Folds the log into runs and schedules, checks the numbers of events, and compares rows with the result.

    Call `take` for each event, then `end`, then the methods that compare rows. Differences are added to `report`.
    """

    def __init__(self, report: Report) -> None:
        self.report = report
        self.runs: dict[str, Run | bytes] = {}  # ended runs as JSON: a third of the memory
        self.schedules: dict[str, Schedule] = {}
        #: Schedule id → spans of the log since its last snapshot, without those that have been compared with a row.
        self.spans: dict[str, Counter[Span]] = {}
        self.snapshots: dict[str, Ms] = {}  # schedule id → cursor in its last snapshot
        self.compactions = self.compacted_runs = 0
        #: Ids of runs and schedules whose events are wrong. The columns of such a run are not compared.
        self._broken: set[str] = set()
        self._headless: dict[str, int] = {}  # id of a run whose first event is missing → `n` of its last event
        #: Id of a schedule that has an event before its creation → number in the log of the first such event.
        self._early: dict[str, int] = {}
        self.seen: set[str] = set()  # ids of runs and schedules whose row was compared, or cannot be read

    def take(self, event: Event) -> None:
        """Fold an event into its run or schedule. Report it if its run's id is not known, even from its fire key.

        Why: a store may keep a run's id only in the run's row. If that row is gone, the event comes without the id.
        """
        if isinstance(event, RunEvent):
            if event.run_id is not None:
                self._fold_run(event)
            elif not self._fold_unnamed(event):
                what = f"event {event.seq} {type(event).__name__}"
                text = f"{what} of {isoformat(event.at)} is of a run that has no row"
                self.report.add("event", str(event.seq), text)
            if creates_fire_run(event) and event.schedule_id is not None:
                self._fold_fire(event.schedule_id, event)
        elif isinstance(event, ScheduleEvent):
            self._fold_schedule(event)
        elif isinstance(event, LogCompacted):
            self.compactions += 1
            self.compacted_runs += event.streams

    def _fold_unnamed(self, event: RunEvent) -> bool:
        """Fold the first event of a planned fire (RunScheduled, RunSkipped) that came without a run id.

        Such an event's fire key and time give the id. Return True. For any other event, and for a fire key that is not
        the fire time, fold nothing and return False.
        """
        if not isinstance(event, RunScheduled | RunSkipped) or event.fire_key is None or event.fire_time is None:
            return False
        if event.schedule_id is None or event.fire_key != str(event.fire_time):
            return False
        self._fold_run(replace(event, run_id=fire_id(event.schedule_id, event.fire_key, event.fire_time)))
        return True

    def _fold_run(self, event: RunEvent) -> None:
        """Fold an event into its run. Report it if its `n` is not the next one or the run's state does not allow it."""
        run_id = event.run_id or ""
        run = _run_of(self.runs.get(run_id))
        last = run.n if run is not None else self._headless.get(run_id, 0)
        if event.n != last + 1 and not self._check_number(f"run {run_id}", run_id, event, last):
            return
        try:
            run = evolve(run, event)
        except (IllegalTransition, AssertionError) as error:
            if run_id not in self._broken:
                self._broken.add(run_id)
                self.report.add("transition", run_id, f"event {event.seq} {type(event).__name__}: {error}")
            if run is None:
                self._headless[run_id] = event.n or 1
                return
        if event.n is not None and run.n != event.n:
            run = replace(run, n=event.n)
        self.runs[run_id] = _encoder.encode(run) if run.state in ENDED else run

    def _check_number(self, name: str, row_id: str, event: Event, last: int) -> bool:
        """Report that an event's `n` is not `last` + 1, which the caller has found, and mark its row as broken.

        `last`: `n` of the row's event before this one. `name`: the row, for the report. Return False if `n` is repeated
        (do not fold the event then), else True.
        """
        n, shown = event.n or 0, f"event {event.seq} {type(event).__name__}"
        self._broken.add(row_id)
        if n <= last:
            self.report.add("event", row_id, f"{name}: number {n} twice, the second is {shown}")
            return False
        numbers = f"number {last + 1} is" if n == last + 2 else f"numbers {last + 1} to {n - 1} are"
        self.report.add("event", row_id, f"{name}: {numbers} missing before {shown}")
        return True

    def _fold_schedule(self, event: ScheduleEvent) -> None:
        """Fold an event into its schedule; add the span of `FiresElided` to `spans`. A snapshot replaces older events.

        Report a missing or repeated `n`; fold no event with a repeated one. `end` reports events before the creation.
        """
        sid = event.schedule_id or ""
        schedule = self.schedules.get(sid)
        if isinstance(event, ScheduleSnapshot):
            self.spans.pop(sid, None)
            self._early.pop(sid, None)
            self.snapshots[sid] = event.state.cursor
            self.schedules[sid] = replace(event.state, n=event.n or event.state.n)
            return
        if schedule is None and not isinstance(event, ScheduleCreated):
            self._early.setdefault(sid, event.seq)
            return
        last = schedule.n if schedule is not None else 0
        if event.n != last + 1 and not self._check_number(f"schedule {sid}", sid, event, last):
            return
        folded = evolve_schedule(schedule, event)
        self.schedules[sid] = folded if folded.n == event.n else replace(folded, n=event.n or folded.n)
        if isinstance(event, ScheduleRewound):
            self._cut_spans(sid, event)
        if isinstance(event, FiresElided):
            span = Span(sid, event.revision, event.after, event.through, event.count, event.reason, event.ns)
            self.spans.setdefault(sid, Counter())[span] += 1

    def _cut_spans(self, sid: str, event: ScheduleRewound) -> None:
        """Drop the spans of a schedule that end at the rewind's instant or later, and add those that it keeps."""
        kept = (span for span in self.spans.get(sid, Counter()).elements() if span.through < event.to)
        self.spans[sid] = Counter([*kept, *event.kept])
        if sid in self.snapshots:
            self.snapshots[sid] = min(self.snapshots[sid], event.to - 1)

    def _fold_fire(self, sid: str, event: RunEvent) -> None:
        """Fold the first event of a fire's run into its schedule: it advances the cursor and the number of fires."""
        schedule = self.schedules.get(sid)
        if schedule is None:
            self._early.setdefault(sid, event.seq)
        else:
            self.schedules[sid] = evolve_schedule(schedule, event)

    def end(self) -> None:
        """Report the schedules that have events before their creation or first snapshot. Call it at the log's end."""
        for sid, seq in self._early.items():
            self.report.add("event", sid, f"schedule {sid}: event {seq} comes before its creation, which is missing")
        self._broken.update(self._headless)  # these runs were reported when their events were folded

    def compare_run(self, row: Run) -> None:
        """Compare a run row with the log: report each column that differs, or that the row has no event.

        If the run's events are wrong, which was reported when they were folded, no column is compared.
        """
        self.seen.add(row.id)
        folded = _run_of(self.runs.get(row.id))
        if folded is None:
            if row.id not in self._headless:
                at = "" if row.fire_time is None else f" (fire time {isoformat(row.fire_time)})"
                self.report.add("run", row.id, f"the row{at} has no event: it was never scheduled")
            return
        if row.id in self._broken or _run_values(row) == _run_values(folded):
            return
        if row.n > folded.n:
            text = f"run {row.id}: the row is at number {row.n}, the log ends at {folded.n}: events are missing"
            self.report.add("event", row.id, text)
        self._compare_columns("run", row.id, _RUN_FIELDS, row, folded)

    def compare_schedule(self, row: Schedule) -> None:
        """Report a schedule row that has no event, or else each column in which it differs from the log.

        The next fire of a fixed delay is not compared: the log does not have it.
        """
        self.seen.add(row.id)
        folded = self.schedules.get(row.id)
        if folded is None:
            self.report.add("schedule", row.id, f"the row of {row.name!r} has no event: it was never created")
            return
        fields = _SCHEDULE_FIELDS
        if is_fixed_delay(folded.spec):
            fields = tuple(name for name in fields if name != "next_at")
        if row.n > folded.n and row.id not in self._broken:
            text = f"schedule {row.id}: the row is at number {row.n}, the log ends at {folded.n}: events are missing"
            self.report.add("event", row.id, text)
        self._compare_columns("schedule", row.id, fields, row, folded)

    def _compare_columns(self, kind: str, row_id: str, fields: Iterable[str], row: object, folded: object) -> None:
        """Report each of the columns `fields` in which `row` differs from `folded`, the row as the log gives it."""
        for name in fields:
            is_, should = getattr(row, name), getattr(folded, name)
            if is_ != should:
                self.report.add(kind, row_id, f"{name} is {_short(is_)} in the row, {_short(should)} by the log")

    def report_runs_without_row(self) -> None:
        """Report the runs of the log that have no row."""
        for run_id, kept in self.runs.items():
            if run_id not in self.seen and (run := _run_of(kept)) is not None:
                at = "" if run.fire_time is None else f", fire time {isoformat(run.fire_time)}"
                self.report.add("run", run_id, f"the log has it as {run.state.value}{at}, and it has no row")
        for run_id in self._headless:
            if run_id not in self.seen and run_id not in self.runs:
                self.report.add("run", run_id, "the log has events of it, and it has no row")

    def report_schedules_without_row(self) -> None:
        """Report the schedules of the log that have no row."""
        for sid, schedule in self.schedules.items():
            if sid not in self.seen:
                self.report.add("schedule", sid, f"the log has {schedule.name!r}, and it has no row")

    def compare_span(self, span: Span) -> None:
        """Report a span row that has no event. Spans up to the last snapshot's cursor need none: it replaced theirs."""
        left = self.spans.get(span.schedule_id)
        if left is not None and left[span] > 0:
            left[span] -= 1
        elif span.through > self.snapshots.get(span.schedule_id, span.through - 1):
            self.report.add("span", span.schedule_id, f"{_describe_span(span)} has no event")

    def report_spans_without_row(self) -> None:
        """Report the spans of the log that have no row."""
        for sid, left in self.spans.items():
            for span, count in left.items():
                if count > 0:
                    self.report.add("span", sid, f"{_describe_span(span)} is in the log and has no row")


def _run_of(kept: Run | bytes | None) -> Run | None:
    return _decoder.decode(kept) if isinstance(kept, bytes) else kept


def _describe_span(span: Span) -> str:
    return f"span {span.reason} of {span.count}, after {isoformat(span.after)} through {isoformat(span.through)}"


def _short(value: object) -> str:
    text = repr(value.value) if isinstance(value, State) else repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
