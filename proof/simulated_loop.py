"""One event loop in virtual time for many simulated processes, which can be stopped or die at any await.

Every handle (a callback that the loop will run) belongs to the process in whose context it was created. Handles of a
dead process never run again. They are kept in memory, so that Python closes nothing of the process: no `finally` block
runs, nothing is released, and no CancelledError is raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from mainspring.model.instant import Ms

#: Start of every world: Monday, 2 March 2026, 08:00 UTC.
WORLD_START_MS: Ms = 1_772_438_400_000
#: Steps after which a world counts as one that never ends; no world without a mistake needs as many.
MAX_WORLD_STEPS = 1_000_000


class Process:
    """A simulated process: it runs tasks on the shared loop, can be stopped and continued, and can die."""

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.alive = True
        self.stopped = False
        self.steps = 0
        self._dies_in: int | None = None
        self._died: Callable[[], None] | None = None
        #: Called once when the process dies: closes what an operating system would close, such as connections.
        self.on_end: Callable[[], None] | None = None
        self._held: deque[Any] = deque()
        self.tasks: list[asyncio.Task[Any]] = []
        self.context = contextvars.copy_context()
        self.context.run(_PROCESS.set, self)

    def start(self, work: Coroutine[Any, Any, Any], name: str | None = None) -> asyncio.Task[Any]:
        """Run a coroutine as this process; the tasks and callbacks that it creates belong to the process as well."""
        return self.loop.create_task(work, name=name, context=self.context)

    def accepts(self, handle: Any) -> bool:
        """Return True if a handle may run now, and count a step; else keep the handle and return False.

        If the process is stopped, `resume` gives the handle back to the loop. If the process is dead, or dies at this
        step, the handle is kept for ever.
        """
        if self.alive and self._dies_in is not None and not self.stopped:
            self._dies_in -= 1
            if self._dies_in < 0:
                self.kill()
                if self._died is not None:
                    self._died()
        if self.alive and not self.stopped:
            self.steps += 1
            return True
        self._held.append(handle)
        return False

    def kill_after_steps(self, steps: int, died: Callable[[], None] | None = None) -> None:
        """Let the process die after this number of further steps, and call `died` then; each step ends at an await."""
        self._dies_in, self._died = steps, died

    def kill(self) -> None:
        """Let the process die now: none of its code runs again. Call `on_end`."""
        self.alive = False
        ended, self.on_end = self.on_end, None
        if ended is not None:
            ended()

    def stop(self) -> None:
        """Stop the process, as SIGSTOP does."""
        self.stopped = True

    def resume(self) -> None:
        """Continue the process, as SIGCONT does: the handles that were kept run in their order."""
        self.stopped = False
        if self.alive:
            self.loop.ready(self._held)
            self._held = deque()

    def dispose(self) -> None:
        """Close the abandoned tasks of the process silently, after the world has been judged."""
        self.alive = False
        for task in self.tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own tools set it, too
                with contextlib.suppress(BaseException):
                    coroutine = task.get_coro()
                    if coroutine is not None:
                        coroutine.close()
        self.tasks.clear()
        self._held.clear()


_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def current_process() -> Process | None:
    """Return the process to which the running code belongs; None for code of the simulation itself."""
    return _PROCESS.get()


class WorldStuck(Exception):
    """Raised if a world waits for nothing (no handle and no timer), or does not end within MAX_WORLD_STEPS."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """Event loop that jumps to the next timer when no handle is ready.

    It runs the handles of live processes and of the simulation itself, none of dead or stopped processes.
    """

    _ready: deque[Any]
    _scheduled: list[Any]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self._seconds = 0.0
        self.steps = 0
        self.set_task_factory(_tracked)

    def time(self) -> float:
        return self._seconds

    def now(self) -> Ms:
        """Return true time in milliseconds since 1970, as a perfect wall clock shows it."""
        return WORLD_START_MS + round(self._seconds * 1000)

    def ready(self, handles: deque[Any]) -> None:
        """Append handles to the queue of those that run next: they belong to a process that was continued."""
        self._ready.extend(handles)

    def _write_to_self(self) -> None:
        """Do nothing: no other thread wakes this loop."""

    def _process_events(self, event_list: Any) -> None:
        """Do nothing: there is no I/O."""

    def _run_once(self) -> None:
        timers = self._scheduled
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
        if not self._ready and not self._stopping:
            if not timers:
                raise WorldStuck("the world stands still: nothing is ready and no timer is set")
            self._seconds = max(self._seconds, timers[0]._when)
        while timers and timers[0]._when <= self._seconds:
            handle = heapq.heappop(timers)
            handle._scheduled = False
            self._ready.append(handle)
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(_PROCESS)
            if process is None or process.accepts(handle):
                handle._run()
                self.steps += 1
        if self.steps > MAX_WORLD_STEPS:
            raise WorldStuck(f"the world does not come to rest: {self.steps} steps, at {self._seconds:.3f} s")

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """Do nothing: `_run_once` drops cancelled timers when they reach the head of the heap."""


def _tracked(
    loop: asyncio.AbstractEventLoop, coroutine: Any, *, context: contextvars.Context | None = None, **more: Any
) -> asyncio.Task[Any]:
    """Create a task and add it to the tasks of its process; the loop's task factory.

    Why: the garbage collector would close the tasks of a dead process if nothing referred to them.
    """
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, context=context, **more)
    process = _PROCESS.get() if context is None else context.get(_PROCESS)
    if process is not None:
        if len(process.tasks) > 500:
            process.tasks = [known for known in process.tasks if not known.done() or _failed(known)]
        process.tasks.append(task)
    return task


def _failed(task: asyncio.Task[Any]) -> bool:
    return not task.cancelled() and bool(getattr(task, "_log_traceback", False))  # set until the error is retrieved


class TrueClock:
    """The store's own clock, which shows true time."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def now(self) -> Ms:
        return self._loop.now()

    def boot(self) -> Ms:
        return self._loop.now()

    def monotonic(self) -> float:
        return self._loop.time()


class NodeClock:
    """The clocks of one machine. Wall and boot time run fast by `ppm` millionths; `skew` shifts the wall time in ms.

    `booted`: the boot time at the start of the world. Monotonic time is that of the loop, so that a process's timers
    agree with its own measurements of time.
    """

    def __init__(self, loop: SimulatedLoop, *, skew: Ms, ppm: float, booted: Ms) -> None:
        self._loop = loop
        self._rate = 1 + ppm / 1_000_000
        self._booted = booted
        self.skew = skew

    def now(self) -> Ms:
        return WORLD_START_MS + self.skew + self._elapsed()

    def boot(self) -> Ms:
        return self._booted + self._elapsed()

    def monotonic(self) -> float:
        return self._loop.time()

    def _elapsed(self) -> Ms:
        return round(self._loop.time() * self._rate * 1000)
