"""The life of a run: the table, every command, the fold, and the budgets."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mainspring.model.errors import IllegalTransition
from mainspring.model.event_codec import BulkEventEncoder, encode_data
from mainspring.model.events import (
    CancelRequested,
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
from mainspring.model.run import ENDED, OPEN, Run, State
from mainspring.rules.lifecycle import (
    TRANSITIONS,
    decide,
    diagram,
    evolve,
    fold,
    next_state,
    run_from_event,
    runs_from_events,
)
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

T0 = 1_767_600_000_000
BUDGET = Expire(max_crashes=3, recovery="retry")

#: One event of each type, as a store would append it.
EXAMPLES: dict[type[RunEvent], RunEvent] = {
    RunScheduled: RunScheduled(run_id="r", task="t", due_at=T0, at=T0),
    RunSkipped: RunSkipped(run_id="r", task="t", reason="overlap", fire_time=T0, fire_key="k", at=T0 + 1),
    RunUnblocked: RunUnblocked(run_id="r", ready_at=T0 + 5, at=T0 + 5),
    RunStarted: RunStarted(run_id="r", epoch=1, attempt=1, owner="w", at=T0 + 10),
    RunSucceeded: RunSucceeded(run_id="r", began_at=T0 + 11, ms=9, result="7", at=T0 + 20),
    RunRetrying: RunRetrying(run_id="r", next_attempt_at=T0 + 99, error="E", began_at=T0 + 11, ms=9, at=T0 + 20),
    RunFailed: RunFailed(run_id="r", error="E", began_at=T0 + 11, ms=9, at=T0 + 20),
    RunSnoozed: RunSnoozed(run_id="r", until=T0 + 99, at=T0 + 20),
    RunHandedBack: RunHandedBack(run_id="r", reason="shutdown", at=T0 + 20),
    LeaseExpired: LeaseExpired(run_id="r", crashes=1, ready_at=T0 + 30, at=T0 + 30),
    RunLost: RunLost(run_id="r", crashes=1, at=T0 + 30),
    CancelRequested: CancelRequested(run_id="r", reason="stop", at=T0 + 20),
    RunCancelled: RunCancelled(run_id="r", reason="stop", at=T0 + 20),
    RunReopened: RunReopened(run_id="r", ready_at=T0 + 50, at=T0 + 50),
    RunDiscarded: RunDiscarded(run_id="r", at=T0 + 60),
}
EVENTS = list(EXAMPLES)
STATES: list[State | None] = [None, *State]


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


def said(pair: tuple[State | None, type[RunEvent]]) -> str:
    return f"{pair[0] or 'unborn'}-{pair[1].__name__}"


# ── the table ──


def test_every_event_of_a_run_is_in_the_table() -> None:
    assert {event for _, event in TRANSITIONS} == set(RunEvent.__subclasses__()) == set(EVENTS)


@pytest.mark.parametrize("pair", TRANSITIONS, ids=said)
def test_legal(pair: tuple[State | None, type[RunEvent]]) -> None:
    state, kind = pair
    after = evolve(run_in(state), EXAMPLES[kind])
    assert after.state is TRANSITIONS[pair] is next_state("r", state, kind)
    if state is not None:
        assert after.n == 2
        assert (after.owner is None) == (after.state is not State.RUNNING)
        assert (after.ended_at is None) == (after.state in OPEN)


@pytest.mark.parametrize("pair", [p for p in itertools.product(STATES, EVENTS) if p not in TRANSITIONS], ids=said)
def test_illegal(pair: tuple[State | None, type[RunEvent]]) -> None:
    state, kind = pair
    asked = {RunReopened: "retried", RunDiscarded: "discarded", RunCancelled: "cancelled", CancelRequested: "cancelled"}
    with pytest.raises(IllegalTransition, match=asked.get(kind, kind.__name__)) as told:
        evolve(run_in(state), EXAMPLES[kind])
    assert str(state or "does not exist yet") in str(told.value)
    if kind in asked:  # a user asked for it, and is told in plain words
        assert kind.__name__ not in str(told.value)
        return
    for legal, event in TRANSITIONS:  # what would be possible is named
        if legal is state:
            assert event.__name__ in str(told.value)


def test_succeeded_and_skipped_have_no_further_move() -> None:
    assert {state for state, _ in TRANSITIONS if state is not None} == set(State) - {State.SUCCEEDED, State.SKIPPED}
    with pytest.raises(IllegalTransition, match="no event can"):
        next_state("r", State.SUCCEEDED, RunStarted)


def test_every_state_can_be_reached() -> None:
    reached = {State.WAITING, State.BLOCKED}  # a run with parents is born blocked
    while more := {to for (state, _), to in TRANSITIONS.items() if state in reached or state is None} - reached:
        reached |= more
    assert reached == set(State)


def test_a_run_with_parents_begins_blocked() -> None:
    assert run_from_event(RunScheduled(run_id="r", task="t", due_at=T0, parents=("p",))).state is State.BLOCKED


def test_a_bulk_of_runs_equals_the_runs_made_one_by_one() -> None:
    first = RunScheduled(run_id="a", task="t", due_at=T0)
    others: list[dict[str, Any]] = [
        {},
        {"body": "x"},
        {"body": "y"},
        {"body": "y", "priority": 0},
        {"priority": 0},
        {"parents": ("p",)},
        {"parents": ("p",), "body": "x"},
        {"gates": ("g",)},
        {"at": T0 + 1},
    ]
    events = [replace(first, run_id=f"r{i}", **each) for i, each in enumerate(others)]
    assert runs_from_events([first, *events, *events[::-1]]) == [
        run_from_event(event) for event in (first, *events, *events[::-1])
    ]
    assert runs_from_events([]) == []
    data = BulkEventEncoder()
    told = [
        data.encode_next(event) if data.can_reuse(event) else data.encode_first(event) for event in [first, *events]
    ]
    assert told == [encode_data(event) for event in (first, *events)]


def test_cancelled_from_any_open_state() -> None:
    for state in OPEN:
        assert TRANSITIONS[state, RunCancelled] is State.CANCELLED


# ── decide: each command ──

DECISIONS: list[tuple[str, Run, Command, RunEvent]] = [
    (
        "complete",
        some(State.RUNNING),
        Complete(T0 + 1, 5, "7"),
        RunSucceeded(run_id="r", epoch=1, attempt=1, owner="w", began_at=T0 + 1, ms=5, result="7"),
    ),
    (
        "fail",
        some(State.RUNNING),
        Fail("E", T0 + 1, 5, fingerprint="f", trace="tb", reason="timeout"),
        RunFailed(
            run_id="r",
            epoch=1,
            attempt=1,
            owner="w",
            error="E",
            began_at=T0 + 1,
            ms=5,
            fingerprint="f",
            trace="tb",
            reason="timeout",
        ),
    ),
    (
        "retry",
        some(State.RUNNING),
        Fail("E", T0 + 1, 5, retry_at=T0 + 9),
        RunRetrying(
            run_id="r", epoch=1, attempt=1, owner="w", error="E", began_at=T0 + 1, ms=5, next_attempt_at=T0 + 9
        ),
    ),
    (
        "snooze",
        some(State.RUNNING),
        SnoozeUntil(T0 + 9),
        RunSnoozed(run_id="r", epoch=1, attempt=1, owner="w", until=T0 + 9),
    ),
    ("reschedule", some(State.RETRYING), SnoozeUntil(T0), RunSnoozed(run_id="r", epoch=0, attempt=0, until=T0)),
    (
        "hand_back",
        some(State.RUNNING),
        HandBack("shutdown", began=True),
        RunHandedBack(run_id="r", epoch=1, attempt=1, owner="w", reason="shutdown", began=True),
    ),
    (
        "expire",
        some(State.RUNNING),
        BUDGET,
        LeaseExpired(run_id="r", epoch=1, attempt=1, owner="w", crashes=1, ready_at=T0 + 100),
    ),
    (
        "expire_lost",
        some(State.RUNNING),
        Expire(3, "fail"),
        RunLost(run_id="r", epoch=1, attempt=1, owner="w", crashes=1),
    ),
    (
        "expire_cancelled",
        some(State.RUNNING, cancel="stop"),
        Expire(3, "fail"),
        RunCancelled(run_id="r", epoch=1, attempt=1, owner="w", reason="stop", by="lease"),
    ),
    ("cancel_running", some(State.RUNNING), RequestCancel("x", "me"), CancelRequested(run_id="r", reason="x", by="me")),
    ("cancel_waiting", some(State.WAITING), RequestCancel("x", "me"), RunCancelled(run_id="r", reason="x", by="me")),
    ("cancel_retrying", some(State.RETRYING), RequestCancel("x"), RunCancelled(run_id="r", reason="x")),
    ("cancel_blocked", some(State.BLOCKED), RequestCancel("x"), RunCancelled(run_id="r", reason="x")),
    (
        "stop_cancelled",
        some(State.RUNNING),
        StopCancelled("x"),
        RunCancelled(run_id="r", epoch=1, attempt=1, owner="w", reason="x"),
    ),
    (
        "skip",
        some(State.RUNNING),
        Skip("outside_time_window"),
        RunSkipped(run_id="r", epoch=1, attempt=1, owner="w", reason="outside_time_window"),
    ),
    (
        "skip_waiting",
        some(State.WAITING),
        Skip("x", "b"),
        RunSkipped(run_id="r", epoch=0, attempt=0, reason="x", by="b"),
    ),
    ("reopen", some(State.FAILED), Reopen("me", "b"), RunReopened(run_id="r", ready_at=T0 + 100, by="me", body="b")),
    ("discard", some(State.FAILED), Discard("me"), RunDiscarded(run_id="r", by="me")),
]


@pytest.mark.parametrize(("run", "command", "event"), [d[1:] for d in DECISIONS], ids=[d[0] for d in DECISIONS])
def test_decide(run: Run, command: Command, event: RunEvent) -> None:
    assert decide(run, command, T0 + 100) == (event,)


COMMANDS: list[Command] = [
    Complete(T0, 1),
    Fail("E"),
    Fail("E", retry_at=T0 + 9),
    SnoozeUntil(T0 + 9),
    HandBack("shutdown"),
    BUDGET,
    Expire(3, "fail"),
    RequestCancel("x"),
    StopCancelled("x"),
    Skip("x"),
    Reopen(),
    Discard(),
]


@pytest.mark.parametrize("state", State)
def test_a_command_is_refused_exactly_where_its_event_is(state: State) -> None:
    for command in COMMANDS:
        run = some(state)
        try:
            (event,) = decide(run, command, T0 + 100)
        except IllegalTransition:
            if isinstance(command, Complete | HandBack | Expire):
                assert state is not State.RUNNING
            continue
        assert (state, type(event)) in TRANSITIONS


def test_an_ended_run_accepts_only_reopen_and_discard() -> None:
    for state, command in itertools.product(ENDED, COMMANDS):
        if not isinstance(command, Reopen | Discard):
            with pytest.raises(IllegalTransition):
                decide(some(state), command, T0)


# ── the fold ──


def story(*kinds: type[RunEvent]) -> list[RunEvent]:
    return [EXAMPLES[kind] for kind in kinds]


STORIES = {
    "plain": story(RunScheduled, RunStarted, RunSucceeded),
    "skipped": story(RunSkipped),
    "retried": story(RunScheduled, RunStarted, RunRetrying, RunStarted, RunSucceeded),
    "rescued": story(RunScheduled, RunStarted, LeaseExpired, RunStarted, RunSucceeded),
    "dead_and_replayed": story(RunScheduled, RunStarted, RunFailed, RunReopened, RunStarted, RunSucceeded),
    "lost_and_put_away": story(RunScheduled, RunStarted, RunLost, RunDiscarded),
    "snoozed_then_cancelled": story(RunScheduled, RunStarted, RunSnoozed, RunStarted, CancelRequested, RunCancelled),
    "handed_back_and_skipped": story(RunScheduled, RunStarted, RunHandedBack, RunSkipped),
}


@pytest.mark.parametrize("events", STORIES.values(), ids=STORIES)
def test_the_fold_is_the_same_step_by_step(events: list[RunEvent]) -> None:
    run: Run | None = None
    for length, event in enumerate(events, 1):
        run = evolve(run, event)
        assert run == fold(events[:length])
        assert run.n == length


def test_the_fold_of_nothing_is_nothing() -> None:
    assert fold([]) is None


def test_a_success_clears_the_lease_and_keeps_the_result() -> None:
    run = fold(STORIES["retried"])
    assert run is not None
    assert (run.state, run.result, run.error, run.failures, run.began_at, run.ms) == (
        State.SUCCEEDED,
        "7",
        None,
        1,
        T0 + 11,
        9,
    )
    assert (run.started_at, run.ended_at) == (T0 + 10, T0 + 20)


# ── random command sequences ──

RANDOM = st.one_of(
    st.sampled_from(COMMANDS),
    st.just("start"),
    st.builds(Expire, max_crashes=st.integers(1, 4), recovery=st.sampled_from(["retry", "fail"])),
)


@given(st.lists(RANDOM, max_size=30), st.booleans())
def test_random_command_sequences_never_leave_the_table(commands: list[Any], parents: bool) -> None:
    first = RunScheduled(run_id="r", task="t", due_at=T0, at=T0, parents=("p",) if parents else ())
    events: list[RunEvent] = [first]
    run = run_from_event(first)
    for now, command in enumerate(commands, T0 + 1):
        before = run.state
        if command == "start":
            event: RunEvent = RunStarted(run_id="r", epoch=run.epoch + 1, attempt=run.attempt + 1, owner="w", at=now)
            if (before, RunStarted) not in TRANSITIONS:
                with pytest.raises(IllegalTransition):
                    evolve(run, event)
                continue
        else:
            try:
                (event,) = decide(run, command, now)
            except IllegalTransition:
                continue
        event = replace(event, at=now)
        run = evolve(run, event)
        events.append(event)
        assert run.state is TRANSITIONS[before, type(event)]
        assert run.attempt == run.epoch == sum(isinstance(e, RunStarted) for e in events)
        assert (run.ended_at is not None) == (run.state in ENDED)
        assert (run.owner is not None) == (run.state is State.RUNNING)
        assert not (run.dead and run.state not in (State.FAILED, State.LOST))
    assert fold(events) == run


# ── the diagram ──


def test_the_diagram_lists_every_transition() -> None:
    lines = [line.strip() for line in diagram().splitlines()]
    assert lines[0] == "stateDiagram-v2"
    for (state, event), target in TRANSITIONS.items():
        assert f"{state or '[*]'} --> {target}: {event.__name__}" in lines
    assert "[*] --> blocked: RunScheduled (with parents)" in lines
    for state in ENDED:
        assert f"{state} --> [*]" in lines
    assert len(lines) == 1 + len(TRANSITIONS) + 1 + len(ENDED)
