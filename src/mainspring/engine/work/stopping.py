"""Stopping the attempts of a worker: which of them end, which runs are handed back, and which are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from mainspring.model.instant import Ms
from mainspring.model.outcome import HandedBack, Outcome
from mainspring.ports.executor import HeldRun

#: Attempts are given this many seconds to end after they were asked to stop.
STOP_SECONDS = 0.2
#: A child process is given this many seconds to end after the signal that kills it.
KILL_SECONDS = 10.0
#: Seconds between two looks at the attempts that have not ended.
STOP_CHECK_SECONDS = 0.01


class StoppingWorker(Protocol):
    """What `stop_attempts` needs of a worker."""

    #: True if the runs of handlers that do not stop are kept. False if they are handed back.
    waits_for_handlers: bool

    @property
    def running(self) -> Mapping[str, HeldRun]:
        """The runs that the worker holds, by run id."""
        ...

    def stop_attempt(self, held: HeldRun, why: Outcome) -> None:
        """Stop an attempt, so that it ends with the outcome `why`."""
        ...

    def let_go(self, held: HeldRun, outcome: Outcome) -> None:
        """Wait no longer for a handler, and record `outcome`."""
        ...


async def stop_attempts(
    worker: StoppingWorker, reason: str, kill_processes: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Ask every attempt of a worker to stop, and wait for those that do; their runs are handed back for `reason`.

    After `STOP_SECONDS`, `kill_processes` kills the child processes that execute attempts. A handler that still runs
    then, in a thread or as a coroutine that swallows its cancellation, keeps its run if the worker waits for handlers.
    Else its run is handed back, too. A run with `recovery="fail"` whose handler has begun is never handed back: it ends
    as lost.
    """
    for held in list(worker.running.values()):
        if held.stop is None:
            worker.stop_attempt(held, handed_back(held, reason))
    await _wait_for_ends(worker, STOP_SECONDS)
    if not worker.waits_for_handlers:
        for held in list(worker.running.values()):
            worker.let_go(held, handed_back(held, reason))
    elif _has_process(worker):
        await kill_processes()
        await _wait_for_ends(worker, KILL_SECONDS, only_processes=True)


def handed_back(held: HeldRun, reason: str, delay: Ms = 0) -> HandedBack:
    """Return the outcome of an attempt whose run is handed back for `reason`, to be claimed after `delay` ms."""
    return HandedBack(reason, began=held.execution.began_at is not None, delay=delay)


async def _wait_for_ends(worker: StoppingWorker, seconds: float, *, only_processes: bool = False) -> None:
    """Wait until the worker holds no run, or until none of its runs is in a child process; at most `seconds`."""
    for _ in range(round(seconds / STOP_CHECK_SECONDS)):
        if not worker.running or (only_processes and not _has_process(worker)):
            return
        await asyncio.sleep(STOP_CHECK_SECONDS)


def _has_process(worker: StoppingWorker) -> bool:
    """Return True if the worker holds a run that a child process executes."""
    return any(held.attempt.handler.kind == "process" for held in worker.running.values())
