"""Proof that the rows are what the log says: replay every event, fold runs and schedules, compare.

Operational values (leases, parking, progress) are not in the log and are not compared.
"""

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
from mainspring.model.ids import fire_id, names_body
from mainspring.model.instant import Ms, isoformat
from mainspring.model.run import ENDED, Run, State
from mainspring.model.schedule import Schedule, Span
from mainspring.paging import all_rows, all_spans
from mainspring.ports.store import Bodies, Gates, Query, Runs, Schedules, Store, Tallies
from mainspring.rules.draft import evolve_schedule, is_fire_birth
from mainspring.rules.lifecycle import evolve
from mainspring.rules.planning import is_fixed_delay

T = TypeVar("T")
PAGE = 2_000
#: So many differences are named; the rest are counted.
MAX_NAMED = 1_000
OPERATIONAL = frozenset({"owner", "lease_until", "parked_on", "progress"})
_RUN_FIELDS = tuple(name for name in Run.__struct_fields__ if name not in OPERATIONAL)
_SCHEDULE_FIELDS = Schedule.__struct_fields__
_run_values = attrgetter(*_RUN_FIELDS)
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Run)
#: More events than any log holds.
LONGEST_LOG = 1 << 48
#: What a store may raise over a row it cannot read.
_UNREADABLE = (StoreError, msgspec.MsgspecError, LookupError, ValueError, TypeError)


class Mismatch(Struct, frozen=True):
    """One difference: what kind of thing, which one, and what is wrong with it."""

    kind: str
    id: str
    what: str


class Report(Struct):
    """What was looked at and what differs."""

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
        """True when the rows are exactly what the log says."""
        return self.found == 0

    def add(self, kind: str, row_id: str, what: str) -> None:
        """Count a difference, and name it while there is room."""
        self.found += 1
        if len(self.differences) < MAX_NAMED:
            self.differences.append(Mismatch(kind, row_id, what))


async def verify(store: Store) -> Report:
    """Replay the whole log and compare it with every row."""
    report = Report()
    replay = Replay(report)
    async for event in _log(store, report):
        replay.take(event)
    replay.end()
    bodies: dict[str, str] = {}
    holders: Counter[str] = Counter()
    async for run in _runs(store, report, replay):
        report.runs += 1
        if run.body is not None:
            bodies.setdefault(run.body, f"run {run.id}")
        if run.state is State.RUNNING:
            holders.update(run.gates)
        replay.compare_run(run)
    replay.runs_without_row()
    async for schedule in _schedules(store, report, replay):
        report.schedules += 1
        if schedule.spec.body is not None:
            bodies.setdefault(schedule.spec.body, f"schedule {schedule.id}")
        replay.compare_schedule(schedule)
    replay.schedules_without_row()
    await _check_spans(store, report, replay)
    await _check_bodies(store, report, bodies)
    async for gate in all_rows(store, Gates(limit=1_000), lambda gate: gate.name):
        report.gates += 1
        if gate.held != holders[gate.name]:
            report.add("gate", gate.name, f"held is {gate.held} in the row, {holders[gate.name]} running runs hold it")
    report.tallies = len(await store.find(Tallies(limit=1_000_000)))
    if report.tallies and not replay.compactions:
        report.add("tally", "-", f"{report.tallies} tallies, and the log was never compacted")
    elif replay.compacted_streams and not report.tallies:
        report.add("tally", "-", f"{replay.compacted_streams} run streams were compacted, and no tally is left of them")
    return report


# ── reading, also what cannot be read ───────────────────────────────────────


async def _log(store: Store, report: Report) -> AsyncIterator[Event]:
    """The log in order; an event that cannot be read is named and passed over."""
    after = 0
    while True:
        limit = PAGE
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
                bad, page = await _past_bad_event(store, after)
                report.events += 1
                report.add("event", str(bad), f"event {bad} cannot be read: {_why(error)}")
                after = bad
                break
        report.events += len(page)
        for event in page:
            yield event
        if page:
            after = page[-1].seq
        elif limit == PAGE:
            return


async def _past_bad_event(store: Store, after: int) -> tuple[int, list[Event]]:
    """The seq of the unreadable event after `after`: the first from which reading goes on, and nothing of it."""
    step = 1
    low = high = after
    while True:  # reading after `low` fails; find the least `high` after which it does not
        high = low + step
        try:
            await store.tail(high, 1)
        except _UNREADABLE:
            if high - after > LONGEST_LOG:
                raise  # not an event cannot be read but the log
            low, step = high, (1 if high - after < 64 else step * 2)
            continue
        while high - low > 1:
            middle = (low + high) // 2
            try:
                await store.tail(middle, 1)
                high = middle
            except _UNREADABLE:
                low = middle
        return high, []


async def _runs(store: Store, report: Report, replay: Replay) -> AsyncIterator[Run]:
    try:
        async for run in all_rows(store, Runs(oldest_first=True, limit=1_000), lambda run: run.id):
            yield run
        return
    except StoreUnavailable:
        raise
    except _UNREADABLE as error:
        report.add("run", "-", f"a page of run rows cannot be read: {_why(error)}")
    for run_id in [run_id for run_id in replay.runs if run_id not in replay.seen]:
        for run in await _one(store, report, Runs(id=run_id), "run", run_id, replay):
            yield run


async def _schedules(store: Store, report: Report, replay: Replay) -> AsyncIterator[Schedule]:
    query = Schedules(states=("active", "paused", "finished", "deleted"), limit=500)
    try:
        async for schedule in all_rows(store, query, lambda s: s.id):
            yield schedule
        return
    except StoreUnavailable:
        raise
    except _UNREADABLE as error:
        report.add("schedule", "-", f"a page of schedule rows cannot be read: {_why(error)}")
    for sid in [sid for sid in replay.schedules if sid not in replay.seen]:
        for schedule in await _one(store, report, replace(query, id=sid), "schedule", sid, replay):
            yield schedule


async def _one(store: Store, report: Report, query: Query[T], kind: str, row_id: str, replay: Replay) -> list[T]:
    """A row by itself, after its page could not be read; named when it is the culprit."""
    try:
        return await store.find(query)
    except _UNREADABLE as error:
        report.add(kind, row_id, f"the row cannot be read: {_why(error)}")
        replay.seen.add(row_id)
        return []


def _why(error: Exception) -> str:
    return f"unknown type {error.args[0]!r}" if isinstance(error, KeyError) and error.args else str(error)


# ── the replay ──────────────────────────────────────────────────────────────


class Replay:
    """Folds streams, checks their numbers, and compares rows with the result."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.runs: dict[str, Run | bytes] = {}  # ended runs as JSON: a third of the memory
        self.schedules: dict[str, Schedule] = {}
        self.spans: dict[str, Counter[Span]] = {}
        self.snapshots: dict[str, Ms] = {}
        self.compactions = 0
        self.compacted_streams = 0
        self._broken: set[str] = set()
        self._headless: dict[str, int] = {}
        self._early: dict[str, int] = {}
        self.seen: set[str] = set()

    def take(self, event: Event) -> None:
        """Fold one event."""
        if isinstance(event, RunEvent):
            if event.run_id is not None:
                self._run(event)
            elif not self._named(event):
                text = f"event {event.seq} {_name(event)} of {isoformat(event.at)} is of a run that has no row"
                self.report.add("event", str(event.seq), text)
            if is_fire_birth(event) and event.schedule_id is not None:
                self._fire(event.schedule_id, event)
        elif isinstance(event, ScheduleEvent):
            self._schedule(event)
        elif isinstance(event, LogCompacted):
            self.compactions += 1
            self.compacted_streams += event.streams

    def _named(self, event: RunEvent) -> bool:
        """Fold an event whose run the store cannot name any more; a fire's id follows from its key."""
        if not isinstance(event, RunScheduled | RunSkipped) or event.fire_key is None or event.fire_time is None:
            return False
        if event.schedule_id is None or event.fire_key != str(event.fire_time):
            return False
        self._run(replace(event, run_id=fire_id(event.schedule_id, event.fire_key, event.fire_time)))
        return True

    def _run(self, event: RunEvent) -> None:
        run_id = event.run_id or ""
        run = _run_of(self.runs.get(run_id))
        last = run.n if run is not None else self._headless.get(run_id, 0)
        if event.n != last + 1 and not self._numbered(f"run {run_id}", run_id, event, last):
            return
        try:
            run = evolve(run, event)
        except (IllegalTransition, AssertionError) as error:
            if run_id not in self._broken:
                self._broken.add(run_id)
                self.report.add("transition", run_id, f"event {event.seq} {_name(event)}: {error}")
            if run is None:
                self._headless[run_id] = event.n or 1
                return
        if event.n is not None and run.n != event.n:
            run = replace(run, n=event.n)
        self.runs[run_id] = _encoder.encode(run) if run.state in ENDED else run

    def _numbered(self, stream: str, row_id: str, event: Event, last: int) -> bool:
        """Name a wrong number; False when the event must not be folded."""
        n = event.n or 0
        self._broken.add(row_id)
        if n <= last:
            text = f"{stream}: number {n} twice, the second is event {event.seq} {_name(event)}"
            self.report.add("event", row_id, text)
            return False
        numbers = f"number {last + 1} is" if n == last + 2 else f"numbers {last + 1} to {n - 1} are"
        self.report.add("event", row_id, f"{stream}: {numbers} missing before event {event.seq} {_name(event)}")
        return True

    def _schedule(self, event: ScheduleEvent) -> None:
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
        if event.n != last + 1 and not self._numbered(f"schedule {sid}", sid, event, last):
            return
        folded = evolve_schedule(schedule, event)
        self.schedules[sid] = folded if folded.n == event.n else replace(folded, n=event.n or folded.n)
        if isinstance(event, FiresElided):
            span = Span(sid, event.revision, event.after, event.through, event.count, event.reason, event.ns)
            self.spans.setdefault(sid, Counter())[span] += 1

    def _fire(self, sid: str, event: RunEvent) -> None:
        schedule = self.schedules.get(sid)
        if schedule is None:
            self._early.setdefault(sid, event.seq)
        else:
            self.schedules[sid] = evolve_schedule(schedule, event)

    def end(self) -> None:
        """The log is read: what was never created is named. A snapshot stands for the creation."""
        for sid, seq in self._early.items():
            self.report.add("event", sid, f"schedule {sid}: event {seq} comes before its creation, which is missing")
        for run_id in self._headless:
            self._broken.add(run_id)

    # ── the rows ───────────────────────────────────────────────────────────

    def compare_run(self, row: Run) -> None:
        """Name every column in which the row differs from the log."""
        self.seen.add(row.id)
        folded = _run_of(self.runs.get(row.id))
        if folded is None:
            if row.id not in self._headless:
                at = "" if row.fire_time is None else f" (fire time {isoformat(row.fire_time)})"
                self.report.add("run", row.id, f"the row{at} has no event: it was never scheduled")
            return
        if _run_values(row) == _run_values(folded):
            return
        if row.n > folded.n and row.id not in self._broken:
            text = f"run {row.id}: the row is at number {row.n}, the log ends at {folded.n}: events are missing"
            self.report.add("event", row.id, text)
        if row.id not in self._broken:
            self._columns("run", row.id, _RUN_FIELDS, row, folded)

    def compare_schedule(self, row: Schedule) -> None:
        """As for runs; the next fire of a fixed delay is derived, not folded."""
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
        self._columns("schedule", row.id, fields, row, folded)

    def _columns(self, kind: str, row_id: str, fields: Iterable[str], row: object, folded: object) -> None:
        for name in fields:
            is_, should = getattr(row, name), getattr(folded, name)
            if is_ != should:
                self.report.add(kind, row_id, f"{name} is {_short(is_)} in the row, {_short(should)} by the log")

    def runs_without_row(self) -> None:
        """Name the runs of the log that have no row."""
        for run_id, kept in self.runs.items():
            if run_id not in self.seen and (run := _run_of(kept)) is not None:
                at = "" if run.fire_time is None else f", fire time {isoformat(run.fire_time)}"
                self.report.add("run", run_id, f"the log knows it as {run.state.value}{at}, and it has no row")
        for run_id in self._headless:
            if run_id not in self.seen and run_id not in self.runs:
                self.report.add("run", run_id, "the log has events of it, and it has no row")

    def schedules_without_row(self) -> None:
        """Name the schedules of the log that have no row."""
        for sid, schedule in self.schedules.items():
            if sid not in self.seen:
                self.report.add("schedule", sid, f"the log knows {schedule.name!r}, and it has no row")

    def compare_span(self, span: Span) -> None:
        """A span row needs its event; those before a snapshot have only the row left."""
        left = self.spans.get(span.schedule_id)
        if left is not None and left[span] > 0:
            left[span] -= 1
        elif span.through > self.snapshots.get(span.schedule_id, span.through - 1):
            self.report.add("span", span.schedule_id, f"{_span(span)} has no event")

    def spans_without_row(self) -> None:
        """Name the elisions of the log that have no row."""
        for sid, left in self.spans.items():
            for span, count in left.items():
                if count > 0:
                    self.report.add("span", sid, f"{_span(span)} is in the log and has no row")


# ── beside the projections ──────────────────────────────────────────────────


async def _check_spans(store: Store, report: Report, replay: Replay) -> None:
    async for span in all_spans(store):
        report.spans += 1
        replay.compare_span(span)
    replay.spans_without_row()


async def _check_bodies(store: Store, report: Report, wanted: dict[str, str]) -> None:
    """Every payload that a row names exists and is what its name says."""
    ids = list(wanted)
    for start in range(0, len(ids), 500):
        part = tuple(ids[start : start + 500])
        found = {body.id: body.data for body in await store.find(Bodies(ids=part, limit=len(part)))}
        report.bodies += len(found)
        for name in part:
            if name not in found:
                report.add("body", name, f"the payload that {wanted[name]} names does not exist")
            elif not names_body(name, found[name].encode()):
                report.add("body", name, f"the payload that {wanted[name]} names is not the one it was")


def _run_of(kept: Run | bytes | None) -> Run | None:
    return _decoder.decode(kept) if isinstance(kept, bytes) else kept


def _span(span: Span) -> str:
    return f"span {span.reason} of {span.count}, after {isoformat(span.after)} through {isoformat(span.through)}"


def _name(event: Event) -> str:
    return type(event).__name__


def _short(value: object) -> str:
    text = repr(value.value) if isinstance(value, State) else repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
