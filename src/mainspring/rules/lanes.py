"""Lanes and gates of runs: how they are named. Also: which schedule the end of a run touches.

A lane restricts which workers may claim a run. A gate restricts how many runs may execute at once.
"""

from __future__ import annotations

from mainspring.model.gate import SCHEDULE_GATE_PREFIX, Gate
from mainspring.model.run import ENDED, Run

#: `Run.reason` of a run that failed because its agent answered 410 Gone. The settler then pauses the run's schedule.
AGENT_GONE = "gone"


def lane_of(ns: str, queue: str) -> str:
    """Return the lane of a namespace and queue. Only workers that serve both may claim the runs in the lane."""
    return f"{ns}/{queue}"


def schedule_gate(schedule_id: str) -> str:
    """Return the name of a schedule's own gate. Its runs must pass it, so that they execute one at a time.

    The runs of a schedule with overlap "allow_parallel" do not have this gate.
    """
    return f"{SCHEDULE_GATE_PREFIX}{schedule_id}"


def task_gate(ns: str, task: str) -> str:
    """Return the name of the gate that enforces a task's concurrency limit."""
    return f"task:{ns}/{task}"


def schedule_gate_row(schedule_id: str) -> Gate:
    """Return the row of a schedule's own gate, to insert with the schedule. The gate has room for one run."""
    return Gate(schedule_gate(schedule_id), 1)


def schedules_to_touch(after: Run) -> tuple[str, ...]:
    """Return the ids for `Change.touches` of a change of a run: the run's schedule if it must be settled, else ().

    `after` is the run after the change. The result is () unless the run has ended. A touch makes the settler plan the
    next fire of a fixed-delay schedule, delete a finished schedule with `terminal="delete"`, or pause a schedule whose
    retries are exhausted or whose agent is gone.
    """
    options = after.options
    if after.schedule_id is None or options is None or after.state not in ENDED:
        return ()
    wanted = options.rearm or options.on_exhausted == "pause" or after.reason == AGENT_GONE
    return (after.schedule_id,) if wanted else ()
