"""Schedules, with their numbered revisions, and spans, which are planned fires that will not run."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from mainspring.model.ids import ScheduleId
from mainspring.model.instant import Ms
from mainspring.model.policies import Missed, Overlap, Priority, RunOptions
from mainspring.model.trigger import TriggerSpec

ScheduleState = Literal["active", "paused", "finished", "deleted"]
#: Whether the present revision was declared by a program or made by a person or an API client.
Origin = Literal["code", "api"]


class ScheduleSpec(Struct, frozen=True, omit_defaults=True, gc=False):
    """The definition of one revision of a schedule: when to fire, what to run, and how."""

    trigger: TriggerSpec
    task: str
    #: The id of the payload; None: the task gets no arguments.
    body: str | None = None
    #: The zone in which times are shown to people and handlers; a cron trigger has a zone of its own.
    tz: str = "UTC"
    missed: Missed = "catch_up_once"
    #: A fire counts as missed if it is planned more than this after its fire time.
    grace: Ms = 60_000
    #: Each time due fires are settled, at most this number of missed fires are replayed (`missed="replay_all"`), and at
    #: most this number of fires that were not missed get a run. Both times, the newest fires are taken.
    replay_max: int = 1_000
    #: Missed fires older than this are not replayed (`missed="replay_all"`).
    replay_age: Ms = 86_400_000
    overlap: Overlap = "forbid"
    #: Each run is due a delay after its fire time: shorter than this, and derived from schedule id and fire time.
    jitter: Ms = 0
    #: All runs are delayed by one further time, equal for all: shorter than this, and derived from the schedule's id.
    spread: Ms = 0
    #: The schedule has only the fires of its trigger from `start` to `end`, both included. None: no limit.
    start: Ms | None = None
    end: Ms | None = None
    #: The schedule finishes after this number of fires. None: no limit.
    max_runs: int | None = None
    priority: int = Priority.NORMAL
    queue: str = "default"
    #: Names of the gates that its runs must pass in addition to the schedule's own gate.
    gates: tuple[str, ...] = ()
    #: Options stored with each run; None: the task's own settings apply.
    options: RunOptions | None = None
    #: What becomes of the schedule once it has finished and no run of it is open.
    terminal: Literal["keep", "delete"] = "keep"


class Schedule(Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """The row of one schedule: the fold of its events (`rules/schedule_draft.py`). Instants are wall time."""

    id: ScheduleId
    #: Namespace; names of schedules are unique in it.
    ns: str = "default"
    name: str
    #: The program, person or API key that made the present revision.
    owner: str = ""
    origin: Origin = "api"
    #: The app whose code declares the schedule; "" if no code declares it.
    app: str = ""
    #: The version of the code that declared the schedule last; "" if no code declares it.
    version: str = ""
    #: A hash of the definition, by which a redeploy sees whether the declaration has changed. If code declares the
    #: schedule, it is the hash of the last declaration, also after a person's edit.
    digest: str = ""
    spec: ScheduleSpec
    state: ScheduleState = "active"
    #: The number of the schedule's last event. Events of its runs do not count.
    n: int = 0
    revision: int = 1
    #: The instant from which an interval trigger counts.
    anchor: Ms
    #: The instant up to which every fire is settled.
    cursor: Ms
    #: When the schedule must be settled next: usually its next fire, or the end of its pause. None: not before another
    #: event, such as the end of a run or a command.
    next_at: Ms | None = None
    #: The number of fires that count against `max_runs`.
    fired: int = 0
    #: Why the schedule is paused, finished or deleted.
    reason: str | None = None
    #: When a paused schedule resumes by itself; None: it waits for a command.
    until: Ms | None = None
    created_at: Ms = 0
    #: The time of the schedule's last event. Events of its runs do not count.
    updated_at: Ms = 0
    #: Fires up to this instant may have a run from before a rewind. None: the schedule was never rewound.
    rewound: Ms | None = None

    @property
    def enabled(self) -> bool:
        """True while the schedule plans runs: it is not paused, finished or deleted."""
        return self.state == "active"

    @property
    def drifted(self) -> bool:
        """True if code declares the schedule, but its present revision was made by a person or an API client."""
        return self.app != "" and self.origin == "api"


class Definition(Struct, frozen=True, gc=False):
    """A revision of a schedule, with the time in which it was in force. The ledger computes the planned fires from it.

    The revision applies to fires after `since`, up to the `since` of the next revision. `until` is the instant after
    which the revision has no fires, because the schedule finished; None: it did not finish under this revision.
    `anchor` is the instant from which an interval trigger counts.
    """

    revision: int
    since: Ms
    anchor: Ms
    spec: ScheduleSpec
    until: Ms | None = None


class Span(Struct, frozen=True, gc=False):
    """The row for planned fires that will not run: the `count` fires of a schedule in (after, through], with reason."""

    schedule_id: ScheduleId
    revision: int
    after: Ms
    through: Ms
    count: int
    reason: str
    ns: str = "default"
