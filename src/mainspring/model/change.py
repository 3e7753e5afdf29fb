"""Changes: the one kind of write.

A `Change` has a guard, which is its compare-and-set condition on one row, and the effects that follow if the guard
holds. `Store.apply` applies changes; the rules in `rules/` build them.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from mainspring.model.events import Event
from mainspring.model.gate import Gate
from mainspring.model.ids import RunId, ScheduleId
from mainspring.model.instant import Ms
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule, Span

# ── guards ──────────────────────────────────────────────────────────────────


class RunLease(Struct, frozen=True, gc=False):
    """Guard: the run is running under this epoch: no other claim, end or rescue has come since this worker's claim.

    The time at which the lease ends is not compared. The change then sets every column of the run in `RUN_VALUES`, but
    not `cancel` or `body`.
    """

    id: RunId
    epoch: int


class RunAt(Struct, frozen=True, gc=False):
    """Guard: the last move of the run has the number `n`, so the row is as the caller read it.

    A change that opens an ended run again is refused as well while another open run has its unique key. The change sets
    every column of the run in `RUN_VALUES`, and `cancel` and `body`.
    """

    id: RunId
    n: int


class ScheduleAt(Struct, frozen=True, gc=False):
    """Guard: the schedule has this revision and cursor, and its last move has the number `n`.

    The change then sets every column of the schedule and ends its hold. It clears the touch mark if the mark is still
    the number `touched` that the caller read; after another touch, the mark stays.
    """

    id: ScheduleId
    revision: int
    cursor: Ms
    n: int
    touched: int = 0


class RunAbsent(Struct, frozen=True, gc=False):
    """Guard: no run has this id, and no open run has this unique key. The change then inserts the run."""

    id: RunId
    unique_key: str | None = None


class ScheduleAbsent(Struct, frozen=True, gc=False):
    """Guard: no schedule has this id, and no schedule that is not deleted has this name in this namespace.

    The change then inserts the schedule.
    """

    id: ScheduleId
    ns: str
    name: str


Guard = RunLease | RunAt | ScheduleAt | RunAbsent | ScheduleAbsent


# ── the change and its result ───────────────────────────────────────────────


class Body(Struct, frozen=True, gc=False):
    """A payload, the arguments of a task as JSON text, stored beside the log.

    Its id is a hash of the text (`body_id`), or that hash and the id of the one run that uses it (`unshared_body_id`).
    """

    id: str
    data: str


#: The intent of a change, for which stores have fast paths: a claimed run succeeds; new runs; a schedule advances or
#: finishes and its fires become runs; a new schedule. `rules/change_shape.py` has the promise of each.
ChangeKind = Literal["success", "new_runs", "plan", "new_schedule", "other"]


class Change(Struct, frozen=True, kw_only=True, gc=False):
    """One write, all of it or nothing: a guard on one row, and what happens if the guard holds.

    - `id`: a change with an id that was applied before is answered `repeated`, so a caller may send it again.
    - `guard`: the condition. None: there is no guarded row, only inserts and notes.
    - `run` or `schedule`: the new values of the guarded row, or the row to insert.
    - `runs`, `spans`, `bodies`: rows to insert. A run or body that exists already stays, and brings no event.
    - `gates`: gates to create. A gate that exists takes the new `max` and keeps the rest.
    - `touches`: schedules to mark for another look by the settler.
    - `releases`: gates of which the guarded run gives its slot back, one name for each slot.
    - `events`: moves of the guarded row, moves of the inserted runs, and notes.
    - `kind`: the intent, set by the code that builds the change. Stores rely on it; it is never stored.

    The store numbers the moves of each row (`n`) and stamps the time (`at`).
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
    kind: ChangeKind = "other"


class Result(Struct, frozen=True, gc=False):
    """The answer to a change: accepted, refused by its guard, or repeated because it was applied before.

    `n` is the number of the guarded row's last move after an accepted change, 0 under a `RunLease` guard. After a
    refused change, `current` is the row that refused it as it is now, None if there is no such row.
    """

    status: Literal["accepted", "refused", "repeated"]
    n: int = 0
    current: Run | Schedule | None = None

    @property
    def ok(self) -> bool:
        """True if the change was written, by this call or by an earlier call with its id."""
        return self.status != "refused"


#: The columns of a guarded run that a change sets. A `RunAt` guard adds `cancel` and `body`. The store itself sets `n`,
#: `created_at` and `ended_at`, and clears owner, lease and parking place of a run that is not running afterwards.
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
