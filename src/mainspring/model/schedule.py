"""A schedule: when, what and how, in revisions; its row is a fold of its events."""

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
    """One revision's definition. The payload is not here: `body` names it, it lives beside the log."""

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
    """The folded state of one schedule."""

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
        """True while the schedule plans runs."""
        return self.state == "active"

    @property
    def drifted(self) -> bool:
        """True when a person's edit stands in the place of what the code declares."""
        return self.app != "" and self.origin == "api"


class Definition(Struct, frozen=True, gc=False):
    """A revision and the cursor from which it is in force: all that `planned` is computed from.

    `until` is set where the schedule finished under it: nothing after that is owed, whatever follows.
    """

    revision: int
    since: Ms
    anchor: Ms
    spec: ScheduleSpec
    until: Ms | None = None


class Span(Struct, frozen=True, gc=False):
    """A stretch of planned fires that none will run, and why."""

    schedule_id: ScheduleId
    revision: int
    after: Ms
    through: Ms
    count: int
    reason: str
    ns: str = "default"
