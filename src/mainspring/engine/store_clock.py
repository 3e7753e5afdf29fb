"""The store clock: the store's time, by which the engine decides. The clock of this machine may be wrong."""

from __future__ import annotations

from collections.abc import Callable

from mainspring.model.instant import Ms
from mainspring.ports.clock import Clock
from mainspring.ports.store import Agenda, Store

#: The store's time in an answer may lie behind the time known here. Up to this many milliseconds, the answer was slow;
#: by more, the store's clock was set back.
MAX_ANSWER_DELAY_MS: Ms = 50
#: An offset taken from a quick answer is kept for this many milliseconds although slower answers arrive.
OFFSET_TTL_MS: Ms = 1_000


class StoreClock:
    """A clock whose wall time is the store's: the store's time in an earlier answer, plus the boot time passed since.

    Apart from drift it is never ahead of the store. For a store without a clock of its own, it is this machine's clock.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._own = store.capabilities.own_clock
        self._offset: Ms | None = None
        self._observed_at: Ms = 0
        self.boot: Callable[[], Ms] = clock.boot
        self.monotonic: Callable[[], float] = clock.monotonic

    def now(self) -> Ms:
        """Return the store's time as it is known here; before the first `observe`, this machine's. Thread: any."""
        return self._clock.now() if self._offset is None else self._clock.boot() + self._offset

    def observe(self, now: Ms) -> None:
        """Learn the store's time from an answer of the store. `now`: what the store's clock showed when it answered.

        The quickest recent answer counts, because an answer that took long is old when it arrives. For a store without
        a clock of its own, do nothing.
        """
        if self._own:
            boot = self._clock.boot()
            offset = now - boot
            if (
                self._offset is not None
                and 0 <= self._offset - offset <= MAX_ANSWER_DELAY_MS
                and boot - self._observed_at < OFFSET_TTL_MS
            ):
                return
            self._offset, self._observed_at = offset, boot

    async def read(self) -> Ms:
        """Ask the store for its present time and return it, for decisions that must never be ahead of the store.

        For a store without a clock of its own, return this machine's time. Raises: StoreError.
        """
        if self._own:
            now = (await self._store.due(Agenda.TOUCHED, 0)).now
            self.observe(now)
            return now
        return self.now()
