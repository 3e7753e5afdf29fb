"""Event handler that logs every event as a line: `ms.on_event(Event, LoggingHandler())`."""

from __future__ import annotations

import logging

from mainspring.model.event_codec import encode_data
from mainspring.model.events import Event, LeaseExpired, Note, RunCancelled, RunFailed, RunLost, RunRetrying

_WARNINGS = (RunRetrying, LeaseExpired, RunCancelled)
_ERRORS = (RunFailed, RunLost)


class LoggingHandler:
    """Logs each event as one line.

    The log record has the attributes `action` (the event's type), `run_id`, `schedule_id` and `attempt`. `RunFailed`
    and `RunLost` are logged at the level ERROR; `RunRetrying`, `LeaseExpired`, `RunCancelled` and `SubscriberFailed` at
    WARNING; all other events, including `CancelRequested`, at INFO.
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("mainspring.events")

    def __call__(self, event: Event) -> None:
        """Log an event: its type, the id of its run or else of its schedule, and its data as JSON."""
        level = logging.INFO
        if isinstance(event, _WARNINGS) or (isinstance(event, Note) and "Failed" in type(event).__name__):
            level = logging.WARNING
        elif isinstance(event, _ERRORS):
            level = logging.ERROR
        subject = event.run_id or event.schedule_id or ""
        extra = {
            "action": type(event).__name__,
            "run_id": event.run_id,
            "schedule_id": event.schedule_id,
            "attempt": event.attempt,
        }
        self._logger.log(level, "%s %s %s", type(event).__name__, subject, encode_data(event) or "", extra=extra)
