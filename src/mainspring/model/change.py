"""Changes: writes to a store that happen completely or not at all.

A `Change` has a guard, which is a compare-and-set condition on one row, and the effects that follow if the guard holds.
The rules in `rules/` decide what a change contains, and `Store.apply` applies it.
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
    """Guard: the run `id` is running under the lease with this epoch; it has not ended or been claimed again.

    The time at which the lease ends is not compared. If the guard holds, the change sets the run's columns that
    `RUN_VALUES` lists. Its `cancel` and `body` stay: a request to cancel may have come since the claim.
    """

    id: RunId
    epoch: int


class RunAt(Struct, frozen=True, gc=False):
    """Guard: the last event of the run `id` has the number `n`, so the row is as the caller read it.

    A change that opens an ended run again is also refused while another open run has the run's unique key. If the guard
    holds, the change sets the run's columns that `RUN_VALUES` lists, and its `cancel` and `body`.
    """

    id: RunId
    n: int


class ScheduleAt(Struct, frozen=True, gc=False):
    """Guard: the schedule `id` has this revision and cursor, and its last event has the number `n`.

    If the guard holds, the change sets every column of the schedule and ends its hold. `touched` is the number of the
    last touch that the caller read. The change clears the touch, unless the schedule was touched again since then.

    `old_name` is the schedule's name now if the change renames it, else None. A renaming change is also refused while
    another schedule of the namespace that is not deleted has the new name; `Result.current` is the guarded row then.
    """

    id: ScheduleId
    revision: int
    cursor: Ms
    n: int
    touched: int = 0
    old_name: str | None = None


class RunAbsent(Struct, frozen=True, gc=False):
    """Guard: no run has this id, and no open run of its namespace has this unique key (None: no key is checked).

    If the guard holds, the change inserts the run.
    """

    id: RunId
    unique_key: str | None = None


class ScheduleAbsent(Struct, frozen=True, gc=False):
    """Guard: no schedule has this id, and every schedule with this name in this namespace is deleted.

    If the guard holds, the change inserts the schedule.
    """

    id: ScheduleId
    ns: str
    name: str


Guard = RunLease | RunAt | ScheduleAt | RunAbsent | ScheduleAbsent


# ── the change and its result ───────────────────────────────────────────────


class Body(Struct, frozen=True, gc=False):
    """A payload: the arguments of a task as JSON text. It is stored beside the log, and runs name it by its id.

    The id is a hash of the text (`body_id`). For a payload that only one run uses, it can be that hash and the run's id
    (`unshared_body_id`).
    """

    id: str
    data: str


#: The intent of a change. Stores have fast paths for four intents: a claimed run succeeds; new runs are inserted; fires
#: of a schedule become runs; a schedule is created. `rules/change_shape.py` states what each kind promises.
ChangeKind = Literal["success", "new_runs", "plan", "new_schedule", "other"]


class Change(Struct, frozen=True, kw_only=True, gc=False):
    """One write, all of it or nothing: a guard on one row, and the effects that follow if the guard holds.

    - `id`: a caller may send a change again. If a change with this id was applied before, the answer is `repeated`.
    - `guard`: the condition. None: there is no guarded row, only inserts, gates, touches and notes.
    - `run` or `schedule`: the new values of the guarded row, or the row to insert.
    - `runs`, `spans`, `bodies`: rows to insert. A run or payload that exists already stays as it is, without an event.
    - `cut_spans`: an instant. The spans of `schedule` that end then or later are removed, before `spans` are inserted.
    - `gates`: gates to create. A gate that exists gets the new `max` and keeps its other values.
    - `touches`: ids of the schedules that the settler must settle again, because something about them changed.
    - `releases`: gates at which the guarded run gives a slot back, one name for each slot.
    - `events`: events of the guarded row, first events of the inserted runs, and notes.
    - `kind`: the intent, set by the code that builds the change. Stores rely on it, but do not store it.

    The store numbers the events of each row (`n`) and sets their time (`at`).
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
    cut_spans: Ms | None = None


class Result(Struct, frozen=True, gc=False):
    """The answer to a change: accepted, refused by its guard, or repeated because it was applied before.

    After an accepted change, `n` is the number of the guarded row's last event; under a `RunLease` guard it is 0. After
    a refused change, `current` is the present row because of which the guard failed, None if there is no such row.
    """

    status: Literal["accepted", "refused", "repeated"]
    n: int = 0
    current: Run | Schedule | None = None

    @property
    def ok(self) -> bool:
        """True if the change is known to be written, by this call or by an earlier call with its id.

        False does not exclude that an earlier call wrote it.
        """
        return self.status != "refused"


#: The columns of a guarded run that a change sets; under a `RunAt` guard, it also sets `cancel` and `body`. The store
#: itself sets `n`, `created_at` and `ended_at`. If the run is not running after the change, the store also clears its
#: owner, its lease and the gate at which it is parked.
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
