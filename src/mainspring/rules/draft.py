"""A change of one schedule in the making, and the fold that keeps row and log the same by construction."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from mainspring.model.change import Body, Change, Guard, ScheduleAbsent, ScheduleAt
from mainspring.model.events import (
    Event,
    FiresElided,
    RunEvent,
    RunScheduled,
    RunSkipped,
    ScheduleCreated,
    ScheduleDeleted,
    ScheduleFinished,
    SchedulePaused,
    ScheduleResumed,
    ScheduleSnapshot,
    ScheduleUpdated,
)
from mainspring.model.gate import Gate
from mainspring.model.instant import Ms
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule, Span
from mainspring.rules.lifecycle import born


def evolve_schedule(schedule: Schedule | None, event: Event) -> Schedule:
    """Apply one event of the schedule's own stream, or the birth of one of its fires."""
    if type(event) is RunScheduled:  # nearly all of them
        return _fired(schedule, event, event.fire_time, event.next_at)
    if isinstance(event, ScheduleCreated):
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
    if isinstance(event, ScheduleSnapshot):
        return event.state
    if isinstance(event, RunSkipped):
        return _fired(schedule, event, event.fire_time, event.next_at)
    assert schedule is not None, f"{type(event).__name__} of a schedule that was never created"
    values: dict[str, Any] = {"n": schedule.n + 1, "updated_at": event.at}
    return replace(schedule, **values | _folded(schedule, event))


def _fired(schedule: Schedule | None, event: Event, at: Ms | None, next_at: Ms | None) -> Schedule:
    assert schedule is not None, f"{type(event).__name__} of a schedule that was never created"
    assert at is not None
    return replace(schedule, cursor=max(schedule.cursor, at), fired=schedule.fired + 1, next_at=next_at)


def _folded(schedule: Schedule, event: Event) -> dict[str, Any]:
    match event:
        case ScheduleUpdated():
            return {
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
        case SchedulePaused():
            return {"state": "paused", "reason": event.reason, "until": event.until, "next_at": event.next_at}
        case ScheduleResumed():
            fresh = {"state": "active", "reason": None, "until": None}
            return {**fresh, "cursor": event.cursor, "next_at": event.next_at}
        case ScheduleFinished():
            return {"state": "finished", "reason": event.reason, "next_at": None}
        case ScheduleDeleted():
            return {"state": "deleted", "reason": event.reason, "next_at": None}
        case FiresElided():
            fired = schedule.fired + (event.count if event.consumed else 0)
            return {"cursor": max(schedule.cursor, event.through), "fired": fired, "next_at": event.next_at}
    raise AssertionError(f"{type(event).__name__} is not a move of a schedule")


def is_fire_birth(event: Event) -> bool:
    """True for the first event of a run that a schedule's fire made."""
    if isinstance(event, RunScheduled):
        return event.origin == "fire"
    return isinstance(event, RunSkipped) and event.fire_time is not None


class Draft:
    """Collects events; rows, spans and the schedule's new values follow from them."""

    __slots__ = ("after", "before", "bodies", "cancels_open", "events", "gates", "more", "runs", "spans")

    def __init__(self, schedule: Schedule | None) -> None:
        self.before = schedule
        self.after = schedule
        self.events: list[Event] = []
        self.runs: list[Run] = []
        self.spans: list[Span] = []
        self.bodies: list[Body] = []
        self.gates: list[Gate] = []
        self.cancels_open = False
        self.more = False

    @property
    def schedule(self) -> Schedule:
        """The schedule as the events so far leave it."""
        assert self.after is not None
        return self.after

    def emit(self, event: Event) -> None:
        """Add an event and fold it."""
        self.events.append(event)
        self.after = evolve_schedule(self.after, event)
        if isinstance(event, RunEvent):
            self.runs.append(born(event))
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

    def set(self, **values: Any) -> None:
        """Set operational values that no event carries."""
        self.after = replace(self.schedule, **values)

    @property
    def changed(self) -> bool:
        """True when there is something to write."""
        return bool(self.events) or self.before != self.after

    def change(self, change_id: str, *, touched: int = 0) -> Change:
        """The guarded write."""
        guard: Guard
        before, schedule = self.before, self.schedule
        if before is None:
            guard = ScheduleAbsent(schedule.id, schedule.ns, schedule.name)
        else:
            guard = ScheduleAt(before.id, before.revision, before.cursor, before.n, touched)
        return Change(
            id=change_id,
            guard=guard,
            schedule=schedule,
            runs=tuple(self.runs),
            spans=tuple(self.spans),
            bodies=tuple(self.bodies),
            gates=tuple(self.gates),
            events=tuple(self.events),
        )
