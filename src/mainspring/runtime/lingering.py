"""Lingering: keeps the leases of handlers that outlive their engine, so that no other attempt begins beside them.

A thread cannot be stopped. If it still runs when its engine has stopped, its run is kept until it ends or its process
ends (ADR 27).
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from mainspring.engine.work.stopping import handed_back
from mainspring.engine.work.watchdog import ON_LOOP
from mainspring.engine.work.worker import Worker
from mainspring.model.instant import Ms
from mainspring.ports.store import Store
from mainspring.telemetry.run_records import LogRun

#: Seconds between two looks at the handlers' loop: if it is closed, its coroutines never run again.
LOOP_CHECK_SECONDS = 0.5
#: Runs that are handed back at the exit of the process can be claimed after this many milliseconds. The threads of the
#: process end within them: this is the last thing that it does before the interpreter ends.
EXIT_GRACE_MS: Ms = 250
#: Seconds for which the exit of the process waits until its runs are handed back. After it, their leases end instead.
EXIT_SECONDS = 2.0


class Lingering:
    """The workers of a stopped engine whose handlers still run, with the heartbeats that renew their leases.

    Thread: engine loop.
    """

    def __init__(self, workers: Sequence[Worker], handler_loop: asyncio.AbstractEventLoop, log_run: LogRun) -> None:
        """Take over stopped workers that still hold runs. `begin` starts their heartbeats again.

        `handler_loop` is the loop of their coroutines. `log_run` logs a line about a run.
        """
        self._workers = workers
        self._handler_loop = handler_loop
        self._log_run = log_run
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Log which runs are kept, and wait for their handlers in a task that `wait` waits for."""
        for worker in self._workers:
            worker.heart.start()
            for held in worker.running.values():
                text = "still runs though its engine has stopped; its lease is kept until it or this process ends"
                self._log_run(logging.WARNING, held.attempt.run, text)
        _under_way.add(self)
        self._task = self._loop.create_task(self._wait_for_handlers(), name="mainspring-lingering")

    async def wait(self) -> None:
        """Return when no handler runs any more and every outcome is stored."""
        if self._task is not None:
            await asyncio.shield(self._task)

    @property
    def is_under_way(self) -> bool:
        """True while a handler still runs or its outcome is not stored."""
        return self in _under_way

    def close_afterwards(
        self, store: Store, flush: Callable[[], Coroutine[Any, Any, None]], may_close: Callable[[], bool]
    ) -> None:
        """Close `store` once the handlers have ended and `flush` has stored every change, if `may_close()` is True."""

        async def close() -> None:
            try:
                await self.wait()
                await flush()
            finally:
                if may_close():
                    await store.close()

        self._closing = self._loop.create_task(close(), name="mainspring-lingering-store")

    async def _wait_for_handlers(self) -> None:
        """Wait until no worker holds a run, then stop the heartbeats.

        If the handlers' loop is closed, hand back the runs of its coroutines, which never run again.
        """
        try:
            while held_workers := [worker for worker in self._workers if worker.running]:
                if self._handler_loop.is_closed():
                    for worker in held_workers:
                        self._hand_back(worker, is_on_loop=True)
                held_workers[0].idle.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOP_CHECK_SECONDS):
                        await held_workers[0].idle.wait()
            for worker in self._workers:
                await worker.hand_back("shutdown")  # it holds nothing: this waits until the outcomes are stored
                await worker.heart.stop()
        finally:
            _under_way.discard(self)

    @staticmethod
    def _hand_back(worker: Worker, *, is_on_loop: bool = False, delay: Ms = 0) -> None:
        """Hand back the runs of a worker, with `is_on_loop` only those whose handlers run on the handlers' loop."""
        for held in list(worker.running.values()):
            if not is_on_loop or held.attempt.handler.kind in (*ON_LOOP, "http"):
                worker.let_go(held, handed_back(held, "shutdown", delay))

    async def _hand_back_all(self) -> None:
        """Hand back every run, to be claimed after `EXIT_GRACE_MS`, and wait until that is stored."""
        for worker in self._workers:
            self._hand_back(worker, delay=EXIT_GRACE_MS)
        await self.wait()

    def hand_back_at_exit(self) -> None:
        """Hand back every run; block for at most `EXIT_SECONDS`. Thread: the main one, at the exit of the process."""
        with contextlib.suppress(Exception):  # the engine's loop or the store may be gone: the leases end by themselves
            asyncio.run_coroutine_threadsafe(self._hand_back_all(), self._loop).result(EXIT_SECONDS)


#: The engines of this process that have stopped and whose handlers still run.
_under_way: set[Lingering] = set()


def _hand_back_at_exit() -> None:
    for lingering in list(_under_way):
        lingering.hand_back_at_exit()


# Registered when the module is imported: what is registered later, such as the stop of an engine, is called before.
atexit.register(_hand_back_at_exit)
if hasattr(os, "register_at_fork"):  # a forked child has none of these threads
    os.register_at_fork(after_in_child=_under_way.clear)
