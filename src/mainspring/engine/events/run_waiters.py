"""Run waiters: callers in this process that wait for the end of runs, wherever these end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from mainspring.model.errors import StoreError
from mainspring.model.run import Run

log = logging.getLogger("mainspring.engine")

#: Seconds until the first look at the store for runs that another process ended.
FIRST_LOOK_SECONDS = 0.02
#: The longest pause between two looks while a caller waits, in seconds, unless the instance sets another one.
LOOK_SECONDS = 0.025
#: Each pause between two looks is longer than the one before by this factor, up to the longest pause.
LOOK_BACKOFF = 1.5
#: Pause for at least four times as long as a look took, so that many waiting callers do not slow the engine down.
PAUSE_PER_LOOK = 4
#: Runs in one look. If callers wait for more, the looks take turns.
MAX_RUNS_PER_LOOK = 500


class RunWaiters:
    """The waiting callers, by run id. Thread: engine loop.

    A commit in this process wakes the callers of its runs. For runs that another process may end, the store is asked
    for all of them in one query, repeatedly while a caller waits. Without a caller there is no query and no timer.
    """

    def __init__(
        self,
        find_ended: Callable[[Sequence[str]], Awaitable[Sequence[Run]]],
        is_held: Callable[[str], bool],
        max_pause: float = LOOK_SECONDS,
    ) -> None:
        """`find_ended(run_ids)` asks the store which of the runs have ended. `max_pause`: longest pause, in seconds.

        `is_held` returns True for a run that this process executes: it ends by a commit here, so it is not looked for.
        """
        self._find_ended = find_ended
        self._is_held = is_held
        self._max_pause = max_pause
        self._pause = FIRST_LOOK_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.Task[None] | None = None
        #: The futures of the waiting callers, by run id.
        self.waiting: dict[str, list[asyncio.Future[None]]] = {}

    def notify(self, run_id: str) -> None:
        """Wake the callers that wait for this run: it has ended."""
        if self.waiting:
            for future in self.waiting.pop(run_id, ()):
                if not future.done():
                    future.set_result(None)

    def notify_all(self) -> None:
        """Wake every caller, to read its run: the store fails, or is about to be closed."""
        for run_id in list(self.waiting):
            self.notify(run_id)

    async def wait(self, run_id: str, timeout: float) -> None:
        """Return when the run has ended, in whichever process, or after `timeout` seconds.

        It also returns when the store fails, so that the caller reads the run and gets the error.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(run_id, []).append(future)
        if self._timer is None and self._look is None:
            self._pause = min(FIRST_LOOK_SECONDS, self._max_pause)
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
        self._timer = asyncio.get_running_loop().call_later(seconds, self._begin_look)

    def _begin_look(self) -> None:
        self._timer = None
        self._look = asyncio.get_running_loop().create_task(self._look_and_rearm())

    async def _look_and_rearm(self) -> None:
        """Look for ended runs and wake their callers; set the timer of the next look if callers still wait.

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
            self._look = None
        if self.waiting:
            self._pause = min(self._pause * LOOK_BACKOFF, self._max_pause)
            self._arm(max(self._pause, PAUSE_PER_LOOK * (loop.time() - began)))

    def _next_run_ids(self) -> list[str]:
        """Return the runs of the next look; if they are the most that one look takes, move them behind the others."""
        run_ids: list[str] = []
        for run_id in self.waiting:
            if not self._is_held(run_id):
                run_ids.append(run_id)
                if len(run_ids) == MAX_RUNS_PER_LOOK:
                    break
        if len(run_ids) == MAX_RUNS_PER_LOOK:
            for run_id in run_ids:
                self.waiting[run_id] = self.waiting.pop(run_id)
        return run_ids
