"""Log records about a run: each names the run's schedule, task, id and attempt, in its text and as fields."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from mainspring.model.run import Run

#: Logger of the lines that the engine writes about runs.
ENGINE_LOGGER = logging.getLogger("mainspring.engine")

#: Writes one line about a run: level, run, a clause in the notation of `logging`, and the clause's arguments.
LogRun = Callable[..., None]


def run_fields(run: Run, schedule: str | None) -> dict[str, Any]:
    """Return the fields of a log record about a run. `schedule`: its schedule's name; None: it has none, or unknown.

    The fields are the attributes `run_id`, `task` and `attempt` of the record, for a run of a schedule also
    `schedule_id` and `schedule`.
    """
    fields: dict[str, Any] = {"task": run.task, "run_id": run.id, "attempt": run.attempt}
    if run.schedule_id is not None:
        fields["schedule_id"] = run.schedule_id
    if schedule is not None:
        fields["schedule"] = schedule
    return fields


def log_run(level: int, run: Run, text: str, *args: object, schedule: str | None = None, trace: str = "") -> None:
    """Log a line about a run: its schedule or task, the clause `text`, then its task, id and attempt in brackets.

    `text` and `args` are in the notation of `logging`; `text` reads on from the name: "failed: %s". `schedule`: the
    name of the run's schedule; None: its id is shown. `trace`: a traceback, which follows on lines of its own.
    """
    if run.schedule_id is None:
        subject, details = f"task {run.task}", f"run {run.id}, attempt {run.attempt}"
    else:
        subject = f"schedule {schedule or run.schedule_id}"
        details = f"task {run.task}, run {run.id}, attempt {run.attempt}"
    end = f"\n{trace.rstrip()}" if trace else ""
    fields = run_fields(run, schedule)
    ENGINE_LOGGER.log(level, f"%s {text} (%s)%s", subject, *args, details, end, extra=fields)
