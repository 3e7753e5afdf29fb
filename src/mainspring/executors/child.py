"""The child's side of a process handler: frames of JSON in, frames of JSON out; never a pickle."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import msgspec
from msgspec import Struct

from mainspring.model.instant import Ms
from mainspring.model.outcome import Cancelled, Failed, Outcome, Snoozed, Succeeded
from mainspring.model.run import Run


class Request(Struct, frozen=True):
    """Which function of the parent's own code to call, with what."""

    main: str | None
    module: str
    qualname: str
    path: list[str]
    body: str | None
    run: Run


class Response(Struct, frozen=True, omit_defaults=True):
    """How it ended."""

    result: str | None = None
    error: str | None = None
    reason: str = "error"
    fingerprint: str | None = None
    trace: str | None = None
    retry: bool = True
    snooze: Ms | None = None
    cancel: str | None = None


def write_frame(fd: int, data: bytes) -> None:
    """Four bytes of length, then the data."""
    view = memoryview(len(data).to_bytes(4, "big") + data)
    while view:
        view = view[os.write(fd, view) :]


def read_frame(fd: int) -> bytes | None:
    """One frame, or None at the end of the stream."""
    head = _read(fd, 4)
    return None if head is None else _read(fd, int.from_bytes(head, "big"))


def _read(fd: int, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        chunk = os.read(fd, size - len(data))
        if not chunk:
            return None
        data += chunk
    return data


def serve(read_fd: int, write_fd: int) -> None:
    """Answer requests until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    while (frame := read_frame(read_fd)) is not None:
        request = msgspec.json.decode(frame, type=Request)
        write_frame(write_fd, msgspec.json.encode(_answer(request)))


def _answer(request: Request) -> Response:
    from mainspring.executors.outcomes import raised, returned
    from mainspring.ports.clock import SystemClock
    from mainspring.ports.executor import Attempt

    outcome: Outcome
    try:
        handler = _find(request)
        attempt = Attempt(request.run, request.body, handler, None, SystemClock().boot() + 1_000_000_000)
        outcome = returned(attempt, handler.call_blocking(attempt))
    except BaseException as error:  # SystemExit in a handler is an outcome like any other
        outcome = raised(error)
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
    """The task object the parent's code holds under this name; its handler knows how to call it."""
    import importlib
    import runpy
    import types

    sys.path[:] = request.path
    if request.module == "__main__" and request.main is not None:
        name = "__mainspring_main__"
        if name not in sys.modules:
            module = types.ModuleType(name)
            sys.modules[name] = module
            module.__dict__.update(runpy.run_path(request.main, run_name=name))
        target: Any = sys.modules[name]
    else:
        target = importlib.import_module(request.module)
    for part in request.qualname.split("."):
        target = getattr(target, part)
    return target.handler()


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
