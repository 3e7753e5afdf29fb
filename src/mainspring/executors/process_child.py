"""The child process of a process handler: reads requests and writes responses as frames of JSON, never a pickle."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import types
from typing import Any

import msgspec
from msgspec import Struct

from mainspring.model.instant import Ms
from mainspring.model.outcome import Cancelled, Failed, Outcome, Snoozed, Succeeded
from mainspring.model.run import Run
from mainspring.ports.executor import CHILD, ProgramLoaded

#: The name under which a child imports the program's main module. Not `__main__`, so that a guard there is respected.
MAIN = "__mainspring_main__"


LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class Request(Struct, frozen=True):
    """What the parent sends to a child process: the run, its payload, and where to find the function.

    `main` and `package` are file and package of the parent's main module, `path` is the parent's `sys.path`. `module`
    and `qualname` name the function. `log_level` None: the parent has set up no logging, so the child sets up none.
    """

    main: str | None
    package: str | None
    module: str
    qualname: str
    path: list[str]
    body: str | None
    run: Run
    log_level: int | None = None


class Response(Struct, frozen=True, omit_defaults=True):
    """How the call ended: at most one of result, error, snooze and cancel is given. If none is, it returned None.

    The other fields belong to `error` and are those of `Failed`.
    """

    result: str | None = None
    error: str | None = None
    reason: str = "error"
    fingerprint: str | None = None
    trace: str | None = None
    retry: bool = True
    snooze: Ms | None = None
    cancel: str | None = None


def write_frame(fd: int, data: bytes) -> None:
    """Write a frame: four bytes of length, then the data. Blocks while the pipe is full."""
    view = memoryview(len(data).to_bytes(4, "big") + data)
    while view:
        view = view[os.write(fd, view) :]


def read_frame(fd: int) -> bytes | None:
    """Read one frame and return its data; None at the end of the stream, also within a frame. Blocks."""
    head = _read(fd, 4)
    return None if head is None else _read(fd, int.from_bytes(head, "big"))


def _read(fd: int, size: int) -> bytes | None:
    """Read exactly `size` bytes; None if the stream ends before."""
    data = b""
    while len(data) < size:
        chunk = os.read(fd, size - len(data))
        if not chunk:
            return None
        data += chunk
    return data


def serve(read_fd: int, write_fd: int) -> None:
    """Read requests and write their responses until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    while (frame := read_frame(read_fd)) is not None:
        request = msgspec.json.decode(frame, type=Request)
        write_frame(write_fd, msgspec.json.encode(_answer(request)))


def _answer(request: Request) -> Response:
    """Call the handler that a request names, and return how the call ended; errors of any kind are an answer, too."""
    from mainspring.executors.outcomes import error_outcome, value_outcome
    from mainspring.ports.clock import SystemClock
    from mainspring.ports.executor import Attempt, HeldRun

    outcome: Outcome
    try:
        if request.log_level is not None:
            logging.basicConfig(level=request.log_level, format=LOG_FORMAT)  # the second time it does nothing
        handler = _find(request)
        attempt = Attempt(request.run, request.body, handler, None)
        held = HeldRun(attempt, SystemClock().boot() + 1_000_000_000)
        outcome = value_outcome(attempt, handler.call_blocking(held))
    except BaseException as error:  # SystemExit in a handler is an outcome like any other
        outcome = error_outcome(error)
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
    """Return the handler of the task under the request's module and qualified name. Raises: LookupError without one."""
    import importlib

    sys.path[:] = request.path
    target: Any
    if request.module == "__main__":
        target = sys.modules.get(MAIN) or _load_main(request)
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
    """Import the program's main file up to where it begins to use the engine, and return it as the module `MAIN`.

    The program needs no `__main__` guard. Raises: LookupError without a file, and what the program raises.
    """
    if request.main is None:
        raise LookupError("a process handler must be defined in a file, an interactive session has none")
    module = types.ModuleType(MAIN)
    module.__file__, module.__package__ = request.main, request.package
    with open(request.main, "rb") as file:
        code = compile(file.read(), request.main, "exec")
    sys.modules[MAIN] = module
    os.environ[CHILD] = "loading"
    try:
        with contextlib.suppress(ProgramLoaded):
            exec(code, module.__dict__)  # noqa: S102 - the parent's own program
    except BaseException:
        del sys.modules[MAIN]
        raise
    finally:
        os.environ[CHILD] = "1"
    return module


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
