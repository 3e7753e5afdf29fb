"""Run waiters: wake the callers in this process that wait for the end of a run, whichever process ends the run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from mainspring.model.errors import StoreError
from mainspring.model.run import Run

log = logging.getLogger("mainspring.engine")

#: Seconds until the first query for runs that another process ended.
FIRST_QUERY_PAUSE_SECONDS = 0.02
#: The longest pause between two queries while a caller waits, in seconds, unless the instance sets another limit.
MAX_QUERY_PAUSE_SECONDS = 0.025
#: The factor by which each pause is longer than the pause before, up to the longest pause.
PAUSE_GROWTH = 1.5
#: The pause is at least this many times as long as the query took, so that many waiting callers do not slow the engine.
PAUSE_PER_QUERY = 4
#: The most runs in one query. If callers wait for more runs, the runs take turns.
MAX_RUNS_PER_QUERY = 500


class RunWaiters:
    """The callers that wait for the end of a run. Thread: engine loop.

    A commit in this process wakes the callers of the runs that it ends. About the runs that another process may end,
    the store is asked in one query, repeatedly while a caller waits. Without a caller there is no query and no timer.
    """

    def __init__(
        self,
        find_ended: Callable[[Sequence[str]], Awaitable[Sequence[Run]]],
        is_held: Callable[[str], bool],
        max_pause: float = MAX_QUERY_PAUSE_SECONDS,
    ) -> None:
        """Begin without callers. `find_ended(run_ids)` returns those of the runs that have ended.

        `is_held(run_id)` returns True for a run that this process executes. Such a run ends by a commit here, so the
        store is not asked about it. `max_pause`: the longest pause between two queries, in seconds.
        """
        self._find_ended = find_ended
        self._is_held = is_held
        self._max_pause = max_pause
        self._pause = FIRST_QUERY_PAUSE_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        self._query: asyncio.Task[None] | None = None
        #: The futures of the waiting callers, by run id.
        self.waiting: dict[str, list[asyncio.Future[None]]] = {}

    def notify(self, run_id: str) -> None:
        """Wake the callers that wait for this run, because it has ended."""
        if self.waiting:
            for future in self.waiting.pop(run_id, ()):
                if not future.done():
                    future.set_result(None)

    def notify_all(self) -> None:
        """Wake every caller, because the store fails or is about to be closed. Each caller then reads its run."""
        for run_id in list(self.waiting):
            self.notify(run_id)

    async def wait(self, run_id: str, timeout: float) -> None:
        """Return when the run has ended, in any process, or after `timeout` seconds.

        Also return when the store fails, so that the caller reads the run and gets the error.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(run_id, []).append(future)
        if self._timer is None and self._query is None:
            self._pause = min(FIRST_QUERY_PAUSE_SECONDS, self._max_pause)
            self._arm(self._pause)
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            return
        finally:
            waiting = self.waiting.get(run_id)
            if waiting is not None and future in waiting:
                waiting.remove(future)
                if not waiting:
                    del self.waiting[run_id]
            if not self.waiting and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    # ── runs that another process ends ─────────────────────────────────────

    def _arm(self, seconds: float) -> None:
        """Set the timer of the next query, `seconds` from now."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._start_query)

    def _start_query(self) -> None:
        """Query the store in a task. Called by the timer."""
        self._timer = None
        self._query = asyncio.get_running_loop().create_task(self._query_and_rearm())

    async def _query_and_rearm(self) -> None:
        """Ask the store for runs that ended, wake their callers, and set the timer again if callers still wait.

        If the store fails, wake every caller.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            run_ids = self._next_run_ids()
            if run_ids:
                for run in await self._find_ended(run_ids):
                    self.notify(run.id)
        except StoreError:
            self.notify_all()
        except Exception:
            log.exception("run waiters: unexpected error, trying again")
        finally:
            self._query = None
        if self.waiting:
            self._pause = min(self._pause * PAUSE_GROWTH, self._max_pause)
            self._arm(max(self._pause, PAUSE_PER_QUERY * (loop.time() - began)))

    def _next_run_ids(self) -> list[str]:
        """Return the ids of awaited runs that this process does not hold, at most `MAX_RUNS_PER_QUERY`.

        At that limit, move these runs to the end, so that the next query takes other runs.
        """
        run_ids: list[str] = []
        for run_id in self.waiting:
            if not self._is_held(run_id):
                run_ids.append(run_id)
                if len(run_ids) == MAX_RUNS_PER_QUERY:
                    break
        if len(run_ids) == MAX_RUNS_PER_QUERY:
            for run_id in run_ids:
                self.waiting[run_id] = self.waiting.pop(run_id)
        return run_ids
