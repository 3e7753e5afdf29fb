"""The time that counts: the store's. A machine whose own clock is wrong must not decide by it."""

from __future__ import annotations

from mainspring.model.instant import Ms
from mainspring.ports.clock import Clock
from mainspring.ports.store import Agenda, Store


class StoreTime:
    """A clock whose wall time is the store's as last heard, carried on by boot time; never ahead but for drift.

    Stores on this machine have this machine's clock, and it is read as it is.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._own = store.capabilities.own_clock
        self._offset: Ms | None = None

    def now(self) -> Ms:
        return self._clock.now() if self._offset is None else self._clock.boot() + self._offset

    def boot(self) -> Ms:
        return self._clock.boot()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def heard(self, now: Ms) -> None:
        """An answer of the store said what time it is there."""
        if self._own:
            self._offset = now - self._clock.boot()

    async def ask(self) -> Ms:
        """The store's now, for what is settled by hand: it must not be ahead by a millisecond."""
        if self._own:
            self.heard((await self._store.due(Agenda.TOUCHED, 0)).now)
        return self.now()
