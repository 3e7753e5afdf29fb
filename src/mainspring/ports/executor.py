"""The executor port: what the engine and an executor share about the attempts of runs, and the executor's interface."""

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
from mainspring.model.policies import RetryFilter, RetryPolicy
from mainspring.model.run import Run

Kind = Literal["async", "sync", "thread", "process", "http"]

#: The most characters of an attempt's error text that are stored.
MAX_ERROR_CHARS = 2_000

#: Environment variable set in children of process handlers; "loading" while a child imports the program's main file.
CHILD_VARIABLE = "MAINSPRING_CHILD"
#: Environment variable set while the command line imports a program, whose own `run()` at the end must not start it.
LOADING_VARIABLE = "MAINSPRING_LOADING"


#: Held while a flag makes its event; one lock for all flags, because it is held for an instant only.
_making_event = threading.Lock()


class ProgramLoaded(BaseException):
    """Exception that ends the import of the program's main file in a child process.

    Raised when that file first uses the engine: the child needs the functions that are defined before this point, and
    must not start an engine of its own.
    """


def end_of_loading() -> None:
    """End the import of the program's main file if a child process is importing it; else do nothing.

    Every method that starts to use the engine calls this first: the child needs the functions in the file, but must not
    start an engine. Raises: ProgramLoaded, in a child that imports the main file.
    """
    if os.environ.get(CHILD_VARIABLE) == "loading":
        raise ProgramLoaded


class Handler(Struct, frozen=True):
    """A task as a worker sees it: how to call its function, and its settings.

    The options of a run may override `timeout`, `retry`, `recovery` and `max_crashes`.
    """

    name: str
    kind: Kind
    #: Decodes the arguments, resolves the dependencies and calls the user's function, as a coroutine.
    call: Callable[[HeldRun], Coroutine[Any, Any, Any]]
    #: Does what `call` does, but blocks the calling thread.
    call_blocking: Callable[[HeldRun], Any]
    #: Returns the value of the user's function as JSON; None for None.
    encode: Callable[[Any], str | None]
    #: Module and qualified name of the function, with which a child process finds it.
    module: str = ""
    qualname: str = ""
    #: The time limit of an attempt in milliseconds, at which the function is stopped if that is possible; None: none.
    timeout: Ms | None = None
    retry: RetryPolicy = RetryPolicy()
    #: What becomes of a run whose worker dies during an attempt. "retry": it is tried again. "fail": it ends as lost.
    recovery: str = "retry"
    #: A run whose worker died this often is not executed again.
    max_crashes: int = 3
    #: How many milliseconds after its time limit a function that cannot be stopped is abandoned; None: never.
    overrun: Ms | None = None
    #: The most runs of this task that execute at the same time, on all instances; None: no limit.
    limit: int | None = None
    #: Which errors of the function are worth another attempt; None: all.
    retry_filter: RetryFilter | None = None


class Flag(Struct, eq=False, gc=False):
    """A one-way flag, such as the request to stop an attempt. Any thread may read it or wait for it.

    It makes its `threading.Event` only in the first `wait`, because most attempts never wait.
    """

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
        event = self._event
        if event is None:
            with _making_event:  # threads that enter the first wait together must wait for one event
                event = self._event = self._event or threading.Event()
        return self._is_set or event.wait(timeout)  # set() looks for the event after it has set the flag


class Attempt(Struct, frozen=True, eq=False):
    """One try to carry out a run under one lease: what to call, with which payload, for how long. Read on any thread.

    Two attempts are never equal.
    """

    run: Run
    #: The payload of the run as JSON; None: it has none.
    body: str | None
    handler: Handler
    #: The time limit in milliseconds, after which the handler is stopped if that is possible; None: none.
    timeout: Ms | None

    @property
    def at_most_once(self) -> bool:
        """True if the run must not be executed again after a crash. The run's options override those of its task."""
        options = self.run.options
        return ((None if options is None else options.recovery) or self.handler.recovery) == "fail"


class Execution(Struct, eq=False):
    """What an executor records about an attempt: when it began, how long it took, and how to stop it.

    Only the executor writes it. `started`, `began_at` and `ms` are written on the thread that runs the handler or waits
    for its child process, and read on any thread. The docstring of the executor's class names the threads that write
    the other fields.
    """

    #: When the handler began, in monotonic seconds. Written before `began_at`.
    started: float = 0.0
    #: When the handler began, in store time; None: it has not begun.
    began_at: Ms | None = None
    #: How long the handler took, in milliseconds; None: it has not ended.
    ms: int | None = None
    #: The asyncio task or child process that executes the attempt; None: there is none.
    handle: Any = None
    #: The timer of the time-out, if the executor has one timer for each attempt.
    timer: asyncio.TimerHandle | None = None
    #: Runs a coroutine on the handlers' loop and waits for its value, from the handler's thread.
    run_on_loop: Callable[[Coroutine[Any, Any, Any]], Any] | None = None
    #: For the call of an agent: sets its time limit to seconds from now. None: the call begins now, with its own limit.
    set_limit: Callable[[float | None], None] | None = None
    #: In a child process: passes a line of the run's log (level, source, text) to the parent process.
    relay_line: Callable[[str, str, str], None] | None = None
    #: In a child process: the name of the run's schedule, for log lines; None: there is none, or it is not known.
    schedule: str | None = None


class HeldRun(Struct, eq=False):
    """A run whose lease a worker holds, with its attempt. Executors and handlers read it on any thread.

    Only code on the engine loop writes it; executors may call `request_stop` and `abandon` there. One exception:
    `Slots`, under its lock and on any thread, writes `has_slot`, and sets `is_done` if there is no slot.
    """

    attempt: Attempt
    #: Boot time until which the worker relies on its lease. After it, the handler may not begin, and an outcome is
    #: recorded only once the lease is renewed.
    lease_trusted_until: Ms
    execution: Execution = field(default_factory=Execution)
    #: Set when the attempt should stop; handlers in threads read it, because a thread cannot be stopped from outside.
    cancelled: Flag = field(default_factory=Flag)
    #: The outcome with which the attempt should stop; None: it should not.
    stop: Outcome | None = None
    #: True if the run was claimed ahead of its time.
    is_early: bool = False
    #: Monotonic seconds at which the handlers' loop begins the attempt, which takes its slot then. None: the attempt
    #: has its slot already, or waits for one in the engine.
    starts_at: float | None = None
    has_slot: bool = False
    #: True once the worker no longer holds the run.
    is_done: bool = False
    #: True once the worker has given up waiting for a handler that does not stop.
    is_abandoned: bool = False

    def request_stop(self, why: Outcome) -> None:
        """Ask the attempt to stop, and have it end with the outcome `why`. Thread: engine loop."""
        self.stop = why
        self.cancelled.set()

    def abandon(self) -> None:
        """Give up waiting for the handler: what it returns later is ignored. Thread: engine loop."""
        self.is_abandoned = True


#: Stores a line of a run's log: the run, then level, source and text, as in `LogEntry`. Thread: any.
WriteLine = Callable[[HeldRun, str, str, str], None]

#: What an executor calls with the run and the outcome when an attempt has ended.
Done = Callable[[HeldRun, Outcome], None]

#: The attempt to which the running code on the handlers' loop belongs; None: it belongs to no attempt. Tasks and
#: callbacks that this code starts inherit the variable.
CURRENT: ContextVar[Attempt | None] = ContextVar("mainspring_attempt", default=None)


class Executor(Protocol):
    """Executes attempts. For each attempt it calls `done` exactly once, with the outcome; its constructor takes `done`.

    There are two exceptions. If a `CoroutineExecutor` got an attempt before its time, and at its time no slot is free,
    the attempt does not begin, and `on_no_slot` is called instead of `done`. For an attempt that the worker itself
    abandoned, `done` need not be called.
    """

    def start(self, held_runs: Sequence[HeldRun]) -> None:
        """Begin to execute the attempts of these runs. Thread: engine loop."""
        ...

    def stop(self, held: HeldRun) -> None:
        """Stop an attempt that was started; `held.stop` is the outcome with which it shall end. Thread: engine loop."""
        ...

    async def close(self) -> None:
        """Release the executor's resources. Attempts may still run: child processes are killed, but threads are not."""
        ...
