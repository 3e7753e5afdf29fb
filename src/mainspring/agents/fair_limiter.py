"""Fair limiter: bounds the concurrent calls to a resource that many schedules share, and the share of each schedule."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: A caller without a waiting place gives up when no call of its schedule has ended for this many seconds.
STALL_SECONDS = 0.25
#: The most calls of an instance that wait for a slot though no call of their schedule ends. They use no slot meanwhile.
WAITING_PLACES = 1_000


def add_reserve(limit: int) -> int:
    """Return `limit` plus a quarter of it: the reserve, which only schedules without a call under way may use."""
    return limit + limit // 4


class WaitingPlaces:
    """Counts the calls that wait for a slot though no call of their schedule ends; at most `total` may. Thread: any.

    Only one thread takes and leaves places; any may read `taken`.
    """

    __slots__ = ("taken", "total")

    def __init__(self, total: int = WAITING_PLACES) -> None:
        self.total = total
        self.taken = 0


class FairLimiter:
    """Grants slots for concurrent calls.

    A schedule without a call under way gets a slot while fewer than `limit` + `limit` // 4 slots are taken. Any other
    schedule gets one while fewer than half of `limit` are taken. From half of `limit` up to `limit`, it must also have
    fewer slots than its share: `limit` / number of schedules with calls. `now` is a monotonic clock in seconds, to end
    waits that stall. Calls of runs without a schedule count as calls of one schedule, None. Thread: one event loop.
    """

    __slots__ = ("_by_schedule", "_limit", "_moved", "_now", "_places", "_used", "_waiting")

    def __init__(self, limit: int, now: Callable[[], float], places: WaitingPlaces | None = None) -> None:
        """Grant slots up to `limit`. `places`: where calls may wait that nothing moves; None: nowhere."""
        self._places = places or WaitingPlaces(0)
        self._limit = limit
        self._now = now
        self._used = 0
        self._by_schedule: dict[str | None, int] = {}
        #: Schedule with calls under way → when one of its calls ended last, else when the first of them began, in
        #: seconds of `now`.
        self._moved: dict[str | None, float] = {}
        #: Future that wakes a waiting caller → its schedule, in the order in which the callers came.
        self._waiting: dict[asyncio.Future[None], str | None] = {}

    @property
    def unused(self) -> bool:
        """True if no slot is taken and no caller waits."""
        return not self._used and not self._waiting

    def _may_take_slot(self, schedule: str | None) -> bool:
        """Return True if this schedule may have one more slot now."""
        mine = self._by_schedule.get(schedule, 0)
        if not mine:
            return self._used < add_reserve(self._limit)
        if self._used < self._limit / 2:
            return True
        return self._used < self._limit and mine < self._limit / len(self._by_schedule)

    async def acquire(self, schedule: str | None) -> bool:
        """Take a slot for a call of `schedule`, and wait for it if needed. Return False if the call got no slot.

        Once no call of this schedule has ended for `STALL_SECONDS`, or if none is under way, the call takes a waiting
        place, and waits there until it gets a slot. If no place is free, the wait ends without a slot.
        """
        if self._may_take_slot(schedule):
            self._grant(schedule)
            return True
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            while self._now() - self._moved.get(schedule, 0.0) <= STALL_SECONDS:
                self._waiting[turn] = schedule
                await asyncio.wait((turn,), timeout=STALL_SECONDS)
                if turn.done():
                    return True
            if self._places.taken < self._places.total:
                self._waiting[turn] = schedule
                self._places.taken += 1
                try:
                    await asyncio.wait((turn,))
                finally:
                    self._places.taken -= 1
                return True
            self._waiting.pop(turn, None)
        except BaseException:
            if turn.done() and not turn.cancelled():  # a slot was granted while the caller gave up
                self.release(schedule)
            self._waiting.pop(turn, None)
            raise
        return False

    def release(self, schedule: str | None) -> None:
        """Free the slot of a call of `schedule` that ended, and grant it to a waiting caller that may have it."""
        self._used -= 1
        self._by_schedule[schedule] -= 1
        if self._by_schedule[schedule]:
            self._moved[schedule] = self._now()
        else:
            del self._by_schedule[schedule], self._moved[schedule]
        self._grant_next()

    def resize(self, limit: int) -> None:
        """Change the limit, and grant new free slots to waiting callers. Calls under way go on."""
        self._limit = limit
        while self._grant_next():
            pass

    def _grant_next(self) -> bool:
        """Grant a slot to the first waiting caller whose schedule may have one. Return False if no caller may."""
        for turn, waiting in self._waiting.items():
            if not turn.done() and self._may_take_slot(waiting):
                del self._waiting[turn]
                self._grant(waiting)
                turn.set_result(None)
                return True
        return False

    def _grant(self, schedule: str | None) -> None:
        """Count one more slot as taken by `schedule`."""
        self._used += 1
        self._by_schedule[schedule] = self._by_schedule.get(schedule, 0) + 1
        self._moved.setdefault(schedule, self._now())
