"""Budgets of a run (attempts, failures, crashes), dead letters, and the same moves in types."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mainspring.model.errors import IllegalTransition
from mainspring.model.events import (
    RunFailed,
    RunSnoozed,
    RunStarted,
)
from mainspring.model.run import ENDED, Run, State
from mainspring.rules.lifecycle import decide, evolve
from mainspring.rules.run_commands import (
    Command,
    Complete,
    Discard,
    Expire,
    Fail,
    HandBack,
    Reopen,
    RequestCancel,
    SnoozeUntil,
)
from mainspring.rules.typestate import Blocked, Ended, Retrying, Running, Waiting

T0 = 1_767_600_000_000
BUDGET = Expire(max_crashes=3, recovery="retry")


def run_in(state: State | None, **values: Any) -> Run | None:
    """A run in a state, otherwise plain."""
    if state is None:
        return None
    held = {"owner": "w", "lease_until": T0 + 30_000, "epoch": 1, "attempt": 1} if state is State.RUNNING else {}
    ended = {"ended_at": T0 + 15} if state in ENDED else {}
    return Run(id="r", task="t", state=state, due_at=T0, ready_at=T0, **{**held, **ended, **values})


def some(state: State, **values: Any) -> Run:
    run = run_in(state, **values)
    assert run is not None
    return run


# ── budgets: attempts, failures, crashes ──


def started(run: Run) -> Run:
    event = RunStarted(run_id=run.id, epoch=run.epoch + 1, attempt=run.attempt + 1, owner="w", at=T0)
    return evolve(run, event)


def after(run: Run, command: Command) -> Run:
    (event,) = decide(run, command, T0 + 100)
    return evolve(run, replace(event, at=T0 + 100))


def test_attempts_count_claims_and_never_go_back() -> None:
    run = started(some(State.WAITING))
    run = started(after(run, HandBack("shutdown")))
    run = started(after(run, BUDGET))
    run = started(after(run, SnoozeUntil(T0)))
    run = started(after(run, Fail("E", retry_at=T0)))
    assert (run.attempt, run.epoch, run.failures, run.crashes) == (5, 5, 1, 1)
    run = started(after(after(run, Fail("E")), Reopen()))
    assert (run.attempt, run.epoch, run.failures, run.crashes) == (6, 6, 0, 0)


def test_crashes_are_compared_with_max_crashes_then_the_run_is_a_dead_letter() -> None:
    run = some(State.WAITING)
    for crash in (1, 2):
        run = after(started(run), BUDGET)
        assert (run.state, run.crashes, run.failures) == (State.WAITING, crash, 0)
    run = after(started(run), BUDGET)
    assert (run.state, run.reason, run.dead, run.crashes, run.failures) == (State.FAILED, "crashed", True, 3, 0)
    assert "3 times" in (run.error or "")


def test_failures_do_not_use_up_the_crash_budget_nor_crashes_the_failures() -> None:
    run = after(started(some(State.WAITING)), Fail("E", retry_at=T0))
    run = after(started(run), Fail("E", retry_at=T0))
    run = after(started(run), BUDGET)
    assert (run.state, run.failures, run.crashes, run.attempt) == (State.WAITING, 2, 1, 3)


def test_recovery_fail_ends_as_lost_at_the_first_crash() -> None:
    run = after(started(some(State.WAITING)), Expire(max_crashes=3, recovery="fail"))
    assert (run.state, run.reason, run.dead, run.crashes) == (State.LOST, "lost", True, 1)


def test_a_snooze_and_a_hand_back_are_no_failures() -> None:
    for command in (SnoozeUntil(T0 + 9), HandBack("preempted", began=True)):
        run = after(started(some(State.WAITING)), command)
        assert (run.state, run.failures, run.crashes) == (State.WAITING, 0, 0)


def test_a_failure_of_a_parent_is_not_counted_as_a_failure_of_the_run() -> None:
    run = evolve(some(State.BLOCKED), RunFailed(run_id="r", error="parent failed", reason="parent", at=T0))
    assert (run.state, run.failures, run.crashes) == (State.FAILED, 0, 0)


def test_a_failed_run_is_a_dead_letter_until_it_is_discarded() -> None:
    run = after(started(some(State.WAITING)), Fail("E"))
    assert (run.state, run.dead, run.failures, run.error) == (State.FAILED, True, 1, "E")
    away = after(run, Discard("me"))
    assert (away.state, away.dead, away.reason, away.ended_at) == (State.FAILED, False, "discarded", run.ended_at)


@pytest.mark.parametrize("state", [State.FAILED, State.LOST, State.CANCELLED])
def test_reopen_keeps_the_fire_time_and_gives_fresh_budgets(state: State) -> None:
    run = some(
        state,
        fire_time=T0 - 5,
        fire_key="k",
        failures=3,
        crashes=2,
        attempt=5,
        epoch=5,
        dead=True,
        error="E",
        reason="x",
    )
    again = after(run, Reopen("me"))
    assert (again.state, again.fire_time, again.fire_key, again.id) == (State.WAITING, T0 - 5, "k", run.id)
    assert (again.failures, again.crashes, again.dead, again.error, again.reason) == (0, 0, False, None, "reopened")
    assert (again.attempt, again.epoch, again.ready_at, again.ended_at) == (5, 5, T0 + 100, None)


def test_reopen_clears_a_cancellation_and_may_set_another_payload() -> None:
    run = some(State.CANCELLED, cancel="stop", body="old")
    assert (after(run, Reopen()).cancel, after(run, Reopen()).body) == (None, "old")
    assert after(run, Reopen(body="new")).body == "new"


def test_a_run_with_a_cancel_request_is_cancelled_when_its_lease_ends() -> None:
    run = after(started(some(State.WAITING)), RequestCancel("stop"))
    assert (run.state, run.cancel) == (State.RUNNING, "stop")
    gone = after(run, Expire(max_crashes=3, recovery="retry"))
    assert (gone.state, gone.reason) == (State.CANCELLED, "stop")


# ── the same moves in types, at run time ──


@pytest.mark.parametrize(
    ("wrapper", "states"),
    [
        (Blocked, {State.BLOCKED}),
        (Waiting, {State.WAITING}),
        (Retrying, {State.RETRYING}),
        (Running, {State.RUNNING}),
        (Ended, set(ENDED)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_run_of_another_state_cannot_be_wrapped(wrapper: Any, states: set[State]) -> None:
    for state in State:
        if state in states:
            assert wrapper(some(state)).run.state is state
        else:
            with pytest.raises(IllegalTransition, match=str(state)):
                wrapper(some(state))


def test_typestate_moves_equal_decide_and_evolve() -> None:
    running = Waiting(some(State.WAITING)).dispatch("w").state
    retrying = running.retry(Fail("E", retry_at=T0 + 9), T0).state
    waiting = retrying.reschedule(T0 + 5)
    assert isinstance(waiting.event, RunSnoozed)
    ended = waiting.state.dispatch("w").state.complete(Complete(T0, 1), T0).state
    assert (ended.run.state, ended.run.attempt, ended.run.failures) == (State.SUCCEEDED, 2, 1)
    with pytest.raises(IllegalTransition):
        ended.reopen(T0)
    with pytest.raises(IllegalTransition, match="retry"):
        running.fail(Fail("E", retry_at=T0), T0)
    with pytest.raises(IllegalTransition, match="retry_at"):
        running.retry(Fail("E"), T0)


def test_typestate_has_the_other_moves_too() -> None:
    running = Blocked(some(State.BLOCKED)).unblock(T0).state.dispatch("w").state
    assert running.request_cancel("x", T0).state.run.cancel == "x"
    assert running.cancel("x", T0).state.reopen(T0).state.run.state is State.WAITING
    assert running.skip("outside_time_window", T0).state.run.reason == "outside_time_window"
    assert running.snooze(T0 + 9, T0).state.run.ready_at == T0 + 9
    assert isinstance(running.hand_back("shutdown", T0).state, Waiting)
    assert isinstance(running.expire(BUDGET, T0).state, Waiting)
    assert isinstance(running.expire(Expire(3, "fail"), T0).state, Ended)
    assert running.fail(Fail("E"), T0).state.discard(T0).state.run.dead is False
    assert Retrying(some(State.RETRYING)).dispatch("w").state.run.attempt == 1
    for cancelled in (
        Blocked(some(State.BLOCKED)).cancel("x", T0),
        Waiting(some(State.WAITING)).cancel("x", T0),
        Retrying(some(State.RETRYING)).cancel("x", T0),
    ):
        assert cancelled.state.run.state is State.CANCELLED
    assert Waiting(some(State.WAITING)).skip("x", T0).state.run.state is State.SKIPPED
