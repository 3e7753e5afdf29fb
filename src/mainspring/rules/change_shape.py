"""Shapes of changes: what each `ChangeKind` promises to a store (ADR 20).

The code that builds a change sets `Change.kind`, and a store chooses its fast path by the kind alone. Production
code never calls `shape_of`; the contract suite and the tests compare its answer with the kind of every change.
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.model.change import Change, ChangeKind, RunAbsent, RunLease, ScheduleAbsent, ScheduleAt
from mainspring.model.events import Event, RunScheduled, RunSucceeded, ScheduleCreated, ScheduleFinished
from mainspring.model.run import OPEN, Run, State


def shape_of(change: Change) -> ChangeKind:
    """Work out the kind of a change from its parts, without reading `change.kind`; "other" if they fit no kind.

    "success" is not checked in full. Such a change must leave all other columns of the claimed run as they are, but the
    run as it was claimed is not given here, so that cannot be checked.
    """
    if _is_success(change):
        return "success"
    if _is_new_runs(change):
        return "new_runs"
    if _is_plan(change):
        return "plan"
    if _is_new_schedule(change):
        return "new_schedule"
    return "other"


def fits_kind(change: Change) -> bool:
    """Return True if the parts of a change fit `change.kind`, as far as `shape_of` can check it.

    Always True for the kind "other", which promises a store nothing.
    """
    return change.kind == "other" or change.kind == shape_of(change)


def _is_success(change: Change) -> bool:
    """Return True if the change only ends a claimed run as succeeded, under its lease. It may also release gates."""
    guard, run, events = change.guard, change.run, change.events
    if not isinstance(guard, RunLease) or run is None or change.schedule is not None or len(events) != 1:
        return False
    if change.runs or change.spans or change.bodies or change.gates or change.touches:
        return False
    event = events[0]
    if type(event) is not RunSucceeded or event.actor is not None or event.v != 1:
        return False
    return (
        run.state is State.SUCCEEDED
        and (guard.id, guard.epoch) == (run.id, run.epoch) == (event.run_id, event.epoch)
        and (event.ns, event.schedule_id, event.attempt) == (run.ns, run.schedule_id, run.attempt)
        and (event.began_at, event.ms, event.result) == (run.began_at, run.ms, run.result)
        and None not in (run.began_at, run.ms)
        and (run.dead, run.reason, run.error) == (False, None, None)
    )


def _is_new_runs(change: Change) -> bool:
    """Return True if the change only inserts new runs, their payloads and gates.

    Such a change has one run and a `RunAbsent` guard, or one or more runs and no guard.
    """
    if change.schedule is not None or change.spans or change.touches or change.releases:
        return False
    guard, runs = change.guard, change.runs
    if isinstance(guard, RunAbsent):
        if change.run is None or runs or (guard.id, guard.unique_key) != (change.run.id, change.run.unique_key):
            return False
        runs = (change.run,)
    elif guard is not None or change.run is not None or not runs:
        return False
    used = {run.body for run in runs}
    return _are_first_events(runs, change.events) and all(body.id in used for body in change.bodies)


def _is_plan(change: Change) -> bool:
    """Return True if the change only plans a schedule, without a new revision, and every fire becomes a run.

    It may also finish the schedule.
    """
    guard, schedule, events = change.guard, change.schedule, change.events
    if not isinstance(guard, ScheduleAt) or schedule is None or change.run is not None:
        return False
    if change.spans or change.bodies or change.gates or change.touches or change.releases:
        return False
    if (schedule.id, schedule.revision) != (guard.id, guard.revision):
        return False
    own_events = 0
    if schedule.state == "finished":
        end = events[-1] if events else None
        if type(end) is not ScheduleFinished or schedule.next_at is not None:
            return False
        if (end.schedule_id, end.ns, end.reason) != (guard.id, schedule.ns, schedule.reason):
            return False
        events, own_events = events[:-1], 1
    if schedule.n != guard.n + own_events or any(run.schedule_id != guard.id for run in change.runs):
        return False
    return _are_first_events(change.runs, events)


def _is_new_schedule(change: Change) -> bool:
    """Return True if the change only creates a schedule. It may also insert payloads and gates."""
    guard, schedule = change.guard, change.schedule
    if not isinstance(guard, ScheduleAbsent) or schedule is None or len(change.events) != 1:
        return False
    if change.run is not None or change.runs or change.spans or change.touches or change.releases:
        return False
    event = change.events[0]
    if type(event) is not ScheduleCreated or event.run_id is not None or _has_lease_columns(event):
        return False
    return (
        (guard.id, guard.ns, guard.name)
        == (schedule.id, schedule.ns, schedule.name)
        == (event.schedule_id, event.ns, event.name)
    )


def _are_first_events(runs: Sequence[Run], events: Sequence[Event]) -> bool:
    """Return True if each run is open and has one event: `events[i]` is the RunScheduled of `runs[i]`."""
    if len(runs) != len(events):
        return False
    return all(
        type(event) is RunScheduled
        and (event.run_id, event.ns, event.schedule_id) == (run.id, run.ns, run.schedule_id)
        and run.state in OPEN
        and event.v == 1
        and not _has_lease_columns(event)
        for run, event in zip(runs, events, strict=True)
    )


def _has_lease_columns(event: Event) -> bool:
    """Return True if the event names a lease (epoch, attempt, owner), as the events of a worker do."""
    return (event.epoch, event.attempt, event.owner) != (None, None, None)
