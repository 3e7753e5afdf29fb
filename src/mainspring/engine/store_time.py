"""The time that counts: the store's. A machine whose own clock is wrong must not decide by it."""

from __future__ import annotations

from collections.abc import Callable

from mainspring.model.instant import Ms
from mainspring.ports.clock import Clock
from mainspring.ports.store import Agenda, Store

#: An answer is so slow at most, in milliseconds; more than that and the store's clock was set back.
SLOW: Ms = 50
#: So long an answer is relied on, in milliseconds.
STALE: Ms = 1_000


class StoreTime:
    """A clock whose wall time is the store's as last heard, carried on by boot time; never ahead but for drift.

    Stores on this machine have this machine's clock, and it is read as it is.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._own = store.capabilities.own_clock
        self._offset: Ms | None = None
        self._heard_at: Ms = 0
        self.boot: Callable[[], Ms] = clock.boot
        self.monotonic: Callable[[], float] = clock.monotonic

    def now(self) -> Ms:
        return self._clock.now() if self._offset is None else self._clock.boot() + self._offset

    def heard(self, now: Ms) -> None:
        """An answer of the store said what time it is there: when it was sent, so the quickest answer is the best."""
        if self._own:
            boot = self._clock.boot()
            offset = now - boot
            if self._offset is not None and 0 <= self._offset - offset <= SLOW and boot - self._heard_at < STALE:
                return
            self._offset, self._heard_at = offset, boot

    async def ask(self) -> Ms:
        """The store's now, for what is settled by hand: it must not be ahead by a millisecond."""
        if self._own:
            now = (await self._store.due(Agenda.TOUCHED, 0)).now
            self.heard(now)
            return now
        return self.now()
