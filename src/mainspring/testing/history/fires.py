"""Checks of fires: every fire that a definition in the log asks for must have one run or span (I1, I2, I3, I6)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from msgspec import Struct

from mainspring.engine.lookahead import PLAN_AHEAD_MS
from mainspring.model.events import (
    Event,
    FireCountedAgain,
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
    ScheduleRewound,
    ScheduleSnapshot,
    ScheduleUpdated,
)
from mainspring.model.instant import Ms, isoformat
from mainspring.model.revisions import fold_definitions
from mainspring.model.run import ENDED, OPEN, Run
from mainspring.model.schedule import Definition, Schedule, ScheduleSpec, Span
from mainspring.model.trigger import AtSpec, CronSpec, EverySpec
from mainspring.rules.lifecycle import TRANSITIONS
from mainspring.rules.schedule_draft import creates_fire_run
from mainspring.rules.triggers import compile_trigger
from mainspring.rules.windows import is_open, next_opening
from mainspring.testing.history.report import History, Report

#: Events after which a run has ended.
_END_EVENTS = tuple({event for (_, event), after in TRANSITIONS.items() if after in ENDED})


class Bounds(Struct, frozen=True, kw_only=True):
    """The limits of a check. Fires up to the instant `until` are owed: each needs a run or a span.

    A fire after the instant `late_since` may be planned at most `late` ms after its time. `late` None: no limit.
    """

    until: Ms
    late: Ms | None = None
    late_since: Ms = 0


def check_fires(history: History, report: Report, bounds: Bounds) -> None:
    """Compare every schedule's fires with its runs and spans, and add the violations to the report.

    Also check that no fire was planned too early or too late, and that no fire was put into a span before its time. Add
    the number of fires owed to the report.
    """
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
        if isinstance(event, RunEvent) and creates_fire_run(event) and event.schedule_id is not None:
            births[event.schedule_id].append(event)
            _check_on_time(event, report, bounds)
        elif isinstance(event, FiresElided) and event.through > event.at:
            what = f"fires through {isoformat(event.through)} were given up at {isoformat(event.at)}, before their time"
            report.add("I6", what, [event], kind="late")
    for schedule in history.schedules:
        sid = schedule.id
        _FireAccount(schedule, streams.get(sid, []), births[sid], rows[sid], spans[sid], report, bounds).check(history)


def _check_on_time(event: Event, report: Report, bounds: Bounds) -> None:
    """Check that a fire was planned at most `PLAN_AHEAD_MS` early and at most `bounds.late` late (I6).

    `event`: the event that inserted the run of the fire. With `bounds.late` None, for a fire up to `bounds.late_since`,
    and for a run that catches up on missed fires, the lateness is not checked.
    """
    fire: Ms = event.fire_time or 0  # type: ignore[attr-defined]  # an event that inserts a fire's run has it
    late = event.at - fire
    caught_up = isinstance(event, RunScheduled) and event.catch_up  # a run for missed fires is always late
    if (
        late < -PLAN_AHEAD_MS
    ):  # a run inserted ahead of its time is not early; one that is claimed too soon is: `_check_not_early`
        report.add("I6", f"fire {isoformat(fire)} was planned {-late} ms early", [event], kind="late")
    elif bounds.late is not None and late > bounds.late and fire > bounds.late_since and not caught_up:
        report.add("I6", f"fire {isoformat(fire)} was triggered {late} ms late", [event], kind="late")


def fires_of(spec: ScheduleSpec, anchor: Ms, after: Ms, through: Ms) -> Iterator[Ms]:
    """Yield every fire after `after` and up to `through` that lies between the schedule's start and end.

    `anchor`: the instant from which an interval without an anchor of its own is counted. Intervals and lists of
    instants are computed independently of the engine; cron times come from the engine's trigger. The schedule's window
    and its `max_runs` are ignored.
    """
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


def _dropped_fires(spec: ScheduleSpec, after: Ms, through: Ms) -> list[Ms]:
    """Return the cron fires after `after` and up to `through` that a clock change dropped: a span must cover each."""
    if not isinstance(spec.trigger, CronSpec) or through <= after:
        return []
    low = after if spec.start is None else max(after, spec.start - 1)
    high = through if spec.end is None else min(through, spec.end)
    return compile_trigger(spec.trigger).dropped_ms(low, max(low, high))


class _FireAccount:
    """Checks one schedule: the fires that it owed, against the runs and spans of these fires.

    `stream`: the events of the schedule. `rows`: the runs of its fires. `births`: the events that inserted these runs.
    Violations are added to `report`.
    """

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
        rewinds = [event for event in stream if isinstance(event, ScheduleRewound)]
        #: Ids of the runs whose fire a rewind took back. They are owed again only when the cursor passes them.
        self._taken_back = {
            birth.run_id
            for birth in births
            for rewind in rewinds
            if birth.seq < rewind.seq and rewind.to < _fire_of(birth) <= rewind.from_
        }
        self.log: list[Event] = sorted([*stream, *births], key=lambda event: event.seq)
        snapshots = [event.state.cursor for event in stream if isinstance(event, ScheduleSnapshot)]
        self.low = max(snapshots, default=-(1 << 62))  # the ledger accounts for what retention removed

    def check(self, history: History) -> None:
        """Compute what each definition of the schedule owed, and compare it with its runs and spans (I1, I2, I3)."""
        found = fold_definitions(self.stream)
        fixed = any(_has_fixed_delay(definition) for definition in found)
        if fixed:
            self._check_fixed_delay(history, found)
        self._check_finishes()
        owed: list[Ms] = []
        dropped: list[Ms] = []
        closed: list[tuple[Ms, Ms]] = []  # periods with a fixed delay, whose fires follow from the ends of runs
        if not found:
            return  # `check_fold` reports that the creation event is missing
        ends = [*(definition.since for definition in found[1:]), self._owed_through()]
        for definition, last in zip(found, ends, strict=True):
            low = max(definition.since, self.low)
            high = last if definition.until is None else min(last, definition.until)
            if _has_fixed_delay(definition):
                closed.append((definition.since, last))
            elif high > low:
                fires = fires_of(definition.spec, definition.anchor, low, high)
                owed.extend(
                    fire
                    for fire in fires
                    if fire <= self.schedule.cursor or not _is_outside_window(definition.spec, fire)
                )
                dropped.extend(_dropped_fires(definition.spec, low, high))
        self.report.fires += len(owed)
        self._check_coverage(sorted(owed), sorted(dropped), closed)

    def _owed_through(self) -> Ms:
        """Return the instant up to which the schedule's last definition owes fires (each needs a run or a span).

        Active: the cursor or `bounds.until`, whichever is later. Finished: the cursor. Paused or deleted: the cursor
        or, if later, the time of the pause or deletion minus `bounds.late`; with `bounds.late` None, the cursor.
        """
        row, bounds = self.schedule, self.bounds
        if row.state == "active":
            return max(row.cursor, bounds.until)
        if bounds.late is None or row.state == "finished":
            return row.cursor
        closed = _last_closed_at(self.stream)
        return row.cursor if closed is None else max(row.cursor, closed - bounds.late)

    # ── rows and spans against what was owed ───────────────────────────────

    def _check_coverage(self, owed: list[Ms], dropped: list[Ms], closed: list[tuple[Ms, Ms]]) -> None:
        """Check that each fire owed has one run or span, and each dropped fire a span; report further runs and spans.

        `owed`, `dropped`: fire times, in order; a clock change dropped those in `dropped`. `closed`: periods
        (after, through] with a fixed delay, which `_check_fixed_delay` checks.
        """
        owing = set(owed)
        times: dict[Ms, int] = defaultdict(int)
        for run in self.rows:
            fire = run.fire_time
            if fire is None or self._is_settled_elsewhere(fire, closed):
                continue
            if fire not in owing and run.id in self._taken_back:
                continue
            if fire not in owing:
                what = f"run {run.id} stands for {isoformat(fire)}, which {self.schedule.name!r} never owed"
                self.report.add("I3", what, self._events_around(fire), kind="extra")
            else:
                times[fire] += 1
        if closed:
            self._check_fire_keys(owing)
        in_spans: dict[Ms, int] = defaultdict(int)
        for span in self.spans:
            if self._is_settled_elsewhere(span.through, closed):
                continue
            inside = _fires_within(owed, span) if span.reason != "dst" else []
            swallowed = _fires_within(dropped, span) if span.reason in ("dst", "paused") else []
            for fire in inside:
                times[fire] += 1
            for fire in swallowed:
                in_spans[fire] += 1
            self._check_span_count(span, len(inside) + len(swallowed))
        for fire in owed:
            self._check_accounted_once(fire, times.get(fire, 0), "neither a run nor a span")
        for fire in dropped:
            self._check_accounted_once(fire, in_spans.get(fire, 0), "no span")

    def _is_settled_elsewhere(self, fire: Ms, closed: list[tuple[Ms, Ms]]) -> bool:
        """Return True for a fire that coverage does not check: up to the last snapshot, or under a fixed delay.

        Retention removed what lies before a snapshot. `closed`: the periods (after, through] with a fixed delay, which
        `_check_fixed_delay` checks.
        """
        return fire <= self.low or any(after < fire <= last for after, last in closed)

    def _check_fire_keys(self, owing: set[Ms]) -> None:
        """Check that no two runs have one fire key (I1).

        `owing`: the fire times owed. Their runs are left out, because `_check_coverage` counts them by fire time.
        """
        keys = Counter(run.fire_key for run in self.rows if run.fire_time not in owing and run.fire_key is not None)
        for key in sorted(key for key, count in keys.items() if count > 1):
            what = f"two runs of {self.schedule.name!r} have the fire key {key}"
            self.report.add("I1", what, self._events_around(int(key)), kind="doubled")

    def _check_accounted_once(self, fire: Ms, times: int, nothing: str) -> None:
        """Report a fire that nothing accounts for (I2), or that is accounted for more than once (I1).

        `times`: how many runs and spans account for it; only spans for a fire that a clock change dropped. `nothing`:
        end of the report's sentence if `times` is 0, such as "neither a run nor a span".
        """
        name = self.schedule.name
        if times == 0:
            what = f"{name!r} owed {isoformat(fire)}, and it has {nothing}"
            self.report.add("I2", what, self._events_around(fire), kind="lost")
        elif times > 1:
            what = f"{name!r} owed {isoformat(fire)} once, and it is accounted for {times} times"
            self.report.add("I1", what, self._events_around(fire), kind="doubled", count=times - 1)

    def _check_span_count(self, span: Span, found: int) -> None:
        """Report a span whose count is not `found`, the number of fires that were owed in it."""
        more = span.count - found
        what = f"a span {span.reason!r} of {self.schedule.name!r} says {span.count} fires, {found} were owed in it"
        if more > 0:
            self.report.add("I3", what, self._events_around(span.through), kind="extra", count=more)
        elif more < 0:
            self.report.add("I2", what, self._events_around(span.through), kind="lost", count=-more)

    # ── schedules that finished ────────────────────────────────────────────

    def _check_finishes(self) -> None:
        """Check that the schedule did not fire beyond `max_runs`, and was not finished while it still owed fires."""
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
                case FireCountedAgain():
                    fired += 1
                case ScheduleRewound():
                    fired, anchor = event.fired, event.anchor
                case RunScheduled() | RunSkipped():
                    fired += 1
                    if spec is not None and spec.max_runs is not None and fired == spec.max_runs + 1:
                        what = f"{self.schedule.name!r} fires more often than max_runs={spec.max_runs}"
                        self.report.add("I3", what, self._events_near(event), kind="extra")
                case ScheduleFinished() if spec is not None:
                    self._check_finished(event, spec, anchor, fired)
                case _:
                    pass

    def _check_finished(self, event: ScheduleFinished, spec: ScheduleSpec, anchor: Ms, fired: int) -> None:
        """Report a schedule that was finished by `event` while it still owed fires.

        `spec` and `anchor`: its definition at that time. `fired`: the number of its fires until then.
        """
        if event.reason == "max_runs":
            wrong = spec.max_runs is None or fired < spec.max_runs
        elif _is_fixed_delay(spec):
            wrong = spec.end is None
        else:
            wrong = next(fires_of(spec, anchor, event.cursor, self.bounds.until), None) is not None
        if wrong:
            what = f"{self.schedule.name!r} was finished ({event.reason}) while it still owed fires"
            self.report.add("I2", what, self._events_near(event), kind="lost")

    # ── fixed delay ────────────────────────────────────────────────────────

    def _check_fixed_delay(self, history: History, found: Sequence[Definition]) -> None:
        """Check a fixed delay: each fire lies one interval after a fact, or 1 ms after a fact or fire.

        Also, a fire follows the last fact, if the schedule is active and has no open run. Facts are ends of runs,
        skipped fires, the cursors of creations, updates and resumptions, and 1 ms before the start. `found`: the
        definitions of the schedule, oldest first.
        """
        facts = self._fixed_delay_facts(history)
        fires = {run.fire_time for run in self.rows if run.fire_time is not None}
        self._check_fires_follow_facts(found, facts, fires)
        self._check_fire_after_last_fact(history, found[-1], facts, fires)

    def _fixed_delay_facts(self, history: History) -> set[Ms]:
        """Return the facts of the schedule: the instants from which its fixed delay may be counted."""
        mine = [e for e in history.events if isinstance(e, RunEvent) and e.schedule_id == self.schedule.id]
        facts = {event.at for event in mine if isinstance(event, _END_EVENTS)}
        facts.update(event.fire_time for event in mine if isinstance(event, RunSkipped) and event.fire_time is not None)
        for event in self.stream:
            if isinstance(event, ScheduleRewound):
                facts.add(event.to)
            if isinstance(event, ScheduleCreated | ScheduleUpdated | ScheduleResumed):
                facts.add(event.cursor)
                spec = getattr(event, "spec", self.schedule.spec)
                if spec.start is not None:
                    facts.add(spec.start - 1)
        return facts

    def _check_fires_follow_facts(self, found: Sequence[Definition], facts: set[Ms], fires: set[Ms]) -> None:
        """Check that every fire under a fixed delay lies one interval after a fact, or 1 ms after a fact or fire (I3).

        `found`: the definitions of the schedule. `facts`: the instants from which its delay may be counted. `fires`:
        the fire times of its runs.
        """
        intervals = {
            definition.spec.trigger.interval
            for definition in found
            if isinstance(definition.spec.trigger, EverySpec) and definition.spec.trigger.fixed_delay
        }
        for birth in self.births:
            fire: Ms = birth.fire_time or 0  # type: ignore[attr-defined]  # an event that inserts a fire's run has it
            definition = next((d for d in reversed(found) if d.since < fire), None)
            if definition is None or not _has_fixed_delay(definition):
                continue
            # If a run ended before the cursor, the next fire comes right after the cursor, without a delay.
            at_once = fire - 1 in facts or fire - 1 in fires
            if not at_once and not any(fire - interval in facts for interval in intervals):
                what = f"{self.schedule.name!r} fired at {isoformat(fire)}, which follows no end by its delay"
                self.report.add("I3", what, self._events_near(birth), kind="extra")

    def _check_fire_after_last_fact(self, history: History, last: Definition, facts: set[Ms], fires: set[Ms]) -> None:
        """Check that an active schedule without open runs fired at least one interval after the newest fact (I2).

        The fire may be late by `bounds.late`; None: nothing is checked. `last`: the schedule's newest definition.
        `facts`: the instants from which its delay may be counted. `fires`: the fire times of its runs.
        """
        row, late = self.schedule, self.bounds.late
        if (
            late is None
            or row.state != "active"
            or not _has_fixed_delay(last)
            or not isinstance(last.spec.trigger, EverySpec)
        ):
            return
        if any(run.state in OPEN for run in history.runs if run.schedule_id == row.id):
            return
        due = max(facts) + last.spec.trigger.interval
        if due + late < self.bounds.until and not any(fire >= due for fire in fires):
            what = f"{row.name!r} should have fired again at {isoformat(due)}"
            self.report.add("I2", what, self.log[-3:], kind="lost")

    # ── slices ─────────────────────────────────────────────────────────────

    def _events_around(self, fire: Ms) -> list[Event]:
        """Return the events to show for a fire: of the last definition before it, and of runs and spans around it."""
        about = [(_covered_through(event), event) for event in self.log if _covered_through(event) is not None]
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

    def _events_near(self, guilty: Event) -> list[Event]:
        """Return the event `guilty` with the two before it and the one after it in this schedule's log."""
        index = self.log.index(guilty)
        return self.log[max(0, index - 2) : index + 2]


def _fire_of(birth: RunEvent) -> Ms:
    """Return the fire time of an event that inserts a fire's run."""
    return birth.fire_time or 0 if isinstance(birth, RunScheduled | RunSkipped) else 0


def _fires_within(fires: list[Ms], span: Span) -> list[Ms]:
    """Return those of the sorted `fires` that lie inside a span."""
    return fires[bisect_right(fires, span.after) : bisect_right(fires, span.through)]


def _covered_through(event: Event) -> Ms | None:
    """Return the fire time of an event that inserts a run, or the end of a span; None for other events."""
    if isinstance(event, FiresElided):
        return event.through
    return event.fire_time if isinstance(event, RunScheduled | RunSkipped) else None


def _is_outside_window(spec: ScheduleSpec, fire: Ms) -> bool:
    """Return True if a fire lies outside the window, and the window does not open within the grace after it."""
    window = spec.options.window if spec.options is not None else None
    if window is None or is_open(window, fire):
        return False
    opening = next_opening(window, fire)
    return opening is None or opening > fire + spec.grace


def _is_fixed_delay(spec: ScheduleSpec) -> bool:
    return isinstance(spec.trigger, EverySpec) and spec.trigger.fixed_delay


def _has_fixed_delay(definition: Definition) -> bool:
    return _is_fixed_delay(definition.spec)


def _last_closed_at(stream: Sequence[ScheduleEvent]) -> Ms | None:
    """Return the instant from which the schedule owes no fires; None if it is active.

    A pause or deletion sets the instant to the time of that event, unless it is set already. `ScheduleFinished` sets it
    to the event's cursor. An edit of a paused schedule moves it to the event's cursor, if that is later.
    """
    closed: Ms | None = None
    for event in stream:
        if isinstance(event, ScheduleResumed):
            closed = None
        elif isinstance(event, SchedulePaused | ScheduleDeleted) and closed is None:
            closed = event.at
        elif isinstance(event, ScheduleFinished):
            closed = event.cursor
        elif isinstance(event, ScheduleRewound):
            closed = None if event.state == "active" else closed
        elif isinstance(event, ScheduleUpdated) and closed is not None:
            closed = max(closed, event.cursor)
    return closed
