"""Names of event types: those of the classes, and those that other schedulers use for events with the same meaning."""

from __future__ import annotations

from collections.abc import Iterable

from mainspring.model.errors import InvalidInput, suggest_nearest
from mainspring.model.events import (
    EVENT_TYPES,
    Event,
    RunCancelled,
    RunFailed,
    RunRetrying,
    RunScheduled,
    RunStarted,
    RunSucceeded,
    ScheduleCreated,
    ScheduleDeleted,
)

#: Names of events in other schedulers → event classes here with that meaning; `events(types=…)` accepts these names.
EVENT_ALIASES: dict[str, tuple[type[Event], ...]] = {
    "Scheduled": (RunScheduled,),
    "Started": (RunStarted,),
    "Completed": (RunSucceeded,),
    "Failed": (RunFailed, RunRetrying),
    "Cancelled": (RunCancelled,),
    "Retrying": (RunRetrying,),
    "TaskScheduled": (ScheduleCreated, RunScheduled),
    "TaskExecuted": (RunSucceeded, RunFailed, RunRetrying),
    "TaskCancelled": (ScheduleDeleted, RunCancelled),
}


def resolve_type_names(wanted: Iterable[type[Event] | str], *, field: str = "types") -> tuple[str, ...]:
    """Return the class names of the `wanted` event types, each once.

    A type is given as a class, a class name, or an alias of `EVENT_ALIASES`, which can stand for several classes.
    `field` names the parameter in errors. Raises `InvalidInput`, with the nearest known name, for an unknown name.
    """
    found: dict[str, None] = {}
    for one in wanted:
        if not isinstance(one, str):
            found[one.__name__] = None
        elif one in EVENT_ALIASES:
            found.update(dict.fromkeys(cls.__name__ for cls in EVENT_ALIASES[one]))
        elif one in EVENT_TYPES:
            found[one] = None
        else:
            raise InvalidInput(field, f"{one!r} is not an event", suggest_nearest(one, [*EVENT_TYPES, *EVENT_ALIASES]))
    return tuple(found)
