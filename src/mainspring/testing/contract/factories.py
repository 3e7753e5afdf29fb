"""Factories of rows, events and changes with defaults that suit most tests; ids come from a counter of the test."""

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
from mainspring.rules.change_shape import shape_of

#: The instant at which test time begins: 2024-01-01T00:00Z.
T0: Ms = 1_704_067_200_000


class Ids:
    """Counter that makes ids: equal each time that a test is run, and sorted in the order of their creation."""

    def __init__(self) -> None:
        self._count = 0

    def next(self) -> str:
        """Return the next id, a UUID that contains only the count."""
        self._count += 1
        return f"00000000-0000-7000-8000-{self._count:012x}"

    def change(self) -> str:
        """Return the next id for a change."""
        return f"c-{self.next()}"


def make_run(ids: Ids, **over: Any) -> Run:
    """Return a waiting run of task `t`, due at T0, with the fields in `over`; `due_at` also sets `ready_at`."""
    values: dict[str, Any] = {"task": "t", "due_at": T0, **over}
    values.setdefault("ready_at", values["due_at"])
    if "id" not in values:
        values["id"] = ids.next()
    return Run(**values)


def make_spec(**over: Any) -> ScheduleSpec:
    """Return the definition of a schedule that runs task `t` every second, with the fields in `over`."""
    values: dict[str, Any] = {"trigger": EverySpec(interval=1_000), "task": "t", **over}
    return ScheduleSpec(**values)


def make_schedule(ids: Ids, **over: Any) -> Schedule:
    """Return an active schedule anchored at T0 whose first fire is one second later, with the fields in `over`."""
    values: dict[str, Any] = {"anchor": T0, "cursor": T0, "next_at": T0 + 1_000, **over}
    if "id" not in values:
        values["id"] = ids.next()
    values.setdefault("name", f"schedule {values['id'][-4:]}")
    values.setdefault("spec", make_spec())
    return Schedule(**values)


def make_body(data: str) -> Body:
    """Return a payload with the text `data`, whose id is a hash of that text."""
    return Body(body_id(data.encode()), data)


def scheduled(run: Run) -> RunScheduled | RunSkipped:
    """Return the event with which a run is inserted: RunSkipped for a skipped run, else RunScheduled."""
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


def with_kind(change: Change) -> Change:
    """Return the change with its `kind` set to the one that `shape_of` finds for its parts (ADR 0020)."""
    return replace(change, kind=shape_of(change))


def enqueue_change(ids: Ids, run: Run, *, body: str | None = None, gates: Sequence[Gate] = ()) -> Change:
    """Return a change that inserts a new run, its payload with the text `body` (None: no payload), and `gates`."""
    bodies: tuple[Body, ...] = ()
    if body is not None:
        bodies = (make_body(body),)
        run = replace(run, body=bodies[0].id)
    return with_kind(
        Change(
            id=ids.change(),
            guard=RunAbsent(run.id, run.unique_key),
            run=run,
            bodies=bodies,
            gates=tuple(gates),
            events=(scheduled(run),),
        )
    )


def create_schedule_change(ids: Ids, schedule: Schedule, *, body: str | None = None) -> Change:
    """Return a change that inserts a new schedule, and its payload with the text `body` (None: no payload)."""
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
    return with_kind(Change(id=ids.change(), guard=guard, schedule=schedule, bodies=bodies, events=(created,)))


def schedule_change(ids: Ids, old: Schedule, *events: Event, touched: int = 0, **values: Any) -> Change:
    """Return a change that sets `values` of a schedule, if its row is still `old`.

    `touched`: the number of the last touch, if the change is to clear the touch; 0: it clears none.
    """
    new = replace(old, **values)
    old_name = old.name if new.name != old.name else None
    guard = ScheduleAt(old.id, old.revision, old.cursor, old.n, touched, old_name)
    return Change(id=ids.change(), guard=guard, schedule=new, events=events)


def fire_run(schedule: Schedule, fire: Ms, **over: Any) -> Run:
    """Return the run of one fire, with the id that every instance computes for it, and the fields in `over`."""
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
    """Return a change that moves a schedule's cursor past `fires` and `spans`, and inserts a run for each fire.

    `over`: fields of the runs. `next_at` None: one second after the last fire or span. `events`: put before the events
    of the runs. `touched`: the number of the last touch, if the change is to clear the touch; 0: it clears none.
    """
    runs = tuple(fire_run(schedule, fire, **over) for fire in fires)
    cursor = max([schedule.cursor, *fires, *(span.through for span in spans)])
    change = Change(
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
    return with_kind(change)


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
    """Return a change that moves a claimed run to `state` under its lease, and releases its gates.

    RETRYING retries the run and WAITING hands it back; `ready_at` is when it is ready again then. Other states end it.
    `error`: the run's error if it failed. `touches`: schedules to be touched. `values`: further fields of the run.
    """
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
    change = Change(
        id=ids.change(),
        guard=RunLease(run.id, run.epoch),
        run=replace(run, state=state, **values),
        releases=run.gates,
        touches=tuple(touches),
        events=(event,),
    )
    return with_kind(change) if values.keys() <= {"began_at", "ms", "result"} else change


def move_change(ids: Ids, run: Run, *events: Event, **values: Any) -> Change:
    """Return a change that sets `values` of a run, if its row is still `run`.

    If the run is running and `values` has another state, the change also releases the run's gates.
    """
    after = replace(run, **values)
    released = run.gates if run.state is State.RUNNING and after.state is not State.RUNNING else ()
    return Change(id=ids.change(), guard=RunAt(run.id, run.n), run=after, releases=released, events=events)
