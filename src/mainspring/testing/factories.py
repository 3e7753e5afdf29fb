"""Rows, events and changes with sensible defaults, for tests. Ids come from a counter the test owns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from mainspring.model.change import Body, Change, RunAbsent, RunAt, RunLease, ScheduleAbsent, ScheduleAt
from mainspring.model.events import (
    Event,
    RunCancelled,
    RunFailed,
    RunHandedBack,
    RunLost,
    RunRetrying,
    RunScheduled,
    RunSkipped,
    RunSucceeded,
    ScheduleCreated,
)
from mainspring.model.gate import Gate
from mainspring.model.ids import ScheduleId, body_id, fire_id
from mainspring.model.instant import Ms
from mainspring.model.run import Run, State
from mainspring.model.schedule import Schedule, ScheduleSpec, Span
from mainspring.model.trigger import EverySpec

#: Where test time begins: the first instant of 2024.
T0: Ms = 1_704_067_200_000
DAY: Ms = 86_400_000


class Ids:
    """Deterministic ids that grow in the order they are made."""

    def __init__(self) -> None:
        self._count = 0

    def next(self) -> str:
        """A uuid that holds nothing but a count."""
        self._count += 1
        return f"00000000-0000-7000-8000-{self._count:012x}"

    def change(self) -> str:
        """An id for a change."""
        return f"c-{self.next()}"


def make_run(ids: Ids, **over: Any) -> Run:
    """A waiting run of task `t`, due at T0; `due_at` also moves `ready_at`."""
    values: dict[str, Any] = {"task": "t", "due_at": T0, **over}
    values.setdefault("ready_at", values["due_at"])
    if "id" not in values:
        values["id"] = ids.next()
    return Run(**values)


def make_spec(**over: Any) -> ScheduleSpec:
    """Task `t` every second."""
    values: dict[str, Any] = {"trigger": EverySpec(interval=1_000), "task": "t", **over}
    return ScheduleSpec(**values)


def make_schedule(ids: Ids, **over: Any) -> Schedule:
    """An active schedule anchored at T0 whose first fire comes a second later."""
    values: dict[str, Any] = {"anchor": T0, "cursor": T0, "next_at": T0 + 1_000, **over}
    if "id" not in values:
        values["id"] = ids.next()
    values.setdefault("name", f"schedule {values['id'][-4:]}")
    values.setdefault("spec", make_spec())
    return Schedule(**values)


def make_body(data: str) -> Body:
    """A payload under its own hash."""
    return Body(body_id(data.encode()), data)


def scheduled(run: Run) -> RunScheduled | RunSkipped:
    """The event that brings this run into the world."""
    if run.state is State.SKIPPED:
        return RunSkipped(
            ns=run.ns,
            run_id=run.id,
            schedule_id=run.schedule_id,
            task=run.task,
            reason=run.reason or "overlap",
            fire_time=run.fire_time,
            fire_key=run.fire_key,
            revision=run.revision,
        )
    return RunScheduled(
        ns=run.ns,
        run_id=run.id,
        schedule_id=run.schedule_id,
        task=run.task,
        due_at=run.due_at,
        origin=run.origin,
        fire_time=run.fire_time,
        fire_key=run.fire_key,
        revision=run.revision,
        lane=run.lane,
        priority=run.priority,
        gates=run.gates,
        body=run.body,
        unique_key=run.unique_key,
        options=run.options,
        catch_up=run.catch_up,
    )


def enqueue_change(ids: Ids, run: Run, *, body: str | None = None, gates: Sequence[Gate] = ()) -> Change:
    """Insert a run that must not exist, with its payload and the gates it names."""
    bodies: tuple[Body, ...] = ()
    if body is not None:
        bodies = (make_body(body),)
        run = replace(run, body=bodies[0].id)
    return Change(
        id=ids.change(),
        guard=RunAbsent(run.id, run.unique_key),
        run=run,
        bodies=bodies,
        gates=tuple(gates),
        events=(scheduled(run),),
    )


def create_schedule_change(ids: Ids, schedule: Schedule, *, body: str | None = None) -> Change:
    """Insert a schedule that must not exist."""
    bodies: tuple[Body, ...] = ()
    if body is not None:
        bodies = (make_body(body),)
        schedule = replace(schedule, spec=replace(schedule.spec, body=bodies[0].id))
    created = ScheduleCreated(
        ns=schedule.ns,
        schedule_id=schedule.id,
        name=schedule.name,
        revision=schedule.revision,
        spec=schedule.spec,
        anchor=schedule.anchor,
        cursor=schedule.cursor,
        next_at=schedule.next_at,
        origin=schedule.origin,
        app=schedule.app,
    )
    guard = ScheduleAbsent(schedule.id, schedule.ns, schedule.name)
    return Change(id=ids.change(), guard=guard, schedule=schedule, bodies=bodies, events=(created,))


def schedule_change(ids: Ids, old: Schedule, *events: Event, touched: int = 0, **values: Any) -> Change:
    """Move a schedule from the row as it was read to new values."""
    return Change(
        id=ids.change(),
        guard=ScheduleAt(old.id, old.revision, old.cursor, old.n, touched),
        schedule=replace(old, **values),
        events=events,
    )


def fire_run(schedule: Schedule, fire: Ms, **over: Any) -> Run:
    """The run of one fire, with the id every node computes for it."""
    key = str(fire)
    values: dict[str, Any] = {
        "id": fire_id(schedule.id, key, fire),
        "ns": schedule.ns,
        "schedule_id": schedule.id,
        "task": schedule.spec.task,
        "origin": "fire",
        "fire_time": fire,
        "fire_key": key,
        "revision": schedule.revision,
        "priority": schedule.spec.priority,
        "gates": schedule.spec.gates,
        "body": schedule.spec.body,
        "due_at": fire,
        "ready_at": fire,
    }
    return Run(**{**values, **over})


def plan_change(
    ids: Ids,
    schedule: Schedule,
    fires: Sequence[Ms],
    *,
    next_at: Ms | None = None,
    spans: Sequence[Span] = (),
    events: Sequence[Event] = (),
    touched: int = 0,
    **over: Any,
) -> Change:
    """Advance a schedule over these fires, a run for each; `over` changes the runs."""
    runs = tuple(fire_run(schedule, fire, **over) for fire in fires)
    cursor = max([schedule.cursor, *fires, *(span.through for span in spans)])
    return Change(
        id=ids.change(),
        guard=ScheduleAt(schedule.id, schedule.revision, schedule.cursor, schedule.n, touched),
        schedule=replace(
            schedule,
            cursor=cursor,
            next_at=cursor + 1_000 if next_at is None else next_at,
            fired=schedule.fired + len(runs),
        ),
        runs=runs,
        spans=tuple(spans),
        events=(*events, *(scheduled(run) for run in runs)),
    )


def finish_change(
    ids: Ids,
    run: Run,
    state: State = State.SUCCEEDED,
    *,
    ready_at: Ms = T0,
    error: str = "ValueError: no",
    touches: Sequence[ScheduleId] = (),
    **values: Any,
) -> Change:
    """End (or retry, or hand back) a claimed run under its lease, releasing its gates."""
    head: dict[str, Any] = {
        "ns": run.ns,
        "run_id": run.id,
        "schedule_id": run.schedule_id,
        "epoch": run.epoch,
        "attempt": run.attempt,
        "owner": run.owner,
    }
    event: Event
    if state is State.SUCCEEDED:
        event = RunSucceeded(**head, began_at=run.started_at, ms=5, result=values.get("result"))
        values = {"began_at": run.started_at, "ms": 5, **values}
    elif state is State.FAILED:
        event = RunFailed(**head, error=error)
        values = {"error": error, "failures": run.failures + 1, "dead": True, "reason": "error", **values}
    elif state is State.RETRYING:
        event = RunRetrying(**head, error=error, next_attempt_at=ready_at)
        values = {"error": error, "failures": run.failures + 1, "ready_at": ready_at, **values}
    elif state is State.WAITING:
        event = RunHandedBack(**head, reason="shutdown")
        values = {"ready_at": ready_at, **values}
    elif state is State.CANCELLED:
        event = RunCancelled(**head, reason=run.cancel or "asked")
        values = {"reason": run.cancel or "asked", **values}
    elif state is State.LOST:
        event = RunLost(**head, crashes=run.crashes + 1)
        values = {"crashes": run.crashes + 1, **values}
    elif state is State.SKIPPED:
        event = RunSkipped(**head, reason="outside_time_window")
        values = {"reason": "outside_time_window", **values}
    else:
        raise ValueError(f"a claimed run does not finish as {state.value}")
    return Change(
        id=ids.change(),
        guard=RunLease(run.id, run.epoch),
        run=replace(run, state=state, **values),
        releases=run.gates,
        touches=tuple(touches),
        events=(event,),
    )


def move_change(ids: Ids, run: Run, *events: Event, **values: Any) -> Change:
    """Move a run from the row as it was read; gates are released when it leaves running."""
    after = replace(run, **values)
    released = run.gates if run.state is State.RUNNING and after.state is not State.RUNNING else ()
    return Change(id=ids.change(), guard=RunAt(run.id, run.n), run=after, releases=released, events=events)
