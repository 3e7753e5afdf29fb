"""Log of the service: its level, and its format, which is plain text or one JSON object for each line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from mainspring.model.ids import printable_text

#: Line of the log as text, in the notation of `logging`.
LINE_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class TextFormatter(logging.Formatter):
    """Formats each log record as text, in which no character controls the terminal."""

    def __init__(self, line_format: str = LINE_FORMAT) -> None:
        super().__init__(line_format)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text. A traceback follows on lines of its own."""
        return printable_text(super().format(record))


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
    handler.setFormatter(JsonLineFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("uvicorn", "uvicorn.error", "watchfiles", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def set_level(level: str) -> None:
    """Change the level of the log while the service runs. Called when the configuration is reloaded."""
    logging.getLogger().setLevel(level.upper())
