"""The thread executor: runs blocking handlers in threads.

A thread cannot be killed. At its time limit, a handler is asked to stop (`ctx.cancelled`), and a warning is logged. The
worker waits until it ends, and its outcome counts. Only a handler with an `overrun` is abandoned, that time after its
limit.
"""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import Coroutine, Sequence
from typing import Any

from mainspring.executors.deadlines import log_time_limit
from mainspring.executors.outcomes import (
    error_outcome,
    raised_outcome,
    record_begin,
    record_end,
    stopped_outcome,
    timeout_outcome,
    value_outcome,
)
from mainspring.model.instant import Ms
from mainspring.model.outcome import HandedBack, Outcome, Snoozed
from mainspring.ports.clock import Clock
from mainspring.ports.executor import Done, HeldRun
from mainspring.ports.threads import Threads
from mainspring.telemetry.run_records import LogRun, log_run

#: A run for which no thread or process can be started is tried again after this many milliseconds.
NO_THREAD_RETRY_MS: Ms = 1_000


class ThreadExecutor:
    """Runs each attempt in a thread that executes nothing else meanwhile. Threads are reused.

    The thread of an abandoned handler ends with the handler. `start` must be called on the engine loop. Of the
    attempt's `Execution`, `timer` and `run_on_loop` are written there, all other fields in the handler's thread.
    """

    def __init__(
        self,
        threads: Threads,
        clock: Clock,
        done: Done,
        handler_loop: asyncio.AbstractEventLoop,
        *,
        log_run: LogRun = log_run,
    ) -> None:
        """Call `done` with each outcome, on any thread. Dependencies that are coroutines run on `handler_loop`.

        `log_run` logs a line about a run, on any thread.
        """
        self._threads = threads
        self._clock = clock
        self._done = done
        self._handler_loop = handler_loop
        self._log_run = log_run
        #: Inboxes of the threads that wait for an attempt.
        self._idle: list[queue.SimpleQueue[HeldRun | None]] = []
        self._closed = False
        self._count = 0
        #: Number of handlers that did not stop after their time-out and were abandoned.
        self.abandoned = 0

    def start(self, held_runs: Sequence[HeldRun]) -> None:
        """Begin the attempts in threads, each with a timer for its time-out.

        If no thread can be started, the outcome is `Snoozed`: the run is tried again after `NO_THREAD_RETRY_MS`, and no
        failure is counted.
        """
        for held in held_runs:
            attempt, execution = held.attempt, held.execution
            execution.run_on_loop = self._run_on_loop
            if attempt.timeout is not None:
                loop = asyncio.get_running_loop()
                execution.timer = loop.call_later(attempt.timeout / 1000, self._expire, held)
            try:
                if self._idle:
                    self._idle.pop().put(held)
                else:
                    self._spawn(held)
            except RuntimeError as error:  # the system has no more threads
                self._log_run(logging.ERROR, attempt.run, "got no thread and is tried again: %s", error)
                self._done(held, Snoozed(NO_THREAD_RETRY_MS))

    def _spawn(self, held: HeldRun) -> None:
        """Start a thread that executes this attempt first. Raises: RuntimeError if no thread can be started."""
        inbox: queue.SimpleQueue[HeldRun | None] = queue.SimpleQueue()
        inbox.put(held)
        self._count += 1
        self._threads.start(lambda: self._serve(inbox), f"mainspring-handler-{self._count}")

    def stop(self, held: HeldRun) -> None:
        """Do nothing: the handler can see that `held.cancelled` is set, and a thread cannot be stopped from outside."""

    async def close(self) -> None:
        """End the idle threads. Threads with an attempt end after it."""
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _expire(self, held: HeldRun) -> None:
        """Set `cancelled` and log a warning, because the time limit is reached; the attempt goes on.

        If the handler has an overrun, set the timer that abandons it. Do nothing if the attempt has ended. The timer
        that `start` sets calls this.
        """
        if held.is_done:
            return
        held.cancelled.set()
        overrun = held.attempt.handler.overrun
        log_time_limit(self._log_run, held.attempt, "a thread cannot be stopped")
        if overrun is not None:
            loop = asyncio.get_running_loop()
            held.execution.timer = loop.call_later(overrun / 1000, self._abandon, held)

    def _abandon(self, held: HeldRun) -> None:
        """End the attempt if the handler still runs after its overrun. The timer of `_expire` calls this.

        The thread goes on until the handler ends; what the handler returns is ignored.
        """
        if not held.is_done:
            held.abandon()
            self.abandoned += 1
            self._done(held, held.stop or timeout_outcome(held.attempt, abandoned=True))

    def _serve(self, inbox: queue.SimpleQueue[HeldRun | None]) -> None:
        """Execute the attempts that arrive in the inbox, and pass each outcome to `done`.

        Return when None arrives, an attempt was abandoned, or the executor was closed. Thread: the one that `_spawn`
        started, in which the handlers run.
        """
        while True:
            held = inbox.get()
            if held is None:
                return
            try:
                outcome = self._outcome(held)
            except BaseException as error:  # an attempt must end, even if making its outcome fails
                outcome = error_outcome(error)
            if held.is_abandoned:
                return
            if not self._closed:
                self._idle.append(inbox)  # before `done`, so that the next attempt finds this thread
            self._done(held, outcome)
            if self._closed:
                return

    def _outcome(self, held: HeldRun) -> Outcome:
        """Call the handler and return the outcome. An error of a handler that was asked to stop means that it stopped.

        The handler is not called if the attempt should stop already, or if its trust deadline has passed.
        """
        if held.stop is not None:
            return held.stop
        if self._clock.boot() >= held.lease_trusted_until:
            return HandedBack("not_begun")
        attempt, execution = held.attempt, held.execution
        record_begin(execution, self._clock)
        try:
            value = attempt.handler.call_blocking(held)
        except BaseException as error:  # SystemExit in a handler is an outcome like any other
            record_end(execution, self._clock)
            return raised_outcome(held, error)
        record_end(execution, self._clock)
        return stopped_outcome(held, value_outcome(attempt, value))

    def _run_on_loop(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the handlers' loop and return its value; block until it ends. Thread: the handler's."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._handler_loop).result()
