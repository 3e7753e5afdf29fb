"""Background runner: runs the engine and the handlers' loop on threads of their own, for programs without a loop.

`ms.background()` and `ms.start_background()` use it.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import weakref
from concurrent.futures import Future
from typing import Any

from mainspring.app.engine_runner import EngineRunner
from mainspring.model.errors import RunsAlready
from mainspring.model.policies import ROLES, Role, check_choice
from mainspring.ports.threads import Threads

log = logging.getLogger("mainspring.engine")

#: Interruptions (Ctrl-C) of a wait for the end after which the wait is given up: the first is a request to hand runs
#: back, the second says that this takes too long.
MAX_INTERRUPTIONS = 2

#: Every background runner of this process, for the end of the process and for a fork.
_all: weakref.WeakSet[BackgroundRunner] = weakref.WeakSet()
#: True once `_stop_all` is registered for the end of this process. A forked child inherits the registration.
_is_end_registered = False


def _stop_all() -> None:
    """Stop every background runner of this process in order. Python calls this at the end of the main thread."""
    for one in list(_all):
        try:
            one.stop()
        except KeyboardInterrupt:
            pass
        except Exception:  # it must not keep the others from stopping
            log.exception("the engine could not be stopped in order")


def _register_end() -> None:
    """Have `_stop_all` called at the end of this process, once.

    Why not only `atexit`: its functions are called when the pools of `concurrent.futures` take no more work, so
    handlers that use `asyncio.to_thread` could not end.
    """
    global _is_end_registered
    if not _is_end_registered:
        _is_end_registered = True
        import concurrent.futures.thread  # noqa: F401 - it registers first, and is then called after us

        register: Any = getattr(threading, "_register_atexit", atexit.register)
        register(_stop_all)


def _after_fork() -> None:
    """Make every background runner forget its thread, which a forked child does not have. Python calls this there."""
    for one in _all:
        one.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class BackgroundRunner:
    """Runs the engine of an app beside a synchronous program: `engine = ms.start_background()`. Thread: any.

    The handlers' loop has a thread of its own. At the end of the process the engine stops in order. In a forked child
    the engine does not run, and can be started.
    """

    def __init__(self, runner: EngineRunner, threads: Threads) -> None:
        """Make a background runner that starts nothing yet. `threads` start its thread."""
        self._runner = runner
        self._threads = threads
        self.forget()
        _all.add(self)

    def forget(self) -> None:
        """Return to the state before the first start. A forked child needs this: it does not have the threads."""
        self._lock = threading.Lock()
        self._thread_id: int | None = None
        #: Set when the thread of the last start has ended; None before the first start.
        self._ended: threading.Event | None = None
        self._runner.forget()

    @property
    def is_running(self) -> bool:
        """True from a start until the engine has stopped."""
        return self._ended is not None and not self._ended.is_set()

    def start(self, role: Role = "all") -> None:
        """Start the engine on threads of its own, and return when it runs.

        Raises: RunsAlready if the app's engine runs in this process; InvalidInput; StoreError if the store cannot be
        opened. Do nothing if the environment (a test kit) starts the engine itself.
        """
        check_choice(role, ROLES, field="role")
        if self._runner.is_managed:
            return
        with self._lock:
            if self.is_running or self._runner.is_running:
                raise RunsAlready
            started: Future[None] = Future()
            self._ended = ended = threading.Event()
            _register_end()
            self._threads.start(lambda: self._run(role, started, ended), "mainspring-handlers")
        try:
            started.result()
        except KeyboardInterrupt:
            self.stop()
            raise

    def stop(self) -> None:
        """Claim no more runs, let running runs end within `shutdown_timeout`, stop the engine, and wait for its end.

        Do nothing if it does not run. In a handler, which the engine would wait for, call `ms.stop()` instead. An
        interruption (Ctrl-C) in the main thread hands runs back at once, and is raised again after the end.
        """
        ended = self._ended
        if ended is None or ended.is_set():
            return
        self._runner.request_stop(again=False)
        if threading.get_ident() == self._thread_id:
            return  # an async handler: its loop would wait for itself
        interruptions = 0
        while not ended.is_set() and interruptions < MAX_INTERRUPTIONS:
            try:
                ended.wait()
            except KeyboardInterrupt:
                interruptions += 1
                self._runner.request_stop()
        if interruptions:
            raise KeyboardInterrupt

    def _run(self, role: Role, started: Future[None], ended: threading.Event) -> None:
        """Run the engine until a stop is requested. Set the result of `started` when it runs; else its error.

        Thread: the handlers'.
        """
        self._thread_id = threading.get_ident()
        try:
            asyncio.run(
                self._runner.run(
                    until_idle=False,
                    signals=False,
                    role=role,
                    by_ctrl_c=True,
                    on_start=lambda: started.set_result(None),
                )
            )
        except BaseException as error:
            if started.done():
                log.exception("the engine ended with an error")
            else:
                started.set_exception(error)
        else:
            if not started.done():  # a stop was requested while the store was being opened
                started.set_result(None)
        finally:
            self._thread_id = None
            ended.set()
