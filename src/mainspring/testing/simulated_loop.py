"""One loop for many processes: virtual time that jumps, and processes that can be stopped, or die at any await.

Every handle belongs to the process in whose context it was made. A dead process's handles are never run again and
are kept, so that nothing of it is ever closed: no `finally`, no release, no CancelledError.
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

#: Where every world begins: Monday, 2 March 2026, 08:00 UTC.
EPOCH: Ms = 1_772_438_400_000
#: More than any sane world needs; a loop that never waits ends here.
MAX_STEPS = 1_000_000


class Process:
    """Something that can be stopped and continued, or die."""

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.alive = True
        self.stopped = False
        self.steps = 0
        self._dies_in: int | None = None
        self._died: Callable[[], None] | None = None
        #: Called once, when it dies: what the system closes for it.
        self.on_end: Callable[[], None] | None = None
        self._held: deque[Any] = deque()
        self.tasks: list[asyncio.Task[Any]] = []
        self.context = contextvars.copy_context()
        self.context.run(_PROCESS.set, self)

    def start(self, work: Coroutine[Any, Any, Any], name: str | None = None) -> asyncio.Task[Any]:
        """Run a coroutine as this process: so are all tasks and callbacks that follow from it."""
        return self.loop.create_task(work, name=name, context=self.context)

    def takes(self, handle: Any) -> bool:
        """True when a handle may run now; a dead process keeps it for ever, a stopped one until it continues."""
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

    def dies_after(self, steps: int, died: Callable[[], None] | None = None) -> None:
        """Kill it between two steps, so many from now: at any await."""
        self._dies_in, self._died = steps, died

    def kill(self) -> None:
        """No line of it runs again."""
        self.alive = False
        ended, self.on_end = self.on_end, None
        if ended is not None:
            ended()

    def stop(self) -> None:
        """What SIGSTOP does."""
        self.stopped = True

    def proceed(self) -> None:
        """What SIGCONT does: everything that waited runs now, in its order."""
        self.stopped = False
        if self.alive:
            self.loop.ready(self._held)
            self._held = deque()

    def dispose(self) -> None:
        """The world is over and judged: let go of what was abandoned, without a word."""
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
    """The process whose line this is."""
    return _PROCESS.get()


class NoRest(Exception):
    """A world that stands still, or spins without time passing."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """Jumps to the next timer when nothing is ready; asks the process of each handle whether it may run."""

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
        """True time: what a perfect clock on the wall shows."""
        return EPOCH + round(self._seconds * 1000)

    def ready(self, handles: deque[Any]) -> None:
        """Put handles that were held back at the end of the queue."""
        self._ready.extend(handles)

    def _write_to_self(self) -> None:
        """There is no other thread to be woken by."""

    def _process_events(self, event_list: Any) -> None:
        """There is no I/O."""

    def _run_once(self) -> None:
        timers = self._scheduled
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
        if not self._ready and not self._stopping:
            if not timers:
                raise NoRest("the world stands still: nothing is ready and no timer is set")
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
            if process is None or process.takes(handle):
                handle._run()
                self.steps += 1
        if self.steps > MAX_STEPS:
            raise NoRest(f"the world does not come to rest: {self.steps} steps, at {self._seconds:.3f} s")

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """Cancelled timers are dropped when they are met."""


def _tracked(
    loop: asyncio.AbstractEventLoop, coroutine: Any, *, context: contextvars.Context | None = None, **more: Any
) -> asyncio.Task[Any]:
    """A task that its process keeps: what is not referenced would be closed by the garbage collector."""
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, context=context, **more)
    process = _PROCESS.get() if context is None else context.get(_PROCESS)
    if process is not None:
        if len(process.tasks) > 500:
            process.tasks = [known for known in process.tasks if not known.done() or _failed(known)]
        process.tasks.append(task)
    return task


def _failed(task: asyncio.Task[Any]) -> bool:
    return not task.cancelled() and bool(getattr(task, "_log_traceback", False))  # nobody has looked at its error


class TrueClock:
    """The store's own clock: it judges."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def now(self) -> Ms:
        return self._loop.now()

    def boot(self) -> Ms:
        return self._loop.now()

    def monotonic(self) -> float:
        return self._loop.time()


class NodeClock:
    """A machine's clocks: the wall clock is off and may step, it and boot time run a little fast or slow.

    Monotonic time is that of the loop: a process's own timers and its measurements of them agree.
    """

    def __init__(self, loop: SimulatedLoop, *, skew: Ms, ppm: float, booted: Ms) -> None:
        self._loop = loop
        self._rate = 1 + ppm / 1_000_000
        self._booted = booted
        self.skew = skew

    def now(self) -> Ms:
        return EPOCH + self.skew + self._elapsed()

    def boot(self) -> Ms:
        return self._booted + self._elapsed()

    def monotonic(self) -> float:
        return self._loop.time()

    def _elapsed(self) -> Ms:
        return round(self._loop.time() * self._rate * 1000)
