"""The process executor: runs CPU-bound handlers in child processes, one per busy slot, with JSON on pipes.

A child is stopped by TERM, then after a grace by KILL.
"""

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

from mainspring.executors.outcomes import error_outcome, note_begin, note_end, timeout_outcome
from mainspring.executors.process_child import Request, Response, read_frame, write_frame
from mainspring.executors.thread import NO_THREAD_RETRY
from mainspring.model.outcome import Cancelled, Failed, HandedBack, Outcome, Snoozed, Succeeded
from mainspring.ports.clock import Clock
from mainspring.ports.executor import CHILD, Done, HeldRun
from mainspring.ports.threads import Threads

log = logging.getLogger("mainspring.run")

#: Seconds between TERM and KILL.
CHILD_KILL_GRACE_SECONDS = 5.0


class _Child:
    """A child process that serves one request at a time."""

    def __init__(self) -> None:
        request_read, self.write_fd = os.pipe()
        self.read_fd, response_write = os.pipe()
        command = [sys.executable, "-m", "mainspring.executors.process_child", str(request_read), str(response_write)]
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
        """Send a request and return the response; None if the child died. Blocks."""
        try:
            write_frame(self.write_fd, msgspec.json.encode(request))
            answer = read_frame(self.read_fd) if self._wait_for_answer() else None
        except OSError:
            answer = None
        return None if answer is None else msgspec.json.decode(answer, type=Response)

    def _wait_for_answer(self) -> bool:
        """Block until the child answers or dies. Return True if there is an answer to read.

        The end of the pipe does not tell that the child died: its own children may keep the pipe open as long as they
        live. Where the system cannot watch a process, return True at once.
        """
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
        """Close the pipes, which ends an idle child, and return its exit code: negative if a signal ended it.

        Blocks. A child that does not end within `CHILD_KILL_GRACE_SECONDS` is killed.
        """
        for fd in (self.write_fd, self.read_fd, self._life):
            if fd is not None:
                with contextlib.suppress(OSError):
                    os.close(fd)
        try:
            return self.process.wait(CHILD_KILL_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill(signal.SIGKILL)
            return self.process.wait()


class ProcessExecutor:
    """Runs each attempt in a child process, with a thread that waits for it. Idle children are reused.

    Of an execution, `timer` is written on the engine loop and `handle`, the child, in the waiting thread.
    """

    def __init__(self, threads: Threads, clock: Clock, done: Done) -> None:
        self._threads = threads
        self._clock = clock
        self._done = done
        self._idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        self._children: set[_Child] = set()
        self._main, self._package = main_program()

    def start(self, held_runs: Sequence[HeldRun]) -> None:
        """Begin the attempts, each in a thread; one for which no thread can be started is snoozed."""
        for held in held_runs:
            timeout = held.attempt.timeout
            if timeout is not None:
                held.execution.timer = asyncio.get_running_loop().call_later(timeout / 1000, self._expire, held)
            try:
                self._threads.start(functools.partial(self._serve, held), "mainspring-process")
            except RuntimeError as error:  # no more threads: try again in a while
                log.error("run %s: no thread for it: %s", held.attempt.run.id, error)
                self._done(held, Snoozed(NO_THREAD_RETRY))

    def stop(self, held: HeldRun) -> None:
        """Send TERM to the child now, and KILL when the grace is over, if it still carries out the attempt."""
        child = held.execution.handle
        if isinstance(child, _Child):
            child.kill(signal.SIGTERM)
            asyncio.get_running_loop().call_later(CHILD_KILL_GRACE_SECONDS, self._kill, held, child)

    def _kill(self, held: HeldRun, child: _Child) -> None:
        if held.execution.handle is child:
            child.kill(signal.SIGKILL)

    async def close(self) -> None:
        """Kill every child. Blocks until the idle ones have ended."""
        for child in list(self._children):
            child.kill(signal.SIGKILL)
        while not self._idle.empty():
            self._idle.get().reap()

    def _expire(self, held: HeldRun) -> None:
        """Stop an attempt whose time-out is over; its outcome is that it timed out."""
        if not held.is_done and held.stop is None:
            held.request_stop(timeout_outcome(held.attempt))
            self.stop(held)

    def _serve(self, held: HeldRun) -> None:
        """Carry out an attempt and pass its outcome to `done`. Thread: the one that `start` started for it."""
        try:
            outcome = self._outcome(held)
        except OSError as error:  # no process, no pipe: try again in a while
            log.error("run %s: no process for it: %s", held.attempt.run.id, error)
            outcome = held.stop or Snoozed(NO_THREAD_RETRY)
        except BaseException as error:  # an attempt must end, whatever making its outcome raises
            outcome = error_outcome(error)
        self._done(held, outcome)

    def _outcome(self, held: HeldRun) -> Outcome:
        """Have an idle child, or a new one, call the handler; return the outcome. Blocks.

        Raises: OSError if no child can be started.
        """
        if held.stop is not None:
            return held.stop
        if self._clock.boot() >= held.lease_trusted_until:
            return HandedBack("not_begun")
        child = self._take_idle() or _Child()
        self._children.add(child)
        attempt, execution = held.attempt, held.execution
        execution.handle = child
        stop: Outcome | None = held.stop  # the engine thread may have set it before there was a child to stop
        if stop is not None:
            execution.handle = None
            self._idle.put(child)
            return stop
        note_begin(execution, self._clock)
        answer = child.ask(
            Request(
                main=self._main,
                package=self._package,
                module=attempt.handler.module,
                qualname=attempt.handler.qualname,
                path=list(sys.path),
                body=attempt.body,
                run=attempt.run,
                log_level=log.getEffectiveLevel() if logging.getLogger().handlers else None,
            )
        )
        note_end(execution, self._clock)
        execution.handle = None
        if answer is None or held.stop is not None:
            self._children.discard(child)
            code = child.reap()
            return held.stop or death_outcome(code)
        self._idle.put(child)
        return response_outcome(answer)

    def _take_idle(self) -> _Child | None:
        """Return an idle child that lives, or None: a child that was killed must not fail the next attempt."""
        while True:
            try:
                child = self._idle.get_nowait()
            except queue.Empty:
                return None
            if child.process.poll() is None:
                return child
            self._children.discard(child)
            child.reap()


def death_outcome(code: int) -> Failed:
    """Return the outcome of an attempt whose child ended without a response. `code`: as `reap` returns it."""
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return Failed(f"the handler's process ended by {how}", reason="process", fingerprint=f"process:{code}")


def response_outcome(answer: Response) -> Outcome:
    """Return the outcome that a child's response describes."""
    if answer.snooze is not None:
        return Snoozed(answer.snooze)
    if answer.cancel is not None:
        return Cancelled(answer.cancel)
    if answer.error is not None:
        return Failed(answer.error, answer.reason, answer.fingerprint, answer.trace, retry=answer.retry)
    return Succeeded(answer.result)


def main_program() -> tuple[str | None, str | None]:
    """Return file and package of the program's main module, so that a child can import functions defined there."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    return None if file is None else os.path.abspath(file), getattr(main, "__package__", None)
