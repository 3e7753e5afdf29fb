"""Every event, as a typed value: *moves* have `n` and are folded, *notes* have none.

The first fields are the columns of the log; the fields a class adds are its `data`.
The store fills `seq`, `at` and `n`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.model.errors import InvalidInput, nearest
from mainspring.model.ids import RunId, ScheduleId
from mainspring.model.instant import Ms
from mainspring.model.policies import RunOptions
from mainspring.model.run import RunOrigin
from mainspring.model.schedule import Definition, Origin, Schedule, ScheduleSpec


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An immutable fact of the append-only log."""

    seq: int = 0
    at: Ms = 0
    ns: str = "default"
    schedule_id: ScheduleId | None = None
    run_id: RunId | None = None
    n: int | None = None
    v: int = 1
    actor: str | None = None
    change: str | None = None
    epoch: int | None = None
    attempt: int | None = None
    owner: str | None = None


COLUMNS = Event.__struct_fields__


class ScheduleEvent(Event, frozen=True, kw_only=True):
    """A move of a schedule."""


class RunEvent(Event, frozen=True, kw_only=True):
    """A move of a run."""


class Note(Event, frozen=True, kw_only=True):
    """Something worth knowing that changes no state."""


# ── schedules ───────────────────────────────────────────────────────────────


class ScheduleCreated(ScheduleEvent, frozen=True, kw_only=True):
    """A schedule exists from here on."""

    name: str
    revision: int = 1
    spec: ScheduleSpec
    anchor: Ms
    cursor: Ms
    next_at: Ms | None = None
    origin: Origin = "api"
    by: str = ""
    app: str = ""
    version: str = ""
    digest: str = ""


class ScheduleUpdated(ScheduleEvent, frozen=True, kw_only=True):
    """A new revision; it affects only fires after `cursor`."""

    revision: int
    spec: ScheduleSpec
    anchor: Ms
    cursor: Ms
    next_at: Ms | None = None
    origin: Origin = "api"
    by: str = ""
    version: str = ""
    digest: str = ""
    changed: tuple[str, ...] = ()


class SchedulePaused(ScheduleEvent, frozen=True, kw_only=True):
    """The schedule is not looked at until it is resumed."""

    reason: str
    until: Ms | None = None
    next_at: Ms | None = None


class ScheduleResumed(ScheduleEvent, frozen=True, kw_only=True):
    """The schedule plans again."""

    cursor: Ms
    reason: str = ""
    next_at: Ms | None = None


class ScheduleFinished(ScheduleEvent, frozen=True, kw_only=True):
    """No fire after `cursor` is owed: exhausted, max_runs, ended."""

    reason: str
    cursor: Ms


class ScheduleDeleted(ScheduleEvent, frozen=True, kw_only=True):
    """The schedule is gone; its history stays."""

    reason: str = "user"


class FiresElided(ScheduleEvent, frozen=True, kw_only=True):
    """Planned fires that none will run; the span row says the same."""

    revision: int
    after: Ms
    through: Ms
    count: int
    reason: str
    next_at: Ms | None = None
    consumed: bool = True


class ScheduleSnapshot(ScheduleEvent, frozen=True, kw_only=True):
    """The whole folded state, in place of the moves before it; only compaction writes it."""

    state: Schedule
    definitions: tuple[Definition, ...]


# ── runs ────────────────────────────────────────────────────────────────────


class RunScheduled(RunEvent, frozen=True, kw_only=True):
    """A run exists and will be claimed when its time has come."""

    task: str
    due_at: Ms
    origin: RunOrigin = "enqueue"
    fire_time: Ms | None = None
    fire_key: str | None = None
    revision: int | None = None
    lane: str = "default/default"
    priority: int = 2
    gates: tuple[str, ...] = ()
    body: str | None = None
    parents: tuple[RunId, ...] = ()
    unique_key: str | None = None
    options: RunOptions | None = None
    catch_up: bool = False
    coalesced: int = 0
    next_at: Ms | None = None


class RunSkipped(RunEvent, frozen=True, kw_only=True):
    """The fire is consumed and nothing will run, at birth or before the handler began."""

    reason: str
    task: str | None = None
    fire_time: Ms | None = None
    fire_key: str | None = None
    revision: int | None = None
    by: str | None = None
    next_at: Ms | None = None


class RunUnblocked(RunEvent, frozen=True, kw_only=True):
    """All parents ended as they had to."""

    ready_at: Ms
    parents: tuple[RunId, ...] = ()


class RunStarted(RunEvent, frozen=True, kw_only=True):
    """Given to a worker under a lease; epoch, attempt and owner are in the columns."""


class RunSucceeded(RunEvent, frozen=True, kw_only=True):
    """The handler returned."""

    began_at: Ms | None = None
    ms: int | None = None
    result: str | None = None


class RunRetrying(RunEvent, frozen=True, kw_only=True):
    """The handler failed and will be tried again."""

    next_attempt_at: Ms
    error: str
    began_at: Ms | None = None
    ms: int | None = None
    fingerprint: str | None = None
    trace: str | None = None


class RunFailed(RunEvent, frozen=True, kw_only=True):
    """No attempt will follow: error, timeout, crashed, parent."""

    error: str
    reason: str = "error"
    began_at: Ms | None = None
    ms: int | None = None
    fingerprint: str | None = None
    trace: str | None = None
    dead_lettered: bool = True


class RunSnoozed(RunEvent, frozen=True, kw_only=True):
    """The handler asked to be called later; no failure."""

    until: Ms


class RunHandedBack(RunEvent, frozen=True, kw_only=True):
    """A worker gave the run back: shutdown, preempted, not_begun, loop_blocked, stray."""

    reason: str
    began: bool = False


class LeaseExpired(RunEvent, frozen=True, kw_only=True):
    """The worker fell silent; the run can be claimed again."""

    crashes: int
    ready_at: Ms


class RunLost(RunEvent, frozen=True, kw_only=True):
    """The worker fell silent or stopped, and the run must not be repeated (recovery="fail")."""

    crashes: int


class CancelRequested(RunEvent, frozen=True, kw_only=True):
    """The worker is asked to stop the run."""

    reason: str
    by: str = ""


class RunCancelled(RunEvent, frozen=True, kw_only=True):
    """The run will not go on."""

    reason: str
    by: str = ""


class RunReopened(RunEvent, frozen=True, kw_only=True):
    """An ended run is open again, with fresh budgets and its old fire time."""

    ready_at: Ms
    by: str = ""
    body: str | None = None


class RunDiscarded(RunEvent, frozen=True, kw_only=True):
    """A dead letter was looked at and put away."""

    by: str = ""


# ── notes ───────────────────────────────────────────────────────────────────


class StaleResultRejected(Note, frozen=True, kw_only=True):
    """A worker reported a result under a lease it no longer holds."""

    outcome: str


class RunLate(Note, frozen=True, kw_only=True):
    """A run began much later than planned."""

    late_ms: int


class RunUnresolved(Note, frozen=True, kw_only=True):
    """No live instance knows the run's task."""

    task: str


class DeclarationConflict(Note, frozen=True, kw_only=True):
    """An older version of the code declared a schedule that a newer live one has changed."""

    name: str
    declared: str
    live: str


class InstanceJoined(Note, frozen=True, kw_only=True):
    """A process began to work."""

    instance: str
    version: str = ""


class InstanceLeft(Note, frozen=True, kw_only=True):
    """A process stopped working in order."""

    instance: str


class LeaderElected(Note, frozen=True, kw_only=True):
    """An instance keeps house from now on; terms are numbered."""

    instance: str
    term: int


class LeaderLost(Note, frozen=True, kw_only=True):
    """It does so no more: it stopped, its term ran out, or the store could not be reached in time."""

    instance: str
    term: int
    reason: str


class StoreDegraded(Note, frozen=True, kw_only=True):
    """The store answered with errors."""

    error: str


class StoreRecovered(Note, frozen=True, kw_only=True):
    """The store answers again."""


class ClockStepped(Note, frozen=True, kw_only=True):
    """The wall clock jumped against boot time."""

    step_ms: int


class SubscriberFailed(Note, frozen=True, kw_only=True):
    """An event handler raised; nobody else was harmed."""

    event: str
    error: str


class LoopBlocked(Note, frozen=True, kw_only=True):
    """The handlers' loop gave no answer for so long; the run whose handler holds it is in the columns, if it is one."""

    ms: int
    task: str | None = None
    where: str = ""


class LogCompacted(Note, frozen=True, kw_only=True):
    """Streams were removed and replaced by snapshots and tallies; `tallies` of them were added to."""

    through: int
    streams: int
    events: int
    tallies: int
    digest: str


def _leaves(base: type[Event]) -> list[type[Event]]:
    return [leaf for child in base.__subclasses__() for leaf in (_leaves(child) or [child])]


#: By name, for reading the log.
EVENT_TYPES: dict[str, type[Event]] = {cls.__name__: cls for cls in _leaves(Event)}
#: The names other vocabularies use for the same facts; `events(types=…)` understands them.
SOURCE_NAMES: dict[str, tuple[type[Event], ...]] = {
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


def type_names(wanted: Iterable[type[Event] | str], *, field: str = "types") -> tuple[str, ...]:
    """Names of event types, from classes, our names or theirs; an unknown one is answered with the nearest."""
    found: dict[str, None] = {}
    for one in wanted:
        if not isinstance(one, str):
            found[one.__name__] = None
        elif one in SOURCE_NAMES:
            found.update(dict.fromkeys(cls.__name__ for cls in SOURCE_NAMES[one]))
        elif one in EVENT_TYPES:
            found[one] = None
        else:
            raise InvalidInput(field, f"{one!r} is not an event", nearest(one, [*EVENT_TYPES, *SOURCE_NAMES]))
    return tuple(found)


E = TypeVar("E", bound=Event)
_encoder = msgspec.json.Encoder()


@cache
def _own_fields(cls: type[Event]) -> tuple[tuple[str, ...], tuple[Any, ...], Callable[[Event], tuple[Any, ...]]]:
    """The fields a class adds to the columns, their defaults (NODEFAULT: always written), and how to read them all."""
    own = [field for field in msgspec.structs.fields(cls) if field.name not in COLUMNS]
    names = tuple(field.name for field in own)
    read = attrgetter(*names, "seq", "seq") if names else lambda event: ()  # two more: of one it would be no tuple
    return names, tuple(field.default for field in own), read


def _own_data(event: Event) -> dict[str, Any]:
    names, defaults, read = _own_fields(type(event))
    data = {}
    for name, default, value in zip(names, defaults, read(event), strict=False):
        if value is not default and (default is msgspec.NODEFAULT or value != default):
            data[name] = value
    return data


def encode_data(event: Event) -> str | None:
    """The event's own fields as JSON text, or nothing when there is nothing to say."""
    data = _own_data(event)
    return _encoder.encode(data).decode() if data else None


def alike(event: RunScheduled, model: RunScheduled) -> bool:
    """True when they differ in no more than the run and the name of its payload, if it has one."""
    if (event.body is None) is not (model.body is None):
        return False
    return replace(event, run_id=model.run_id, body=model.body) == model


class BirthData:
    """The data of first events, as `encode_data` gives it: one is worked out, those that are like it follow it."""

    def __init__(self) -> None:
        self._model: RunScheduled | None = None
        self._data: dict[str, Any] = {}
        self._text = ""

    def follows(self, event: RunScheduled) -> bool:
        """True when it is like the last one that did not follow."""
        return self._model is not None and alike(event, self._model)

    def first(self, event: RunScheduled) -> str:
        """The data of one that others may follow."""
        self._model, self._data = event, _own_data(event)
        self._text = _encoder.encode(self._data).decode()
        return self._text

    def next(self, event: RunScheduled) -> str:
        """The data of one that follows."""
        assert self._model is not None
        if event.body == self._model.body:
            return self._text
        return _encoder.encode({**self._data, "body": event.body}).decode()


def decode_event(type_name: str, columns: dict[str, Any], data: str | bytes | None) -> Event:
    """The typed event of a log row; the row's columns win over nothing in `data`."""
    cls = EVENT_TYPES[type_name]
    fields = msgspec.json.decode(data) if data else {}
    return msgspec.convert({**fields, **columns}, cls)


def definitions(stream: Iterable[Event]) -> tuple[Definition, ...]:
    """The revisions of one schedule, from its own moves in order."""
    found: list[Definition] = []
    for event in stream:
        if isinstance(event, ScheduleSnapshot):
            found = list(event.definitions)
        elif isinstance(event, ScheduleCreated | ScheduleUpdated):
            found.append(Definition(event.revision, event.cursor, event.anchor, event.spec))
        elif isinstance(event, ScheduleFinished) and found:
            found[-1] = replace(found[-1], until=event.cursor)
    return tuple(found)
