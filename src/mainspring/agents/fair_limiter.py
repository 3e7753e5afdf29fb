"""Fair limiter: bounds concurrent calls to a resource that many schedules share, and their shares of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: A caller gives up waiting for a slot when no call of its schedule has ended for this many seconds.
STALL_SECONDS = 0.25


def with_reserve(limit: int) -> int:
    """Return `limit` plus a reserve of a quarter, which only schedules without a call under way may use."""
    return limit + limit // 4


class FairLimiter:
    """Grants up to `limit` concurrent calls and a reserve; above half of the limit, schedules get equal shares.

    `now` returns monotonic seconds. Calls of runs without a schedule count as one schedule, None.
    Thread: the one event loop.
    """

    __slots__ = ("_by_schedule", "_limit", "_moved", "_now", "_used", "_waiting")

    def __init__(self, limit: int, now: Callable[[], float]) -> None:
        self._limit = limit
        self._now = now
        self._used = 0
        self._by_schedule: dict[str | None, int] = {}
        #: Schedule → when one of its calls last ended, or its first one started, in seconds of `now`.
        self._moved: dict[str | None, float] = {}
        #: Each waiting caller → its schedule, the longest waiting caller first.
        self._waiting: dict[asyncio.Future[None], str | None] = {}

    @property
    def unused(self) -> bool:
        """True if no slot is taken and no caller waits."""
        return not self._used and not self._waiting

    def _free(self, schedule: str | None) -> bool:
        """Return whether this schedule may have one more slot now."""
        mine = self._by_schedule.get(schedule, 0)
        if not mine:
            return self._used < with_reserve(self._limit)
        if self._used < self._limit / 2:
            return True
        return self._used < self._limit and mine < self._limit / len(self._by_schedule)

    async def acquire(self, schedule: str | None) -> bool:
        """Take a slot for a call of `schedule`, waiting for one if needed. Return False if the call got none.

        The wait ends once no call of that schedule has ended for STALL_SECONDS. A schedule without a call under way
        does not wait at all.
        """
        if self._free(schedule):
            self._grant(schedule)
            return True
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            while self._now() - self._moved.get(schedule, 0.0) <= STALL_SECONDS:
                self._waiting[turn] = schedule
                await asyncio.wait((turn,), timeout=STALL_SECONDS)
                if turn.done():
                    return True
            self._waiting.pop(turn, None)
        except BaseException:
            if turn.done() and not turn.cancelled():  # it was granted while the caller gave up
                self.release(schedule)
            self._waiting.pop(turn, None)
            raise
        return False

    def release(self, schedule: str | None) -> None:
        """Give back the slot of a call that ended; the longest waiting caller that may have it gets it."""
        self._used -= 1
        self._by_schedule[schedule] -= 1
        if self._by_schedule[schedule]:
            self._moved[schedule] = self._now()
        else:
            del self._by_schedule[schedule], self._moved[schedule]
        self._hand_on()

    def resize(self, limit: int) -> None:
        """Change the limit, and give slots that become free to waiting callers; calls under way go on."""
        self._limit = limit
        while self._hand_on():
            pass

    def _hand_on(self) -> bool:
        """Give a slot to the longest waiting caller that may have one now. Return False if no caller may."""
        for turn, waiting in self._waiting.items():
            if not turn.done() and self._free(waiting):
                del self._waiting[turn]
                self._grant(waiting)
                turn.set_result(None)
                return True
        return False

    def _grant(self, schedule: str | None) -> None:
        self._used += 1
        self._by_schedule[schedule] = self._by_schedule.get(schedule, 0) + 1
        self._moved.setdefault(schedule, self._now())
