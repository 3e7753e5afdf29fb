"""Schedule drafts: collect the events of one change of a schedule, and fold them into the schedule's new row.

Rules add events to a draft, and `evolve_schedule` computes the row from the events. So row and log cannot disagree
(ADR 2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from mainspring.model.change import Body, Change, ChangeKind, Guard, ScheduleAbsent, ScheduleAt
from mainspring.model.events import (
    Event,
    FireCountedAgain,
    FiresElided,
    RunEvent,
    RunScheduled,
    RunSkipped,
    ScheduleCreated,
    ScheduleDeleted,
    ScheduleFinished,
    SchedulePaused,
    ScheduleResumed,
    ScheduleRewound,
    ScheduleSnapshot,
    ScheduleUpdated,
)
from mainspring.model.gate import Gate
from mainspring.model.instant import Ms
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule, Span
from mainspring.rules.lifecycle import run_from_event


def evolve_schedule(schedule: Schedule | None, event: Event) -> Schedule:
    """Return the row of a schedule after `event`. `schedule` is the row before; None if the event creates the row.

    The event is one of the schedule's own, or the first event of a run that one of its fires made. Any other event is a
    bug: AssertionError.
    """
    if type(event) is RunScheduled:  # a short cut for the most frequent event
        return _fired(schedule, event, event.fire_time, event.next_at)
    if isinstance(event, ScheduleCreated):
        return _created(event)
    if isinstance(event, ScheduleSnapshot):
        return event.state
    if isinstance(event, RunSkipped):
        return _fired(schedule, event, event.fire_time, event.next_at)
    assert schedule is not None, f"{type(event).__name__} of a schedule that was never created"
    fold = _FOLDS.get(type(event))
    if fold is None:
        raise AssertionError(f"{type(event).__name__} is not an event of a schedule")
    return replace(schedule, n=schedule.n + 1, updated_at=event.at, **fold(schedule, event))


def _created(event: ScheduleCreated) -> Schedule:
    return Schedule(
        id=event.schedule_id or "",
        ns=event.ns,
        name=event.name,
        owner=event.by,
        origin=event.origin,
        app=event.app,
        version=event.version,
        digest=event.digest,
        spec=event.spec,
        n=1,
        revision=event.revision,
        anchor=event.anchor,
        cursor=event.cursor,
        next_at=event.next_at,
        created_at=event.at,
        updated_at=event.at,
    )


def _fired(schedule: Schedule | None, event: Event, at: Ms | None, next_at: Ms | None) -> Schedule:
    """Return the schedule's row after its fire at `at` became a run, by the run's first event.

    `n` stays, because it counts only the schedule's own events.
    """
    assert schedule is not None, f"{type(event).__name__} of a schedule that was never created"
    assert at is not None
    return replace(schedule, cursor=max(schedule.cursor, at), fired=schedule.fired + 1, next_at=next_at)


def _fold_updated(schedule: Schedule, event: ScheduleUpdated) -> dict[str, Any]:
    """Return the columns that a new revision sets. A finished schedule becomes active.

    An empty `by`, `version` or `digest` in the event keeps the old value, and so does a `name` that is None.
    """
    return {
        "name": schedule.name if event.name is None else event.name,
        "revision": event.revision,
        "spec": event.spec,
        "anchor": event.anchor,
        "cursor": event.cursor,
        "next_at": event.next_at,
        "origin": event.origin,
        "owner": event.by or schedule.owner,
        "version": event.version or schedule.version,
        "digest": event.digest or schedule.digest,
        "state": "active" if schedule.state == "finished" else schedule.state,
    }


def _fold_paused(schedule: Schedule, event: SchedulePaused) -> dict[str, Any]:
    return {"state": "paused", "reason": event.reason, "until": event.until, "next_at": event.next_at}


def _fold_resumed(schedule: Schedule, event: ScheduleResumed) -> dict[str, Any]:
    return {"state": "active", "reason": None, "until": None, "cursor": event.cursor, "next_at": event.next_at}


def _fold_finished(schedule: Schedule, event: ScheduleFinished) -> dict[str, Any]:
    return {"state": "finished", "reason": event.reason, "next_at": None}


def _fold_deleted(schedule: Schedule, event: ScheduleDeleted) -> dict[str, Any]:
    return {"state": "deleted", "reason": event.reason, "next_at": None}


def _fold_elided(schedule: Schedule, event: FiresElided) -> dict[str, Any]:
    fired = schedule.fired + (event.count if event.consumed else 0)
    return {"cursor": max(schedule.cursor, event.through), "fired": fired, "next_at": event.next_at}


def _fold_counted_again(schedule: Schedule, event: FireCountedAgain) -> dict[str, Any]:
    cursor = max(schedule.cursor, event.fire_time)
    return {"cursor": cursor, "fired": schedule.fired + 1, "next_at": event.next_at}


def _fold_rewound(schedule: Schedule, event: ScheduleRewound) -> dict[str, Any]:
    """Return the columns that a rewind sets. A finished schedule may become active, with no reason then."""
    return {
        "cursor": event.to,
        "anchor": event.anchor,
        "fired": event.fired,
        "next_at": event.next_at,
        "state": event.state,
        "reason": None if event.state == "active" else schedule.reason,
        "rewound": max(event.from_, schedule.rewound or event.from_),
    }


#: Class of a schedule's own event after its first → function that returns the columns that the event sets. Each
#: of these events also sets `n` and `updated_at`.
_FOLDS: Mapping[type[Event], Callable[[Schedule, Any], dict[str, Any]]] = {
    ScheduleUpdated: _fold_updated,
    SchedulePaused: _fold_paused,
    ScheduleResumed: _fold_resumed,
    ScheduleFinished: _fold_finished,
    ScheduleDeleted: _fold_deleted,
    FiresElided: _fold_elided,
    FireCountedAgain: _fold_counted_again,
    ScheduleRewound: _fold_rewound,
}


def creates_fire_run(event: Event) -> bool:
    """Return True if the event creates the run of a planned fire, even if that run is skipped at once."""
    if isinstance(event, RunScheduled):
        return event.origin == "fire"
    return isinstance(event, RunSkipped) and event.fire_time is not None


class ScheduleDraft:
    """Builder of one `Change` of a schedule: collects events, and derives runs, spans and the schedule's row from them.

    - `before`, `after`: the schedule's row before and after the events. `before` is None if the change creates it.
    - `cut_spans`: the instant to which the change rewinds the schedule, None if it does not.
    - `bodies`, `gates`: payloads and gates to insert with the change, appended by the caller.
    - `cancels_open`: True if the caller must cancel the older open runs once the change is accepted (overlap policy).
    - `more`: True if further fires are due, which did not fit into this change.
    """

    __slots__ = ("after", "before", "bodies", "cancels_open", "cut_spans", "events", "gates", "more", "runs", "spans")

    def __init__(self, schedule: Schedule | None) -> None:
        self.before = schedule
        self.after = schedule
        self.events: list[Event] = []
        self.runs: list[Run] = []
        self.spans: list[Span] = []
        self.cut_spans: Ms | None = None
        self.bodies: list[Body] = []
        self.gates: list[Gate] = []
        self.cancels_open = False
        self.more = False

    @property
    def schedule(self) -> Schedule:
        """The schedule's row after the events so far. A draft that creates a schedule has it after its first event."""
        assert self.after is not None
        return self.after

    def emit(self, event: Event) -> None:
        """Add an event: fold it into the schedule's row, and add the run or span that the event creates."""
        self.events.append(event)
        self.after = evolve_schedule(self.after, event)
        if isinstance(event, RunEvent):
            self.runs.append(run_from_event(event))
        elif isinstance(event, FiresElided):
            self.spans.append(
                Span(
                    event.schedule_id or "",
                    event.revision,
                    event.after,
                    event.through,
                    event.count,
                    event.reason,
                    event.ns,
                )
            )
        elif isinstance(event, ScheduleRewound):
            self.cut_spans = event.to
            self.spans += event.kept

    def set(self, **values: Any) -> None:
        """Set columns of the schedule's row that no event carries, such as `next_at` after a fixed delay (ADR 2)."""
        self.after = replace(self.schedule, **values)

    @property
    def changed(self) -> bool:
        """True if the draft has an event, or a column of the row with a new value. False: there is nothing to write."""
        return bool(self.events) or self.before != self.after

    def change(self, change_id: str, *, touched: int = 0) -> Change:
        """Return the change to apply. Its guard: the schedule's row is as it was before the draft, or does not exist.

        `touched` is the number of the last touch that the settler read with the row. The change clears the touch,
        unless the schedule was touched again since then. A deletion touches the schedule: its waiting runs are to be
        cancelled.
        """
        guard: Guard
        before, schedule = self.before, self.schedule
        if before is None:
            guard = ScheduleAbsent(schedule.id, schedule.ns, schedule.name)
        else:
            old_name = before.name if before.name != schedule.name else None
            guard = ScheduleAt(before.id, before.revision, before.cursor, before.n, touched, old_name)
        return Change(
            id=change_id,
            guard=guard,
            schedule=schedule,
            runs=tuple(self.runs),
            spans=tuple(self.spans),
            cut_spans=self.cut_spans,
            bodies=tuple(self.bodies),
            gates=tuple(self.gates),
            events=tuple(self.events),
            touches=(schedule.id,) if any(type(event) is ScheduleDeleted for event in self.events) else (),
            kind=self._kind(),
        )

    def _kind(self) -> ChangeKind:
        """Return the kind of the change: "new_schedule" if it only creates the schedule, else "plan" or "other".

        "plan": each event is the first event of an open run, but the last event may finish the schedule.
        """
        if self.before is None:
            return "new_schedule" if len(self.events) == 1 else "other"
        if self.spans or self.bodies or self.gates:
            return "other"
        finishes = bool(self.events) and type(self.events[-1]) is ScheduleFinished
        if finishes != (self.schedule.state == "finished"):
            return "other"  # for example a schedule that had finished before: the change only clears its touch
        fires = self.events[:-1] if finishes else self.events
        return "plan" if all(type(event) is RunScheduled for event in fires) else "other"
