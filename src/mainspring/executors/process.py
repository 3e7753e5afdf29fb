"""The process executor: runs CPU-bound handlers in child processes. Requests and responses are JSON on pipes.

To stop an attempt, its child gets SIGTERM, and SIGKILL if it still executes the attempt `CHILD_KILL_GRACE_SECONDS`
later; `close` kills at once.
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
from collections.abc import Callable, Sequence

import msgspec

from mainspring.executors.outcomes import error_outcome, record_begin, record_end, stopped_outcome, timeout_outcome
from mainspring.executors.process_child import Request, Response, read_frame, write_frame
from mainspring.executors.thread import NO_THREAD_RETRY_MS
from mainspring.model.outcome import Cancelled, Failed, HandedBack, Outcome, Snoozed, Succeeded
from mainspring.model.run import Run
from mainspring.ports.clock import Clock
from mainspring.ports.executor import CHILD_VARIABLE, Done, HeldRun, WriteLine
from mainspring.ports.threads import Threads
from mainspring.telemetry.log_format import JsonLineFormatter
from mainspring.telemetry.run_records import LogRun, log_run

#: Seconds between SIGTERM and SIGKILL.
CHILD_KILL_GRACE_SECONDS = 5.0


class _Child:
    """A child process, started by the constructor. It answers one request at a time."""

    def __init__(self) -> None:
        request_read, self.write_fd = os.pipe()
        self.read_fd, response_write = os.pipe()
        command = [sys.executable, "-m", "mainspring.executors.process_child", str(request_read), str(response_write)]
        self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command,
            pass_fds=(request_read, response_write),
            stdin=subprocess.DEVNULL,
            env={**os.environ, CHILD_VARIABLE: "1"},
        )
        os.close(request_read)
        os.close(response_write)
        self._life: int | None = None  # a descriptor that is readable once the process is dead
        with contextlib.suppress(AttributeError, OSError):  # a system without it: only the end of the pipe tells
            self._life = os.pidfd_open(self.process.pid)

    def ask(self, request: Request, on_line: Callable[[str, str, str], None]) -> Response | None:
        """Send a request, block until the child answers or dies, and return its response; None if it died.

        `on_line(level, source, text)` is called for each line of the run's log that the child sends before.
        """
        try:
            write_frame(self.write_fd, msgspec.json.encode(request))
            while True:
                answer = read_frame(self.read_fd) if self._wait_for_answer() else None
                response = None if answer is None else msgspec.json.decode(answer, type=Response)
                if response is None or response.line is None:
                    return response
                on_line(*response.line)
        except OSError:
            return None

    def _wait_for_answer(self) -> bool:
        """Block until the child answers or dies. Return True if there is an answer to read.

        The end of the pipe does not show that the child died: processes that it started may keep the pipe open. Return
        True at once on a system that cannot watch a process.
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
        """Close the pipes, wait for the child to end, and return its exit code.

        The code is the negative number of a signal if a signal ended the child. An idle child ends when its pipes are
        closed. If the child still runs after `CHILD_KILL_GRACE_SECONDS`, kill it.
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
    """Runs each attempt in a child process, and waits for its end in a thread. Idle children are reused.

    Of the attempt's `Execution`, `timer` is written on the engine loop. `handle`, which is the child, and all other
    fields are written in the waiting thread.
    """

    def __init__(
        self,
        threads: Threads,
        clock: Clock,
        done: Done,
        *,
        log_run: LogRun = log_run,
        write_line: WriteLine = lambda held, level, source, text: None,
        schedule_name: Callable[[Run], str | None] = lambda run: None,
    ) -> None:
        """Call `done` with each outcome, on any thread. `log_run` logs a line about a run, on any thread.

        `write_line` stores a line that a handler wrote in its run's log. `schedule_name(run)` returns the name of the
        run's schedule for log lines; None: it is not known.
        """
        self._threads = threads
        self._clock = clock
        self._done = done
        self._log_run = log_run
        self._write_line = write_line
        self._schedule_name = schedule_name
        self._idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        self._children: set[_Child] = set()
        self._main, self._package = main_program()

    def start(self, held_runs: Sequence[HeldRun]) -> None:
        """Begin the attempts, each with a waiting thread and a timer for its time-out.

        If no thread can be started, the outcome is `Snoozed`: the run is tried again after `NO_THREAD_RETRY_MS`, and no
        failure is counted.
        """
        for held in held_runs:
            timeout = held.attempt.timeout
            if timeout is not None:
                held.execution.timer = asyncio.get_running_loop().call_later(timeout / 1000, self._expire, held)
            try:
                self._threads.start(functools.partial(self._serve, held), "mainspring-process")
            except RuntimeError as error:  # the system has no more threads
                self._log_run(logging.ERROR, held.attempt.run, "got no thread and is tried again: %s", error)
                self._done(held, Snoozed(NO_THREAD_RETRY_MS))

    def stop(self, held: HeldRun) -> None:
        """Send SIGTERM to the child of an attempt now, and SIGKILL after a grace if it still executes the attempt.

        The grace is `CHILD_KILL_GRACE_SECONDS`. If the attempt has no child yet, do nothing: its thread checks
        `held.stop`.
        """
        child = held.execution.handle
        if isinstance(child, _Child):
            child.kill(signal.SIGTERM)
            asyncio.get_running_loop().call_later(CHILD_KILL_GRACE_SECONDS, self._kill, held, child)

    def _kill(self, held: HeldRun, child: _Child) -> None:
        if held.execution.handle is child:
            child.kill(signal.SIGKILL)

    async def close(self) -> None:
        """Kill every child, and block until the idle children have ended."""
        for child in list(self._children):
            child.kill(signal.SIGKILL)
        while not self._idle.empty():
            self._idle.get().reap()

    def _expire(self, held: HeldRun) -> None:
        """Stop an attempt, because its time-out is over; it ends as timed out.

        Do nothing if the attempt has ended or was asked to stop before. The timer that `start` sets calls this.
        """
        if not held.is_done and held.stop is None:
            held.request_stop(timeout_outcome(held.attempt))
            self.stop(held)

    def _serve(self, held: HeldRun) -> None:
        """Execute an attempt and pass its outcome to `done`. Thread: the one that `start` started for it.

        If no child can be started, the outcome is `Snoozed`, or the one with which the attempt should stop.
        """
        try:
            outcome = self._outcome(held)
        except OSError as error:  # the system has no more processes or pipes
            self._log_run(logging.ERROR, held.attempt.run, "got no process and is tried again: %s", error)
            outcome = held.stop or Snoozed(NO_THREAD_RETRY_MS)
        except BaseException as error:  # an attempt must end, even if making its outcome fails
            outcome = error_outcome(error)
        self._done(held, outcome)

    def _outcome(self, held: HeldRun) -> Outcome:
        """Have an idle or a new child call the handler, and return the outcome; block until then.

        The handler is not called if the attempt should stop already, or if its trust deadline has passed. Raises:
        OSError if no child can be started.
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
        record_begin(execution, self._clock)
        answer = child.ask(
            Request(
                main=self._main,
                package=self._package,
                module=attempt.handler.module,
                qualname=attempt.handler.qualname,
                path=list(sys.path),
                body=attempt.body,
                run=attempt.run,
                log_level=_handlers_log_level(),
                log_json=any(isinstance(one.formatter, JsonLineFormatter) for one in logging.getLogger().handlers),
                schedule=self._schedule_name(attempt.run),
            ),
            functools.partial(self._write_line, held),
        )
        record_end(execution, self._clock)
        execution.handle = None
        if answer is None or _is_asked_to_stop(held):  # the child is dead, or was sent a signal
            self._children.discard(child)
            code = child.reap()
            return stopped_outcome(held, death_outcome(code) if answer is None else response_outcome(answer))
        self._idle.put(child)
        return response_outcome(answer)

    def _take_idle(self) -> _Child | None:
        """Take an idle child that is alive, or return None if there is none. Reap the dead children found on the way.

        Why: a child that was killed while it was idle must not fail the next attempt.
        """
        while True:
            try:
                child = self._idle.get_nowait()
            except queue.Empty:
                return None
            if child.process.poll() is None:
                return child
            self._children.discard(child)
            child.reap()


def _handlers_log_level() -> int | None:
    """Return the level of the log for child processes; None: this program has set up no logging."""
    return logging.getLogger("mainspring.run").getEffectiveLevel() if logging.getLogger().handlers else None


def _is_asked_to_stop(held: HeldRun) -> bool:
    """Return True if the attempt was asked to stop. The engine thread asks, so False may be out of date at once."""
    return held.stop is not None


def death_outcome(code: int) -> Failed:
    """Return the outcome of an attempt whose child ended without a response.

    `code` is the exit code, or the negative number of the signal that ended the child.
    """
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
    """Return file and package of the program's main module, in this order; None for what it does not have.

    A child process needs both to import functions that are defined there. The file is an absolute path.
    """
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    return None if file is None else os.path.abspath(file), getattr(main, "__package__", None)
