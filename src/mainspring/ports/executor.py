"""The executor port: how the attempt of a run is executed, and what engine and executor know about it."""

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

#: Environment variable set in children of process handlers; "loading" while a child imports the program's main file.
CHILD = "MAINSPRING_CHILD"
#: Environment variable set while the command line imports a program, whose own `run()` at the end must not start it.
LOADING = "MAINSPRING_LOADING"


class ProgramLoaded(BaseException):
    """Ends the import of a main file in a child process where the program begins to use the engine."""


def end_of_loading() -> None:
    """End the import of a main file in a child, which only looks for functions. Elsewhere do nothing.

    Called before the engine is used. Raises: ProgramLoaded, in such a child.
    """
    if os.environ.get(CHILD) == "loading":
        raise ProgramLoaded


class Handler(Struct, frozen=True):
    """A task as a worker sees it: how to call it, and the settings that the options of a run may override."""

    name: str
    kind: Kind
    #: Decode the arguments, resolve the dependencies, call the user's function: as a coroutine, or blocking a thread.
    call: Callable[[HeldRun], Coroutine[Any, Any, Any]]
    call_blocking: Callable[[HeldRun], Any]
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
    """A `threading.Event` that costs nothing until a thread waits for it."""

    _is_set: bool = False
    _event: threading.Event | None = None

    def set(self) -> None:
        self._is_set = True
        if self._event is not None:
            self._event.set()

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the flag is set, or for `timeout` seconds. Return True if it is set."""
        event = self._event = self._event or threading.Event()
        return self._is_set or event.wait(timeout)  # set() looks for the event after it has set the flag


class Attempt(Struct, frozen=True, eq=False):
    """One execution of a run under one lease: what to call, with which body, for how long. Read on any thread.

    Two attempts are never equal.
    """

    run: Run
    body: str | None
    handler: Handler
    #: Milliseconds after which the handler is stopped; None: never.
    timeout: Ms | None

    @property
    def at_most_once(self) -> bool:
        """True if the run must not be executed again after a crash; the run's own options win over its task's."""
        options = self.run.options
        return ((None if options is None else options.recovery) or self.handler.recovery) == "fail"


class Execution(Struct, eq=False):
    """What an executor notes about an attempt. Only the executor writes it.

    `started`, `began_at` and `ms` are written on the thread that runs the handler and read on any. The other fields are
    the executor's own; an executor states on which thread it uses them.
    """

    #: When the handler began, in monotonic seconds. Written before `began_at`.
    started: float = 0.0
    #: When the handler began, in store time; None: it has not begun.
    began_at: Ms | None = None
    #: How long the handler took, in milliseconds; None: it has not ended.
    ms: int | None = None
    #: The task or process that carries the attempt out.
    handle: Any = None
    #: The time-out, where the executor keeps one timer per attempt.
    timer: asyncio.TimerHandle | None = None
    #: Runs a coroutine on the handlers' loop and waits for its value, from the handler's thread.
    run_on_loop: Callable[[Coroutine[Any, Any, Any]], Any] | None = None


class HeldRun(Struct, eq=False):
    """A run that a worker holds the lease of, with its attempt. Executors and handlers read it on any thread.

    The engine writes it, on the engine loop, with two exceptions: `has_slot`, and `is_done` of an attempt without a
    slot, are written by `Slots` under its lock; and an executor calls `request_stop` and `abandon` on the engine loop.
    """

    attempt: Attempt
    #: Boot time until which the worker relies on its lease. Later the handler may not begin, and its outcome is
    #: recorded only after a renewal.
    lease_trusted_until: Ms
    execution: Execution = field(default_factory=Execution)
    #: Set when the attempt should stop; handlers in threads look at it.
    cancelled: Flag = field(default_factory=Flag)
    #: The outcome with which the attempt should stop; None: it should not.
    stop: Outcome | None = None
    #: True if the run was claimed ahead of its time.
    is_early: bool = False
    #: Monotonic seconds at which the handlers' loop begins the attempt, which takes its slot then. None: the attempt
    #: has its slot already, or waits for one in the engine.
    starts_at: float | None = None
    has_slot: bool = False
    #: True when the worker holds the run no longer.
    is_done: bool = False
    #: True if the worker waits no longer for a handler that does not stop.
    is_abandoned: bool = False

    def request_stop(self, why: Outcome) -> None:
        """Have the attempt end with the outcome `why`. Thread: engine loop."""
        self.stop = why
        self.cancelled.set()

    def abandon(self) -> None:
        """Wait no longer for the handler; what it returns is ignored. Thread: engine loop."""
        self.is_abandoned = True


Done = Callable[[HeldRun, Outcome], None]

#: The attempt for which code on the handlers' loop runs; its tasks and callbacks inherit the variable.
CURRENT: ContextVar[Attempt | None] = ContextVar("mainspring_attempt", default=None)


class Executor(Protocol):
    """Executes attempts. Each ends with exactly one call of `done`, which the executor gets when it is made."""

    def start(self, held_runs: Sequence[HeldRun]) -> None:
        """Begin to execute the attempts of these runs. Thread: engine loop."""
        ...

    def stop(self, held: HeldRun) -> None:
        """Stop an attempt that was started; `held.stop` says why. Thread: engine loop."""
        ...

    async def close(self) -> None:
        """Release the executor's resources; no attempt is left."""
        ...
