"""Automatic pauses: the log line that says which schedule the engine paused, why, and how to resume it."""

from __future__ import annotations

import logging

from mainspring.model.schedule import Schedule
from mainspring.rules.remedies import schedule_command

log = logging.getLogger("mainspring.engine")

#: Reason of an automatic pause → what the log says about it. Other reasons are logged as they are stored.
REASON_TEXTS = {
    "not_declared": "no program declares it any more",
    "retries_exhausted": 'a run of it failed for good, and it has on_exhausted="pause"',
}


def log_automatic_pause(schedule: Schedule, reason: str) -> None:
    """Log that the engine paused `schedule` for `reason`, with the command that resumes it."""
    log.warning(
        "schedule %r was paused: %s. To resume it: %s",
        schedule.name,
        REASON_TEXTS.get(reason, reason),
        schedule_command("resume", schedule.name, schedule.ns),
    )
