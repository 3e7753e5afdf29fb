"""Fires: what the definitions in the log owe, enumerated one by one, against runs and spans (I1, I2, I3, I6)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence

from msgspec import Struct

from mainspring.engine.lookahead import AHEAD
from mainspring.model.events import (
    Event,
    FiresElided,
    RunEvent,
    RunScheduled,
    RunSkipped,
    ScheduleCreated,
    ScheduleDeleted,
    ScheduleEvent,
    ScheduleFinished,
    SchedulePaused,
    ScheduleResumed,
    ScheduleSnapshot,
    ScheduleUpdated,
    definitions,
)
from mainspring.model.instant import Ms, isoformat
from mainspring.model.run import ENDED, OPEN, Run
from mainspring.model.schedule import Definition, Schedule, ScheduleSpec, Span
from mainspring.model.trigger import AtSpec, CronSpec, EverySpec
from mainspring.rules.draft import is_fire_birth
from mainspring.rules.lifecycle import TRANSITIONS
from mainspring.rules.triggers import compile_trigger
from mainspring.rules.windows import is_open, next_opening
from mainspring.testing.history_report import History, Report

_ENDINGS = tuple({event for (_, event), after in TRANSITIONS.items() if after in ENDED})


class Bounds(Struct, frozen=True, kw_only=True):
    """Until when everything must be accounted for, and how late a trigger may be."""

    until: Ms
    late: Ms | None = None
    late_since: Ms = 0


def check_fires(history: History, report: Report, bounds: Bounds) -> None:
    """Every schedule's fires against its runs and spans."""
    streams = history.schedule_streams()
    rows: dict[str, list[Run]] = defaultdict(list)
    for run in history.runs:
        if run.origin == "fire" and run.schedule_id is not None:
            rows[run.schedule_id].append(run)
    spans: dict[str, list[Span]] = defaultdict(list)
    for span in history.spans:
        spans[span.schedule_id].append(span)
    births: dict[str, list[RunEvent]] = defaultdict(list)
    for event in history.events:
        if isinstance(event, RunEvent) and is_fire_birth(event) and event.schedule_id is not None:
            births[event.schedule_id].append(event)
            _on_time(event, report, bounds)
        elif isinstance(event, FiresElided) and event.through > event.at:
            what = f"fires through {isoformat(event.through)} were given up at {isoformat(event.at)}, before their time"
            report.add("I6", what, [event], kind="late")
    for schedule in history.schedules:
        sid = schedule.id
        _Account(schedule, streams.get(sid, []), births[sid], rows[sid], spans[sid], report, bounds).check(history)


def _on_time(event: Event, report: Report, bounds: Bounds) -> None:
    fire: Ms = event.fire_time or 0  # type: ignore[attr-defined]  # a birth has it
    late = event.at - fire
    caught_up = isinstance(event, RunScheduled) and event.catch_up  # late by nature
    if late < -AHEAD:  # a run that waits for its time is not early, one that is given out before it is: `_not_early`
        report.add("I6", f"fire {isoformat(fire)} was planned {-late} ms early", [event], kind="late")
    elif bounds.late is not None and late > bounds.late and fire > bounds.late_since and not caught_up:
        report.add("I6", f"fire {isoformat(fire)} was triggered {late} ms late", [event], kind="late")


def fires_of(spec: ScheduleSpec, anchor: Ms, after: Ms, through: Ms) -> Iterator[Ms]:
    """Every fire in (after, through], inside start and end, one by one; our own arithmetic where there is any."""
    low = after if spec.start is None else max(after, spec.start - 1)
    high = through if spec.end is None else min(through, spec.end)
    match spec.trigger:
        case EverySpec(interval=interval, anchor=own):
            origin = anchor if own is None else own
            at = origin + interval
            if at <= low:
                at += (low - at) // interval * interval
            while at <= low:
                at += interval
            while at <= high:
                yield at
                at += interval
        case AtSpec(times=times):
            yield from (at for at in sorted(set(times)) if low < at <= high)
        case CronSpec():
            trigger = compile_trigger(spec.trigger)
            found = trigger.next_ms(low)
            while found is not None and found <= high:
                yield found
                found = trigger.next_ms(found)


def _dropped(spec: ScheduleSpec, after: Ms, through: Ms) -> list[Ms]:
    """Where a clock change swallowed a fire: owed to a span."""
    if not isinstance(spec.trigger, CronSpec) or through <= after:
        return []
    low = after if spec.start is None else max(after, spec.start - 1)
    high = through if spec.end is None else min(through, spec.end)
    return compile_trigger(spec.trigger).dropped_ms(low, max(low, high))


class _Account:
    """One schedule: what it owed, what was done about it."""

    def __init__(
        self,
        schedule: Schedule,
        stream: Sequence[ScheduleEvent],
        births: Sequence[RunEvent],
        rows: Sequence[Run],
        spans: Sequence[Span],
        report: Report,
        bounds: Bounds,
    ) -> None:
        self.schedule = schedule
        self.stream = stream
        self.births = births
        self.rows = rows
        self.spans = spans
        self.report = report
        self.bounds = bounds
        self.log: list[Event] = sorted([*stream, *births], key=lambda event: event.seq)
        snapshots = [event.state.cursor for event in stream if isinstance(event, ScheduleSnapshot)]
        self.low = max(snapshots, default=-(1 << 62))  # what retention removed is the ledger's business

    def check(self, history: History) -> None:
        found = definitions(self.stream)
        fixed = any(_is_fixed(definition) for definition in found)
        if fixed:
            self._check_fixed(history, found)
        self._check_finishes()
        owed: list[Ms] = []
        dropped: list[Ms] = []
        closed: list[tuple[Ms, Ms]] = []  # stretches under a fixed delay have no sequence
        if not found:
            return  # the fold says that its creation is missing
        ends = [*(definition.since for definition in found[1:]), self._end()]
        for definition, last in zip(found, ends, strict=True):
            low = max(definition.since, self.low)
            high = last if definition.until is None else min(last, definition.until)
            if _is_fixed(definition):
                closed.append((definition.since, last))
            elif high > low:
                fires = fires_of(definition.spec, definition.anchor, low, high)
                owed.extend(fire for fire in fires if fire <= self.schedule.cursor or not _shut(definition.spec, fire))
                dropped.extend(_dropped(definition.spec, low, high))
        self.report.fires += len(owed)
        self._cover(sorted(owed), sorted(dropped), closed)

    def _end(self) -> Ms:
        """Through which instant the last definition owes. A pause that lasts is covered when it ends."""
        row, bounds = self.schedule, self.bounds
        if row.state == "active":
            return max(row.cursor, bounds.until)
        if bounds.late is None or row.state == "finished":
            return row.cursor
        closed = _closed_at(self.stream)
        return row.cursor if closed is None else max(row.cursor, closed - bounds.late)

    # ── rows and spans against what was owed ───────────────────────────────

    def _cover(self, owed: list[Ms], dropped: list[Ms], closed: list[tuple[Ms, Ms]]) -> None:
        owing = set(owed)
        times: dict[Ms, int] = defaultdict(int)
        for run in self.rows:
            fire = run.fire_time
            if fire is None or fire <= self.low or any(after < fire <= last for after, last in closed):
                continue
            if fire not in owing:
                said = f"run {run.id} stands for {isoformat(fire)}, which {self.schedule.name!r} never owed"
                self.report.add("I3", said, self._around(fire), kind="extra")
            else:
                times[fire] += 1
        keys = [run.fire_key for run in self.rows if run.fire_time not in owing]
        for key in sorted({key for key in keys if key is not None and keys.count(key) > 1} if closed else ()):
            said = f"two runs of {self.schedule.name!r} bear the fire key {key}"
            self.report.add("I1", said, self._around(int(key)), kind="doubled")
        in_spans: dict[Ms, int] = defaultdict(int)
        for span in self.spans:
            if span.through <= self.low or any(after < span.through <= last for after, last in closed):
                continue
            inside = _within(owed, span) if span.reason != "dst" else []
            swallowed = _within(dropped, span) if span.reason in ("dst", "paused") else []
            for fire in inside:
                times[fire] += 1
            for fire in swallowed:
                in_spans[fire] += 1
            self._span_count(span, len(inside) + len(swallowed))
        for fire in owed:
            self._once(fire, times.get(fire, 0), "neither a run nor a span")
        for fire in dropped:
            self._once(fire, in_spans.get(fire, 0), "no span")

    def _once(self, fire: Ms, times: int, nothing: str) -> None:
        name = self.schedule.name
        if times == 0:
            what = f"{name!r} owed {isoformat(fire)}, and it has {nothing}"
            self.report.add("I2", what, self._around(fire), kind="lost")
        elif times > 1:
            what = f"{name!r} owed {isoformat(fire)} once, and it is accounted for {times} times"
            self.report.add("I1", what, self._around(fire), kind="doubled", count=times - 1)

    def _span_count(self, span: Span, found: int) -> None:
        more = span.count - found
        what = f"a span {span.reason!r} of {self.schedule.name!r} says {span.count} fires, {found} were owed in it"
        if more > 0:
            self.report.add("I3", what, self._around(span.through), kind="extra", count=more)
        elif more < 0:
            self.report.add("I2", what, self._around(span.through), kind="lost", count=-more)

    # ── where a schedule says that it is done ──────────────────────────────

    def _check_finishes(self) -> None:
        """`max_runs` counts what was consumed; "exhausted" means that the trigger has nothing more."""
        fired = 0
        spec: ScheduleSpec | None = None
        anchor = 0
        for event in self.log:
            match event:
                case ScheduleSnapshot():
                    fired, spec, anchor = event.state.fired, event.state.spec, event.state.anchor
                case ScheduleCreated() | ScheduleUpdated():
                    spec, anchor = event.spec, event.anchor
                case FiresElided(consumed=True):
                    fired += event.count
                case RunScheduled() | RunSkipped():
                    fired += 1
                    if spec is not None and spec.max_runs is not None and fired == spec.max_runs + 1:
                        what = f"{self.schedule.name!r} fires more often than max_runs={spec.max_runs}"
                        self.report.add("I3", what, self._near(event), kind="extra")
                case ScheduleFinished() if spec is not None:
                    self._finished(event, spec, anchor, fired)
                case _:
                    pass

    def _finished(self, event: ScheduleFinished, spec: ScheduleSpec, anchor: Ms, fired: int) -> None:
        if event.reason == "max_runs":
            wrong = spec.max_runs is None or fired < spec.max_runs
        elif _fixed(spec):
            wrong = spec.end is None
        else:
            wrong = next(fires_of(spec, anchor, event.cursor, self.bounds.until), None) is not None
        if wrong:
            what = f"{self.schedule.name!r} was finished ({event.reason}) while it still owed fires"
            self.report.add("I2", what, self._near(event), kind="lost")

    # ── fixed delay ────────────────────────────────────────────────────────

    def _check_fixed(self, history: History, found: Sequence[Definition]) -> None:
        """No sequence of its own: a fire must lie one interval after a recorded fact, and one must follow an end."""
        mine = [e for e in history.events if isinstance(e, RunEvent) and e.schedule_id == self.schedule.id]
        facts = {event.at for event in mine if isinstance(event, _ENDINGS)}
        facts.update(event.fire_time for event in mine if isinstance(event, RunSkipped) and event.fire_time is not None)
        for event in self.stream:
            if isinstance(event, ScheduleCreated | ScheduleUpdated | ScheduleResumed):
                facts.add(event.cursor)
                spec = getattr(event, "spec", self.schedule.spec)
                if spec.start is not None:
                    facts.add(spec.start - 1)
        intervals = {
            definition.spec.trigger.interval
            for definition in found
            if isinstance(definition.spec.trigger, EverySpec) and definition.spec.trigger.fixed_delay
        }
        fires = {run.fire_time for run in self.rows if run.fire_time is not None}
        for birth in self.births:
            fire: Ms = birth.fire_time or 0  # type: ignore[attr-defined]  # a birth has it
            definition = next((d for d in reversed(found) if d.since < fire), None)
            if definition is None or not _is_fixed(definition):
                continue
            at_once = fire - 1 in facts or fire - 1 in fires  # the end came before the cursor
            if not at_once and not any(fire - interval in facts for interval in intervals):
                what = f"{self.schedule.name!r} fired at {isoformat(fire)}, which follows no end by its delay"
                self.report.add("I3", what, self._near(birth), kind="extra")
        row, last = self.schedule, found[-1]
        late = self.bounds.late
        if late is None or row.state != "active" or not _is_fixed(last) or not isinstance(last.spec.trigger, EverySpec):
            return
        if any(run.state in OPEN for run in history.runs if run.schedule_id == row.id):
            return
        due = max(facts) + last.spec.trigger.interval
        if due + late < self.bounds.until and not any(fire >= due for fire in fires):
            what = f"{row.name!r} should have fired again at {isoformat(due)}"
            self.report.add("I2", what, self.log[-3:], kind="lost")

    # ── slices ─────────────────────────────────────────────────────────────

    def _around(self, fire: Ms) -> list[Event]:
        """The definition in force, what says something about this fire, and its neighbours in time."""
        about = [(_through(event), event) for event in self.log if _through(event) is not None]
        about.sort(key=lambda pair: (pair[0] or 0, pair[1].seq))
        times = [at or 0 for at, _ in about]
        first, last = bisect_left(times, fire), bisect_right(times, fire)
        near = [event for _, event in about[max(0, first - 1) : last + 1]]
        defined = [
            event
            for event in self.stream
            if isinstance(event, ScheduleCreated | ScheduleUpdated) and event.cursor < fire
        ]
        return sorted({event.seq: event for event in [*defined[-1:], *near]}.values(), key=lambda event: event.seq)

    def _near(self, guilty: Event) -> list[Event]:
        index = self.log.index(guilty)
        return self.log[max(0, index - 2) : index + 2]


def _within(fires: list[Ms], span: Span) -> list[Ms]:
    return fires[bisect_right(fires, span.after) : bisect_right(fires, span.through)]


def _through(event: Event) -> Ms | None:
    if isinstance(event, FiresElided):
        return event.through
    return event.fire_time if isinstance(event, RunScheduled | RunSkipped) else None


def _shut(spec: ScheduleSpec, fire: Ms) -> bool:
    """True for a fire that cannot begin inside its window: a span covers it, at the next opening."""
    window = spec.options.window if spec.options is not None else None
    if window is None or is_open(window, fire):
        return False
    opening = next_opening(window, fire)
    return opening is None or opening > fire + spec.grace


def _fixed(spec: ScheduleSpec) -> bool:
    return isinstance(spec.trigger, EverySpec) and spec.trigger.fixed_delay


def _is_fixed(definition: Definition) -> bool:
    return _fixed(definition.spec)


def _closed_at(stream: Sequence[ScheduleEvent]) -> Ms | None:
    """When an active schedule was last closed; a second closing moves nothing."""
    closed: Ms | None = None
    for event in stream:
        if isinstance(event, ScheduleResumed):
            closed = None
        elif isinstance(event, SchedulePaused | ScheduleDeleted) and closed is None:
            closed = event.at
        elif isinstance(event, ScheduleFinished):
            closed = event.cursor
        elif isinstance(event, ScheduleUpdated) and closed is not None:
            closed = max(closed, event.cursor)
    return closed
