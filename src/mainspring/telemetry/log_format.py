"""Log of the service: its level, and its format, which is plain text or one JSON object for each line."""

from __future__ import annotations

import json
import logging
import math
import sys
from datetime import UTC, datetime
from typing import Any

from mainspring.model.ids import printable_text

#: Line of the log as text, in the notation of `logging`.
LINE_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
#: The most characters of the text of one field at the end of a line.
MAX_FIELD_CHARS = 500
#: Attributes that `logging` and uvicorn give to every record; all others are fields that the caller passed in `extra`.
_OWN_ATTRIBUTES = frozenset(logging.makeLogRecord({}).__dict__) | {"asctime", "color_message", "message", "taskName"}
#: Loggers whose messages contain their fields already.
_TOLD_IN_MESSAGE = frozenset({"mainspring.access", "mainspring.engine", "mainspring.events"})
#: Names that a JSON line has itself. A field with such a name gets an underscore at its end.
_JSON_NAMES = frozenset({"at", "error", "level", "logger", "message"})


def extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that the caller of the logger passed in `extra`, without those that are None."""
    return {name: value for name, value in record.__dict__.items() if name not in _OWN_ATTRIBUTES and value is not None}


class TextFormatter(logging.Formatter):
    """Formats each log record as text, in which no character controls the terminal."""

    def __init__(self, line_format: str = LINE_FORMAT) -> None:
        super().__init__(line_format)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - overrides a method of `logging`
        """Return the line without a traceback: the message, then the fields in brackets, as name=value.

        The fields of the engine's own lines are in their messages already.
        """
        line = super().formatMessage(record)
        fields = {} if record.name in _TOLD_IN_MESSAGE else extra_fields(record)
        shown = " ".join(f"{name}={_field_text(value)}" for name, value in fields.items())
        return f"{line} [{shown}]" if shown else line

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text. A traceback follows on lines of its own."""
        return printable_text(super().format(record))


class JsonLineFormatter(logging.Formatter):
    """Formats each log record as one JSON object on one line, for programs that read logs."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a JSON object on one line: time, level, logger, message and the fields of `extra`.

        A traceback becomes a text in the field `error`. A field whose value JSON cannot hold becomes text.
        """
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in extra_fields(record).items():
            line[f"{name}_" if name in _JSON_NAMES else name] = _json_value(value)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _json_value(value: Any) -> Any:
    """Return the value of a field if JSON can hold it, else its text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str | int | bool):
        return value
    try:
        return json.loads(json.dumps(value, default=_safe_text, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return _safe_text(value)


def _field_text(value: Any) -> str:
    """Return the value of a field as text for a line; in quotes if it is empty or has spaces or quotes."""
    text = _safe_text(value)
    text = text if len(text) <= MAX_FIELD_CHARS else f"{text[:MAX_FIELD_CHARS]}…"
    return json.dumps(text, ensure_ascii=False) if not text or any(c.isspace() or c in '"]' for c in text) else text


def _safe_text(value: Any) -> str:
    """Return `str(value)`, or the name of the value's type if that fails: a field must not lose its line."""
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def configure_logging(level: str, form: str, line_format: str = LINE_FORMAT) -> None:
    """Send log records of at least `level` to standard error, as lines of the format `form`: "text" or "json".

    `line_format`: the line of the format "text", in the notation of `logging`.

    Call this once, before the first line is logged. The root logger's present handlers are removed. The loggers of
    uvicorn, watchfiles and asyncio get the level warning, whatever `level` is: at level "error" they still log
    warnings, at "debug" they log nothing below a warning.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLineFormatter() if form == "json" else TextFormatter(line_format))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("uvicorn", "uvicorn.error", "watchfiles", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def set_level(level: str) -> None:
    """Change the level of the log while the service runs. Called when the configuration is reloaded."""
    logging.getLogger().setLevel(level.upper())
