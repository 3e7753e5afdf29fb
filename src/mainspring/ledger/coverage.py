"""Compare the rows and spans of one schedule with the fires that its definitions owe.

A row of a run covers one planned fire, a span covers a range of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from msgspec import Struct

from mainspring.model.ids import fire_id
from mainspring.model.instant import Ms, isoformat
from mainspring.model.run import Run
from mainspring.model.schedule import Definition, Span
from mainspring.rules.planning import clip_to_schedule
from mainspring.rules.triggers import Trigger

#: Most differences of one schedule that are named; the others are only counted.
MAX_NAMED_DIFFERENCES = 20
DAY_MS: Ms = 86_400_000


class Difference(Struct, frozen=True, omit_defaults=True):
    """One unexplained difference: its kind, a text, and the schedule, run and fire time that it concerns."""

    #: missing, false, twice, identity, revision, span, tally, definition or schedule.
    kind: str
    text: str
    schedule_id: str | None = None
    run_id: str | None = None
    fire_time: str | None = None


class Stretch(Struct):
    """A definition, the interval (first, last] in which it owes fires, and how many it owes (`planned`).

    With a fixed delay, whose fires cannot be computed, `trigger` is None and `planned` is 0.
    """

    definition: Definition
    first: Ms
    last: Ms
    trigger: Trigger | None
    planned: int

    def count_fires(self, after: Ms, through: Ms) -> int:
        """Return how many fires, without dropped ones, the definition has in (after, through]; 0 for a fixed delay."""
        low, high = clip_to_schedule(self.definition.spec, after, max(after, through))
        return self.trigger.count_ms(low, high) if self.trigger is not None and high > low else 0

    def find_dropped(self, after: Ms, through: Ms) -> list[Ms]:
        """Return the fires in (after, through] that a clock change dropped (ADR 4)."""
        low, high = clip_to_schedule(self.definition.spec, after, max(after, through))
        return self.trigger.dropped_ms(low, high) if self.trigger is not None and high > low else []

    def count_covered(self, reason: str, after: Ms, through: Ms) -> int:
        """Return how many fires in (after, through] a span of this reason covers.

        `dst` covers the fires that a clock change dropped, `paused` all fires, any other reason those not dropped.
        """
        fires = 0 if reason == "dst" else self.count_fires(after, through)
        return fires + (len(self.find_dropped(after, through)) if reason in ("dst", "paused") else 0)


class Cover:
    """Collects the rows and spans of one schedule, and their differences from the fires that its definitions owe.

    Call `add_row` and `add_span` for all of them, then `check_overlaps`, then the methods below it.
    """

    def __init__(self, schedule_id: str, name: str, stretches: list[Stretch]) -> None:
        self.schedule_id = schedule_id
        self.name = name
        self.stretches = stretches
        #: Fires that a row covers.
        self.times: set[Ms] = set()
        self.unexplained = 0
        self.differences: list[Difference] = []
        #: True if a definition has a fixed delay.
        self.has_fixed = any(stretch.trigger is None for stretch in stretches)
        self._sinces = [stretch.definition.since for stretch in stretches]
        self._by_revision = {stretch.definition.revision: stretch for stretch in stretches}
        #: `id` of a stretch → the ranges (after, through] that spans cover in it; merged by `check_overlaps`.
        self._ranges: dict[int, list[tuple[Ms, Ms]]] = {}
        #: Dropped fire → number of spans that cover it.
        self._dropped: dict[Ms, int] = {}
        #: Run id → fire time of the rows under a fixed delay, and the number of fires in its spans.
        self._fixed_rows: dict[str, Ms] = {}
        self._fixed_spans = 0
        #: `times` in order.
        self._sorted: list[Ms] = []

    def note(self, kind: str, text: str, *, count: int, run_id: str | None = None, fire: Ms | None = None) -> None:
        """Add `count` to the unexplained differences, and name one if fewer than `MAX_NAMED_DIFFERENCES` are named.

        `text` says what is wrong; `run_id` and `fire` are the run and the fire time that it concerns.
        """
        self.unexplained += count
        if len(self.differences) < MAX_NAMED_DIFFERENCES:
            at = None if fire is None else isoformat(fire)
            self.differences.append(Difference(kind, f"{self.name}: {text}", self.schedule_id, run_id, at))

    # ── rows ───────────────────────────────────────────────────────────────

    def add_row(self, run: Run) -> None:
        """Add a run row, which covers the fire of its fire time.

        Report a row whose fire does not exist or has a row already, or that has a wrong revision or id.
        """
        fire = run.fire_time
        if fire is None:
            return self._note_false_row(run, "has no fire time")
        stretch = self._in_force(fire)
        if stretch is None:
            return self._note_false_row(run, f"fires at {isoformat(fire)}, before the schedule's first definition")
        revision = stretch.definition.revision
        if run.revision != revision:
            text = f"run {run.id} of {isoformat(fire)} says revision {run.revision}, in force was {revision}"
            self.note("revision", text, count=1, run_id=run.id, fire=fire)
        if stretch.trigger is None:
            self._fixed_rows[run.id] = fire
            return None
        if fire > stretch.last:
            return self._note_false_row(
                run, f"fires at {isoformat(fire)}, which was not planned: planning is at {_at(stretch)}"
            )
        if not stretch.count_fires(fire - 1, fire):
            return self._note_false_row(run, f"fires at {isoformat(fire)}, which is no fire of revision {revision}")
        if fire in self.times:
            text = f"run {run.id} is one more run of {isoformat(fire)}"
            return self.note("twice", text, count=1, run_id=run.id, fire=fire)
        self.times.add(fire)
        if run.id != fire_id(self.schedule_id, str(fire), fire):
            text = f"run {run.id} stands for {isoformat(fire)} and does not bear the id of that fire"
            self.note("identity", text, count=1, run_id=run.id, fire=fire)
        return None

    def _note_false_row(self, run: Run, why: str) -> None:
        self.note("false", f"run {run.id} {why}", count=1, run_id=run.id, fire=run.fire_time)

    def _in_force(self, fire: Ms) -> Stretch | None:
        """Return the stretch whose definition was in force at a fire; None before the first one."""
        index = bisect_left(self._sinces, fire) - 1
        return self.stretches[index] if index >= 0 else None

    # ── spans ──────────────────────────────────────────────────────────────

    def add_span(self, span: Span, low: Ms) -> int:
        """Add a span, which covers the fires of its range, and return how many of its fires lie after `low`.

        All are returned for a fixed delay or an unknown revision. Report an unknown revision, a wrong count, and fires
        outside the time in which the definition was in force.
        """
        shown = f"span {span.reason} after {isoformat(span.after)} through {isoformat(span.through)}"
        stretch = self._by_revision.get(span.revision)
        if stretch is None:
            self.note("span", f"{shown} names revision {span.revision}, unknown to the log", count=span.count)
            return span.count
        if stretch.trigger is None:
            self._fixed_spans += span.count
            return span.count
        whole = stretch.count_covered(span.reason, span.after, span.through)
        if whole != span.count:
            text = f"{shown} says {span.count} fires, its definition has {whole}"
            self.note("span", text, count=abs(whole - span.count), fire=span.through)
        first, last = max(span.after, stretch.definition.since), min(span.through, stretch.last)
        if last < span.through or first > span.after:
            outside = whole - stretch.count_covered(span.reason, first, max(first, last))
            if outside:
                self.note("span", f"{shown} covers {outside} fires that were never planned", count=outside)
        first = max(first, low)
        if last > first:
            if span.reason != "dst":
                self._ranges.setdefault(id(stretch), []).append((first, last))
            if span.reason in ("dst", "paused"):
                for at in stretch.find_dropped(first, last):
                    self._dropped[at] = self._dropped.get(at, 0) + 1
        cut = 0 if span.after >= low else stretch.count_covered(span.reason, span.after, min(low, span.through))
        return span.count - cut

    def check_overlaps(self) -> None:
        """Report fires that are covered twice: by two spans, or by a span and a row."""
        self._sorted = sorted(self.times)
        for stretch in self.stretches:
            ranges = self._ranges.get(id(stretch), [])
            merged = _merge(ranges)
            extra = sum(stretch.count_fires(*r) for r in ranges) - sum(stretch.count_fires(*r) for r in merged)
            if extra:
                text = f"{extra} fires of revision {stretch.definition.revision} are in two spans"
                self.note("twice", text, count=extra)
            self._ranges[id(stretch)] = merged
            for after, through in merged:
                for fire in self._sorted[bisect_right(self._sorted, after) : bisect_right(self._sorted, through)]:
                    run_id = fire_id(self.schedule_id, str(fire), fire)
                    text = f"{isoformat(fire)} has a run, {run_id}, and lies in a span"
                    self.note("twice", text, count=1, run_id=run_id, fire=fire)
        for at, times in self._dropped.items():
            if times > 1:
                self.note("twice", f"{isoformat(at)} lies in {times} spans", count=times - 1, fire=at)

    # ── uncovered fires ────────────────────────────────────────────────────

    def count_uncovered(self) -> int:
        """Return how many owed fires have neither a row nor a span; they are counted without being listed."""
        total = 0
        for stretch in self.stretches:
            if stretch.trigger is not None:
                total += sum(stretch.count_fires(*gap) - self._held(*gap) for gap in self._gaps(stretch))
                total += len(self._undropped(stretch))
        return total

    def owes(self, fire: Ms) -> bool:
        """Return True if a definition owes this fire and no span covers it. Rows are not considered."""
        stretch = self._in_force(fire)
        if stretch is None or not stretch.first < fire <= stretch.last or not stretch.count_fires(fire - 1, fire):
            return False
        return not any(after < fire <= through for after, through in self._ranges.get(id(stretch), []))

    def name_missing(self, count: int, certain: list[Ms], tallied: dict[int, int]) -> None:
        """Report `count` uncovered fires, and name some of them.

        Named are first the `certain` ones, then others of days whose tallies are too small. `tallied`: day → number of
        fires in tallies.
        """
        room = min(count, MAX_NAMED_DIFFERENCES)
        found = certain[:room]
        for stretch in self.stretches:
            if len(found) >= room:
                break
            if stretch.trigger is not None:
                found += [at for at in self._undropped(stretch) if at not in found][: room - len(found)]
                found += self._missing(stretch, room - len(found), set(found), tallied)
        self.unexplained += count
        for fire in found:
            run_id = fire_id(self.schedule_id, str(fire), fire)
            text = f"{isoformat(fire)} was planned and has neither a run nor a span (its run would be {run_id})"
            self.note("missing", text, count=0, run_id=run_id, fire=fire)
        if len(found) < count and (not found or count > MAX_NAMED_DIFFERENCES):
            self.note("missing", f"{count - len(found)} more planned fires have neither a run nor a span", count=0)

    def _missing(self, stretch: Stretch, room: int, known: set[Ms], tallied: dict[int, int]) -> list[Ms]:
        """Return up to `room` uncovered fires of a stretch, without those in `known`, by the days that lack fires."""
        found: list[Ms] = []
        for gap in self._gaps(stretch):
            after, end = gap
            while after < end and len(found) < room:
                day = (after + 1) // DAY_MS
                through = min(end, (day + 1) * DAY_MS - 1)
                held = self._held(after, through)
                if stretch.count_fires(after, through) - held > tallied.get(day, 0):
                    found += self._listed(stretch, after, through, held + len(known) + room, known)[: room - len(found)]
                after = self._next_day(stretch, through)
        return found

    def _listed(self, stretch: Stretch, after: Ms, through: Ms, limit: int, known: set[Ms]) -> list[Ms]:
        """Return those of the first `limit` fires in (after, through] that have no row and are not in `known`."""
        assert stretch.trigger is not None
        low, high = clip_to_schedule(stretch.definition.spec, after, through)
        fires = stretch.trigger.fires_ms(low, high, limit)
        return [fire for fire in fires if fire not in self.times and fire not in known]

    def _next_day(self, stretch: Stretch, through: Ms) -> Ms:
        """Return the last ms before the next day with a fire after `through`; the stretch's end if there is none.

        Why: a yearly schedule is not walked day by day.
        """
        assert stretch.trigger is not None
        fire = stretch.trigger.next_ms(through)
        return stretch.last if fire is None else max(through, fire // DAY_MS * DAY_MS - 1)

    def _held(self, after: Ms, through: Ms) -> int:
        """Return how many fires in (after, through] a row covers."""
        return bisect_right(self._sorted, through) - bisect_right(self._sorted, after)

    def _gaps(self, stretch: Stretch) -> list[tuple[Ms, Ms]]:
        """Return the parts (after, through] of a stretch that no span covers."""
        gaps: list[tuple[Ms, Ms]] = []
        at = stretch.first
        for after, through in self._ranges.get(id(stretch), []):
            if after > at:
                gaps.append((at, after))
            at = max(at, through)
        return [*gaps, (at, stretch.last)] if stretch.last > at else gaps

    def _undropped(self, stretch: Stretch) -> list[Ms]:
        """Return the fires of a stretch that a clock change dropped and no span covers."""
        return [at for at in stretch.find_dropped(stretch.first, stretch.last) if at not in self._dropped]

    # ── fixed delay ────────────────────────────────────────────────────────

    def check_fixed(self, births: dict[str, Ms]) -> int:
        """Compare the fixed-delay fires of the log with their rows, and report what only one of the two has.

        `births`: run id → fire time, for all fires of the schedule in the log. Return how many fires were planned under
        fixed delays, those in spans included. The log is the only source for them: each follows from the end of a run.
        """
        fixed = {
            run_id: fire
            for run_id, fire in births.items()
            if (stretch := self._in_force(fire)) is not None and stretch.trigger is None
        }
        for run_id, fire in fixed.items():
            if run_id not in self._fixed_rows:
                text = f"{isoformat(fire)} was planned and its run {run_id} has no row"
                self.note("missing", text, count=1, run_id=run_id, fire=fire)
        for run_id, fire in self._fixed_rows.items():
            if run_id not in fixed:
                text = f"run {run_id} of {isoformat(fire)} was never planned"
                self.note("false", text, count=1, run_id=run_id, fire=fire)
        return len(fixed) + self._fixed_spans


def _merge(ranges: list[tuple[Ms, Ms]]) -> list[tuple[Ms, Ms]]:
    """Return the ranges in order, with each group of overlapping ranges as one."""
    merged: list[tuple[Ms, Ms]] = []
    for after, through in sorted(ranges):
        if merged and after < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], through))
        else:
            merged.append((after, through))
    return merged


def _at(stretch: Stretch) -> str:
    """Return the end of a stretch as text."""
    return isoformat(stretch.last)
