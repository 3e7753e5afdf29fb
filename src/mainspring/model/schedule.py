"""Schedules: what to run when, in numbered revisions; and spans, the planned fires that will not run."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from mainspring.model.ids import ScheduleId
from mainspring.model.instant import Ms
from mainspring.model.policies import Missed, Overlap, Priority, RunOptions
from mainspring.model.trigger import TriggerSpec

ScheduleState = Literal["active", "paused", "finished", "deleted"]
Origin = Literal["code", "api"]


class ScheduleSpec(Struct, frozen=True, omit_defaults=True, gc=False):
    """The definition of one revision: trigger, task and policies. `body` is the id of its payload."""

    trigger: TriggerSpec
    task: str
    body: str | None = None
    tz: str = "UTC"
    missed: Missed = "catch_up_once"
    grace: Ms = 60_000
    replay_max: int = 1_000
    replay_age: Ms = 86_400_000
    overlap: Overlap = "forbid"
    jitter: Ms = 0
    spread: Ms = 0
    start: Ms | None = None
    end: Ms | None = None
    max_runs: int | None = None
    priority: int = Priority.NORMAL
    queue: str = "default"
    gates: tuple[str, ...] = ()
    options: RunOptions | None = None
    terminal: Literal["keep", "delete"] = "keep"


class Schedule(Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """The row of one schedule: the fold of its events (`rules/schedule_draft.py`).

    `n` is the number of its last event, `cursor` the instant up to which its fires are settled, `anchor` the origin of
    interval triggers, and `fired` the number of fires that count against `max_runs`.
    """

    id: ScheduleId
    ns: str = "default"
    name: str
    owner: str = ""
    origin: Origin = "api"
    app: str = ""
    version: str = ""
    digest: str = ""
    spec: ScheduleSpec
    state: ScheduleState = "active"
    n: int = 0
    revision: int = 1
    anchor: Ms
    cursor: Ms
    next_at: Ms | None = None
    fired: int = 0
    reason: str | None = None
    until: Ms | None = None
    created_at: Ms = 0
    updated_at: Ms = 0

    @property
    def enabled(self) -> bool:
        """True while the schedule plans runs: it is neither paused, finished nor deleted."""
        return self.state == "active"

    @property
    def drifted(self) -> bool:
        """True if a person edited the schedule that code declares, so that the two differ."""
        return self.app != "" and self.origin == "api"


class Definition(Struct, frozen=True, gc=False):
    """A revision and the time in which it was in force: all that the ledger needs to compute the planned fires.

    It is in force from the cursor `since` on. `until` is set if the schedule finished under it: no fire after that is
    owed.
    """

    revision: int
    since: Ms
    anchor: Ms
    spec: ScheduleSpec
    until: Ms | None = None


class Span(Struct, frozen=True, gc=False):
    """A stretch of `count` planned fires that will not run, in (after, through], with the reason."""

    schedule_id: ScheduleId
    revision: int
    after: Ms
    through: Ms
    count: int
    reason: str
    ns: str = "default"
