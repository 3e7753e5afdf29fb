"""Rewinds: set a schedule that was planned ahead of the clock back to the present.

A wrong clock in the future plans every fire up to its time. When the clock is right again, the schedule has no fire
until then. A rewind takes back what was planned beyond the present, except runs: their fires do not run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from mainspring.model.events import ScheduleRewound
from mainspring.model.instant import Ms
from mainspring.model.schedule import Definition, Schedule, Span
from mainspring.rules.planning import is_fixed_delay, span_counter
from mainspring.rules.schedule_commands import first_planning
from mainspring.rules.schedule_draft import ScheduleDraft

#: A cursor at most this far beyond the store's time is no sign of a wrong clock: clocks of instances differ a little,
#: and fires are planned some hundred milliseconds ahead.
AHEAD_TOLERANCE_MS: Ms = 60_000


def is_ahead(schedule: Schedule, now: Ms) -> bool:
    """Return True if the schedule was planned ahead of the clock: its cursor lies more than a minute after `now`."""
    return schedule.state != "deleted" and schedule.cursor > now + AHEAD_TOLERANCE_MS


def rewind(
    schedule: Schedule,
    now: Ms,
    spans: Iterable[Span],
    runs: int,
    definitions: Sequence[Definition],
) -> ScheduleDraft:
    """Return the draft that sets the schedule's cursor back to `now`. It is empty if the schedule is not ahead.

    `spans`: its spans that end at `now` or later. `runs`: the number of its fires after `now` that have a run; these
    runs stay, and each counts again when the cursor passes its fire. `definitions`: all revisions of the schedule. A
    finished schedule is active again if it has a fire left, a paused one stays paused.
    """
    draft = ScheduleDraft(schedule)
    if not is_ahead(schedule, now):
        return draft
    by_revision = {one.revision: one for one in definitions}
    kept: list[Span] = []
    taken_back = uncounted = 0
    for span in spans:
        count = _count_until(span, now, by_revision.get(span.revision))
        if count:
            kept.append(replace(span, through=min(span.through, now), count=count))
        taken_back += span.count - count
        uncounted += span.count - count if span.reason not in ("dst", "paused") else 0
    # The anchor of an interval whose first fire comes at the schedule's start may lie in the future.
    anchor = now if schedule.anchor > max(now, schedule.spec.start or now) else schedule.anchor
    fired = max(0, schedule.fired - uncounted - runs)
    next_at = first_planning(schedule.spec, anchor, now)
    used_up = schedule.spec.max_runs is not None and fired >= schedule.spec.max_runs
    state = schedule.state
    if state == "finished" and next_at is not None and not used_up:
        state = "active"
    draft.emit(
        ScheduleRewound(
            ns=schedule.ns,
            schedule_id=schedule.id,
            from_=schedule.cursor,
            to=now,
            taken_back=taken_back,
            anchor=anchor,
            fired=fired,
            next_at={"active": next_at, "paused": schedule.until}.get(state),
            state=state,
            kept=tuple(kept),
        )
    )
    return draft


def _count_until(span: Span, now: Ms, definition: Definition | None) -> int:
    """Return how many fires of a span lie at `now` or before. `definition`: that of its revision, None if unknown."""
    if span.through <= now:
        return span.count
    if span.after >= now or definition is None or is_fixed_delay(definition.spec):
        return 0
    return span_counter(definition.spec, definition.anchor)(span.reason, span.after, now)
