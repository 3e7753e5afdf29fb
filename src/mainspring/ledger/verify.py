"""Verify the rows of a store against its event log: replay every event, fold runs and schedules, and compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from operator import attrgetter
from typing import TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from mainspring.model.errors import IllegalTransition, StoreError, StoreUnavailable
from mainspring.model.events import (
    Event,
    FiresElided,
    LogCompacted,
    RunEvent,
    RunScheduled,
    RunSkipped,
    ScheduleCreated,
    ScheduleEvent,
    ScheduleSnapshot,
)
from mainspring.model.ids import fire_id, is_body_id_of
from mainspring.model.instant import Ms, isoformat
from mainspring.model.run import ENDED, Run, State
from mainspring.model.schedule import Schedule, Span
from mainspring.ports.paging import iterate_rows, iterate_spans
from mainspring.ports.store import Bodies, Gates, Query, Runs, Schedules, Store, Tallies
from mainspring.rules.lifecycle import evolve
from mainspring.rules.planning import is_fixed_delay
from mainspring.rules.schedule_draft import creates_fire_run, evolve_schedule

T = TypeVar("T")
EVENTS_PER_READ = 2_000
MAX_NAMED_MISMATCHES = 1_000  # most differences that a report names; further differences are only counted
#: Columns of a run that are not in the log, and so are not compared: lease, parking, progress.
OPERATIONAL = frozenset({"owner", "lease_until", "parked_on", "progress"})
_RUN_FIELDS = tuple(name for name in Run.__struct_fields__ if name not in OPERATIONAL)
_SCHEDULE_FIELDS = Schedule.__struct_fields__
_run_values = attrgetter(*_RUN_FIELDS)
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Run)
#: More events than any log has. If reading fails even this far behind a bad event, the log as a whole cannot be read.
MAX_LOG_EVENTS = 1 << 48
_UNREADABLE = (StoreError, msgspec.MsgspecError, LookupError, ValueError, TypeError)  # raised for an unreadable row


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


async def verify(store: Store) -> Report:
    """Replay the log, compare it with every row, and return the differences. Raises: StoreUnavailable on an outage."""
    report = Report()
    replay = Replay(report)
    async for event in _read_log(store, report):
        replay.take(event)
    replay.end()
    bodies: dict[str, str] = {}
    holders = await _check_runs(store, report, replay, bodies)
    await _check_schedules(store, report, replay, bodies)
    await _check_spans(store, report, replay)
    await _check_bodies(store, report, bodies)
    await _check_gates(store, report, holders)
    await _check_tallies(store, report, replay)
    return report


async def _check_runs(store: Store, report: Report, replay: Replay, bodies: dict[str, str]) -> Counter[str]:
    """Compare every run row with the log, and return for each gate name how many running runs hold the gate.

    The payloads that rows name are added to `bodies`: payload id → the first run that names it, as text ("run …").
    """
    holders: Counter[str] = Counter()
    async for run in _read_runs(store, report, replay):
        report.runs += 1
        if run.body is not None:
            bodies.setdefault(run.body, f"run {run.id}")
        if run.state is State.RUNNING:
            holders.update(run.gates)
        replay.compare_run(run)
    replay.report_runs_without_row()
    return holders


async def _check_schedules(store: Store, report: Report, replay: Replay, bodies: dict[str, str]) -> None:
    """Compare all schedule rows with the log, and add the differences to `report`.

    The payloads that rows name are added to `bodies`: payload id → the first row that names it, as text ("schedule …").
    """
    async for schedule in _read_schedules(store, report, replay):
        report.schedules += 1
        if schedule.spec.body is not None:
            bodies.setdefault(schedule.spec.body, f"schedule {schedule.id}")
        replay.compare_schedule(schedule)
    replay.report_schedules_without_row()


# ── reading, with unreadable rows and events ────────────────────────────────
async def _read_log(store: Store, report: Report) -> AsyncIterator[Event]:
    """Yield the readable events of the log in order, and count them. Report consecutive unreadable events as one."""
    after = 0
    while True:
        limit = EVENTS_PER_READ
        while True:
            try:
                page = await store.tail(after, limit)
                break
            except StoreUnavailable:
                raise
            except _UNREADABLE as error:
                if limit > 1:
                    limit //= 2
                    continue
                bad, page = await _skip_bad_event(store, after), []
                report.events += 1
                report.add("event", str(bad), f"event {bad} cannot be read: {_describe(error)}")
                after = bad
                break
        report.events += len(page)
        for event in page:
            yield event
        if page:
            after = page[-1].seq
        elif limit == EVENTS_PER_READ:
            return


async def _skip_bad_event(store: Store, after: int) -> int:
    """Return the number after which the log can be read again; the event right after number `after` is unreadable.

    From 64 numbers on, it may skip readable events. Raises: StoreUnavailable; the store's error if every read fails.
    """
    low, high, step = after, after, 1  # reading after `low` fails; find a `high` after which it does not
    while (error := await _find_read_error(store, high := low + step)) is not None:
        if high - after > MAX_LOG_EVENTS:
            raise error  # the log cannot be read, not one event of it
        low, step = high, (1 if high - after < 64 else step * 2)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if await _find_read_error(store, middle) is None else (middle, high)
    return high


async def _find_read_error(store: Store, after: int) -> Exception | None:
    """Return the error of reading the event after number `after`; None without an error. Raises: StoreUnavailable."""
    try:
        await store.tail(after, 1)
    except StoreUnavailable:
        raise
    except _UNREADABLE as error:
        return error
    return None


async def _read_runs(store: Store, report: Report, replay: Replay) -> AsyncIterator[Run]:
    """Yield the run rows. If a page cannot be read, report it, and then yield rows that are read one by one.

    These are the rows of those runs of the log that are not in `replay.seen` yet. The caller adds each row's id to it
    before it asks for the next row. Raises: StoreUnavailable.
    """
    try:
        async for run in iterate_rows(store, Runs(oldest_first=True, limit=1_000), lambda run: run.id):
            yield run
        return
    except StoreUnavailable:
        raise
    except _UNREADABLE as error:
        report.add("run", "-", f"a page of run rows cannot be read: {_describe(error)}")
    for run_id in [run_id for run_id in replay.runs if run_id not in replay.seen]:
        for run in await _read_row(store, report, Runs(id=run_id), "run", run_id, replay):
            yield run


async def _read_schedules(store: Store, report: Report, replay: Replay) -> AsyncIterator[Schedule]:
    """Yield the schedule rows as `_read_runs` yields runs; the caller must add their ids to `replay.seen` likewise."""
    query = Schedules(states=("active", "paused", "finished", "deleted"), limit=500)
    try:
        async for schedule in iterate_rows(store, query, lambda s: s.id):
            yield schedule
        return
    except StoreUnavailable:
        raise
    except _UNREADABLE as error:
        report.add("schedule", "-", f"a page of schedule rows cannot be read: {_describe(error)}")
    for sid in [sid for sid in replay.schedules if sid not in replay.seen]:
        for schedule in await _read_row(store, report, replace(query, id=sid), "schedule", sid, replay):
            yield schedule


async def _read_row(store: Store, report: Report, query: Query[T], kind: str, row_id: str, replay: Replay) -> list[T]:
    """Return the row with the id `row_id`, which `query` asks for, as a list of one or, if it does not exist, empty.

    If the row cannot be read, report it, return an empty list, and add the id to `replay.seen`: the row is then not
    reported as missing as well. `kind`: "run" or "schedule". Raises: StoreUnavailable if the store cannot be reached.
    """
    try:
        return await store.find(query)
    except StoreUnavailable:
        raise
    except _UNREADABLE as error:
        report.add(kind, row_id, f"the row cannot be read: {_describe(error)}")
        replay.seen.add(row_id)
        return []


def _describe(error: Exception) -> str:
    return f"unknown type {error.args[0]!r}" if isinstance(error, KeyError) and error.args else str(error)


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
        if isinstance(event, FiresElided):
            span = Span(sid, event.revision, event.after, event.through, event.count, event.reason, event.ns)
            self.spans.setdefault(sid, Counter())[span] += 1

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


async def _check_spans(store: Store, report: Report, replay: Replay) -> None:
    async for span in iterate_spans(store):
        report.spans += 1
        replay.compare_span(span)
    replay.report_spans_without_row()


async def _check_bodies(store: Store, report: Report, wanted: dict[str, str]) -> None:
    """Report payloads that do not exist or do not match their id.

    `wanted`: payload id → a row that refers to it, as text for the report, such as "run …".
    """
    ids = list(wanted)
    for start in range(0, len(ids), 500):
        part = tuple(ids[start : start + 500])
        found = {body.id: body.data for body in await store.find(Bodies(ids=part, limit=len(part)))}
        report.bodies += len(found)
        for name in part:
            if name not in found:
                report.add("body", name, f"the payload that {wanted[name]} names does not exist")
            elif not is_body_id_of(name, found[name].encode()):
                report.add("body", name, f"the payload that {wanted[name]} names is not the one it was")


async def _check_gates(store: Store, report: Report, holders: Counter[str]) -> None:
    """Report gates whose number of held slots is wrong. `holders`: gate name → number of running runs that hold it."""
    async for gate in iterate_rows(store, Gates(limit=1_000), lambda gate: gate.name):
        report.gates += 1
        if gate.held != holders[gate.name]:
            report.add("gate", gate.name, f"held is {gate.held} in the row, {holders[gate.name]} running runs hold it")


async def _check_tallies(store: Store, report: Report, replay: Replay) -> None:
    """Report tallies (counts of removed rows) without a compaction of the log, or removed runs without any tally."""
    report.tallies = len(await store.find(Tallies(limit=1_000_000)))
    if report.tallies and not replay.compactions:
        report.add("tally", "-", f"{report.tallies} tallies, and the log was never compacted")
    elif replay.compacted_runs and not report.tallies:
        report.add("tally", "-", f"retention removed {replay.compacted_runs} runs, and there is no tally of them")


def _run_of(kept: Run | bytes | None) -> Run | None:
    return _decoder.decode(kept) if isinstance(kept, bytes) else kept


def _describe_span(span: Span) -> str:
    return f"span {span.reason} of {span.count}, after {isoformat(span.after)} through {isoformat(span.through)}"


def _short(value: object) -> str:
    text = repr(value.value) if isinstance(value, State) else repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
