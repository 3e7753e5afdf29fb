"""Blocking handlers in threads: a thread cannot be killed, so it is told, waited for, and at last given up."""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import Coroutine, Sequence
from typing import Any

from mainspring.executors.outcomes import begin, end, raised, returned, timed_out
from mainspring.model.outcome import HandedBack, Outcome, Snoozed
from mainspring.ports.clock import Clock
from mainspring.ports.executor import Attempt, Done
from mainspring.ports.threads import Threads

log = logging.getLogger("mainspring.engine")

#: A run for which there is no thread or process waits so many milliseconds.
NO_ROOM = 1_000


class ThreadExecutor:
    """Idle threads are used again; one that overran its attempt ends when it comes back."""

    def __init__(self, threads: Threads, clock: Clock, done: Done, handler_loop: asyncio.AbstractEventLoop) -> None:
        self._threads = threads
        self._clock = clock
        self._done = done
        self._handler_loop = handler_loop
        self._idle: list[queue.SimpleQueue[Attempt | None]] = []
        self._closed = False
        self._count = 0
        #: Threads that did not stop after their time-out and were left to themselves.
        self.abandoned = 0

    def start(self, attempts: Sequence[Attempt]) -> None:
        """Called on the engine's loop, which also keeps the time-outs."""
        for attempt in attempts:
            attempt.hop = self._hop
            if attempt.timeout is not None:
                loop = asyncio.get_running_loop()
                attempt.timer = loop.call_later(attempt.timeout / 1000, self._expire, attempt)
            try:
                if self._idle:
                    self._idle.pop().put(attempt)
                else:
                    self._spawn(attempt)
            except RuntimeError as error:  # no more threads: try again in a while
                log.error("run %s: no thread for it: %s", attempt.run.id, error)
                self._done(attempt, Snoozed(NO_ROOM))

    def _spawn(self, attempt: Attempt) -> None:
        inbox: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
        inbox.put(attempt)
        self._count += 1
        self._threads.start(lambda: self._serve(inbox), f"mainspring-handler-{self._count}")

    def stop(self, attempt: Attempt) -> None:
        """`attempt.cancelled` is set already; there is nothing more that can be done to a thread."""

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _expire(self, attempt: Attempt) -> None:
        if attempt.done or attempt.stop is not None:
            return
        attempt.stop = timed_out(attempt)
        attempt.cancelled.set()
        loop = asyncio.get_running_loop()
        attempt.timer = loop.call_later(attempt.handler.overrun / 1000, self._abandon, attempt)

    def _abandon(self, attempt: Attempt) -> None:
        if not attempt.done:
            attempt.abandoned = True
            self.abandoned += 1
            self._done(attempt, timed_out(attempt, abandoned=True))

    def _serve(self, inbox: queue.SimpleQueue[Attempt | None]) -> None:
        while True:
            attempt = inbox.get()
            if attempt is None:
                return
            try:
                outcome = self._outcome(attempt)
            except BaseException as error:  # an attempt must end, whatever its answer does to us
                outcome = raised(error)
            if attempt.abandoned:
                return
            if not self._closed:
                self._idle.append(inbox)  # before `done`, so that the next attempt finds this thread
            self._done(attempt, outcome)
            if self._closed:
                return

    def _outcome(self, attempt: Attempt) -> Outcome:
        if attempt.stop is not None:
            return attempt.stop
        if self._clock.boot() >= attempt.trust:
            return HandedBack("not_begun")
        begin(attempt, self._clock)
        try:
            value = attempt.handler.call_blocking(attempt)
        except BaseException as error:  # SystemExit in a handler is an outcome like any other
            end(attempt, self._clock)
            return attempt.stop or raised(error)
        end(attempt, self._clock)
        return attempt.stop or returned(attempt, value)

    def _hop(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._handler_loop).result()
