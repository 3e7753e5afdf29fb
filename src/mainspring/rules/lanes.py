"""Lanes and gates by name: who may run a run, and what it must pass."""

from __future__ import annotations

from mainspring.model.gate import OWN, Gate
from mainspring.model.run import ENDED, Run

#: Why a run failed whose agent says that it is there no more; the schedule is paused.
GONE = "gone"


def lane_of(ns: str, queue: str) -> str:
    """The lane of a run; labels and resources join it when workers have them."""
    return f"{ns}/{queue}"


def schedule_gate(schedule_id: str) -> str:
    """The gate that keeps a schedule's runs apart."""
    return f"{OWN}{schedule_id}"


def task_gate(ns: str, task: str) -> str:
    """The gate of a task's own limit."""
    return f"task:{ns}/{task}"


def schedule_gate_row(schedule_id: str) -> Gate:
    """One run of the schedule at a time."""
    return Gate(schedule_gate(schedule_id), 1)


def touches_of(after: Run) -> tuple[str, ...]:
    """The schedule that must be looked at again because this run ended."""
    options = after.options
    if after.schedule_id is None or options is None or after.state not in ENDED:
        return ()
    asks = options.rearm or options.on_exhausted == "pause" or after.reason == GONE
    return (after.schedule_id,) if asks else ()
