"""Names of lanes and gates: which workers may claim a run, and which limits it must pass."""

from __future__ import annotations

from mainspring.model.gate import SCHEDULE_GATE_PREFIX, Gate
from mainspring.model.run import ENDED, Run

#: The reason of a run that failed because its agent answered 410 Gone; its schedule is paused.
AGENT_GONE = "gone"


def lane_of(ns: str, queue: str) -> str:
    """Return the name of the lane of a namespace and queue."""
    return f"{ns}/{queue}"


def schedule_gate(schedule_id: str) -> str:
    """Return the name of the gate that keeps a schedule's own runs apart."""
    return f"{SCHEDULE_GATE_PREFIX}{schedule_id}"


def task_gate(ns: str, task: str) -> str:
    """Return the name of the gate of a task's concurrency limit."""
    return f"task:{ns}/{task}"


def schedule_gate_row(schedule_id: str) -> Gate:
    """Return the gate that lets one run of a schedule through at a time."""
    return Gate(schedule_gate(schedule_id), 1)


def schedules_to_touch(after: Run) -> tuple[str, ...]:
    """Return the schedule that must be looked at again because of a run's end, or nothing.

    `after` is the run as it ended. Fixed-delay schedules plan their next fire from the end of a run; others may have to
    be paused.
    """
    options = after.options
    if after.schedule_id is None or options is None or after.state not in ENDED:
        return ()
    wanted = options.rearm or options.on_exhausted == "pause" or after.reason == AGENT_GONE
    return (after.schedule_id,) if wanted else ()
