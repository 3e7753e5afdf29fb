"""Compare the rows and spans of one schedule with the fires that its definitions owe.

A row of a run covers one planned fire, a span covers a range of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from msgspec import Struct

from mainspring.model.ids import fire_id
from mainspring.model.instant import DAY_MS, Ms, isoformat
from mainspring.model.plural import plural
from mainspring.model.run import Run
from mainspring.model.schedule import Definition, Span
from mainspring.rules.planning import clip_to_schedule
from mainspring.rules.triggers import Trigger

#: Most differences of one schedule that are named. Further differences are only counted.
MAX_NAMED_DIFFERENCES = 20


class Difference(Struct, frozen=True, omit_defaults=True):
    """One unexplained difference: its kind, a text, and the schedule, run and fire time that it is about, if any."""

    #: missing, false, twice, identity, revision, span, tally, definition or schedule.
    kind: str
    text: str
    schedule_id: str | None = None
    run_id: str | None = None
    fire_time: str | None = None


class Period(Struct):
    """A definition of a schedule, the interval (first, last] in which it owes fires, and how many it owes (`planned`).

    With a fixed delay, whose fires cannot be computed, `trigger` is None and `planned` is 0.
    """

    definition: Definition
    first: Ms
    last: Ms
    trigger: Trigger | None
    planned: int

    def count_fires(self, after: Ms, through: Ms) -> int:
        """Return how many fires the definition has in (after, through], cut to the schedule's start and end.

        Fires that a clock change dropped (ADR 4) are not counted. For a fixed delay the number is 0.
        """
        low, high = clip_to_schedule(self.definition.spec, after, max(after, through))
        return self.trigger.count_ms(low, high) if self.trigger is not None and high > low else 0

    def find_dropped(self, after: Ms, through: Ms) -> list[Ms]:
        """Return the fires in (after, through] that a clock change dropped (ADR 4); none for a fixed delay."""
        low, high = clip_to_schedule(self.definition.spec, after, max(after, through))
        return self.trigger.dropped_ms(low, high) if self.trigger is not None and high > low else []

    def count_covered(self, reason: str, after: Ms, through: Ms) -> int:
        """Return how many fires in (after, through] a span of this reason covers.

        A span "dst" covers the fires that a clock change dropped, a span "paused" all fires. A span of any other reason
        covers the fires that no clock change dropped.
        """
        fires = 0 if reason == "dst" else self.count_fires(after, through)
        return fires + (len(self.find_dropped(after, through)) if reason in ("dst", "paused") else 0)


class Rewind(Struct, frozen=True):
    """A rewind of the schedule: it took back the fires in (to, from_]. `seq` is the number of its event in the log."""

    to: Ms
    from_: Ms
    seq: int


class Cover:
    """Collects the rows and spans of one schedule, and their differences from the fires that its definitions owe.

    Call `add_row` and `add_span` for each row and span, then `check_overlaps`, then the methods about uncovered fires,
    which are owed fires with neither a row nor a span.
    """

    def __init__(self, schedule_id: str, name: str, periods: list[Period], rewinds: Sequence[Rewind] = ()) -> None:
        self.schedule_id = schedule_id
        self.name = name
        self.periods = periods
        self._rewinds = rewinds
        #: Fires that a row covers.
        self.times: set[Ms] = set()
        self.unexplained = 0
        self.differences: list[Difference] = []
        #: True if a definition has a fixed delay.
        self.has_fixed = any(period.trigger is None for period in periods)
        self._sinces = [period.definition.since for period in periods]
        self._by_revision = {period.definition.revision: period for period in periods}
        #: Python's `id()` of a period → the ranges (after, through] that spans cover in it, for `check_overlaps`, which
        #: merges them.
        self._ranges: dict[int, list[tuple[Ms, Ms]]] = {}
        #: Fire that a clock change dropped → number of spans that cover it.
        self._dropped: dict[Ms, int] = {}
        #: For definitions with a fixed delay: run id → fire time of the rows, and the number of fires in spans.
        self._fixed_rows: dict[str, Ms] = {}
        self._fixed_spans = 0
        #: `times` in order.
        self._sorted: list[Ms] = []

    def add_difference(
        self, kind: str, text: str, *, count: int, run_id: str | None = None, fire: Ms | None = None
    ) -> None:
        """Add `count` to `unexplained`, and a `Difference` to `differences` if it has room (`MAX_NAMED_DIFFERENCES`).

        `text` tells what is wrong; `run_id` and `fire` are the run and the fire time that it is about.
        """
        self.unexplained += count
        if len(self.differences) < MAX_NAMED_DIFFERENCES:
            at = None if fire is None else isoformat(fire)
            self.differences.append(Difference(kind, f"{self.name}: {text}", self.schedule_id, run_id, at))

    def find_rewinds(self, run: Run) -> list[Rewind]:
        """Return the rewinds that took back the fire of a run, if it was planned before."""
        fire = run.fire_time
        return [one for one in self._rewinds if fire is not None and one.to < fire <= one.from_]

    def is_planned(self, run: Run) -> bool:
        """Return True if a definition plans the fire of a run, up to the cursor. True for a fixed delay."""
        fire = run.fire_time
        period = None if fire is None else self._find_period(fire)
        if fire is None or period is None:
            return False
        return period.trigger is None or (fire <= period.last and period.count_fires(fire - 1, fire) > 0)

    # ── rows ───────────────────────────────────────────────────────────────

    def add_row(self, run: Run) -> None:
        """Add a run row, which covers the fire of its fire time.

        Report a row whose fire does not exist or has a row already, or that has a wrong revision or id.
        """
        fire = run.fire_time
        if fire is None:
            return self._add_false_row(run, "has no fire time")
        period = self._find_period(fire)
        if period is None:
            return self._add_false_row(run, f"fires at {isoformat(fire)}, before the schedule's first definition")
        revision = period.definition.revision
        if run.revision != revision and not self.find_rewinds(run):
            text = f"run {run.id} of {isoformat(fire)} says revision {run.revision}, in force was {revision}"
            self.add_difference("revision", text, count=1, run_id=run.id, fire=fire)
        if period.trigger is None:
            self._fixed_rows[run.id] = fire
            return None
        if fire > period.last:
            return self._add_false_row(
                run, f"fires at {isoformat(fire)}, which was not planned: planning is at {_last_text(period)}"
            )
        if not period.count_fires(fire - 1, fire):
            return self._add_false_row(run, f"fires at {isoformat(fire)}, which is no fire of revision {revision}")
        if fire in self.times:
            text = f"run {run.id} is one more run of {isoformat(fire)}"
            return self.add_difference("twice", text, count=1, run_id=run.id, fire=fire)
        self.times.add(fire)
        if run.id != fire_id(self.schedule_id, str(fire), fire):
            text = f"run {run.id} stands for {isoformat(fire)} and does not bear the id of that fire"
            self.add_difference("identity", text, count=1, run_id=run.id, fire=fire)
        return None

    def _add_false_row(self, run: Run, why: str) -> None:
        self.add_difference("false", f"run {run.id} {why}", count=1, run_id=run.id, fire=run.fire_time)

    def _find_period(self, fire: Ms) -> Period | None:
        """Return the period whose definition was in force at the instant `fire`; None before the first definition."""
        index = bisect_left(self._sinces, fire) - 1
        return self.periods[index] if index >= 0 else None

    # ── spans ──────────────────────────────────────────────────────────────

    def add_span(self, span: Span, low: Ms) -> int:
        """Add a span, which covers the fires of its range, and return how many of its fires lie after `low`.

        For a fixed delay or an unknown revision, all its fires count as later than `low`. Report an unknown revision, a
        wrong count, and fires outside the time in which the definition was in force.
        """
        shown = f"span {span.reason} after {isoformat(span.after)} through {isoformat(span.through)}"
        period = self._by_revision.get(span.revision)
        if period is None:
            self.add_difference("span", f"{shown} names revision {span.revision}, unknown to the log", count=span.count)
            return span.count
        if period.trigger is None:
            self._fixed_spans += span.count
            return span.count
        whole = period.count_covered(span.reason, span.after, span.through)
        if whole != span.count:
            text = f"{shown} says {plural(span.count, 'fire')}, its definition has {whole}"
            self.add_difference("span", text, count=abs(whole - span.count), fire=span.through)
        first, last = max(span.after, period.definition.since), min(span.through, period.last)
        if last < span.through or first > span.after:
            outside = whole - period.count_covered(span.reason, first, max(first, last))
            if outside:
                self.add_difference("span", f"{shown} covers {plural(outside, 'fire')} never planned", count=outside)
        first = max(first, low)
        if last > first:
            if span.reason != "dst":
                self._ranges.setdefault(id(period), []).append((first, last))
            if span.reason in ("dst", "paused"):
                for at in period.find_dropped(first, last):
                    self._dropped[at] = self._dropped.get(at, 0) + 1
        cut = 0 if span.after >= low else period.count_covered(span.reason, span.after, min(low, span.through))
        return span.count - cut

    def check_overlaps(self) -> None:
        """Report fires that are covered twice: by two spans, or by a span and a row.

        Also sort the rows, and sort and merge the ranges of spans, for `count_uncovered`, `_find_gaps` and `owes`.
        """
        self._sorted = sorted(self.times)
        for period in self.periods:
            ranges = self._ranges.get(id(period), [])
            merged = _merge(ranges)
            extra = sum(period.count_fires(*r) for r in ranges) - sum(period.count_fires(*r) for r in merged)
            if extra:
                text = f"{extra} fires of revision {period.definition.revision} are in two spans"
                self.add_difference("twice", text, count=extra)
            self._ranges[id(period)] = merged
            for after, through in merged:
                for fire in self._sorted[bisect_right(self._sorted, after) : bisect_right(self._sorted, through)]:
                    run_id = fire_id(self.schedule_id, str(fire), fire)
                    text = f"{isoformat(fire)} has a run, {run_id}, and lies in a span"
                    self.add_difference("twice", text, count=1, run_id=run_id, fire=fire)
        for at, times in self._dropped.items():
            if times > 1:
                self.add_difference("twice", f"{isoformat(at)} lies in {times} spans", count=times - 1, fire=at)

    # ── uncovered fires ────────────────────────────────────────────────────

    def count_uncovered(self) -> int:
        """Return how many owed fires have neither a row nor a span. Fires of fixed delays are not counted.

        Why triggers count fires instead of listing them: there may be millions. Call `check_overlaps` first.
        """
        total = 0
        for period in self.periods:
            if period.trigger is not None:
                total += sum(period.count_fires(*gap) - self._count_rows(*gap) for gap in self._find_gaps(period))
                total += len(self._find_uncovered_dropped(period))
        return total

    def owes(self, fire: Ms) -> bool:
        """Return True if a definition owes this fire and no span covers it. Rows are not considered.

        Return False for a fixed delay, and for a fire that a clock change dropped.
        """
        period = self._find_period(fire)
        if period is None or not period.first < fire <= period.last or not period.count_fires(fire - 1, fire):
            return False
        return not any(after < fire <= through for after, through in self._ranges.get(id(period), []))

    def name_missing(self, count: int, certain: list[Ms], tallied: dict[int, int]) -> None:
        """Report `count` uncovered fires as missing: add them to `unexplained`, name up to `MAX_NAMED_DIFFERENCES`.

        `certain`: owed fires without a row that the log proves were planned and not removed by retention; named first.
        Then, period by period: fires that a clock change dropped, and fires of days with more uncovered fires than
        retention removed. `tallied`: day (days since 1970) → number of removed fires.
        """
        room = min(count, MAX_NAMED_DIFFERENCES)
        found = certain[:room]
        for period in self.periods:
            if len(found) >= room:
                break
            if period.trigger is not None:
                found += [at for at in self._find_uncovered_dropped(period) if at not in found][: room - len(found)]
                found += self._find_missing(period, room - len(found), set(found), tallied)
        self.unexplained += count
        for fire in found:
            run_id = fire_id(self.schedule_id, str(fire), fire)
            text = f"{isoformat(fire)} was planned and has neither a run nor a span (its run would be {run_id})"
            self.add_difference("missing", text, count=0, run_id=run_id, fire=fire)
        if len(found) < count and (not found or count > MAX_NAMED_DIFFERENCES):
            self.add_difference(
                "missing", f"{count - len(found)} more planned fires have neither a run nor a span", count=0
            )

    def _find_missing(self, period: Period, room: int, known: set[Ms], tallied: dict[int, int]) -> list[Ms]:
        """Return up to `room` uncovered fires of a period, from days on which retention does not explain all of them.

        These are the days with more uncovered fires than retention removed. `known`: fires to leave out. `tallied`: day
        (days since 1970) → number of fires that retention removed.
        """
        found: list[Ms] = []
        for gap in self._find_gaps(period):
            after, end = gap
            while after < end and len(found) < room:
                day = (after + 1) // DAY_MS
                through = min(end, (day + 1) * DAY_MS - 1)
                held = self._count_rows(after, through)
                if period.count_fires(after, through) - held > tallied.get(day, 0):
                    more = self._list_uncovered(period, after, through, held + len(known) + room, known)
                    found += more[: room - len(found)]
                after = self._next_day(period, through)
        return found

    def _list_uncovered(self, period: Period, after: Ms, through: Ms, limit: int, known: set[Ms]) -> list[Ms]:
        """Return the uncovered fires among the first `limit` fires in (after, through].

        No span may cover a part of this range. `known`: fires to leave out.
        """
        assert period.trigger is not None
        low, high = clip_to_schedule(period.definition.spec, after, through)
        fires = period.trigger.fires_ms(low, high, limit)
        return [fire for fire in fires if fire not in self.times and fire not in known]

    def _next_day(self, period: Period, through: Ms) -> Ms:
        """Return the instant before the next day that has a fire after `through`; the period's end if there is none.

        Why: the search for missing fires goes day by day, and skips days without fires in this way. A yearly schedule
        has fires on few days.
        """
        assert period.trigger is not None
        fire = period.trigger.next_ms(through)
        return period.last if fire is None else max(through, fire // DAY_MS * DAY_MS - 1)

    def _count_rows(self, after: Ms, through: Ms) -> int:
        """Return how many fires in (after, through] a row covers."""
        return bisect_right(self._sorted, through) - bisect_right(self._sorted, after)

    def _find_gaps(self, period: Period) -> list[tuple[Ms, Ms]]:
        """Return the parts (after, through] of a period that no span covers. Call `check_overlaps` first.

        Spans "dst", which cover dropped fires only, do not count: their ranges are returned as gaps.
        """
        gaps: list[tuple[Ms, Ms]] = []
        at = period.first
        for after, through in self._ranges.get(id(period), []):
            if after > at:
                gaps.append((at, after))
            at = max(at, through)
        return [*gaps, (at, period.last)] if period.last > at else gaps

    def _find_uncovered_dropped(self, period: Period) -> list[Ms]:
        """Return the fires of a period that a clock change dropped and that no span covers."""
        return [at for at in period.find_dropped(period.first, period.last) if at not in self._dropped]

    # ── fixed delay ────────────────────────────────────────────────────────

    def check_fixed(self, births: dict[str, Ms]) -> int:
        """Report fires of fixed delays that have an event and no row, or a row and no event.

        `births`: run id → fire time, for all fires of the schedule in the log. Return how many fires were planned under
        fixed delays, including the fires in spans. Why `births` are needed: the fires of a fixed delay cannot be
        computed from the definition, because each depends on the end of a run.
        """
        fixed = {
            run_id: fire
            for run_id, fire in births.items()
            if (period := self._find_period(fire)) is not None and period.trigger is None
        }
        for run_id, fire in fixed.items():
            if run_id not in self._fixed_rows:
                text = f"{isoformat(fire)} was planned and its run {run_id} has no row"
                self.add_difference("missing", text, count=1, run_id=run_id, fire=fire)
        for run_id, fire in self._fixed_rows.items():
            if run_id not in fixed:
                text = f"run {run_id} of {isoformat(fire)} was never planned"
                self.add_difference("false", text, count=1, run_id=run_id, fire=fire)
        return len(fixed) + self._fixed_spans


def _merge(ranges: list[tuple[Ms, Ms]]) -> list[tuple[Ms, Ms]]:
    """Return the ranges (after, through] in order, with each group of overlapping ranges as one."""
    merged: list[tuple[Ms, Ms]] = []
    for after, through in sorted(ranges):
        if merged and after < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], through))
        else:
            merged.append((after, through))
    return merged


def _last_text(period: Period) -> str:
    """Return the last instant of a period as ISO 8601 text, for messages."""
    return isoformat(period.last)
