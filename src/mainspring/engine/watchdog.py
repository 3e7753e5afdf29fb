"""The watchdog: names what blocks the handlers' loop, and gives others the runs that cannot begin meanwhile."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import selectors
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from mainspring.model.events import Event, LoopBlocked
from mainspring.model.outcome import HandedBack, Outcome
from mainspring.ports.clock import Clock
from mainspring.ports.executor import CURRENT, Attempt, Executor, Kind

if TYPE_CHECKING:
    from mainspring.engine.worker import Worker

log = logging.getLogger("mainspring.engine")

#: The kinds of handlers that need the loop.
ON_LOOP: frozenset[Kind] = frozenset(("async", "sync"))
#: Seconds between two looks while all is well, and while an answer is awaited.
QUIET = 0.1
TICK = 0.05
#: Seconds without an answer after which the loop counts as blocked.
BLOCKED = 0.1
#: Seconds after which what has not begun is handed back.
NOT_BEGUN = 1.0
#: Seconds between two looks for coroutines that do not stop when they should.
OVERRUN_TICK = 1.0

#: The function in which asyncio runs every callback and every step of a task.
STEP = asyncio.Handle._run.__code__
#: Where asyncio's own loops wait when they have nothing to do.
SELECTS = frozenset(
    cls.select.__code__
    for cls in vars(selectors).values()
    if inspect.isclass(cls) and issubclass(cls, selectors.BaseSelector)
)
LIBRARIES = (os.path.dirname(os.__file__), "site-packages")


class Watchdog:
    """Stands before the executor of coroutines, on the engine's loop; sleeps while no coroutine runs."""

    def __init__(
        self,
        executor: Executor,
        handler_loop: asyncio.AbstractEventLoop,
        clock: Clock,
        owner: str,
        note: Callable[[Event], None],
        given_up: Callable[[Attempt], Outcome],
    ) -> None:
        self._executor = executor
        self._handler_loop = handler_loop
        self._clock = clock
        self._owner = owner
        self._note = note
        self._given_up = given_up
        self.worker: Worker | None = None
        self.blocked = False
        #: Coroutines that did not stop after their time-out and were left to themselves.
        self.abandoned = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._asked = 0  # counted on the engine's loop
        self._answered = 0  # counted on the handlers'
        self._asked_at = 0.0
        self._answered_at = 0.0
        self._blocked_at = 0.0
        self._thread: int | None = None
        self._suspect: asyncio.Task[Any] | None = None
        self._blocker = ""
        self._overrun_at = 0.0

    # ── the executor's part ────────────────────────────────────────────────

    def start(self, attempts: Sequence[Attempt]) -> None:
        now = self._clock.monotonic()
        if self._timer is None:
            self._overrun_at = now + OVERRUN_TICK
            self._arm(QUIET)
        elif self._answered == self._asked and not self.blocked and self._due - TICK < now < self._overrun_at:
            # The engine is awake: that saves it a turn of its own for the look. Nobody can be given up by this one.
            self._timer.cancel()
            self._look()
        self._executor.start(attempts)

    def stop(self, attempt: Attempt) -> None:
        self._executor.stop(attempt)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._executor.close()

    # ── looking ────────────────────────────────────────────────────────────

    def _arm(self, seconds: float) -> None:
        self._due = self._clock.monotonic() + seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        again = self._judge(self._clock.monotonic())
        self._timer = None
        if again is not None:
            self._arm(again)

    def _judge(self, now: float) -> float | None:
        """Ask the handlers' loop for an answer, or judge how long it is silent; answer when to look again."""
        if now >= self._overrun_at:
            self._overrun_at = now + OVERRUN_TICK
            self._give_up(now)
        if self._answered == self._asked:
            if self.blocked:
                self._free()
            if not self._mine():
                return None
            if self._waits():
                return QUIET
            return TICK if self._ask(now) else None
        if now - self._due > TICK or self._waits():
            self._asked_at = now  # we were held up as well, or it gets no processor: that is nobody's fault
        else:
            self._silent(now)
        return TICK

    def _mine(self) -> list[Attempt]:
        running = () if self.worker is None else self.worker.running.values()
        return [attempt for attempt in running if attempt.handler.kind in ON_LOOP]

    def _waits(self) -> bool:
        """The loop sits in its selector: it need not be woken to know that it is well."""
        frame = None if self._thread is None else sys._current_frames().get(self._thread)
        return frame is not None and frame.f_code in SELECTS

    def _ask(self, now: float) -> bool:
        self._asked += 1
        self._asked_at = now
        self._suspect = None
        try:
            self._handler_loop.call_soon_threadsafe(self._answer, self._asked)
        except RuntimeError:  # the handlers' loop is gone, and the executor says so
            self._answered = self._asked
            return False
        return True

    def _answer(self, number: int) -> None:
        """On the handlers' loop."""
        self._thread = threading.get_ident()
        self._answered_at = self._clock.monotonic()
        self._answered = number

    def _silent(self, now: float) -> None:
        silence = now - self._asked_at
        if not self.blocked:
            task = asyncio.current_task(self._handler_loop)
            if silence >= BLOCKED:
                self.blocked = True
                self._blocked_at = self._asked_at
                if self.worker is not None:
                    self.worker.closed = ON_LOOP
                self._name(task, task is self._suspect, round(silence * 1000))
            self._suspect = task
        elif silence >= NOT_BEGUN:
            self._hand_back()

    def _free(self) -> None:
        self.blocked = False
        self._suspect = None
        took = round((self._answered_at - self._blocked_at) * 1000)
        log.warning("the handlers' loop goes on after %d ms; it was held by %s", took, self._blocker)
        if self.worker is not None:
            self.worker.closed = frozenset()
            self.worker.wake()

    # ── what follows ───────────────────────────────────────────────────────

    def _name(self, task: asyncio.Task[Any] | None, same: bool, ms: int) -> None:
        """Say once for each blockage who holds the loop, and where."""
        thread = self._thread or getattr(self._handler_loop, "_thread_id", None)
        stack = stack_of(None if thread is None else sys._current_frames().get(thread))
        attempt = self._holder(task, stack) if same else None
        if attempt is not None:
            run = attempt.run
            where = line_of(stack, attempt.handler.module)
            self._blocker = f"task {run.task} (run {run.id})"
            advice = 'await instead of blocking, or give it a thread: executor="thread"'
            note = LoopBlocked(
                ns=run.ns,
                schedule_id=run.schedule_id,
                run_id=run.id,
                epoch=run.epoch,
                attempt=run.attempt,
                owner=self._owner,
                task=run.task,
                ms=ms,
                where=where,
            )
        else:
            where = line_of(stack)
            self._blocker = "code that is no handler" if same else "many short steps"
            advice = "whatever else runs on this loop must not block it" if same else "lower the concurrency"
            note = LoopBlocked(owner=self._owner, ms=ms, where=where)
        self._note(note)
        log.warning(
            "the handlers' loop does not answer for %d ms: held by %s at %s; coroutines wait, the rest goes on; %s",
            ms,
            self._blocker,
            where or "an unknown line",
            advice,
        )

    def _holder(self, task: asyncio.Task[Any] | None, stack: Sequence[FrameType]) -> Attempt | None:
        """The attempt whose task this is, or that began the task or callback that runs now."""
        for attempt in self._mine():
            if task is not None and attempt.handle is task:
                return attempt
        if not stack or stack[-1].f_code is not STEP:
            return None  # another loop than asyncio's own
        step: Any = stack[-1].f_locals["self"]
        holder: Attempt | None = step._context.get(CURRENT)
        return holder

    def _hand_back(self) -> None:
        """What has not begun goes to whoever can begin it; the flag keeps it from beginning here later."""
        back: list[tuple[Attempt, Outcome]] = []
        for attempt in self._mine():
            if attempt.began_at is not None:
                continue
            asked = attempt.stop
            attempt.stop = asked or HandedBack("loop_blocked")
            if _has_begun(attempt):  # the loop came free this very moment, and was quicker
                attempt.stop = asked
            else:
                back.append((attempt, attempt.stop))
        if back and self.worker is not None:
            self.worker.finished(back)

    def _give_up(self, now: float) -> None:
        """A coroutine that swallows its cancellation, or blocks, has the same `overrun` as a thread."""
        for attempt in self._mine():
            if attempt.timeout is None or attempt.began_at is None or self.worker is None:
                continue
            if (now - attempt.started) * 1000 >= attempt.timeout + attempt.handler.overrun:
                self.abandoned += 1
                attempt.abandoned = True
                attempt.stop = attempt.stop or self._given_up(attempt)
                self.worker.finished([(attempt, attempt.stop)])


def _has_begun(attempt: Attempt) -> bool:
    return attempt.began_at is not None


def stack_of(frame: FrameType | None) -> list[FrameType]:
    """What the loop runs now, innermost first; the last is the loop's own step."""
    stack = []
    while frame is not None:
        stack.append(frame)
        if frame.f_code is STEP:
            break
        frame = frame.f_back
    return stack


def line_of(stack: Sequence[FrameType], module: str = "") -> str:
    """The innermost line of the handler's module, else of code that is no library's, else of all."""
    own = [frame for frame in stack if frame.f_globals.get("__name__") == module]
    theirs = [frame for frame in stack if not any(place in frame.f_code.co_filename for place in LIBRARIES)]
    for frame in (*own[:1], *theirs[:1], *stack[:1]):
        return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
    return ""
