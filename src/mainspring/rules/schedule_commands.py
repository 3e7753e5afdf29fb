"""Commands on a schedule: create, update, pause, resume, delete, run by hand.

A command returns the draft of a change, for the caller to apply; `manual_run` returns an event. An update, pause or
deletion affects only fires after `now`. So its draft first settles the fires that are due, under the old definition.
"""

from __future__ import annotations

from msgspec.structs import replace

from mainspring.model.events import (
    RunScheduled,
    ScheduleCreated,
    ScheduleDeleted,
    ScheduleFinished,
    SchedulePaused,
    ScheduleResumed,
    ScheduleUpdated,
)
from mainspring.model.instant import Ms
from mainspring.model.policies import RunOptions
from mainspring.model.schedule import Origin, Schedule, ScheduleSpec
from mainspring.model.trigger import EverySpec
from mainspring.rules.lanes import lane_of, schedule_gate_row
from mainspring.rules.plan_items import CountedAgain, Elision, Item, keep_known_runs
from mainspring.rules.planning import (
    OpenRuns,
    count_owed,
    counted_event,
    gates_of,
    is_fixed_delay,
    next_planning,
    settle,
    span_counter,
    span_event,
)
from mainspring.rules.schedule_draft import ScheduleDraft

#: Most runs that one edit makes of due fires. Never reached in practice, because the policies for missed fires allow
#: fewer runs.
MAX_RUNS_PER_EDIT = 1_000_000


def create(
    schedule_id: str,
    ns: str,
    name: str,
    spec: ScheduleSpec,
    now: Ms,
    *,
    origin: Origin = "api",
    by: str = "",
    app: str = "",
    version: str = "",
    digest: str = "",
) -> ScheduleDraft:
    """Return the draft that creates a schedule at `now`. Its first fire is the first fire of `spec` after `now`.

    An interval with `first` "now" fires at `now` itself, or at the start of the schedule if that is later.

    If `spec` has no fire after `now`, the schedule is finished at once, and with `terminal="delete"` also deleted. `by`
    becomes the owner. `app` and `version` name the code that declares the schedule, and `digest` is a hash of the
    declared definition.
    """
    draft = ScheduleDraft(None)
    anchor, cursor = _count_from(spec, now, now - 1)
    next_at = first_planning(spec, anchor, cursor)
    draft.emit(
        ScheduleCreated(
            ns=ns,
            schedule_id=schedule_id,
            name=name,
            spec=spec,
            anchor=anchor,
            cursor=cursor,
            next_at=next_at,
            origin=origin,
            by=by,
            app=app,
            version=version,
            digest=digest,
        )
    )
    _add_gate(draft)
    if next_at is None or spec.max_runs is not None:
        _finish_if_nothing_owed(draft)
        if draft.schedule.state == "finished" and spec.terminal == "delete":
            draft.emit(ScheduleDeleted(ns=ns, schedule_id=schedule_id, reason="finished"))
    return draft


def update(
    schedule: Schedule,
    open_runs: OpenRuns,
    spec: ScheduleSpec,
    now: Ms,
    *,
    origin: Origin = "api",
    by: str = "",
    version: str = "",
    digest: str = "",
    name: str | None = None,
) -> ScheduleDraft:
    """Return the draft of a new revision with the definition `spec`, which affects only fires after `now`.

    A paused schedule stays paused; the count of fires and the open runs also stay. A finished schedule is active again
    if `spec` has further fires. If the interval changes, the new interval counts from `now`. An empty `by`, `version`
    or `digest` keeps the old value. `name` is the new name; None: the schedule keeps its name. A rename that leaves the
    times as they are also leaves a finished schedule finished, and the next fire of a fixed delay where it is.
    """
    draft = _settle_first(schedule, open_runs, now)
    old = draft.schedule
    anchor, cursor = old.anchor, max(old.cursor, now)
    if _interval(spec) != _interval(old.spec):
        anchor, cursor = _count_from(spec, now, old.cursor)
    paused = old.state == "paused"
    only_renamed = name is not None and _times(spec) == _times(old.spec)
    if paused:
        next_at = old.until
    elif only_renamed and is_fixed_delay(spec):
        next_at = old.next_at
    else:
        next_at = first_planning(spec, anchor, cursor)
    draft.emit(
        ScheduleUpdated(
            ns=old.ns,
            schedule_id=old.id,
            revision=old.revision + 1,
            spec=spec,
            anchor=anchor,
            cursor=cursor,
            next_at=next_at,
            origin=origin,
            by=by,
            version=version,
            digest=digest,
            changed=changed_fields(old.spec, spec),
            name=name,
        )
    )
    _add_gate(draft)
    if only_renamed and old.state == "finished":
        reason = old.reason or "exhausted"
        draft.emit(ScheduleFinished(ns=old.ns, schedule_id=old.id, reason=reason, cursor=draft.schedule.cursor))
    elif not paused:
        _finish_if_nothing_owed(draft)
    return draft


def pause(schedule: Schedule, open_runs: OpenRuns, now: Ms, *, reason: str, until: Ms | None = None) -> ScheduleDraft:
    """Return the draft that pauses a schedule at `now`. `until` None: until a person or program resumes the schedule.

    A schedule that is already paused gets the new reason and `until`. A finished or deleted schedule is not paused.
    """
    draft = _settle_first(schedule, open_runs, now)
    if draft.schedule.state == "active":
        draft.emit(SchedulePaused(ns=schedule.ns, schedule_id=schedule.id, reason=reason, until=until, next_at=until))
    elif draft.schedule.state == "paused":
        draft = ScheduleDraft(schedule)
        draft.emit(SchedulePaused(ns=schedule.ns, schedule_id=schedule.id, reason=reason, until=until, next_at=until))
    return draft


def resume(schedule: Schedule, now: Ms, *, reason: str = "", known: tuple[Ms, ...] = ()) -> ScheduleDraft:
    """Return the draft that resumes a paused schedule at `now`. The draft is empty if the schedule is not paused.

    One span covers all fires between the pause and `now`, so a long pause costs no more than a short one. `known`:
    times of fires after the cursor that have a run from before a rewind; that run counts again.
    """
    draft = ScheduleDraft(schedule)
    if schedule.state != "paused":
        return draft
    _elide_pause(draft, now, known)
    cursor = max(schedule.cursor, now)
    draft.emit(
        ScheduleResumed(
            ns=schedule.ns,
            schedule_id=schedule.id,
            cursor=cursor,
            reason=reason,
            next_at=first_planning(schedule.spec, schedule.anchor, cursor),
        )
    )
    _finish_if_nothing_owed(draft)
    return draft


def delete(schedule: Schedule, open_runs: OpenRuns, now: Ms, *, reason: str = "user") -> ScheduleDraft:
    """Return the draft that marks a schedule as deleted; its runs and events stay. Empty if it is deleted already."""
    draft = _settle_first(schedule, open_runs, now)
    if draft.schedule.state != "deleted":
        draft.emit(ScheduleDeleted(ns=schedule.ns, schedule_id=schedule.id, reason=reason))
    return draft


def manual_run(schedule: Schedule, run_id: str, now: Ms, *, body: str | None, actor: str | None = None) -> RunScheduled:
    """Return the first event of a run that is started by hand at `now`, in addition to the schedule's fires.

    The run must pass the schedule's gates, but ignores its time window. `body` is the id of the run's payload, None if
    it has none. `actor` is the person or API key behind the call.
    """
    options = schedule.spec.options
    if options is not None and options.window is not None:
        options = replace(options, window=None)
    return RunScheduled(
        ns=schedule.ns,
        schedule_id=schedule.id,
        run_id=run_id,
        actor=actor,
        task=schedule.spec.task,
        origin="trigger",
        fire_time=now,
        fire_key=f"manual:{run_id}",
        revision=schedule.revision,
        due_at=now,
        lane=lane_of(schedule.ns, schedule.spec.queue),
        priority=schedule.spec.priority,
        gates=gates_of(schedule),
        body=body,
        options=options if options != RunOptions() else None,
    )


def rearm(schedule: Schedule, ended_at: Ms) -> ScheduleDraft:
    """Return the draft that sets `next_at` of a fixed-delay schedule to one interval after `ended_at`.

    `ended_at` is the end of the schedule's last run. The draft is empty if the schedule is not active, or if its
    `next_at` is not earlier. If the new `next_at` lies after the schedule's end, the draft finishes the schedule. No
    event carries `next_at`, because it can be computed from the run (ADR 2).
    """
    draft = ScheduleDraft(schedule)
    assert isinstance(schedule.spec.trigger, EverySpec)
    next_at = max(ended_at + schedule.spec.trigger.interval, schedule.cursor + 1)
    if schedule.state == "active" and (schedule.next_at is None or schedule.next_at < next_at):
        if schedule.spec.end is not None and next_at > schedule.spec.end:
            draft.emit(
                ScheduleFinished(ns=schedule.ns, schedule_id=schedule.id, reason="ended", cursor=schedule.cursor)
            )
        else:
            draft.set(next_at=next_at)
    return draft


def changed_fields(old: ScheduleSpec, new: ScheduleSpec) -> tuple[str, ...]:
    """Return the names of the fields in which two definitions differ."""
    return tuple(name for name in old.__struct_fields__ if getattr(old, name) != getattr(new, name))


def _settle_first(schedule: Schedule, open_runs: OpenRuns, now: Ms) -> ScheduleDraft:
    """Return a draft that settles the fires due at `now`. If the schedule is paused, a span covers these fires."""
    if schedule.state != "paused":
        return settle(schedule, open_runs, now, MAX_RUNS_PER_EDIT)
    draft = ScheduleDraft(schedule)
    _elide_pause(draft, now, open_runs.known)
    return draft


def _elide_pause(draft: ScheduleDraft, now: Ms, known: tuple[Ms, ...]) -> None:
    """Add to the draft a span of the fires up to `now` that the pause left out. Add nothing if there are none.

    A fixed-delay schedule has none: its next fire is not known before a run ends. `known`: times of fires that have a
    run from before a rewind; they get no span.
    """
    schedule = draft.schedule
    if is_fixed_delay(schedule.spec):
        return
    count = count_owed(schedule.spec, schedule.anchor, schedule.cursor, now)
    if count:
        span: list[Item] = [Elision(schedule.cursor, now, count, "paused")]
        for item in keep_known_runs(span, known, span_counter(schedule.spec, schedule.anchor)):
            if isinstance(item, Elision):
                draft.emit(span_event(schedule, item, schedule.next_at))
            elif isinstance(item, CountedAgain):
                draft.emit(counted_event(schedule, item, schedule.next_at))


def _count_from(spec: ScheduleSpec, now: Ms, cursor: Ms) -> tuple[Ms, Ms]:
    """Return (anchor, cursor) of a definition from `now` on; the fires until `cursor` are covered already.

    With `first` "now", both lie so that the first fire is at `now`, or at the start of the schedule if that is later.
    """
    trigger = spec.trigger
    if not isinstance(trigger, EverySpec) or trigger.first is None:
        return now, max(cursor, now)
    cursor = max(cursor, now - 1)
    return max(cursor + 1, spec.start or 0) - trigger.interval, cursor


def first_planning(spec: ScheduleSpec, anchor: Ms, after: Ms) -> Ms | None:
    """Return the first instant after `after` at which the schedule must be planned, None if no fire is left.

    For a fixed delay, it is one interval after `after`, or one interval after the schedule's start if that is later.
    """
    if is_fixed_delay(spec):
        assert isinstance(spec.trigger, EverySpec)
        delay = spec.trigger.interval if spec.trigger.first is None else 1
        return max(after, (spec.start or after) - 1) + delay
    return next_planning(spec, anchor, after)


def _times(spec: ScheduleSpec) -> tuple[object, ...]:
    """Return the parts of a definition that decide when it fires, and how often."""
    return spec.trigger, spec.start, spec.end, spec.max_runs


def _interval(spec: ScheduleSpec) -> Ms | None:
    return spec.trigger.interval if isinstance(spec.trigger, EverySpec) else None


def _add_gate(draft: ScheduleDraft) -> None:
    """Add the gate that keeps the schedule's runs from overlapping to the draft, unless the policy allows overlaps."""
    schedule = draft.schedule
    if schedule.spec.overlap != "allow_parallel":
        draft.gates.append(schedule_gate_row(schedule.id))


def _finish_if_nothing_owed(draft: ScheduleDraft) -> None:
    """Finish the draft's schedule if `max_runs` is reached or no fire is left after its cursor.

    For a fixed delay, only `max_runs` is examined, because the next fire is not known before a run ends.
    """
    schedule = draft.schedule
    reason = None
    if schedule.spec.max_runs is not None and schedule.fired >= schedule.spec.max_runs:
        reason = "max_runs"
    elif not is_fixed_delay(schedule.spec) and next_planning(schedule.spec, schedule.anchor, schedule.cursor) is None:
        reason = "exhausted" if schedule.spec.end is None else "ended"
    if reason is not None:
        draft.emit(ScheduleFinished(ns=schedule.ns, schedule_id=schedule.id, reason=reason, cursor=schedule.cursor))
