"""Check of names: an instance starts no run of a task whose name another program holds (I12)."""

from __future__ import annotations

from mainspring.model.events import DeclarationConflict, DeclarationTaken, RunScheduled, RunStarted
from mainspring.testing.history.report import History, Report


def check_names(history: History, report: Report) -> None:
    """Check that an instance starts no run of a task from its `DeclarationConflict` to its `DeclarationTaken` (I12)."""
    tasks: dict[str, str] = {}
    refused: dict[tuple[str, str, str], DeclarationConflict] = {}
    for event in history.events:
        if isinstance(event, RunScheduled):
            tasks[event.run_id or ""] = event.task
        elif isinstance(event, DeclarationConflict) and event.kind == "task":
            refused[event.instance, event.ns, event.name] = event
        elif isinstance(event, DeclarationTaken) and event.kind == "task":
            refused.pop((event.instance, event.ns, event.name), None)
        elif isinstance(event, RunStarted):
            task = tasks.get(event.run_id or "", "")
            conflict = refused.get((event.owner or "", event.ns, task))
            if conflict is not None:
                what = f"{event.owner} started run {event.run_id} of {task!r}, which {conflict.holder} holds"
                report.add("I12", what, [conflict, event], kind="extra")
