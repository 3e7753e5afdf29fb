"""The life of a run: the one module that knows the legal moves.

`TRANSITIONS` is the table, `evolve` folds one event into a run, `decide` answers a command with events.
`docs/architecture.md` prints its diagram from the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from mainspring.model.errors import IllegalTransition
from mainspring.model.events import (
    CancelRequested,
    Event,
    LeaseExpired,
    RunCancelled,
    RunDiscarded,
    RunEvent,
    RunFailed,
    RunHandedBack,
    RunLost,
    RunReopened,
    RunRetrying,
    RunScheduled,
    RunSkipped,
    RunSnoozed,
    RunStarted,
    RunSucceeded,
    RunUnblocked,
    alike,
)
from mainspring.model.instant import Ms
from mainspring.model.run import ENDED, Run, State

S = State

#: (state, event) → state; a pair that is not here cannot happen. `None` is "not yet born".
TRANSITIONS: Mapping[tuple[State | None, type[RunEvent]], State] = {
    (None, RunScheduled): S.WAITING,
    (None, RunSkipped): S.SKIPPED,
    (S.BLOCKED, RunUnblocked): S.WAITING,
    (S.BLOCKED, RunFailed): S.FAILED,
    (S.BLOCKED, RunSkipped): S.SKIPPED,
    (S.BLOCKED, RunCancelled): S.CANCELLED,
    (S.WAITING, RunStarted): S.RUNNING,
    (S.WAITING, RunSkipped): S.SKIPPED,
    (S.WAITING, RunCancelled): S.CANCELLED,
    (S.RETRYING, RunStarted): S.RUNNING,
    (S.RETRYING, RunSnoozed): S.WAITING,
    (S.RETRYING, RunSkipped): S.SKIPPED,
    (S.RETRYING, RunCancelled): S.CANCELLED,
    (S.RUNNING, RunSucceeded): S.SUCCEEDED,
    (S.RUNNING, RunRetrying): S.RETRYING,
    (S.RUNNING, RunFailed): S.FAILED,
    (S.RUNNING, RunSnoozed): S.WAITING,
    (S.RUNNING, RunHandedBack): S.WAITING,
    (S.RUNNING, LeaseExpired): S.WAITING,
    (S.RUNNING, RunLost): S.LOST,
    (S.RUNNING, CancelRequested): S.RUNNING,
    (S.RUNNING, RunCancelled): S.CANCELLED,
    (S.RUNNING, RunSkipped): S.SKIPPED,
    (S.FAILED, RunReopened): S.WAITING,
    (S.LOST, RunReopened): S.WAITING,
    (S.CANCELLED, RunReopened): S.WAITING,
    (S.FAILED, RunDiscarded): S.FAILED,
    (S.LOST, RunDiscarded): S.LOST,
}


def next_state(run_id: str, state: State | None, event: type[RunEvent]) -> State:
    """Where `event` leads from `state`, or an error that says what is legal."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        legal = sorted(e.__name__ for (s, e) in TRANSITIONS if s is state)
        raise IllegalTransition(
            f"run {run_id} is {state or 'not yet born'}: {event.__name__} is not possible"
            + (f" (possible: {', '.join(legal)})" if legal else " (nothing is)")
        ) from None


# ── commands ────────────────────────────────────────────────────────────────


class Complete(Struct, frozen=True, gc=False):
    """The handler returned."""

    began_at: Ms
    ms: int
    result: str | None = None


class Fail(Struct, frozen=True, gc=False):
    """The handler failed; with `retry_at` it will be tried again."""

    error: str
    began_at: Ms | None = None
    ms: int | None = None
    retry_at: Ms | None = None
    reason: str = "error"
    fingerprint: str | None = None
    trace: str | None = None


class SnoozeUntil(Struct, frozen=True, gc=False):
    """The handler wants to be called later; also "retry now" of a retrying run."""

    until: Ms


class HandBack(Struct, frozen=True, gc=False):
    """The worker gives the run back."""

    reason: str
    began: bool = False


class Expire(Struct, frozen=True, gc=False):
    """The lease ended; what follows depends on the crashes so far."""

    max_crashes: int
    recovery: str


class RequestCancel(Struct, frozen=True, gc=False):
    """Somebody wants the run not to go on."""

    reason: str
    by: str = ""


class StopCancelled(Struct, frozen=True, gc=False):
    """The worker stopped a run, because it was asked to or because the handler said so."""

    reason: str
    by: str = ""


class Skip(Struct, frozen=True, gc=False):
    """Consume the run before its handler begins."""

    reason: str
    by: str | None = None


class Reopen(Struct, frozen=True, gc=False):
    """Open an ended run again."""

    by: str = ""
    body: str | None = None


class Discard(Struct, frozen=True, gc=False):
    """Put a dead letter away."""

    by: str = ""


Command = Complete | Fail | SnoozeUntil | HandBack | Expire | RequestCancel | StopCancelled | Skip | Reopen | Discard


def decide(run: Run, command: Command, now: Ms) -> tuple[RunEvent, ...]:
    """The events that carry out a command; IllegalTransition when the run's state does not allow it."""
    event = _decide(run, command, now)
    next_state(run.id, run.state, type(event))
    return (event,)


def complete(run: Run, began_at: Ms, ms: int, result: str | None) -> tuple[Run, RunSucceeded]:
    """What `decide` and `evolve` make of `Complete`, in one: what happens most."""
    state = next_state(run.id, run.state, RunSucceeded)
    event = _succeeded(run, began_at, ms, result)
    return _after_success(run, state, event), event


def _succeeded(run: Run, began_at: Ms, ms: int, result: str | None) -> RunSucceeded:
    return RunSucceeded(
        ns=run.ns,
        run_id=run.id,
        schedule_id=run.schedule_id,
        epoch=run.epoch,
        attempt=run.attempt,
        owner=run.owner,
        began_at=began_at,
        ms=ms,
        result=result,
    )


def _decide(run: Run, command: Command, now: Ms) -> RunEvent:
    head: dict[str, Any] = {"ns": run.ns, "run_id": run.id, "schedule_id": run.schedule_id}
    held: dict[str, Any] = {"epoch": run.epoch, "attempt": run.attempt, "owner": run.owner}
    match command:
        case Complete():
            return _succeeded(run, command.began_at, command.ms, command.result)
        case Fail():
            said: dict[str, Any] = {
                "error": command.error,
                "began_at": command.began_at,
                "ms": command.ms,
                "fingerprint": command.fingerprint,
                "trace": command.trace,
            }
            if command.retry_at is not None:
                return RunRetrying(**head, **held, **said, next_attempt_at=command.retry_at)
            return RunFailed(**head, **held, **said, reason=command.reason)
        case SnoozeUntil():
            return RunSnoozed(**head, **held, until=command.until)
        case HandBack():
            return RunHandedBack(**head, **held, reason=command.reason, began=command.began)
        case Expire():
            crashes = run.crashes + 1
            if run.cancel is not None:
                return RunCancelled(**head, **held, reason=run.cancel, by="lease")
            if command.recovery == "fail":
                return RunLost(**head, **held, crashes=crashes)
            if crashes >= command.max_crashes:
                error = f"the worker died or fell silent {crashes} times while running this"
                return RunFailed(**head, **held, error=error, reason="crashed", fingerprint="crashed")
            # A run that was claimed ahead of its time may be back before it.
            return LeaseExpired(**head, **held, crashes=crashes, ready_at=max(now, run.ready_at))
        case RequestCancel():
            if run.state is State.RUNNING:
                return CancelRequested(**head, reason=command.reason, by=command.by)
            return RunCancelled(**head, reason=command.reason, by=command.by)
        case StopCancelled():
            return RunCancelled(**head, **held, reason=command.reason, by=command.by)
        case Skip():
            return RunSkipped(**head, **held, reason=command.reason, by=command.by)
        case Reopen():
            return RunReopened(**head, ready_at=now, by=command.by, body=command.body)
        case Discard():
            return RunDiscarded(**head, by=command.by)


# ── the fold ────────────────────────────────────────────────────────────────


def born(event: RunEvent) -> Run:
    """The run that its first event makes."""
    state = next_state(event.run_id or "", None, type(event))
    if isinstance(event, RunScheduled):
        return Run(
            id=event.run_id or "",
            ns=event.ns,
            schedule_id=event.schedule_id,
            n=event.n or 1,
            created_at=event.at,
            task=event.task,
            origin=event.origin,
            fire_time=event.fire_time,
            fire_key=event.fire_key,
            revision=event.revision,
            catch_up=event.catch_up,
            lane=event.lane,
            priority=event.priority,
            gates=event.gates,
            unique_key=event.unique_key,
            body=event.body,
            options=event.options,
            state=State.BLOCKED if event.parents else state,
            due_at=event.due_at,
            ready_at=event.due_at,
        )
    assert isinstance(event, RunSkipped)
    return Run(
        id=event.run_id or "",
        ns=event.ns,
        schedule_id=event.schedule_id,
        n=event.n or 1,
        created_at=event.at,
        task=event.task or "",
        origin="fire",
        fire_time=event.fire_time,
        fire_key=event.fire_key,
        revision=event.revision,
        state=state,
        due_at=event.fire_time or 0,
        ready_at=event.fire_time or 0,
        reason=event.reason,
        ended_at=event.at,
    )


def all_born(events: Iterable[RunScheduled]) -> list[Run]:
    """The same for many; those that are like the one before take what it was worked out to."""
    runs: list[Run] = []
    model: RunScheduled | None = None
    for event in events:
        if model is not None and alike(event, model):
            runs.append(replace(runs[-1], id=event.run_id or "", body=event.body))
        else:
            model = event
            runs.append(born(event))
    return runs


def evolve(run: Run | None, event: RunEvent) -> Run:
    """Apply one event. The event's own fields are the only time used; IllegalTransition when it cannot be."""
    if run is None:
        return born(event)
    state = next_state(run.id, run.state, type(event))
    if type(event) is RunSucceeded:  # the same as below, for what happens most
        return _after_success(run, state, event)
    values: dict[str, Any] = {"state": state, "n": run.n + 1}
    if state is not State.RUNNING:
        values |= {"owner": None, "lease_until": None, "parked_on": None, "progress": None}
    if state in ENDED and run.state not in ENDED:
        values["ended_at"] = event.at
    values |= _folded(run, event)
    return replace(run, **values)


def _after_success(run: Run, state: State, event: RunSucceeded) -> Run:
    return replace(
        run,
        state=state,
        n=run.n + 1,
        owner=None,
        lease_until=None,
        parked_on=None,
        progress=None,
        ended_at=event.at,
        result=event.result,
        began_at=event.began_at,
        ms=event.ms,
        error=None,
        reason=None,
    )


def _folded(run: Run, event: RunEvent) -> dict[str, Any]:
    match event:
        case RunStarted():
            return {"epoch": event.epoch, "attempt": event.attempt, "owner": event.owner, "started_at": event.at}
        case RunRetrying():
            said = {"error": event.error, "began_at": event.began_at, "ms": event.ms}
            return {**said, "failures": run.failures + 1, "ready_at": event.next_attempt_at}
        case RunFailed():
            said = {"error": event.error, "began_at": event.began_at, "ms": event.ms}
            counted = {"crashes": run.crashes + 1} if event.reason == "crashed" else {"failures": run.failures + 1}
            counted = {} if event.reason == "parent" else counted
            return {**said, **counted, "reason": event.reason, "dead": event.dead_lettered}
        case RunSnoozed():
            return {"ready_at": event.until, "reason": "snoozed"}
        case RunHandedBack():
            return {"reason": "handed_back"} if event.began else {}
        case LeaseExpired():
            return {"crashes": event.crashes, "ready_at": event.ready_at}
        case RunLost():
            return {"crashes": event.crashes, "reason": "lost", "dead": True}
        case RunUnblocked():
            return {"ready_at": event.ready_at}
        case CancelRequested():
            return {"cancel": event.reason}
        case RunCancelled() | RunSkipped():
            return {"reason": event.reason}
        case RunReopened():
            nothing = dict.fromkeys(("error", "cancel", "result"))
            fresh = {"failures": 0, "crashes": 0, "dead": False, "reason": "reopened"}
            return {**nothing, **fresh, "ready_at": event.ready_at, "ended_at": None, "body": event.body or run.body}
        case RunDiscarded():
            return {"dead": False, "reason": "discarded"}
    return {}


def fold(events: Iterable[Event]) -> Run | None:
    """The run of a whole stream."""
    run: Run | None = None
    for event in events:
        if isinstance(event, RunEvent):
            run = evolve(run, event)
    return run


def diagram() -> str:
    """The table as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2"]
    for (state, event), target in TRANSITIONS.items():
        lines.append(f"    {state or '[*]'} --> {target}: {event.__name__}")
    lines.append("    [*] --> blocked: RunScheduled (with parents)")
    lines.extend(f"    {state} --> [*]" for state in State if state in ENDED)
    return "\n".join(lines)
