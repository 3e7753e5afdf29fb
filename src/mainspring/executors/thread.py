"""The thread executor: runs blocking handlers in threads.

A thread cannot be killed: after the time-out the handler is asked to stop, waited for, and at last abandoned.
"""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import Coroutine, Sequence
from typing import Any

from mainspring.executors.outcomes import error_outcome, note_begin, note_end, timeout_outcome, value_outcome
from mainspring.model.instant import Ms
from mainspring.model.outcome import HandedBack, Outcome, Snoozed
from mainspring.ports.clock import Clock
from mainspring.ports.executor import Done, HeldRun
from mainspring.ports.threads import Threads

log = logging.getLogger("mainspring.engine")

#: A run for which no thread or process can be started is tried again after this many milliseconds.
NO_THREAD_RETRY: Ms = 1_000


class ThreadExecutor:
    """Runs each attempt in a thread of its own. Idle threads are reused; an abandoned one ends with its handler.

    Of an execution, `timer` and `run_on_loop` are written on the engine loop, the rest in the handler's thread.
    """

    def __init__(self, threads: Threads, clock: Clock, done: Done, handler_loop: asyncio.AbstractEventLoop) -> None:
        self._threads = threads
        self._clock = clock
        self._done = done
        self._handler_loop = handler_loop
        self._idle: list[queue.SimpleQueue[HeldRun | None]] = []
        self._closed = False
        self._count = 0
        #: Number of threads that did not stop after their time-out and were abandoned.
        self.abandoned = 0

    def start(self, held_runs: Sequence[HeldRun]) -> None:
        """Begin the attempts in threads; the engine loop, on which this is called, also keeps the time-outs.

        An attempt for which no thread can be started is snoozed.
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
            except RuntimeError as error:  # no more threads: try again in a while
                log.error("run %s: no thread for it: %s", attempt.run.id, error)
                self._done(held, Snoozed(NO_THREAD_RETRY))

    def _spawn(self, held: HeldRun) -> None:
        """Start a thread with this attempt as its first. Raises: RuntimeError if there can be no more threads."""
        inbox: queue.SimpleQueue[HeldRun | None] = queue.SimpleQueue()
        inbox.put(held)
        self._count += 1
        self._threads.start(lambda: self._serve(inbox), f"mainspring-handler-{self._count}")

    def stop(self, held: HeldRun) -> None:
        """Do nothing: `held.cancelled` is set already, and a thread cannot be stopped from outside."""

    async def close(self) -> None:
        """End the idle threads; the others end after their attempts."""
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _expire(self, held: HeldRun) -> None:
        """Ask a handler whose time-out is over to stop, and wait for it as long as its overrun."""
        if held.is_done or held.stop is not None:
            return
        held.request_stop(timeout_outcome(held.attempt))
        loop = asyncio.get_running_loop()
        held.execution.timer = loop.call_later(held.attempt.handler.overrun / 1000, self._abandon, held)

    def _abandon(self, held: HeldRun) -> None:
        """Report a handler that did not stop as timed out; its thread goes on, and what it returns is ignored."""
        if not held.is_done:
            held.abandon()
            self.abandoned += 1
            self._done(held, timeout_outcome(held.attempt, abandoned=True))

    def _serve(self, inbox: queue.SimpleQueue[HeldRun | None]) -> None:
        """Carry out the attempts in the inbox until None comes, one was abandoned, or the executor was closed.

        Thread: the one that `_spawn` started, in which the handlers run.
        """
        while True:
            held = inbox.get()
            if held is None:
                return
            try:
                outcome = self._outcome(held)
            except BaseException as error:  # an attempt must end, whatever making its outcome raises
                outcome = error_outcome(error)
            if held.is_abandoned:
                return
            if not self._closed:
                self._idle.append(inbox)  # before `done`, so that the next attempt finds this thread
            self._done(held, outcome)
            if self._closed:
                return

    def _outcome(self, held: HeldRun) -> Outcome:
        """Call the handler and return the outcome; it is not called if it should stop, or its lease is over."""
        if held.stop is not None:
            return held.stop
        if self._clock.boot() >= held.lease_trusted_until:
            return HandedBack("not_begun")
        attempt, execution = held.attempt, held.execution
        note_begin(execution, self._clock)
        try:
            value = attempt.handler.call_blocking(held)
        except BaseException as error:  # SystemExit in a handler is an outcome like any other
            note_end(execution, self._clock)
            return held.stop or error_outcome(error)
        note_end(execution, self._clock)
        return held.stop or value_outcome(attempt, value)

    def _run_on_loop(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the handlers' loop and return its value. Blocks. Thread: the handler's."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._handler_loop).result()
