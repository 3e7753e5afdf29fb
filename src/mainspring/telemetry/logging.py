"""Logs as a projection of events: `ms.on_event(Event, LoggingHandler())`."""

from __future__ import annotations

import logging

from mainspring.model.events import (
    Event,
    LeaseExpired,
    Note,
    RunCancelled,
    RunFailed,
    RunLost,
    RunRetrying,
    encode_data,
)

_WARNINGS = (RunRetrying, LeaseExpired, RunCancelled)
_ERRORS = (RunFailed, RunLost)


class LoggingHandler:
    """Writes each event as one line with a stable action name; failures as errors, retries as warnings."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("mainspring.events")

    def __call__(self, event: Event) -> None:
        """Log one event."""
        level = logging.INFO
        if isinstance(event, _WARNINGS) or (isinstance(event, Note) and "Failed" in type(event).__name__):
            level = logging.WARNING
        elif isinstance(event, _ERRORS):
            level = logging.ERROR
        subject = event.run_id or event.schedule_id or ""
        extra = {"action": type(event).__name__, "run_id": event.run_id, "schedule_id": event.schedule_id}
        self._logger.log(level, "%s %s %s", type(event).__name__, subject, encode_data(event) or "", extra=extra)
