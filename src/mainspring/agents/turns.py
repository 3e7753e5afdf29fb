"""Turns at something that many schedules share: everybody gets some, nobody takes all."""

from __future__ import annotations

import asyncio


class Turns:
    """At most so many calls at once; once half of the turns are taken, no schedule gets more than its share."""

    __slots__ = ("_by_schedule", "_free", "_most", "_reserve", "_waiting")

    def __init__(self, most: int) -> None:
        self._free = self._most = most
        self._reserve = most // 4  # for schedules that have no call under way
        self._by_schedule: dict[str | None, int] = {}
        self._waiting: dict[asyncio.Future[None], None] = {}

    @property
    def unused(self) -> bool:
        return self._free == self._most

    def fair(self, schedule: str | None) -> bool:
        """Whether this schedule may have one more."""
        mine = self._by_schedule.get(schedule, 0)
        if not mine or self._free > self._most / 2:
            return True
        return mine < (self._most - self._reserve) / len(self._by_schedule)

    async def take(self, schedule: str | None, seconds: float) -> bool:
        """Take a turn, or wait a little for one; False when none came."""
        if self._free > 0:
            self._free -= 1
        elif not await self._wait(seconds):  # one that is handed over never becomes free
            return False
        self._by_schedule[schedule] = self._by_schedule.get(schedule, 0) + 1
        return True

    def give_back(self, schedule: str | None) -> None:
        self._by_schedule[schedule] -= 1
        if not self._by_schedule[schedule]:
            del self._by_schedule[schedule]
        self._pass_on()

    def resize(self, most: int) -> None:
        """More or fewer at once; calls under way go on."""
        self._free += most - self._most
        self._most, self._reserve = most, most // 4
        while self._free > 0 and self._waiting:
            self._free -= 1
            self._pass_on()

    async def _wait(self, seconds: float) -> bool:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = None
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # it was given while we gave up
                self._pass_on()
            self._waiting.pop(turn, None)
            if isinstance(error, TimeoutError):
                return False
            raise
        return True

    def _pass_on(self) -> None:
        """A turn is free: whoever waits longest has it, unless there are fewer turns than before."""
        if self._free < 0:
            self._free += 1
            return
        while self._waiting:
            turn = next(iter(self._waiting))
            del self._waiting[turn]
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
