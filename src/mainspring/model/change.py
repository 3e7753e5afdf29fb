"""The one kind of write: a guard on one row, its new values, inserts, touches, releases and events."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from mainspring.model.events import Event
from mainspring.model.gate import Gate
from mainspring.model.ids import RunId, ScheduleId
from mainspring.model.instant import Ms
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule, Span


class RunLease(Struct, frozen=True, gc=False):
    """The run is running under this epoch. Accepted, it sets every run value but `cancel` and `body`."""

    id: RunId
    epoch: int


class RunAt(Struct, frozen=True, gc=False):
    """The run's stream is at this number. Accepted, it sets every run value."""

    id: RunId
    n: int


class ScheduleAt(Struct, frozen=True, gc=False):
    """The schedule is at this revision, cursor and stream number.

    Accepted, it sets every schedule value, ends the hold, and clears the touch mark if it is still `touched`.
    """

    id: ScheduleId
    revision: int
    cursor: Ms
    n: int
    touched: int = 0


class RunAbsent(Struct, frozen=True, gc=False):
    """No run of this id, and no open run of this unique key, exists."""

    id: RunId
    unique_key: str | None = None


class ScheduleAbsent(Struct, frozen=True, gc=False):
    """No schedule of this id, and none that is not deleted of this name, exists."""

    id: ScheduleId
    ns: str
    name: str


Guard = RunLease | RunAt | ScheduleAt | RunAbsent | ScheduleAbsent


class Body(Struct, frozen=True, gc=False):
    """A payload beside the log; its id is its own hash, or that and the one run it is for."""

    id: str
    data: str


class Change(Struct, frozen=True, kw_only=True, gc=False):
    """All of it or nothing. The store numbers the events of the guarded row's stream and stamps `at`.

    `run` or `schedule` holds the guarded row's new values (or the row to insert under an `absent` guard);
    `runs`, `spans`, `bodies` and `gates` are inserts, where "exists" means nothing to do and brings no event;
    `events` belong to the guarded row's stream or to the stream of one of the inserted runs, or are notes.
    """

    id: str
    guard: Guard | None = None
    run: Run | None = None
    schedule: Schedule | None = None
    runs: tuple[Run, ...] = ()
    spans: tuple[Span, ...] = ()
    bodies: tuple[Body, ...] = ()
    gates: tuple[Gate, ...] = ()
    touches: tuple[ScheduleId, ...] = ()
    releases: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()


class Result(Struct, frozen=True, gc=False):
    """What became of a change: the guarded row's `n` when accepted (0 under a lease), the row as it is when refused."""

    status: Literal["accepted", "refused", "repeated"]
    n: int = 0
    current: Run | Schedule | None = None

    @property
    def ok(self) -> bool:
        """True when the change holds, whether by this call or an earlier one."""
        return self.status != "refused"


#: The run columns a change sets (`cancel` and `body` only under `RunAt`). `n`, `created_at`, `ended_at` are the
#: store's own; a run that does not stay running loses owner, lease and parking place.
RUN_VALUES = (
    "state",
    "ready_at",
    "failures",
    "crashes",
    "reason",
    "result",
    "error",
    "began_at",
    "ms",
    "dead",
)
