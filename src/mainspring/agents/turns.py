"""Turns at something that many schedules share: everybody gets some, nobody takes all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: A call waits for its turn as long as none of its schedule's turns came so long ago, in seconds.
PATIENCE = 0.25


def and_reserve(most: int) -> int:
    """A quarter more, for schedules that have no call under way."""
    return most + most // 4


class Turns:
    """At most so many calls at once; once half of the turns are taken, no schedule gets more than its share."""

    __slots__ = ("_by_schedule", "_most", "_moved", "_now", "_used", "_waiting")

    def __init__(self, most: int, now: Callable[[], float]) -> None:
        self._most = most
        self._now = now
        self._used = 0
        self._by_schedule: dict[str | None, int] = {}
        #: When a call of the schedule ended last, or its first one began.
        self._moved: dict[str | None, float] = {}
        self._waiting: dict[asyncio.Future[None], str | None] = {}

    @property
    def unused(self) -> bool:
        return not self._used and not self._waiting

    def _free(self, schedule: str | None) -> bool:
        """Whether this schedule may have one more now."""
        mine = self._by_schedule.get(schedule, 0)
        if not mine:
            return self._used < and_reserve(self._most)
        if self._used < self._most / 2:
            return True
        return self._used < self._most and mine < self._most / len(self._by_schedule)

    async def take(self, schedule: str | None) -> bool:
        """Take a turn, or wait a little for one while things move; False when none came."""
        if self._free(schedule):
            self._grant(schedule)
            return True
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            while self._now() - self._moved.get(schedule, 0.0) <= PATIENCE:
                self._waiting[turn] = schedule
                await asyncio.wait((turn,), timeout=PATIENCE)
                if turn.done():
                    return True
            self._waiting.pop(turn, None)
        except BaseException:
            if turn.done() and not turn.cancelled():  # it was granted while we gave up
                self.give_back(schedule)
            self._waiting.pop(turn, None)
            raise
        return False

    def give_back(self, schedule: str | None) -> None:
        """A call ended: whoever waits longest and may have one more is next."""
        self._used -= 1
        self._by_schedule[schedule] -= 1
        if self._by_schedule[schedule]:
            self._moved[schedule] = self._now()
        else:
            del self._by_schedule[schedule], self._moved[schedule]
        self._pass_on()

    def resize(self, most: int) -> None:
        """More or fewer at once; calls under way go on."""
        self._most = most
        while self._pass_on():
            pass

    def _pass_on(self) -> bool:
        """Give a turn to whoever waits for one and may have it; False when nobody does."""
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
