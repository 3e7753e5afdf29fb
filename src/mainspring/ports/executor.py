"""The executor port: how an attempt is carried out."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from typing import Any, Literal, Protocol

from msgspec import Struct, field

from mainspring.model.instant import Ms
from mainspring.model.outcome import Outcome
from mainspring.model.policies import RetryPolicy
from mainspring.model.run import Run

Kind = Literal["async", "sync", "thread", "process", "http"]

#: Set in the children of process handlers; "loading" while such a child reads the program's main file.
CHILD = "MAINSPRING_CHILD"
#: Set while the command line imports a program: its own `run()` at the end must not start it.
LOADING = "MAINSPRING_LOADING"


class ProgramLoaded(BaseException):
    """Ends the reading of a main file in a child where the program begins to use the engine."""


def end_of_loading() -> None:
    """Called where a program begins to use the engine; a child that only looks for functions goes no further."""
    if os.environ.get(CHILD) == "loading":
        raise ProgramLoaded


class Handler(Struct, frozen=True):
    """What a worker knows of a task: how to call it and the settings a run may override."""

    name: str
    kind: Kind
    #: Arguments decoded, dependencies resolved, the user's function called: on a loop, or blocking in a thread.
    call: Callable[[Attempt], Coroutine[Any, Any, Any]]
    call_blocking: Callable[[Attempt], Any]
    encode: Callable[[Any], str | None]
    module: str = ""
    qualname: str = ""
    timeout: Ms | None = 300_000
    retry: RetryPolicy = RetryPolicy()
    recovery: str = "retry"
    max_crashes: int = 3
    overrun: Ms = 60_000
    limit: int | None = None


class Flag(Struct, eq=False, gc=False):
    """A `threading.Event` that costs nothing until somebody waits for it."""

    _is_set: bool = False
    _event: threading.Event | None = None

    def set(self) -> None:
        self._is_set = True
        if self._event is not None:
            self._event.set()

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is set, or for so many seconds."""
        event = self._event = self._event or threading.Event()
        return self._is_set or event.wait(timeout)  # set() looks for the event after it has set the flag


class Attempt(Struct, eq=False):
    """One execution of a run under one lease, shared by engine and executor. Two of them are never equal."""

    run: Run
    body: str | None
    handler: Handler
    timeout: Ms | None
    trust: Ms  # boot time after which the lease must not be relied on
    cancelled: Flag = field(default_factory=Flag)
    stop: Outcome | None = None  # why the executor was asked to stop
    began_at: Ms | None = None
    ms: int | None = None
    started: float = 0.0
    handle: Any = None  # the executor's own
    #: Runs a coroutine on the handlers' loop and waits for it, from a thread.
    hop: Callable[[Coroutine[Any, Any, Any]], Any] | None = None
    timer: asyncio.TimerHandle | None = None  # the time-out, where the executor keeps one
    given: bool = False  # a slot
    handed: bool = False  # to the handlers' loop, ahead of its time: it takes its slot there
    done: bool = False
    early: bool = False  # claimed ahead of its time
    not_before: float = 0.0  # in monotonic seconds: it was given ahead of its time, too
    abandoned: bool = False

    @property
    def at_most_once(self) -> bool:
        """True when a crash must not make the run be called again: what it is enqueued with wins over its task."""
        options = self.run.options
        return ((None if options is None else options.recovery) or self.handler.recovery) == "fail"


Done = Callable[[Attempt, Outcome], None]

#: The attempt on whose behalf the code on the handlers' loop runs; its tasks and callbacks inherit it.
CURRENT: ContextVar[Attempt | None] = ContextVar("mainspring_attempt", default=None)


class Executor(Protocol):
    """Carries out attempts; each ends with exactly one call of `done`, from any thread."""

    def start(self, attempts: Sequence[Attempt]) -> None: ...

    def stop(self, attempt: Attempt) -> None:
        """Ask a running attempt to stop; `attempt.stop` says why."""
        ...

    async def close(self) -> None: ...
