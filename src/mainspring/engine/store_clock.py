"""The store's time, by which the engine decides: the clock of this machine may be wrong."""

from __future__ import annotations

from collections.abc import Callable

from mainspring.model.instant import Ms
from mainspring.ports.clock import Clock
from mainspring.ports.store import Agenda, Store

#: A slow answer is assumed to make the store's time look at most this many milliseconds older than it is. If an answer
#: is older by more, the store's clock was set back.
MAX_ANSWER_DELAY: Ms = 50
#: For this many milliseconds the quickest answer determines the offset; after them, the next answer does.
OFFSET_TTL: Ms = 1_000


class StoreClock:
    """A clock whose wall time is the store's: the last known value, carried on by boot time.

    But for drift it is never ahead of the store. For a store on this machine, this machine's clock is read
    directly.
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
        """Return the store's time as far as it is known here; before `observe`, this machine's time. Thread: any."""
        return self._clock.now() if self._offset is None else self._clock.boot() + self._offset

    def observe(self, now: Ms) -> None:
        """Learn the store's time from an answer of the store, whose clock showed `now` when it answered.

        Answers that took long are older, so the quickest recent one counts. For a store without a clock of its own,
        this changes nothing.
        """
        if self._own:
            boot = self._clock.boot()
            offset = now - boot
            if (
                self._offset is not None
                and 0 <= self._offset - offset <= MAX_ANSWER_DELAY
                and boot - self._observed_at < OFFSET_TTL
            ):
                return
            self._offset, self._observed_at = offset, boot

    async def read(self) -> Ms:
        """Return the store's present time, asked of the store, for decisions that must not be ahead of it at all.

        Raises: StoreError.
        """
        if self._own:
            now = (await self._store.due(Agenda.TOUCHED, 0)).now
            self.observe(now)
            return now
        return self.now()
