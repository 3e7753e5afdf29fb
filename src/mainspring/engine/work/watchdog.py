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

from mainspring.engine.run_logger import RunLogger
from mainspring.model.events import Event, LoopBlocked
from mainspring.model.outcome import HandedBack, Outcome
from mainspring.ports.clock import Clock
from mainspring.ports.executor import CURRENT, Attempt, Executor, HeldRun, Kind
from mainspring.telemetry.run_records import run_fields

log = logging.getLogger("mainspring.engine")

#: The kinds of handlers that run on the handlers' loop.
ON_LOOP: frozenset[Kind] = frozenset(("async", "sync"))
#: Seconds until the next check while the handlers' loop waits for work.
IDLE_CHECK_SECONDS = 0.1
#: Seconds until the next check after a ping, a call that the handlers' loop should answer.
PING_CHECK_SECONDS = 0.05
#: Seconds without an answer to a ping after which the loop counts as blocked.
BLOCKED_AFTER_SECONDS = 0.1
#: Seconds of silence after which attempts that have not begun are handed back.
HAND_BACK_AFTER_SECONDS = 1.0
#: Seconds between two searches for attempts that do not stop at their time limit. They are reported after as long.
OVERRUN_CHECK_SECONDS = 1.0

#: The function in which asyncio runs every callback and every step of a task.
HANDLE_RUN_CODE = asyncio.Handle._run.__code__
#: The functions in which asyncio's own event loops wait when they have nothing to do.
SELECT_CODES = frozenset(
    cls.select.__code__
    for cls in vars(selectors).values()
    if inspect.isclass(cls) and issubclass(cls, selectors.BaseSelector)
)
#: What a program should do whose event loop ends before the engine.
OWN_LOOP_ADVICE = "In a synchronous program, write `with ms.background():` or call ms.start_background()"
#: Parts of file names by which code of a library is recognised.
LIBRARY_FOLDERS = (os.path.dirname(os.__file__), "site-packages")


class WatchedWorker(Protocol):
    """What the watchdog needs of the worker whose handlers run on the watched loop."""

    @property
    def running(self) -> Mapping[str, HeldRun]:
        """The runs that the worker holds, each with its attempt, by run id."""
        ...

    def close_kinds(self, kinds: frozenset[Kind]) -> None:
        """Claim no runs whose handler is of one of these kinds, until `open_kinds` is called."""
        ...

    def open_kinds(self) -> None:
        """Claim runs of every kind of handler again."""
        ...

    def finished(self, done: Sequence[tuple[HeldRun, Outcome]]) -> None:
        """Record the outcomes of attempts, each given with its held run."""
        ...


class Watchdog:
    """An executor that wraps the executor of coroutines, and checks that the handlers' loop is not blocked.

    While the worker holds runs for that loop, the watchdog "pings" it: it has the loop call `_pong`, and checks later
    whether that has happened. Thread: engine loop, except for `_pong`.
    """

    def __init__(
        self,
        executor: Executor,
        handler_loop: asyncio.AbstractEventLoop,
        clock: Clock,
        owner: str,
        append_event: Callable[[Event], None],
        given_up: Callable[[Attempt], Outcome],
        report_limit: Callable[[Attempt, str], None],
        worker: WatchedWorker,
        run_logger: RunLogger | None = None,
    ) -> None:
        """Watch `handler_loop`, on which `executor` runs the coroutine handlers of `worker`.

        `owner` names this instance. `append_event` appends an event to the event log soon. `given_up` makes the outcome
        of an attempt that is abandoned. `report_limit` logs that an attempt goes on beyond its time limit, and why.
        `run_logger` knows the names of schedules, for log lines.
        """
        self._executor = executor
        self._handler_loop = handler_loop
        self._clock = clock
        self._owner = owner
        self._append_event = append_event
        self._given_up = given_up
        self._report_limit = report_limit
        self._worker = worker
        self._run_logger = run_logger or RunLogger(None, clock.monotonic)
        #: True from the check that finds 100 ms of silence until the check that finds an answer.
        self.blocked = False
        #: Why no handler can run on that loop; None if handlers can.
        self.trouble: str | None = None
        self._is_closed_reported = False
        #: Number of coroutines that did not stop after their time-out and were abandoned.
        self.abandoned = 0
        #: The timer of the next check, and when that is due, in monotonic seconds.
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        #: Number of the last ping, and of the last ping that was answered. While they differ, the loop is silent.
        self._pings = 0  # written on the engine loop
        self._pongs = 0  # written on the handlers' loop
        #: When the last ping was sent, when the last answer was given, and since when the loop has been blocked.
        self._pinged_at = 0.0
        self._ponged_at = 0.0
        self._blocked_at = 0.0
        #: Id of the thread that runs the handlers' loop; None before the first answer.
        self._thread: int | None = None
        #: The task that ran on the silent loop at the last check; None: a callback ran, or there was no such check.
        self._suspect: asyncio.Task[Any] | None = None
        #: Description of what blocks the loop, for the log.
        self._blocker = ""
        #: When to search for attempts that do not stop after their time-out, in monotonic seconds.
        self._overrun_at = 0.0
        #: The attempts that were reported because they go on beyond their time limit.
        self._overrunning: set[HeldRun] = set()

    # ── as an executor ─────────────────────────────────────────────────────

    def start(self, held_runs: Sequence[HeldRun]) -> None:
        """Give attempts to the executor of coroutines, and begin the checks of the loop unless they are under way.

        If they are under way, no ping is unanswered and the next check is due soon, make that check now. If the loop is
        closed, let no further runs be claimed for it: each of them would only be handed back.
        """
        if self._handler_loop.is_closed():
            self._report_closed()
            self._executor.start(held_runs)
            return
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
        """Have the executor of coroutines stop an attempt."""
        self._executor.stop(held)

    async def close(self) -> None:
        """End the checks and close the executor of coroutines."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._executor.close()

    # ── checking ───────────────────────────────────────────────────────────

    def _arm(self, seconds: float) -> None:
        """Set the timer of the next check, `seconds` from now."""
        self._due = self._clock.monotonic() + seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        """Ping the handlers' loop or judge its silence (`_ping_or_judge`), and set the timer of the next check.

        Set no timer if the worker holds no run for that loop, or if the loop is closed. The timer calls this; `start`
        calls it early if a check is due soon.
        """
        pause = self._ping_or_judge(self._clock.monotonic())
        self._timer = None
        if pause is not None:
            self._arm(pause)

    def _ping_or_judge(self, now: float) -> float | None:
        """Ping the handlers' loop, unless it waits for work; if the last ping is unanswered, judge the silence instead.

        The silence is not judged, but counted from now, if this check came late or the loop is idle. If a blocked loop
        has answered, report that it is free. Once a second, search for attempts that do not stop at their time limit.
        `now`: monotonic seconds. Return the seconds until the next check. Return None only if the last ping is
        answered: if the worker then holds no run for that loop, or if the loop is closed.
        """
        if now >= self._overrun_at:
            self._overrun_at = now + OVERRUN_CHECK_SECONDS
            self._check_limits(now)
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
        """Return those of the worker's held runs whose handlers run on the handlers' loop."""
        return [held for held in self._worker.running.values() if held.attempt.handler.kind in ON_LOOP]

    def _is_loop_idle(self) -> bool:
        """Return True if the loop waits in its selector for work. It is not blocked then, and need not be pinged.

        Return False if it runs code, or if what it does cannot be seen: before its first answer, or if it is not
        asyncio's own.
        """
        frame = None if self._thread is None else sys._current_frames().get(self._thread)
        return frame is not None and frame.f_code in SELECT_CODES

    def _ping(self, now: float) -> bool:
        """Have the handlers' loop call `_pong`. Return False if that loop is closed. `now`: monotonic seconds."""
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
        """Record that the handlers' loop answered the ping `number`. Thread: handlers' loop."""
        self._thread = threading.get_ident()
        self._ponged_at = self._clock.monotonic()
        self._pongs = number

    def _judge_silence(self, now: float) -> None:
        """After `BLOCKED_AFTER_SECONDS` of silence, report what blocks the loop, and let no runs be claimed for it.

        After `HAND_BACK_AFTER_SECONDS`, hand back the runs that have not begun. `now`: monotonic seconds.
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
        """Log that the loop runs again, and let the worker claim runs for it again."""
        self.blocked = False
        self._suspect = None
        if self._handler_loop.is_closed():
            self._report_closed()
            return
        self.trouble = None
        took = round((self._ponged_at - self._blocked_at) * 1000)
        log.warning("the handlers' loop runs again after %d ms; it was blocked by %s", took, self._blocker)
        self._worker.open_kinds()

    def _report_closed(self) -> None:
        """Log once that the loop is closed, and let no runs be claimed for it until the engine starts anew."""
        if not self._is_closed_reported:
            self._is_closed_reported = True
            self.trouble = "the event loop of the async handlers is closed: they cannot run until the next start"
            log.warning("%s. %s", self.trouble, OWN_LOOP_ADVICE)
        self._worker.close_kinds(ON_LOOP)

    # ── reporting and handing back ─────────────────────────────────────────

    def _report_blocker(self, task: asyncio.Task[Any] | None, ms: int, *, is_one_task: bool) -> None:
        """Write to the log and to the event log what blocks the loop, and at which line. Called once per blockage.

        `task` runs on the loop now; None: a callback does. `ms`: how long the loop has been silent. `is_one_task`: that
        task, or a callback, also ran at the check before; if False, many short steps block the loop.
        """
        thread = self._thread or getattr(self._handler_loop, "_thread_id", None)
        stack = stack_of(None if thread is None else sys._current_frames().get(thread))
        attempt = self._find_holder(task, stack) if is_one_task else None
        fields: dict[str, Any] = {}
        if attempt is not None:
            run = attempt.run
            where = line_of(stack, attempt.handler.module)
            schedule = self._run_logger.schedule_name(run)
            subject = "" if run.schedule_id is None else f"schedule {schedule or run.schedule_id}, "
            self._blocker = f"{subject}task {run.task} (run {run.id}, attempt {run.attempt})"
            fields = run_fields(run, schedule)
            advice = 'await instead of blocking, or give the handler a thread: executor="thread"'
            event = LoopBlocked(
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
            event = LoopBlocked(owner=self._owner, ms=ms, where=where)
        self._append_event(event)
        if not self._handler_loop.is_running():
            self._blocker = "its program, which did not run it"
            self.trouble = "the event loop on which the engine was started does not run, so async handlers wait"
            log.warning("%s. %s", self.trouble, OWN_LOOP_ADVICE)
            return
        log.warning(
            "the handlers' loop has been blocked for %d ms by %s at %s. Async handlers wait; threads, processes and "
            "the engine go on. Fix: %s",
            ms,
            self._blocker,
            where or "an unknown line",
            advice,
            extra=fields,
        )

    def _find_holder(self, task: asyncio.Task[Any] | None, stack: Sequence[FrameType]) -> Attempt | None:
        """Return the attempt that blocks the loop: `task` executes it, or a task or callback that it started runs now.

        `stack`: the frames that the loop runs now. Return None if the code belongs to no attempt, or if that cannot be
        seen because the loop is not asyncio's own.
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
        """Hand back the runs for that loop that have not begun, so that other instances can claim them.

        The `stop` of these runs is set, which keeps their attempts from beginning when the loop is free again.
        """
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

    def _check_limits(self, now: float) -> None:
        """Report attempts that go on beyond their time limit, and abandon those that still run after their overrun.

        Such a handler swallows its cancellation, or blocks. Its `cancelled` is set. A handler without an `overrun` is
        not abandoned: the worker waits for its end. `now`: monotonic seconds.
        """
        held_runs = self._held_on_loop()
        self._overrunning.intersection_update(held_runs)
        for held in held_runs:
            attempt, execution = held.attempt, held.execution
            if attempt.timeout is None or execution.began_at is None:
                continue
            late, overrun = (now - execution.started) * 1000 - attempt.timeout, attempt.handler.overrun
            if late >= OVERRUN_CHECK_SECONDS * 1000 and held not in self._overrunning:
                self._overrunning.add(held)
                held.cancelled.set()
                self._report_limit(attempt, "it did not end when it was cancelled")
            if overrun is not None and late >= overrun:
                self.abandoned += 1
                held.abandon()
                held.stop = held.stop or self._given_up(attempt)
                self._worker.finished([(held, held.stop)])


def _has_begun(held: HeldRun) -> bool:
    """Return True if the attempt of a run has begun. Another thread begins it, so False may be out of date at once."""
    return held.execution.began_at is not None


def stack_of(frame: FrameType | None) -> list[FrameType]:
    """Return `frame` and its callers, innermost first, up to the frame in which asyncio runs a callback or task step.

    Without such a frame, as on a loop that is not asyncio's own, return all frames. For None, return an empty list.
    """
    stack = []
    while frame is not None:
        stack.append(frame)
        if frame.f_code is HANDLE_RUN_CODE:
            break
        frame = frame.f_back
    return stack


def line_of(stack: Sequence[FrameType], module: str = "") -> str:
    """Return the line that best shows where code is blocked, as "file:line in function"; "" for an empty stack.

    `stack`: the frames, innermost first, as `stack_of` returns them. `module`: the name of the module whose innermost
    frame is preferred; "": none. Without such a frame, the innermost frame outside libraries is taken, else the
    innermost of all.
    """
    own = [frame for frame in stack if frame.f_globals.get("__name__") == module]
    theirs = [frame for frame in stack if not any(place in frame.f_code.co_filename for place in LIBRARY_FOLDERS)]
    for frame in (*own[:1], *theirs[:1], *stack[:1]):
        return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
    return ""
