"""Runs: one row for each unit of work, from its creation to its end."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from mainspring.model.ids import RunId, ScheduleId
from mainspring.model.instant import Ms
from mainspring.model.policies import Priority, RunOptions


class State(StrEnum):
    """The state of a run."""

    # `TRANSITIONS` in `rules/lifecycle.py` is the table of the legal changes of state.

    #: Waits until other runs have ended. Reserved: nothing creates such a run yet.
    BLOCKED = "blocked"
    #: Waits for a worker.
    WAITING = "waiting"
    #: A worker, or an agent that answered 202, holds the run's lease.
    RUNNING = "running"
    #: An attempt failed; the run waits for the next one.
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    #: Failed for good.
    FAILED = "failed"
    CANCELLED = "cancelled"
    #: Ended before its handler began.
    SKIPPED = "skipped"
    #: The lease ended without an outcome, or the worker stopped before the handler ended, and the run must not be
    #: executed again (recovery="fail").
    LOST = "lost"


#: States of a run that has not ended.
OPEN = frozenset({State.BLOCKED, State.WAITING, State.RUNNING, State.RETRYING})
ENDED = frozenset(State) - OPEN
#: States in which a worker may claim the run, once it is due and not parked.
CLAIMABLE = frozenset({State.WAITING, State.RETRYING})
ENDED_UNSUCCESSFULLY = ENDED - {State.SUCCEEDED}

#: What created a run: a planned fire, a call of `enqueue`, or a call of `trigger`, which runs a schedule at once.
#: "backfill" and "child" are reserved: nothing creates them yet.
RunOrigin = Literal["fire", "enqueue", "trigger", "backfill", "child"]


class Run(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The row of one run: the fold of its events (`rules/lifecycle.py`). Instants are wall time, except `lease_until`.

    Four columns are not part of the fold, because stores set them and no event carries them: `owner`, `lease_until`,
    `parked_on` and `progress`. Redis stores rows as arrays, so the order of the fields is part of the stored format.
    """

    id: RunId
    #: Namespace.
    ns: str = "default"
    #: `schedule_id`, `fire_time`, `fire_key` and `revision` are None for a run that `enqueue` made.
    schedule_id: ScheduleId | None = None
    task: str
    origin: RunOrigin = "enqueue"
    #: The planned time of the fire; the time of the call for the origin "trigger".
    fire_time: Ms | None = None
    #: Unique among the runs of a schedule.
    fire_key: str | None = None
    #: The revision of the schedule that planned the run.
    revision: int | None = None
    #: True if the run makes up for missed fires.
    catch_up: bool = False
    #: Namespace and queue, joined by a slash.
    lane: str = "default/default"
    priority: int = Priority.NORMAL
    #: Names of the gates that the run must pass to start.
    gates: tuple[str, ...] = ()
    #: At most one open run of a namespace has this key; None: no such limit.
    unique_key: str | None = None
    #: The id of the payload; None: no arguments.
    body: str | None = None
    options: RunOptions | None = None
    state: State = State.WAITING
    #: The number of the run's last event.
    n: int = 1
    #: The planned time of the run's start.
    due_at: Ms = 0
    #: From when on the run may be claimed: `due_at`, later the time of the next attempt.
    ready_at: Ms = 0
    #: The number of the present or last lease, 0 before the first.
    epoch: int = 0
    #: The number of the present or last attempt, 0 before the first.
    attempt: int = 0
    #: Attempts that failed.
    failures: int = 0
    #: Leases that ended without an outcome.
    crashes: int = 0
    #: The reason of a cancellation that was requested while the run was running; None: no cancellation was requested.
    cancel: str | None = None
    #: Why the run ended, or why it waits again.
    reason: str | None = None
    #: The handler's return value as JSON text.
    result: str | None = None
    #: The error text of the last failure.
    error: str | None = None
    #: When the handler of the last recorded attempt began, and the milliseconds that it took.
    began_at: Ms | None = None
    ms: int | None = None
    created_at: Ms = 0
    #: When the present or last attempt was claimed. If it was claimed ahead of its time, its time.
    started_at: Ms | None = None
    ended_at: Ms | None = None
    #: True for a dead letter.
    dead: bool = False
    #: The worker that claimed the run; None while it is not running.
    owner: str | None = None
    #: When the lease ends, by the clock for leases: the machine's boot clock, or the clock of the store's server.
    lease_until: Ms | None = None
    #: The name of the gate at which the run is parked; None: it is not parked.
    parked_on: str | None = None
    #: The last progress line of the handler or agent.
    progress: str | None = None

    @property
    def idempotency_key(self) -> str:
        """A key that a handler can pass to external systems, equal in every attempt of this run: the run's id."""
        return self.id


def differs_only_in_id_and_body(run: Run, model: Run) -> bool:
    """Return True if two runs are equal in all fields but id and payload.

    Used for bulk inserts: the run `model` is encoded once, and runs that differ only in id and payload reuse its text.
    """
    return replace(run, id=model.id, body=model.body) == model
