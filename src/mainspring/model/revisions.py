"""Revisions: fold the events of a schedule into its definitions."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from mainspring.model.events import (
    Event,
    ScheduleCreated,
    ScheduleFinished,
    ScheduleRewound,
    ScheduleSnapshot,
    ScheduleUpdated,
)
from mainspring.model.schedule import Definition


def fold_definitions(stream: Iterable[Event]) -> tuple[Definition, ...]:
    """Return the revisions of one schedule, oldest first. `stream` holds all events of the schedule in order.

    After a rewind to an instant, no revision begins later than that: the newest is in force from there on.
    """
    found: list[Definition] = []
    for event in stream:
        if isinstance(event, ScheduleSnapshot):
            found = list(event.definitions)
        elif isinstance(event, ScheduleCreated | ScheduleUpdated):
            found.append(Definition(event.revision, event.cursor, event.anchor, event.spec))
        elif isinstance(event, ScheduleFinished) and found:
            found[-1] = replace(found[-1], until=event.cursor)
        elif isinstance(event, ScheduleRewound) and found:
            found = [replace(one, since=min(one.since, event.to)) for one in found]
            found[-1] = replace(found[-1], anchor=event.anchor, until=None)
    return tuple(found)
