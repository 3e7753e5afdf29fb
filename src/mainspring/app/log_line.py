"""Log line: what `ms.logs(run_id)` returns, for people and programs that read the log of a run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mainspring.model.instant import instant_ms, isoformat, to_datetime
from mainspring.model.run_log import LogEntry


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    """One line of a run's log. `str(line)` is its text."""

    #: The number of the line: it grows within a run, with gaps. Pass it as `after` to read on.
    number: int
    #: The attempt that wrote the line, from 1.
    attempt: int
    #: When the line was written, in UTC.
    at: datetime
    #: "debug", "info", "warning", "error" or "critical".
    level: str
    #: "log" for `ctx.log`, "print" for captured output, else the name of the logger.
    source: str
    text: str

    def __str__(self) -> str:
        """Return the text of the line."""
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary of JSON types, `at` as RFC 3339 text."""
        return {
            "number": self.number,
            "attempt": self.attempt,
            "at": isoformat(instant_ms(self.at)),
            "level": self.level,
            "source": self.source,
            "text": self.text,
        }


def log_line(entry: LogEntry) -> LogLine:
    """Return a stored line in the form for users."""
    return LogLine(
        number=entry.n,
        attempt=entry.attempt,
        at=to_datetime(entry.at),
        level=entry.level,
        source=entry.source,
        text=entry.text,
    )
