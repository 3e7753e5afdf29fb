"""The life of a run: its states, commands and events. Only this module decides which event is legal in which state.

`TRANSITIONS` is the table of legal events for each state. `decide` returns the event that carries out a command.
`evolve` folds an event into the run's row. `docs/architecture.md` shows the table as a diagram.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from mainspring.model.errors import IllegalTransition
from mainspring.model.event_codec import differs_only_in_id_and_body
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
)
from mainspring.model.instant import Ms
from mainspring.model.plural import plural
from mainspring.model.run import ENDED, Run, State
from mainspring.rules.refusals import describe_refusal
from mainspring.rules.run_commands import (
    Command,
    Complete,
    Discard,
    Expire,
    Fail,
    HandBack,
    Reopen,
    RequestCancel,
    Skip,
    SnoozeUntil,
    StopCancelled,
)

S = State

#: (state, class of the event) → next state. A pair that is not here is illegal. State None: the run does not exist yet.
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
    """Return the state of a run after an event of the class `event`.

    `state` is the state before; None if the run does not exist yet. `run_id` is for the error text. Raises
    `IllegalTransition`, with the events that are legal, if the event cannot follow that state.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        legal = sorted(e.__name__ for (s, e) in TRANSITIONS if s is state)
        raise IllegalTransition(describe_refusal(run_id, state, event.__name__, legal)) from None


# ── commands ────────────────────────────────────────────────────────────────


def decide(run: Run, command: Command, now: Ms) -> tuple[RunEvent, ...]:
    """Return the events that carry out a command on a run at `now`: always one. The run itself stays unchanged.

    Raises `IllegalTransition` if the run's state does not allow the command.
    """
    event = _DECISIONS[type(command)](run, command, now)
    next_state(run.id, run.state, type(event))
    return (event,)


def complete(run: Run, began_at: Ms, ms: int, result: str | None) -> tuple[Run, RunSucceeded]:
    """Return the row of a running run after its success, and the event. Faster than `decide` with `Complete`.

    The handler began at `began_at`, took `ms` ms, returned `result` (JSON). Raises: IllegalTransition if not running.
    """
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


def _run_columns(run: Run) -> dict[str, Any]:
    """Return the event columns that name the run."""
    return {"ns": run.ns, "run_id": run.id, "schedule_id": run.schedule_id}


def _lease_columns(run: Run) -> dict[str, Any]:
    """Return the event columns that name the run and its present or last lease."""
    return _run_columns(run) | {"epoch": run.epoch, "attempt": run.attempt, "owner": run.owner}


def _decide_complete(run: Run, command: Complete, now: Ms) -> RunEvent:
    return _succeeded(run, command.began_at, command.ms, command.result)


def _decide_fail(run: Run, command: Fail, now: Ms) -> RunEvent:
    failure: dict[str, Any] = {
        "error": command.error,
        "began_at": command.began_at,
        "ms": command.ms,
        "fingerprint": command.fingerprint,
        "trace": command.trace,
        "answer": command.answer,
    }
    if command.retry_at is not None:
        return RunRetrying(**_lease_columns(run), **failure, next_attempt_at=command.retry_at)
    return RunFailed(**_lease_columns(run), **failure, reason=command.reason)


def _decide_snooze(run: Run, command: SnoozeUntil, now: Ms) -> RunEvent:
    return RunSnoozed(**_lease_columns(run), until=command.until)


def _decide_hand_back(run: Run, command: HandBack, now: Ms) -> RunEvent:
    own: dict[str, Any] = {"reason": command.reason, "began": command.began, "ready_at": command.ready_at}
    return RunHandedBack(**_lease_columns(run), **own)


def _decide_expire(run: Run, command: Expire, now: Ms) -> RunEvent:
    """Return the event of a crash, by the rule in `command`. A run whose cancellation was requested is cancelled."""
    columns, crashes = _lease_columns(run), run.crashes + 1
    if run.cancel is not None:
        return RunCancelled(**columns, reason=run.cancel, by="lease")
    if command.recovery == "fail":
        return RunLost(**columns, crashes=crashes)
    if crashes >= command.max_crashes:
        error = f"the worker died or fell silent {plural(crashes, 'time')} while running this"
        return RunFailed(**columns, error=error, reason="crashed", fingerprint="crashed")
    # A run that was claimed ahead of its time may lose its lease before it is due.
    return LeaseExpired(**columns, crashes=crashes, ready_at=max(now, run.ready_at))


def _decide_request_cancel(run: Run, command: RequestCancel, now: Ms) -> RunEvent:
    if run.state is State.RUNNING:
        return CancelRequested(**_run_columns(run), reason=command.reason, by=command.by)
    return RunCancelled(**_run_columns(run), reason=command.reason, by=command.by)


def _decide_stop_cancelled(run: Run, command: StopCancelled, now: Ms) -> RunEvent:
    return RunCancelled(**_lease_columns(run), reason=command.reason, by=command.by)


def _decide_skip(run: Run, command: Skip, now: Ms) -> RunEvent:
    return RunSkipped(**_lease_columns(run), reason=command.reason, by=command.by)


def _decide_reopen(run: Run, command: Reopen, now: Ms) -> RunEvent:
    return RunReopened(**_run_columns(run), ready_at=now, by=command.by, body=command.body)


def _decide_discard(run: Run, command: Discard, now: Ms) -> RunEvent:
    return RunDiscarded(**_run_columns(run), by=command.by)


_DECISIONS: Mapping[type[Command], Callable[[Run, Any, Ms], RunEvent]] = {
    Complete: _decide_complete,
    Fail: _decide_fail,
    SnoozeUntil: _decide_snooze,
    HandBack: _decide_hand_back,
    Expire: _decide_expire,
    RequestCancel: _decide_request_cancel,
    StopCancelled: _decide_stop_cancelled,
    Skip: _decide_skip,
    Reopen: _decide_reopen,
    Discard: _decide_discard,
}


# ── the fold ────────────────────────────────────────────────────────────────


def run_from_event(event: RunEvent) -> Run:
    """Return the row of the run that a RunScheduled or RunSkipped creates. Other events raise `IllegalTransition`."""
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
    return _run_from_skip(event, state)


def _run_from_skip(event: RunSkipped, state: State) -> Run:
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


def runs_from_events(events: Iterable[RunScheduled]) -> list[Run]:
    """Return the row of the run that each event creates, in the order of the events.

    Why not `run_from_event` for each: this is faster if consecutive events differ only in run id and payload.
    """
    runs: list[Run] = []
    model: RunScheduled | None = None
    for event in events:
        if model is not None and differs_only_in_id_and_body(event, model):
            runs.append(replace(runs[-1], id=event.run_id or "", body=event.body))
        else:
            model = event
            runs.append(run_from_event(event))
    return runs


def evolve(run: Run | None, event: RunEvent) -> Run:
    """Return the row of a run after `event`. `run` is the row before; None if the event creates the run.

    Every time in the row is the event's, so folding the log again gives an equal row. Raises `IllegalTransition` if
    the run's state does not allow the event.
    """
    if run is None:
        return run_from_event(event)
    state = next_state(run.id, run.state, type(event))
    if type(event) is RunSucceeded:  # a short cut for the most frequent event
        return _after_success(run, state, event)
    values: dict[str, Any] = {"state": state, "n": run.n + 1}
    if state is not State.RUNNING:
        values |= {"owner": None, "lease_until": None, "parked_on": None, "progress": None}
    if state in ENDED and run.state not in ENDED:
        values["ended_at"] = event.at
    values |= _FOLDS[type(event)](run, event)
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


def _fold_started(run: Run, event: RunStarted) -> dict[str, Any]:
    return {"epoch": event.epoch, "attempt": event.attempt, "owner": event.owner, "started_at": event.at}


def _fold_retrying(run: Run, event: RunRetrying) -> dict[str, Any]:
    failure = {"error": event.error, "began_at": event.began_at, "ms": event.ms}
    return {**failure, "failures": run.failures + 1, "ready_at": event.next_attempt_at}


def _fold_failed(run: Run, event: RunFailed) -> dict[str, Any]:
    """Return the columns that a final failure sets: one more crash or failure, or neither if a parent run failed."""
    failure = {"error": event.error, "began_at": event.began_at, "ms": event.ms}
    counted: dict[str, Any] = {}
    if event.reason == "crashed":
        counted = {"crashes": run.crashes + 1}
    elif event.reason != "parent":
        counted = {"failures": run.failures + 1}
    return {**failure, **counted, "reason": event.reason, "dead": event.dead_lettered, "result": event.answer}


def _fold_snoozed(run: Run, event: RunSnoozed) -> dict[str, Any]:
    return {"ready_at": event.until, "reason": "snoozed"}


def _fold_handed_back(run: Run, event: RunHandedBack) -> dict[str, Any]:
    """Return the column `reason` if the handler had begun, and the column `ready_at` if the event has it."""
    # Why: a worker skips a run outside its window or past its start deadline only if the run has no reason. A run whose
    # handler has begun must not be skipped.
    began = {"reason": "handed_back"} if event.began else {}
    return began if event.ready_at is None else {**began, "ready_at": event.ready_at}


def _fold_expired(run: Run, event: LeaseExpired) -> dict[str, Any]:
    return {"crashes": event.crashes, "ready_at": event.ready_at}


def _fold_lost(run: Run, event: RunLost) -> dict[str, Any]:
    return {"crashes": event.crashes, "reason": "lost", "dead": True}


def _fold_reason(run: Run, event: RunCancelled | RunSkipped) -> dict[str, Any]:
    return {"reason": event.reason}


def _fold_reopened(run: Run, event: RunReopened) -> dict[str, Any]:
    cleared = dict.fromkeys(("error", "cancel", "result"))
    fresh = {"failures": 0, "crashes": 0, "dead": False, "reason": "reopened"}
    return {**cleared, **fresh, "ready_at": event.ready_at, "ended_at": None, "body": event.body or run.body}


def _fold_discarded(run: Run, event: RunDiscarded) -> dict[str, Any]:
    return {"dead": False, "reason": "discarded"}


#: Class of an event after a run's first → function that returns the columns that the event sets. RunSucceeded is not
#: here: `_after_success` folds it.
_FOLDS: Mapping[type[RunEvent], Callable[[Run, Any], dict[str, Any]]] = {
    RunStarted: _fold_started,
    RunRetrying: _fold_retrying,
    RunFailed: _fold_failed,
    RunSnoozed: _fold_snoozed,
    RunHandedBack: _fold_handed_back,
    LeaseExpired: _fold_expired,
    RunLost: _fold_lost,
    RunUnblocked: lambda _, event: {"ready_at": event.ready_at},
    CancelRequested: lambda _, event: {"cancel": event.reason},
    RunCancelled: _fold_reason,
    RunSkipped: _fold_reason,
    RunReopened: _fold_reopened,
    RunDiscarded: _fold_discarded,
}


def fold(events: Iterable[Event]) -> Run | None:
    """Return the row of a run, folded from all events of the run in order; None without events. Notes are ignored."""
    run: Run | None = None
    for event in events:
        if isinstance(event, RunEvent):
            run = evolve(run, event)
    return run


def diagram() -> str:
    """Return `TRANSITIONS` as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2"]
    for (state, event), target in TRANSITIONS.items():
        lines.append(f"    {state or '[*]'} --> {target}: {event.__name__}")
    lines.append("    [*] --> blocked: RunScheduled (with parents)")
    lines.extend(f"    {state} --> [*]" for state in State if state in ENDED)
    return "\n".join(lines)
