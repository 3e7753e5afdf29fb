"""What covers a schedule's fires: rows one by one, spans by range, against the sequence its definitions owe."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from msgspec import Struct

from mainspring.model.ids import fire_id
from mainspring.model.instant import Ms, isoformat
from mainspring.model.run import Run
from mainspring.model.schedule import Definition, Span
from mainspring.rules.planning import bounds
from mainspring.rules.triggers import Trigger

#: So many differences of one schedule are named; the rest are counted.
NAMED = 20
DAY_MS: Ms = 86_400_000


class Difference(Struct, frozen=True, omit_defaults=True):
    """Something that cannot be explained: what kind, in words, and which schedule, run and fire time it is about."""

    kind: str
    text: str
    schedule_id: str | None = None
    run_id: str | None = None
    fire_time: str | None = None


class Stretch(Struct):
    """A definition, the part (first, last] in which it owes fires, and how many; no trigger for a fixed delay."""

    definition: Definition
    first: Ms
    last: Ms
    trigger: Trigger | None
    planned: int

    def fires(self, after: Ms, through: Ms) -> int:
        """Fires of the sequence in (after, through]."""
        low, high = bounds(self.definition.spec, after, max(after, through))
        return self.trigger.count_ms(low, high) if self.trigger is not None and high > low else 0

    def dropped(self, after: Ms, through: Ms) -> list[Ms]:
        """Fires that a clock change dropped in (after, through]."""
        low, high = bounds(self.definition.spec, after, max(after, through))
        return self.trigger.dropped_ms(low, high) if self.trigger is not None and high > low else []

    def covered_by(self, reason: str, after: Ms, through: Ms) -> int:
        """What a span of this reason stands for: a dst span the dropped fires, a pause both, the others the fires."""
        fires = 0 if reason == "dst" else self.fires(after, through)
        return fires + (len(self.dropped(after, through)) if reason in ("dst", "paused") else 0)


class Cover:
    """Collects the rows and spans of one schedule, and every difference from what is owed."""

    def __init__(self, schedule_id: str, name: str, stretches: list[Stretch]) -> None:
        self.schedule_id = schedule_id
        self.name = name
        self.stretches = stretches
        self.times: set[Ms] = set()
        self.unexplained = 0
        self.differences: list[Difference] = []
        self.has_fixed = any(stretch.trigger is None for stretch in stretches)
        self._sinces = [stretch.definition.since for stretch in stretches]
        self._by_revision = {stretch.definition.revision: stretch for stretch in stretches}
        self._ranges: dict[int, list[tuple[Ms, Ms]]] = {}
        self._dropped: dict[Ms, int] = {}
        self._fixed_rows: dict[str, Ms] = {}
        self._fixed_spans = 0
        self._sorted: list[Ms] = []

    def note(self, kind: str, text: str, *, count: int, run_id: str | None = None, fire: Ms | None = None) -> None:
        """Count a difference, and name it while there is room."""
        self.unexplained += count
        if len(self.differences) < NAMED:
            at = None if fire is None else isoformat(fire)
            self.differences.append(Difference(kind, f"{self.name}: {text}", self.schedule_id, run_id, at))

    # ── rows ───────────────────────────────────────────────────────────────

    def row(self, run: Run) -> None:
        """A row covers the fire it stands for; it is false when there is no such fire."""
        fire = run.fire_time
        if fire is None:
            return self._false(run, "has no fire time")
        stretch = self._in_force(fire)
        if stretch is None:
            return self._false(run, f"fires at {isoformat(fire)}, before the schedule's first definition")
        revision = stretch.definition.revision
        if run.revision != revision:
            text = f"run {run.id} of {isoformat(fire)} says revision {run.revision}, in force was {revision}"
            self.note("revision", text, count=1, run_id=run.id, fire=fire)
        if stretch.trigger is None:
            self._fixed_rows[run.id] = fire
            return None
        if fire > stretch.last:
            return self._false(run, f"fires at {isoformat(fire)}, which was not planned: planning is at {_at(stretch)}")
        if not stretch.fires(fire - 1, fire):
            return self._false(run, f"fires at {isoformat(fire)}, which is no fire of revision {revision}")
        if fire in self.times:
            text = f"run {run.id} is one more run of {isoformat(fire)}"
            return self.note("twice", text, count=1, run_id=run.id, fire=fire)
        self.times.add(fire)
        if run.id != fire_id(self.schedule_id, str(fire), fire):
            text = f"run {run.id} stands for {isoformat(fire)} and does not bear the id of that fire"
            self.note("identity", text, count=1, run_id=run.id, fire=fire)
        return None

    def _false(self, run: Run, why: str) -> None:
        self.note("false", f"run {run.id} {why}", count=1, run_id=run.id, fire=run.fire_time)

    def _in_force(self, fire: Ms) -> Stretch | None:
        index = bisect_left(self._sinces, fire) - 1
        return self.stretches[index] if index >= 0 else None

    # ── spans ──────────────────────────────────────────────────────────────

    def span(self, span: Span, low: Ms) -> int:
        """A span covers the fires of its range. Returns how many of them lie in the window after `low`."""
        shown = f"span {span.reason} after {isoformat(span.after)} through {isoformat(span.through)}"
        stretch = self._by_revision.get(span.revision)
        if stretch is None:
            self.note("span", f"{shown} names revision {span.revision}, unknown to the log", count=span.count)
            return span.count
        if stretch.trigger is None:
            self._fixed_spans += span.count
            return span.count
        whole = stretch.covered_by(span.reason, span.after, span.through)
        if whole != span.count:
            text = f"{shown} says {span.count} fires, its definition has {whole}"
            self.note("span", text, count=abs(whole - span.count), fire=span.through)
        first, last = max(span.after, stretch.definition.since), min(span.through, stretch.last)
        if last < span.through or first > span.after:
            outside = whole - stretch.covered_by(span.reason, first, max(first, last))
            if outside:
                self.note("span", f"{shown} covers {outside} fires that were never planned", count=outside)
        first = max(first, low)
        if last > first:
            if span.reason != "dst":
                self._ranges.setdefault(id(stretch), []).append((first, last))
            if span.reason in ("dst", "paused"):
                for at in stretch.dropped(first, last):
                    self._dropped[at] = self._dropped.get(at, 0) + 1
        cut = 0 if span.after >= low else stretch.covered_by(span.reason, span.after, min(low, span.through))
        return span.count - cut

    def check_overlaps(self) -> None:
        """Name what is covered twice: by two spans, or by a span and a row."""
        self._sorted = sorted(self.times)
        for stretch in self.stretches:
            ranges = self._ranges.get(id(stretch), [])
            merged = _merge(ranges)
            extra = sum(stretch.fires(*r) for r in ranges) - sum(stretch.fires(*r) for r in merged)
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

    # ── what nothing covers ────────────────────────────────────────────────

    def uncovered(self) -> int:
        """How many owed fires have neither a row nor a span; counted, not listed."""
        total = 0
        for stretch in self.stretches:
            if stretch.trigger is not None:
                total += sum(stretch.fires(*gap) - self._held(*gap) for gap in self._gaps(stretch))
                total += len(self._undropped(stretch))
        return total

    def owes(self, fire: Ms) -> bool:
        """True for a fire of the sequence that no span covers."""
        stretch = self._in_force(fire)
        if stretch is None or not stretch.first < fire <= stretch.last or not stretch.fires(fire - 1, fire):
            return False
        return not any(after < fire <= through for after, through in self._ranges.get(id(stretch), []))

    def name_missing(self, count: int, certain: list[Ms], tallied: dict[int, int]) -> None:
        """Name fires that nothing covers: those the log knows first, then by day where the day's tallies fall short."""
        room = min(count, NAMED)
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
        if len(found) < count and (not found or count > NAMED):
            self.note("missing", f"{count - len(found)} more planned fires have neither a run nor a span", count=0)

    def _missing(self, stretch: Stretch, room: int, known: set[Ms], tallied: dict[int, int]) -> list[Ms]:
        found: list[Ms] = []
        for gap in self._gaps(stretch):
            after, end = gap
            while after < end and len(found) < room:
                day = (after + 1) // DAY_MS
                through = min(end, (day + 1) * DAY_MS - 1)
                held = self._held(after, through)
                if stretch.fires(after, through) - held > tallied.get(day, 0):
                    found += self._listed(stretch, after, through, held + len(known) + room, known)[: room - len(found)]
                after = self._next_day(stretch, through)
        return found

    def _listed(self, stretch: Stretch, after: Ms, through: Ms, limit: int, known: set[Ms]) -> list[Ms]:
        assert stretch.trigger is not None
        low, high = bounds(stretch.definition.spec, after, through)
        fires = stretch.trigger.fires_ms(low, high, limit)
        return [fire for fire in fires if fire not in self.times and fire not in known]

    def _next_day(self, stretch: Stretch, through: Ms) -> Ms:
        """Where the next day with a fire begins; a yearly schedule is not walked day by day."""
        assert stretch.trigger is not None
        fire = stretch.trigger.next_ms(through)
        return stretch.last if fire is None else max(through, fire // DAY_MS * DAY_MS - 1)

    def _held(self, after: Ms, through: Ms) -> int:
        return bisect_right(self._sorted, through) - bisect_right(self._sorted, after)

    def _gaps(self, stretch: Stretch) -> list[tuple[Ms, Ms]]:
        """The parts of a stretch that no span covers."""
        gaps: list[tuple[Ms, Ms]] = []
        at = stretch.first
        for after, through in self._ranges.get(id(stretch), []):
            if after > at:
                gaps.append((at, after))
            at = max(at, through)
        return [*gaps, (at, stretch.last)] if stretch.last > at else gaps

    def _undropped(self, stretch: Stretch) -> list[Ms]:
        return [at for at in stretch.dropped(stretch.first, stretch.last) if at not in self._dropped]

    # ── fixed delay ────────────────────────────────────────────────────────

    def check_fixed(self, births: dict[str, Ms]) -> int:
        """A fixed delay has no sequence of its own: what was born must have a row, and the reverse. Returns planned."""
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
    merged: list[tuple[Ms, Ms]] = []
    for after, through in sorted(ranges):
        if merged and after < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], through))
        else:
            merged.append((after, through))
    return merged


def _at(stretch: Stretch) -> str:
    return isoformat(stretch.last)
