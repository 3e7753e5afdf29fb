"""Log of the service: its level, and its format, which is plain text or one JSON object for each line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class JsonLineFormatter(logging.Formatter):
    """Formats each log record as one JSON object on one line, for programs that read logs."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a JSON object on one line. A traceback becomes a text in the field `error`."""
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging(level: str, form: str) -> None:
    """Send log records of at least `level` to standard error, as lines of the format `form`: "text" or "json".

    Call this once, before the first line is logged. The root logger's present handlers are removed. The loggers of
    uvicorn, watchfiles and asyncio get the level warning, whatever `level` is: at level "error" they still log
    warnings, at "debug" they log nothing below a warning.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLineFormatter() if form == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("uvicorn", "uvicorn.error", "watchfiles", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def set_level(level: str) -> None:
    """Change the level of the log while the service runs. Called when the configuration is reloaded."""
    logging.getLogger().setLevel(level.upper())
