"""CPU-bound handlers in child processes: one child for each busy slot, JSON on pipes, TERM, grace, KILL."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import queue
import select
import signal
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from mainspring.executors.child import Request, Response, read_frame, write_frame
from mainspring.executors.outcomes import begin, end, raised, timed_out
from mainspring.executors.thread import NO_ROOM
from mainspring.model.outcome import Cancelled, Failed, HandedBack, Outcome, Snoozed, Succeeded
from mainspring.ports.clock import Clock
from mainspring.ports.executor import CHILD, Attempt, Done
from mainspring.ports.threads import Threads

log = logging.getLogger("mainspring.run")

GRACE = 5.0


class _Child:
    """A process that serves one request at a time."""

    def __init__(self) -> None:
        request_read, self.write_fd = os.pipe()
        self.read_fd, response_write = os.pipe()
        command = [sys.executable, "-m", "mainspring.executors.child", str(request_read), str(response_write)]
        self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command,
            pass_fds=(request_read, response_write),
            stdin=subprocess.DEVNULL,
            env={**os.environ, CHILD: "1"},
        )
        os.close(request_read)
        os.close(response_write)
        self._life: int | None = None  # readable when the process is dead
        with contextlib.suppress(AttributeError, OSError):  # not on every system; the pipe's end must do there
            self._life = os.pidfd_open(self.process.pid)

    def ask(self, request: Request) -> Response | None:
        """The answer, or None when the child died."""
        try:
            write_frame(self.write_fd, msgspec.json.encode(request))
            answer = read_frame(self.read_fd) if self._speaks() else None
        except OSError:
            answer = None
        return None if answer is None else msgspec.json.decode(answer, type=Response)

    def _speaks(self) -> bool:
        """Wait for an answer or a death; children of a dead child may keep its pipe open for as long as they live."""
        if self._life is None:
            return True
        both = select.poll()
        both.register(self.read_fd, select.POLLIN)
        both.register(self._life, select.POLLIN)
        return self.read_fd in [fd for fd, _ in both.poll()]

    def kill(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def reap(self) -> int:
        """Close the pipes, which ends an idle child, and return its exit code."""
        for fd in (self.write_fd, self.read_fd, self._life):
            if fd is not None:
                with contextlib.suppress(OSError):
                    os.close(fd)
        try:
            return self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.kill(signal.SIGKILL)
            return self.process.wait()


class ProcessExecutor:
    """A thread waits for each busy child; idle children are used again."""

    def __init__(self, threads: Threads, clock: Clock, done: Done) -> None:
        self._threads = threads
        self._clock = clock
        self._done = done
        self._idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        self._children: set[_Child] = set()
        self._main, self._package = main_program()

    def start(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            if attempt.timeout is not None:
                loop = asyncio.get_running_loop()
                attempt.timer = loop.call_later(attempt.timeout / 1000, self._expire, attempt)
            try:
                self._threads.start(functools.partial(self._serve, attempt), "mainspring-process")
            except RuntimeError as error:  # no more threads: try again in a while
                log.error("run %s: no thread for it: %s", attempt.run.id, error)
                self._done(attempt, Snoozed(NO_ROOM))

    def stop(self, attempt: Attempt) -> None:
        """TERM now, KILL when the grace is over."""
        child = attempt.handle
        if isinstance(child, _Child):
            child.kill(signal.SIGTERM)
            asyncio.get_running_loop().call_later(GRACE, self._kill, attempt, child)

    def _kill(self, attempt: Attempt, child: _Child) -> None:
        if attempt.handle is child:
            child.kill(signal.SIGKILL)

    async def close(self) -> None:
        for child in list(self._children):
            child.kill(signal.SIGKILL)
        while not self._idle.empty():
            self._idle.get().reap()

    def _expire(self, attempt: Attempt) -> None:
        if not attempt.done and attempt.stop is None:
            attempt.stop = timed_out(attempt)
            self.stop(attempt)

    def _serve(self, attempt: Attempt) -> None:
        try:
            outcome = self._outcome(attempt)
        except OSError as error:  # no process, no pipe: try again in a while
            log.error("run %s: no process for it: %s", attempt.run.id, error)
            outcome = attempt.stop or Snoozed(NO_ROOM)
        except BaseException as error:  # an attempt must end, whatever its answer does to us
            outcome = raised(error)
        self._done(attempt, outcome)

    def _outcome(self, attempt: Attempt) -> Outcome:
        if attempt.stop is not None:
            return attempt.stop
        if self._clock.boot() >= attempt.trust:
            return HandedBack("not_begun")
        child = self._living() or _Child()
        self._children.add(child)
        attempt.handle = child
        stop: Outcome | None = attempt.stop  # set by the engine's thread meanwhile: before there was a child to tell
        if stop is not None:
            attempt.handle = None
            self._idle.put(child)
            return stop
        begin(attempt, self._clock)
        run = attempt.run
        answer = child.ask(
            Request(
                main=self._main,
                package=self._package,
                module=attempt.handler.module,
                qualname=attempt.handler.qualname,
                path=list(sys.path),
                body=attempt.body,
                run=run,
                log_level=log.getEffectiveLevel() if logging.getLogger().handlers else None,
            )
        )
        end(attempt, self._clock)
        attempt.handle = None
        if answer is None or attempt.stop is not None:
            self._children.discard(child)
            code = child.reap()
            return attempt.stop or died(code)
        self._idle.put(child)
        return outcome_of(answer)

    def _living(self) -> _Child | None:
        """An idle child; one that was killed meanwhile is no fault of the next handler."""
        while True:
            try:
                child = self._idle.get_nowait()
            except queue.Empty:
                return None
            if child.process.poll() is None:
                return child
            self._children.discard(child)
            child.reap()


def died(code: int) -> Failed:
    """The child ended without an answer."""
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return Failed(f"the handler's process ended by {how}", reason="process", fingerprint=f"process:{code}")


def outcome_of(answer: Response) -> Outcome:
    """The child's words as an outcome."""
    if answer.snooze is not None:
        return Snoozed(answer.snooze)
    if answer.cancel is not None:
        return Cancelled(answer.cancel)
    if answer.error is not None:
        return Failed(answer.error, answer.reason, answer.fingerprint, answer.trace, retry=answer.retry)
    return Succeeded(answer.result)


def main_program() -> tuple[str | None, str | None]:
    """File and package of the program's main module, so that a child can find functions defined there."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    return None if file is None else os.path.abspath(file), getattr(main, "__package__", None)
