"""The program of a child process, which executes process handlers: it reads requests and writes responses.

Both are frames of JSON on pipes, never pickles.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import types
from typing import Any

import msgspec
from msgspec import Struct

from mainspring.model.ids import storable_text
from mainspring.model.instant import Ms
from mainspring.model.outcome import Cancelled, Failed, Outcome, Snoozed, Succeeded
from mainspring.model.run import Run
from mainspring.ports.executor import CHILD_VARIABLE, ProgramLoaded

#: The name under which a child imports the program's main module. It is not `__main__`, so that code behind the usual
#: guard (`if __name__ == "__main__"`) does not run.
MAIN_MODULE = "__mainspring_main__"


class Request(Struct, frozen=True):
    """What the parent sends to a child process: the run, its payload, and where to find the function.

    `main` and `package` are the file and package of the parent's main module, `path` is the parent's `sys.path`.
    `module` and `qualname` name the function. `body` is the payload as JSON; None: the run has none. `log_level` is the
    level of the child's log; None: the parent has set up no logging, so the child sets up none.
    """

    main: str | None
    package: str | None
    module: str
    qualname: str
    path: list[str]
    body: str | None
    run: Run
    log_level: int | None = None
    #: True if the parent logs lines of JSON, so the child does, too.
    log_json: bool = False
    #: The name of the run's schedule, for log lines; None: there is none, or the parent does not know it.
    schedule: str | None = None


class Response(Struct, frozen=True, omit_defaults=True):
    """How the call of a handler ended; or, if `line` is given, a line of the run's log while the call is under way.

    At most one of `result`, `error`, `snooze` and `cancel` is given; if none is, the handler returned None. The fields
    `reason`, `fingerprint`, `trace` and `retry` belong to `error` and mean what they mean in `Failed`.
    """

    result: str | None = None
    error: str | None = None
    reason: str = "error"
    fingerprint: str | None = None
    trace: str | None = None
    retry: bool = True
    snooze: Ms | None = None
    cancel: str | None = None
    #: Level, source and text.
    line: tuple[str, str, str] | None = None


def write_frame(fd: int, data: bytes) -> None:
    """Write a frame: four bytes of length, then the data. Blocks while the pipe is full."""
    view = memoryview(len(data).to_bytes(4, "big") + data)
    while view:
        view = view[os.write(fd, view) :]


def read_frame(fd: int) -> bytes | None:
    """Read one frame and return its data; block until it is complete. Return None if the stream ends before."""
    head = _read(fd, 4)
    return None if head is None else _read(fd, int.from_bytes(head, "big"))


def _read(fd: int, size: int) -> bytes | None:
    """Read exactly `size` bytes and return them; None if the stream ends before."""
    data = b""
    while len(data) < size:
        chunk = os.read(fd, size - len(data))
        if not chunk:
            return None
        data += chunk
    return data


def serve(read_fd: int, write_fd: int) -> None:
    """Read requests and write their responses until the parent closes the pipe. SIGINT is ignored from now on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    while (frame := read_frame(read_fd)) is not None:
        request = msgspec.json.decode(frame, type=Request)
        relay = _LineRelay(write_fd)
        response = _answer(request, relay)
        relay.close()
        write_frame(write_fd, msgspec.json.encode(response))


class _LineRelay:
    """Sends lines of the run's log to the parent while a request is under way. Thread: any."""

    def __init__(self, write_fd: int) -> None:
        self._write_fd = write_fd
        self._lock = threading.Lock()
        self._is_open = True

    def send(self, level: str, source: str, text: str) -> None:
        """Send a line. After `close`, drop it: the parent would take it for a line of the next run."""
        frame = msgspec.json.encode(Response(line=(storable_text(level), storable_text(source), storable_text(text))))
        with self._lock:  # a frame of another thread must not begin inside this one
            if self._is_open:
                write_frame(self._write_fd, frame)

    def close(self) -> None:
        """Send no further line. Return when no line is being sent."""
        with self._lock:
            self._is_open = False


def _configure_logging(level: int, *, as_json: bool) -> None:
    """Log to standard error in the format of the parent. Only the first call has an effect."""
    if not logging.getLogger().handlers:
        from mainspring.telemetry.log_format import JsonLineFormatter, TextFormatter

        handler = logging.StreamHandler()
        handler.setFormatter(JsonLineFormatter() if as_json else TextFormatter())
        logging.basicConfig(level=level, handlers=[handler])


def _answer(request: Request, relay: _LineRelay) -> Response:
    """Call the handler that a request names, and return how the call ended. An error, too, becomes a response.

    Lines of the run's log are sent by `relay` meanwhile.
    """
    from mainspring.executors.outcomes import error_outcome, value_outcome
    from mainspring.ports.clock import SystemClock
    from mainspring.ports.executor import Attempt, HeldRun

    outcome: Outcome
    attempt: Attempt | None = None
    try:
        if request.log_level is not None:
            _configure_logging(request.log_level, as_json=request.log_json)
        handler = _find(request)
        attempt = Attempt(request.run, request.body, handler, None)
        held = HeldRun(attempt, SystemClock().boot() + 1_000_000_000)
        held.execution.relay_line, held.execution.schedule = relay.send, request.schedule
        outcome = value_outcome(attempt, handler.call_blocking(held))
    except BaseException as error:  # SystemExit in a handler is an outcome like any other
        outcome = error_outcome(error, attempt)
    match outcome:
        case Succeeded():
            return Response(result=outcome.result)
        case Snoozed():
            return Response(snooze=outcome.delay)
        case Cancelled():
            return Response(cancel=outcome.reason)
        case Failed():
            return Response(
                error=outcome.error,
                reason=outcome.reason,
                fingerprint=outcome.fingerprint,
                trace=outcome.trace,
                retry=outcome.retry,
            )
    raise AssertionError(outcome)


def _find(request: Request) -> Any:
    """Return the handler of the task that a request names, after importing its module.

    Before the import, replace `sys.path` by the request's path. Raises: LookupError if there is no task under that
    name, or if a task in `__main__` comes from a program without a file; any error of the import.
    """
    import importlib

    sys.path[:] = request.path
    target: Any
    if request.module == "__main__":
        target = sys.modules.get(MAIN_MODULE) or _load_main(request)
    else:
        target = importlib.import_module(request.module)
    for part in request.qualname.split("."):
        target = getattr(target, part, None)
    if not hasattr(target, "handler"):
        raise LookupError(
            f"a process handler must be found under its own name, but {request.module}.{request.qualname} is no task. "
            "Decorate the function at the top level of its module"
        )
    return target.handler()


def _load_main(request: Request) -> types.ModuleType:
    """Execute the program's main file until its first use of the engine, and return it as the module `MAIN_MODULE`.

    Why: the child needs the functions in that file but must not start an engine, which `ProgramLoaded` prevents. So the
    program needs no `__main__` guard. Raises: LookupError if the program has no file, and any error that the file
    raises.
    """
    if request.main is None:
        raise LookupError(
            "a process handler must be defined in a file, and this program has none (an interactive session?)"
        )
    module = types.ModuleType(MAIN_MODULE)
    module.__file__, module.__package__ = request.main, request.package
    with open(request.main, "rb") as file:
        code = compile(file.read(), request.main, "exec")
    sys.modules[MAIN_MODULE] = module
    os.environ[CHILD_VARIABLE] = "loading"
    try:
        with contextlib.suppress(ProgramLoaded):
            exec(code, module.__dict__)  # noqa: S102 - the parent's own program
    except BaseException:
        del sys.modules[MAIN_MODULE]
        raise
    finally:
        os.environ[CHILD_VARIABLE] = "1"
    return module


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
