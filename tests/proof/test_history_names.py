"""The history checker counts a run that was started by an instance whose program was refused the task's name."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mainspring.model.events import DeclarationConflict, DeclarationTaken, Event, RunScheduled, RunStarted
from mainspring.testing.history.names import check_names
from mainspring.testing.history.report import History, Report

REFUSED = DeclarationConflict(name="job", declared="", live="", kind="task", instance="b", holder="a")
TAKEN = DeclarationTaken(name="job", kind="task", instance="b")


def started(owner: str, *, ns: str = "default") -> RunStarted:
    return RunStarted(run_id="r", ns=ns, owner=owner)


def refused_name(world: Any) -> None:
    """Change the log of a `World`: the owner of the first lease was refused the name until that run had begun."""
    events = world.history.events
    at = next(at for at, event in enumerate(events) if isinstance(event, RunStarted))
    begun = events[at]
    task = next(one.task for one in events if isinstance(one, RunScheduled) and one.run_id == begun.run_id)
    refused = replace(REFUSED, name=task, instance=begun.owner or "", ns=begun.ns)
    taken = replace(TAKEN, name=task, instance=begun.owner or "", ns=begun.ns)
    world.rewrite([*events[:at], refused, begun, taken, *events[at + 1 :]])


@pytest.mark.parametrize(
    ("events", "violations"),
    [
        ([REFUSED, started("a")], 0),
        ([REFUSED, started("b")], 1),
        ([started("b"), REFUSED], 0),
        ([REFUSED, TAKEN, started("b")], 0),
        ([REFUSED, started("b", ns="other")], 0),
        ([DeclarationConflict(name="job", declared="1", live="2"), started("b")], 0),
    ],
    ids=["holder", "refused", "before", "taken over", "namespace", "newer version"],
)
def test_a_run_that_a_refused_instance_started_is_counted(events: list[Event], violations: int) -> None:
    report = Report()
    check_names(History(events=[RunScheduled(run_id="r", task="job", due_at=0), *events]), report)
    assert report.counts["I12"] == report.counts["extra"] == violations
