"""The log of a run as values: lines that its handlers wrote, which the store keeps beside the event log."""

from __future__ import annotations

from msgspec import Struct

from mainspring.model.ids import RunId
from mainspring.model.instant import Ms

#: The most bytes of one run's log, in all of its attempts.
MAX_RUN_LOG_BYTES = 256 * 1024
#: Bytes that a line counts besides its texts, so that empty lines have a limit, too.
LINE_OVERHEAD_BYTES = 64
#: The source of the line that says that the rest of a log was cut.
CUT_SOURCE = "mainspring"
#: The text of that line.
CUT_TEXT = f"the rest was cut: a run's log has at most {MAX_RUN_LOG_BYTES // 1024} KiB"


class LogEntry(Struct, frozen=True, kw_only=True, gc=False):
    """One line of a run's log."""

    run_id: RunId
    #: The attempt that wrote the line.
    attempt: int
    #: When the line was written, in store time.
    at: Ms
    #: "debug", "info", "warning", "error" or "critical".
    level: str
    #: "log" for `ctx.log`, "print" for captured output, else the name of the logger.
    source: str
    text: str
    #: The number of the line, which the store gives: it grows within a run, with gaps. 0 in a line to be stored.
    n: int = 0

    @property
    def size(self) -> int:
        """The bytes that the line counts in the limits of logs."""
        return LINE_OVERHEAD_BYTES + len(self.source.encode()) + len(self.text.encode())
