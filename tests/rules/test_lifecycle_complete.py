"""The short way of a success makes what the long way makes, and refuses what it refuses."""

from __future__ import annotations

import pytest

from mainspring.model.errors import IllegalTransition
from mainspring.model.run import Run, State
from mainspring.rules.lifecycle import complete, decide, evolve
from mainspring.rules.run_commands import Complete

RUNNING = Run(
    id="r1",
    ns="shop",
    schedule_id="s1",
    task="t",
    state=State.RUNNING,
    n=4,
    epoch=2,
    attempt=3,
    failures=1,
    crashes=1,
    cancel="asked",
    error="before",
    reason="snoozed",
    owner="me",
    lease_until=99,
    parked_on="gate",
    progress="half",
    started_at=5,
)


@pytest.mark.parametrize("result", [None, '{"a":1}'])
def test_complete_equals_decide_and_evolve(result: str | None) -> None:
    (event,) = decide(RUNNING, Complete(7, 8, result), 9)
    assert complete(RUNNING, 7, 8, result) == (evolve(RUNNING, event), event)


@pytest.mark.parametrize("state", [state for state in State if state is not State.RUNNING])
def test_only_a_running_run_can_succeed(state: State) -> None:
    with pytest.raises(IllegalTransition):
        complete(Run(id="r1", task="t", state=state), 7, 8, None)
