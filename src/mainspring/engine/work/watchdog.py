"""The watchdog: logs what blocks the handlers' loop, and hands back runs that cannot begin meanwhile."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import selectors
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, Protocol

from mainspring.model.events import Event, LoopBlocked
from mainspring.model.outcome import HandedBack, Outcome
from mainspring.ports.clock import Clock
from mainspring.ports.executor import CURRENT, Attempt, Executor, HeldRun, Kind

log = logging.getLogger("mainspring.engine")

#: The kinds of handlers that run on the handlers' loop.
ON_LOOP: frozenset[Kind] = frozenset(("async", "sync"))
#: Seconds until the next check if the handlers' loop waits for work, and if it was pinged.
IDLE_CHECK_SECONDS = 0.1
PING_CHECK_SECONDS = 0.05
#: Seconds without an answer after which the loop counts as blocked.
BLOCKED_AFTER_SECONDS = 0.1
#: Seconds of silence after which attempts that have not begun are handed back.
HAND_BACK_AFTER_SECONDS = 1.0
#: Seconds between two searches for coroutines that do not stop after their time-out.
OVERRUN_CHECK_SECONDS = 1.0

#: The function in which asyncio runs every callback and every step of a task.
HANDLE_RUN_CODE = asyncio.Handle._run.__code__
#: The functions in which asyncio's own event loops wait when they have nothing to do.
SELECT_CODES = frozenset(
    cls.select.__code__
    for cls in vars(selectors).values()
    if inspect.isclass(cls) and issubclass(cls, selectors.BaseSelector)
)
#: Parts of file names by which code of a library is recognised.
LIBRARY_FOLDERS = (os.path.dirname(os.__file__), "site-packages")


class WatchedWorker(Protocol):
    """The worker whose coroutine handlers run on the watched loop, as the watchdog uses it."""

    @property
    def running(self) -> Mapping[str, HeldRun]:
        """The attempts the worker holds, by run id."""
        ...

    def close_kinds(self, kinds: frozenset[Kind]) -> None:
        """Leave runs of these kinds to other instances."""
        ...

    def open_kinds(self) -> None:
        """Claim runs of every kind again."""
        ...

    def finished(self, done: Sequence[tuple[HeldRun, Outcome]]) -> None:
        """Record the outcomes of attempts."""
        ...


class Watchdog:
    """An executor that delegates to the one for coroutines, and pings the handlers' loop while coroutines run on it.

    Thread: engine loop, except for `_pong`.
    """

    def __init__(
        self,
        executor: Executor,
        handler_loop: asyncio.AbstractEventLoop,
        clock: Clock,
        owner: str,
        note: Callable[[Event], None],
        given_up: Callable[[Attempt], Outcome],
        worker: WatchedWorker,
    ) -> None:
        """`note` appends an event to the event log soon. `given_up` makes the outcome of an attempt that does not stop.

        `executor` runs coroutines on `handler_loop`; `owner` names this instance.
        """
        self._executor = executor
        self._handler_loop = handler_loop
        self._clock = clock
        self._owner = owner
        self._note = note
        self._given_up = given_up
        self._worker = worker
        #: True from the check that finds 100 ms of silence until the one that finds an answer.
        self.blocked = False
        #: Number of coroutines that did not stop after their time-out and were abandoned.
        self.abandoned = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._pings = 0  # written on the engine loop
        self._pongs = 0  # written on the handlers' loop
        self._pinged_at = 0.0
        self._ponged_at = 0.0
        self._blocked_at = 0.0
        self._thread: int | None = None
        self._suspect: asyncio.Task[Any] | None = None
        self._blocker = ""
        self._overrun_at = 0.0

    # ── as an executor ─────────────────────────────────────────────────────

    def start(self, held_runs: Sequence[HeldRun]) -> None:
        """Give the attempts to the executor of coroutines, and begin the checks unless they are under way."""
        now = self._clock.monotonic()
        if self._timer is None:
            self._overrun_at = now + OVERRUN_CHECK_SECONDS
            self._arm(IDLE_CHECK_SECONDS)
        elif (
            self._pongs == self._pings and not self.blocked and self._due - PING_CHECK_SECONDS < now < self._overrun_at
        ):
            # The engine is awake now: a check that is due soon saves it a turn of its own. It abandons no attempt.
            self._timer.cancel()
            self._check()
        self._executor.start(held_runs)

    def stop(self, held: HeldRun) -> None:
        self._executor.stop(held)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._executor.close()

    # ── checking ───────────────────────────────────────────────────────────

    def _arm(self, seconds: float) -> None:
        self._due = self._clock.monotonic() + seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        pause = self._ping_or_judge(self._clock.monotonic())
        self._timer = None
        if pause is not None:
            self._arm(pause)

    def _ping_or_judge(self, now: float) -> float | None:
        """Ping the handlers' loop, or judge how long it has been silent; once a second, call `_abandon_overrun`.

        Return the seconds until the next check; None if no attempt is held for that loop, or it is closed.
        """
        if now >= self._overrun_at:
            self._overrun_at = now + OVERRUN_CHECK_SECONDS
            self._abandon_overrun(now)
        if self._pongs == self._pings:
            if self.blocked:
                self._report_free()
            if not self._held_on_loop():
                return None
            if self._is_loop_idle():
                return IDLE_CHECK_SECONDS
            return PING_CHECK_SECONDS if self._ping(now) else None
        if now - self._due > PING_CHECK_SECONDS or self._is_loop_idle():
            self._pinged_at = now  # this check was late as well, or the loop gets no processor: no handler blocks it
        else:
            self._judge_silence(now)
        return PING_CHECK_SECONDS

    def _held_on_loop(self) -> list[HeldRun]:
        return [held for held in self._worker.running.values() if held.attempt.handler.kind in ON_LOOP]

    def _is_loop_idle(self) -> bool:
        """Return True if the loop waits in its selector: it need not be woken to know that it is not blocked."""
        frame = None if self._thread is None else sys._current_frames().get(self._thread)
        return frame is not None and frame.f_code in SELECT_CODES

    def _ping(self, now: float) -> bool:
        """Have the handlers' loop call `_pong`. Return False if it is closed."""
        self._pings += 1
        self._pinged_at = now
        self._suspect = None
        try:
            self._handler_loop.call_soon_threadsafe(self._pong, self._pings)
        except RuntimeError:  # the handlers' loop is closed, and the executor reports that
            self._pongs = self._pings
            return False
        return True

    def _pong(self, number: int) -> None:
        """Answer the ping of this number. Thread: handlers' loop."""
        self._thread = threading.get_ident()
        self._ponged_at = self._clock.monotonic()
        self._pongs = number

    def _judge_silence(self, now: float) -> None:
        """Report that the loop is blocked if it has been silent long enough; hand runs back if it stays silent.

        While it is blocked, the worker claims no runs for it.
        """
        silence = now - self._pinged_at
        if not self.blocked:
            task = asyncio.current_task(self._handler_loop)
            if silence >= BLOCKED_AFTER_SECONDS:
                self.blocked = True
                self._blocked_at = self._pinged_at
                self._worker.close_kinds(ON_LOOP)
                self._report_blocker(task, round(silence * 1000), is_one_task=task is self._suspect)
            self._suspect = task
        elif silence >= HAND_BACK_AFTER_SECONDS:
            self._hand_back()

    def _report_free(self) -> None:
        """Log that the loop answers again, and let the worker claim runs for it again."""
        self.blocked = False
        self._suspect = None
        took = round((self._ponged_at - self._blocked_at) * 1000)
        log.warning("the handlers' loop goes on after %d ms; it was held by %s", took, self._blocker)
        self._worker.open_kinds()

    # ── reporting and handing back ─────────────────────────────────────────

    def _report_blocker(self, task: asyncio.Task[Any] | None, ms: int, *, is_one_task: bool) -> None:
        """Log, and note in the event log, which task or code holds the loop, and at which line. Once per blockage.

        `task` runs on the loop now; `ms`: how long the loop has been silent. `is_one_task`: the same task ran at the
        last check, so it is the one that blocks.
        """
        thread = self._thread or getattr(self._handler_loop, "_thread_id", None)
        stack = stack_of(None if thread is None else sys._current_frames().get(thread))
        attempt = self._find_holder(task, stack) if is_one_task else None
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
            self._blocker = "code that is no handler" if is_one_task else "many short steps"
            advice = "other code on this loop must not block it" if is_one_task else "lower the concurrency"
            note = LoopBlocked(owner=self._owner, ms=ms, where=where)
        self._note(note)
        log.warning(
            "the handlers' loop does not answer for %d ms: held by %s at %s; coroutines wait, the rest goes on; %s",
            ms,
            self._blocker,
            where or "an unknown line",
            advice,
        )

    def _find_holder(self, task: asyncio.Task[Any] | None, stack: Sequence[FrameType]) -> Attempt | None:
        """Return the attempt that `task` executes, else the attempt that began the task or callback that runs now.

        `stack`: the frames that the loop runs now. None if no attempt did, or on another loop than asyncio's own.
        """
        for held in self._held_on_loop():
            if task is not None and held.execution.handle is task:
                return held.attempt
        if not stack or stack[-1].f_code is not HANDLE_RUN_CODE:
            return None  # another event loop than asyncio's own
        step: Any = stack[-1].f_locals["self"]
        attempt: Attempt | None = step._context.get(CURRENT)
        return attempt

    def _hand_back(self) -> None:
        """Hand back, for other instances, runs whose attempt has not begun. `HeldRun.stop` keeps it from beginning."""
        back: list[tuple[HeldRun, Outcome]] = []
        for held in self._held_on_loop():
            if held.execution.began_at is not None:
                continue
            asked = held.stop
            held.stop = asked or HandedBack("loop_blocked")
            if _has_begun(held):  # the loop came free at this moment, and was quicker
                held.stop = asked
            else:
                back.append((held, held.stop))
        if back:
            self._worker.finished(back)

    def _abandon_overrun(self, now: float) -> None:
        """End attempts that swallow their cancellation, or block, for longer than `overrun` after their time-out."""
        for held in self._held_on_loop():
            attempt, execution = held.attempt, held.execution
            if attempt.timeout is None or execution.began_at is None:
                continue
            if (now - execution.started) * 1000 >= attempt.timeout + attempt.handler.overrun:
                self.abandoned += 1
                held.abandon()
                held.stop = held.stop or self._given_up(held.attempt)
                self._worker.finished([(held, held.stop)])


def _has_begun(held: HeldRun) -> bool:
    return held.execution.began_at is not None


def stack_of(frame: FrameType | None) -> list[FrameType]:
    """Return the frames from `frame`, the innermost one, out to the one in which asyncio runs a callback.

    All frames if there is no such one, as on another loop than asyncio's own; an empty list for None.
    """
    stack = []
    while frame is not None:
        stack.append(frame)
        if frame.f_code is HANDLE_RUN_CODE:
            break
        frame = frame.f_back
    return stack


def line_of(stack: Sequence[FrameType], module: str = "") -> str:
    """Return the innermost line of `module`, else of code outside libraries, else of any: "file:line in function".

    An empty text for an empty stack.
    """
    own = [frame for frame in stack if frame.f_globals.get("__name__") == module]
    theirs = [frame for frame in stack if not any(place in frame.f_code.co_filename for place in LIBRARY_FOLDERS)]
    for frame in (*own[:1], *theirs[:1], *stack[:1]):
        return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
    return ""
