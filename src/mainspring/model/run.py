"""Runs: one row for each unit of work, from its birth to its end."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from mainspring.model.ids import RunId, ScheduleId
from mainspring.model.instant import Ms
from mainspring.model.policies import Priority, RunOptions


class State(StrEnum):
    """The state of a run. `rules/lifecycle.py` has the table of the legal moves between states."""

    BLOCKED = "blocked"
    WAITING = "waiting"
    RUNNING = "running"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    LOST = "lost"


OPEN = frozenset({State.BLOCKED, State.WAITING, State.RUNNING, State.RETRYING})
ENDED = frozenset(State) - OPEN
CLAIMABLE = frozenset({State.WAITING, State.RETRYING})
ENDED_UNSUCCESSFULLY = ENDED - {State.SUCCEEDED}

RunOrigin = Literal["fire", "enqueue", "trigger", "backfill", "child"]


class Run(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The row of one run: the fold of its events (`rules/lifecycle.py`).

    `owner`, `lease_until`, `parked_on` and `progress` are operational: stores set them, and no event carries them.
    Redis stores rows as arrays, so the order of the fields is part of the stored format.
    """

    id: RunId
    ns: str = "default"
    schedule_id: ScheduleId | None = None
    task: str
    origin: RunOrigin = "enqueue"
    fire_time: Ms | None = None
    fire_key: str | None = None
    revision: int | None = None
    catch_up: bool = False
    lane: str = "default/default"
    priority: int = Priority.NORMAL
    gates: tuple[str, ...] = ()
    unique_key: str | None = None
    body: str | None = None
    options: RunOptions | None = None
    state: State = State.WAITING
    n: int = 1
    due_at: Ms = 0
    ready_at: Ms = 0
    epoch: int = 0
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    cancel: str | None = None
    reason: str | None = None
    result: str | None = None
    error: str | None = None
    began_at: Ms | None = None
    ms: int | None = None
    created_at: Ms = 0
    started_at: Ms | None = None
    ended_at: Ms | None = None
    dead: bool = False
    owner: str | None = None
    lease_until: Ms | None = None
    parked_on: str | None = None
    progress: str | None = None

    @property
    def idempotency_key(self) -> str:
        """A key for external systems that is equal in every attempt of this run: the run's id."""
        return self.id


def differs_only_in_id_and_body(run: Run, model: Run) -> bool:
    """Return True if two runs are equal but for id and payload.

    Used for bulk inserts: one run is encoded, and runs that differ only so reuse the text.
    """
    return replace(run, id=model.id, body=model.body) == model
