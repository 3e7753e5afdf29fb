"""Events: the typed entries of the append-only log.

A `RunEvent` or `ScheduleEvent` changes one run or schedule. It has a number `n` among the events of that row, and the
row is the fold of these events. A `Note` changes no row and has no `n`. The fields of `Event` are columns of the log.
The fields that a class adds are stored together as JSON (`data`), and the class name as the type.

Fields that several classes add: `by` names the person, program or API key that asked for the change. `began_at` is when
the handler began, `ms` the milliseconds that it took; both are None if it did not begin. `fingerprint` is a text that
is equal for failures of one kind, `trace` is the traceback. `spec`, `anchor`, `cursor`, `next_at`, `origin`, `app`,
`version` and `digest` are new values of the schedule's columns, which `Schedule` explains.
"""

from __future__ import annotations

from msgspec import Struct, field

from mainspring.model.ids import RunId, ScheduleId
from mainspring.model.instant import Ms
from mainspring.model.policies import RunOptions
from mainspring.model.run import RunOrigin
from mainspring.model.schedule import Definition, Origin, Schedule, ScheduleSpec, ScheduleState, Span


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An entry of the log.

    The store sets `seq`, `at` and `n`: the event's number in the whole log, the time of the write, and the event's
    number among the events of its run or schedule. `change` is the id of the change that wrote the event, `actor` the
    person, API key or agent behind it, `v` the version of its format. `epoch`, `attempt` and `owner` name the lease
    under which a worker acted.
    """

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


#: The fields that every event has; each is a column of the log.
EVENT_BASE_FIELDS = Event.__struct_fields__


class ScheduleEvent(Event, frozen=True, kw_only=True):
    """An event that creates or changes the row of a schedule."""


class RunEvent(Event, frozen=True, kw_only=True):
    """An event that creates or changes the row of a run."""


class Note(Event, frozen=True, kw_only=True):
    """An event that changes no row of a run or schedule: a fact for the readers of the log."""


# ── schedules ───────────────────────────────────────────────────────────────


class ScheduleCreated(ScheduleEvent, frozen=True, kw_only=True):
    """A schedule was created. `app` and `version` name the code that declares it; "" if no code does."""

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
    """A schedule got a new revision, which affects only fires after `cursor`, and the name `name` unless that is None.

    `changed` names the fields of `spec` that differ from the revision before.
    """

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
    name: str | None = None


class SchedulePaused(ScheduleEvent, frozen=True, kw_only=True):
    """A schedule was paused: it plans no runs until it is resumed, by a command or at `until` (None: by a command)."""

    reason: str
    until: Ms | None = None
    next_at: Ms | None = None


class ScheduleResumed(ScheduleEvent, frozen=True, kw_only=True):
    """A paused schedule was resumed: its fires after `cursor` are planned again."""

    cursor: Ms
    reason: str = ""
    next_at: Ms | None = None


class ScheduleFinished(ScheduleEvent, frozen=True, kw_only=True):
    """A schedule finished: it has no fire after `cursor`.

    Reasons: exhausted (the trigger has no further fire); max_runs (the maximum is reached); ended (by its `end`).
    """

    reason: str
    cursor: Ms


class ScheduleRewound(ScheduleEvent, frozen=True, kw_only=True):
    """The cursor of a schedule was set back from `from_` to `to`, because it had been planned ahead of the clock.

    `taken_back` fires were in spans after `to`, which are gone. `kept` are the spans that were cut or end at `to`.
    """

    from_: Ms = field(name="from")
    to: Ms
    taken_back: int
    anchor: Ms
    fired: int
    next_at: Ms | None = None
    state: ScheduleState = "active"
    kept: tuple[Span, ...] = ()


class FireCountedAgain(ScheduleEvent, frozen=True, kw_only=True):
    """The cursor of a schedule passed the fire at `fire_time`, which has had a run since before a rewind."""

    fire_time: Ms
    next_at: Ms | None = None


class ScheduleDeleted(ScheduleEvent, frozen=True, kw_only=True):
    """A schedule was deleted. Its runs and its history stay."""

    reason: str = "user"


class FiresElided(ScheduleEvent, frozen=True, kw_only=True):
    """The `count` planned fires of a schedule in (after, through] will not run. The store holds a span row for them.

    `reason`: missed, paused, outside_time_window, or dst (a clock change skips the fire). `consumed`: True if the fires
    count against `max_runs`.
    """

    revision: int
    after: Ms
    through: Ms
    count: int
    reason: str
    next_at: Ms | None = None
    consumed: bool = True


class ScheduleSnapshot(ScheduleEvent, frozen=True, kw_only=True):
    """The row of a schedule and its revisions, in place of the schedule's earlier events. Only retention writes it."""

    state: Schedule
    definitions: tuple[Definition, ...]


# ── runs ────────────────────────────────────────────────────────────────────


class RunScheduled(RunEvent, frozen=True, kw_only=True):
    """A run was created. Workers may claim it from `due_at` on, if no gate restricts it.

    `coalesced` is the number of missed fires that this run makes up for in addition to its own fire. `parents` are the
    runs that must end before it may start (reserved: always empty).
    """

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
    """A run ended before its handler began.

    As the first event of a run, it stands for a fire that was skipped at once, because an earlier run is open. Its
    reason is then overlap, or no_worker (that run waits for a task that no live instance has), and `by` is its id.
    """

    reason: str
    task: str | None = None
    fire_time: Ms | None = None
    fire_key: str | None = None
    revision: int | None = None
    by: str | None = None
    next_at: Ms | None = None


class RunUnblocked(RunEvent, frozen=True, kw_only=True):
    """A blocked run may be claimed from `ready_at` on: all its `parents` have ended as required.

    Reserved: not written yet.
    """

    ready_at: Ms
    parents: tuple[RunId, ...] = ()


class RunStarted(RunEvent, frozen=True, kw_only=True):
    """A worker claimed the run. The columns `epoch`, `attempt` and `owner` name the lease."""


class RunSucceeded(RunEvent, frozen=True, kw_only=True):
    """The handler returned after `ms` milliseconds. `result` is its return value as JSON text; None if it is None.

    `overran_ms`, here and in other events: how long it ran beyond its time limit; None: it did not, or was stopped.
    """

    began_at: Ms | None = None
    ms: int | None = None
    result: str | None = None
    overran_ms: int | None = None


class RunRetrying(RunEvent, frozen=True, kw_only=True):
    """The attempt failed; the run will be tried again at `next_attempt_at`.

    `answer`: the answer of an HTTP agent as JSON text (`HttpResult`); None: there was none.
    """

    next_attempt_at: Ms
    error: str
    began_at: Ms | None = None
    ms: int | None = None
    fingerprint: str | None = None
    trace: str | None = None
    overran_ms: int | None = None
    answer: str | None = None


class RunFailed(RunEvent, frozen=True, kw_only=True):
    """The run failed and will not be tried again.

    Reasons: error (the handler raised, or an agent answered with an error that may pass); timeout; process (the
    handler's process died); result (its return value cannot be stored); crashed (too many leases ended without an
    outcome); parent (reserved). Only for the call of an HTTP agent: gone (status 410); refused (another status that is
    not retried); redirect; network (no complete answer); forbidden (the address may not be called); agent (the agent
    reported a failure, or the call could not be made). `dead_lettered`: True if the run becomes a dead letter.
    `answer` is that of `RunRetrying`.
    """

    error: str
    reason: str = "error"
    began_at: Ms | None = None
    ms: int | None = None
    fingerprint: str | None = None
    trace: str | None = None
    dead_lettered: bool = True
    overran_ms: int | None = None
    answer: str | None = None


class RunSnoozed(RunEvent, frozen=True, kw_only=True):
    """The run can be claimed again at `until`. This is not a failure.

    The handler returned `Snooze`, or the attempt got no thread, no process, or no free slot for the call of an agent.
    """

    until: Ms
    overran_ms: int | None = None


class RunHandedBack(RunEvent, frozen=True, kw_only=True):
    """A worker gave the run back without an outcome, and any worker may claim it. This is not a failure.

    Reasons: shutdown (the worker stopped before the attempt ended); not_begun (no slot became free in time, too little
    lease was left, or the worker stopped before); loop_blocked and loop_closed (the handlers' loop); stray (the worker
    did not know the run); lease_lost. `began`: the handler had started. `ready_at`: a later time of the next claim.
    """

    reason: str
    began: bool = False
    ready_at: Ms | None = None


class LeaseExpired(RunEvent, frozen=True, kw_only=True):
    """The lease ended without an outcome, which counts as a crash. The run can be claimed again from `ready_at` on.

    `crashes` is the number of the run's crashes, including this one.
    """

    crashes: int
    ready_at: Ms


class RunLost(RunEvent, frozen=True, kw_only=True):
    """The attempt ended without an outcome, and the run must not be executed again (`recovery="fail"`).

    Its lease ended, or its worker stopped before the handler ended. `crashes` is the number of the run's crashes,
    including this one.
    """

    crashes: int


class CancelRequested(RunEvent, frozen=True, kw_only=True):
    """The person, API key or rule `by` asked to cancel a running run. Its worker reads the request at a heartbeat."""

    reason: str
    by: str = ""


class RunCancelled(RunEvent, frozen=True, kw_only=True):
    """The run ended because it was cancelled. `by` is the person, API key or rule that asked for it."""

    reason: str
    by: str = ""
    overran_ms: int | None = None


class RunReopened(RunEvent, frozen=True, kw_only=True):
    """An ended run was opened again, and can be claimed from `ready_at` on. Its failures and crashes start at zero.

    `body` is the id of the run's new payload; None: the run keeps its payload.
    """

    ready_at: Ms
    by: str = ""
    body: str | None = None


class RunDiscarded(RunEvent, frozen=True, kw_only=True):
    """A dead letter was dismissed: the failed or lost run is no longer listed as a dead letter."""

    by: str = ""


# ── notes ───────────────────────────────────────────────────────────────────


class StaleResultRejected(Note, frozen=True, kw_only=True):
    """A worker reported an outcome under a lease that it no longer holds. The outcome was not stored.

    `outcome` is the name of the outcome's class in `model/outcome.py`.
    """

    outcome: str


class RunLate(Note, frozen=True, kw_only=True):
    """A run began `late_ms` milliseconds after its planned time. Reserved: not written yet."""

    late_ms: int


class RunUnresolved(Note, frozen=True, kw_only=True):
    """No live instance has registered the run's task, `task`. Reserved: not written yet."""

    task: str


class DeclarationConflict(Note, frozen=True, kw_only=True):
    """Code declared a name that a live instance declares otherwise. Nothing was changed.

    `name` is the schedule's name, `declared` the version whose declaration was refused, `live` the version of the live
    instance. If `kind` is "", the live version is newer. Else another program holds the name: `kind` is "task" or
    "schedule", `instance` the instance that was refused, `holder` the one that holds the name; `origin` and `held_by`
    are the origins of their code.
    """

    name: str
    declared: str
    live: str
    kind: str = ""
    instance: str = ""
    holder: str = ""
    origin: str = ""
    held_by: str = ""


class DeclarationTaken(Note, frozen=True, kw_only=True):
    """The instance `instance` took over a name that another program had held, because that program is gone.

    `kind` is "task" or "schedule".
    """

    name: str
    kind: str
    instance: str


class InstanceJoined(Note, frozen=True, kw_only=True):
    """An instance started. `instance` is its name, `version` the version of its program's code."""

    instance: str
    version: str = ""


class InstanceLeft(Note, frozen=True, kw_only=True):
    """An instance stopped as requested, not by a crash. `instance` is its name."""

    instance: str


class LeaderElected(Note, frozen=True, kw_only=True):
    """The instance named `instance` became the leader, which does housekeeping. `term` numbers its leadership."""

    instance: str
    term: int


class LeaderLost(Note, frozen=True, kw_only=True):
    """The leader's term ended: the leader stopped, did not renew its lease in time, or could not reach the store."""

    instance: str
    term: int
    reason: str


class StoreDegraded(Note, frozen=True, kw_only=True):
    """The store answered with errors. Reserved: not written yet."""

    error: str


class StoreRecovered(Note, frozen=True, kw_only=True):
    """The store answers again. Reserved: not written yet."""


class ClockStepped(Note, frozen=True, kw_only=True):
    """The wall clock stepped by `step_ms` milliseconds against the boot clock. A negative step is backwards."""

    step_ms: int


class SubscriberFailed(Note, frozen=True, kw_only=True):
    """A subscriber to events raised `error` on an event of the type `event`. All other subscribers got that event."""

    event: str
    error: str


class LoopBlocked(Note, frozen=True, kw_only=True):
    """The handlers' event loop did not answer for `ms` milliseconds.

    `run_id` and `task` name the run whose handler blocked the loop; None if other code blocked it. `where` is the line
    of code that blocked it; "" if it is not known.
    """

    ms: int
    task: str | None = None
    where: str = ""


class LogCompacted(Note, frozen=True, kw_only=True):
    """Retention removed events from the log, and wrote snapshots and tallies (counts of removed rows) in their place.

    `through` is the highest number (`seq`) of a removed event. `events` is the number of removed events, `streams` that
    of the runs whose events were removed, `tallies` that of the tallies that grew. `digest` is a hash of the removed
    events' numbers, so that two copies of a log can be compared.
    """

    through: int
    streams: int
    events: int
    tallies: int
    digest: str


def _leaves(base: type[Event]) -> list[type[Event]]:
    """Return the event classes below `base` that have no subclasses: the types of event that the log can hold."""
    return [leaf for child in base.__subclasses__() for leaf in (_leaves(child) or [child])]


#: Name of an event class → the class, to decode the log.
EVENT_TYPES: dict[str, type[Event]] = {cls.__name__: cls for cls in _leaves(Event)}
