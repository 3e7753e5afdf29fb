"""Output capture: passes what a handler prints, and what it writes to `logging`, to the log of its run.

What belongs to which run is known by a context variable. Tasks and `asyncio.to_thread` inherit it; threads that a
handler starts itself do not.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

from mainspring.model.errors import InvalidInput

#: What a task may capture.
CaptureKind = Literal["print", "logging"]
CAPTURE_KINDS: tuple[CaptureKind, ...] = ("print", "logging")
#: Stores a line: level, source, text.
LineSink = Callable[[str, str, str], None]
#: A printed line that is longer than this is passed on in parts.
MAX_PENDING_CHARS = 16_384


def check_capture(given: CaptureKind | Iterable[CaptureKind]) -> tuple[CaptureKind, ...]:
    """Return the option `capture` of a task as a tuple. Raises: InvalidInput for an unknown kind."""
    kinds = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (None,)
    if any(kind not in CAPTURE_KINDS for kind in kinds):
        raise InvalidInput("capture", f"{given!r} is unknown", 'Use "print", "logging" or ("print", "logging")')
    return tuple(kind for kind in CAPTURE_KINDS if kind in kinds)


class _Capture:
    """The capture of one attempt: cuts printed text into lines, and passes lines to the run's log. Thread: any."""

    def __init__(self, kinds: tuple[CaptureKind, ...], sink: LineSink) -> None:
        self.kinds = kinds
        self.sink = sink
        self._lock = threading.Lock()
        self._pending = ""

    def printed(self, text: str) -> None:
        """Pass on the lines that `text` completes; keep the rest until it is complete."""
        with self._lock:
            *lines, self._pending = (self._pending + text).split("\n")
            if len(self._pending) > MAX_PENDING_CHARS:
                lines.append(self._pending)
                self._pending = ""
        for line in lines:
            self.sink("info", "print", line)

    def end(self) -> None:
        """Pass on a last line without a line break."""
        with self._lock:
            rest, self._pending = self._pending, ""
        if rest:
            self.sink("info", "print", rest)


_CURRENT: ContextVar[_Capture | None] = ContextVar("mainspring_capture", default=None)


class _Tee:
    """Takes the place of `sys.stdout`: passes text to the stream before it, and to the log of the present run."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text to the stream, and to the log of the run whose handler wrote it, if that is captured."""
        written: int = self._stream.write(text)
        capture = _CURRENT.get()
        if capture is not None and "print" in capture.kinds:
            capture.printed(text)
        return written

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each text as `write` does."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Handler(logging.Handler):
    """Passes log records to the log of the run whose handler wrote them, if that is captured."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on. Records of Mainspring's own loggers are left out: `ctx.log` is in the run's log already."""
        capture = _CURRENT.get()
        if capture is not None and "logging" in capture.kinds and record.name.partition(".")[0] != "mainspring":
            try:
                text = record.getMessage()
                if record.exc_info and record.exc_info[0] is not None:
                    text = f"{text}\n{_TRACES.formatException(record.exc_info)}"
            except Exception:
                self.handleError(record)
                return
            capture.sink(record.levelname.lower(), record.name, text)
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and logging.getLogger().handlers == [self]:
            last.handle(record)  # without this handler, `logging` would have done that


_TRACES = logging.Formatter()
_HANDLER = _Handler()
_INSTALLING = threading.Lock()


def _install(kinds: tuple[CaptureKind, ...]) -> None:
    """Make `sys.stdout` and the root logger pass on what captured handlers write, unless they do so already."""
    with _INSTALLING:
        if "print" in kinds and not isinstance(sys.stdout, _Tee):
            sys.stdout = _Tee(sys.stdout)
        if "logging" in kinds and _HANDLER not in logging.getLogger().handlers:
            logging.getLogger().addHandler(_HANDLER)


@contextmanager
def capture_output(kinds: tuple[CaptureKind, ...], sink: LineSink) -> Iterator[None]:
    """Pass the output of the block to `sink`, by lines: what it prints, what it logs, or both (`kinds`)."""
    _install(kinds)
    capture = _Capture(kinds, sink)
    token = _CURRENT.set(capture)
    try:
        yield
    finally:
        _CURRENT.reset(token)
        capture.end()
