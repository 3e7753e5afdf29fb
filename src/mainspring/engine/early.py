"""Runs that were claimed a moment before their time.

They hold no slot while they wait. Those that need the handlers' loop go there at once, and it begins each at its very
moment, in a slot that it takes then. What becomes of them is heard when the next ones go: at a hundred fires a second
that is one look for twenty of them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from mainspring.engine.lookahead import AHEAD
from mainspring.engine.watchdog import ON_LOOP
from mainspring.ports.clock import Clock
from mainspring.ports.executor import Attempt

#: Seconds before the next one's time at which to look, and after the last one's at which to hear of it.
LEAD, TAIL = 0.005, 0.02
#: Seconds after which to hear of those that have ended, whoever is still to come.
HEAR = 0.45
#: Seconds that no timer is exact to.
GRAIN = 0.001


class Early:
    """Belongs to a worker, on the engine's loop."""

    def __init__(
        self,
        clock: Clock,
        hear: Callable[[], None],
        spare: Callable[[], bool | None],
        begin: Callable[[Sequence[Attempt], Sequence[Attempt]], None],
    ) -> None:
        self._clock = clock
        self._hear = hear
        self._spare = spare
        self._begin = begin
        self._held: list[tuple[float, int, Attempt]] = []
        self._count = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        #: When what was handed over should have ended, in monotonic seconds.
        self._ends_at = 0.0
        #: True while outcomes of early runs need not be told: the next look takes them. Read on any thread.
        self.hears = False

    def hold(self, attempt: Attempt) -> None:
        """Keep it until its time. A clock that is set back meanwhile does not make it wait longer."""
        wait = min(attempt.run.ready_at - self._clock.now(), AHEAD) / 1000
        attempt.early = True
        heappush(self._held, (self._clock.monotonic() + wait, next(self._count), attempt))

    @property
    def holds(self) -> bool:
        """True when something waits for its time here."""
        return bool(self._held)

    def look(self) -> None:
        """Begin what has its time now, hand over what has it soon, hear of what was handed over before."""
        self._disarm()
        self._hear()
        now = self._clock.monotonic()
        ripe: list[Attempt] = []
        soon: list[Attempt] = []
        spare = self._spare()
        while self._held:
            at, _, attempt = self._held[0]
            if not attempt.done:
                if at <= now:
                    ripe.append(attempt)
                elif spare and attempt.handler.kind in ON_LOOP:
                    attempt.handed, attempt.not_before = True, at
                    self._ends_at = max(self._ends_at, at + TAIL)
                    soon.append(attempt)
                else:
                    break
            heappop(self._held)
        self._begin(ripe, soon)
        self._arm(now, hears=spare is not None and self._ends_at > now + GRAIN)

    def give_up(self) -> list[Attempt]:
        """Hold nothing any more; what was held."""
        self._disarm()
        held = [attempt for *_, attempt in self._held if not attempt.done]
        self._held.clear()
        self._hear()
        return held

    def _disarm(self) -> None:
        self.hears = False  # first: what ends from here on is told, what ended before is heard now
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, now: float, *, hears: bool) -> None:
        looks = [min(self._ends_at, now + HEAR)] if hears else []
        if self._held:
            at = self._held[0][0]
            looks.append(at - LEAD if at - LEAD > now else at)
        if looks:
            self._timer = asyncio.get_running_loop().call_later(min(looks) - now, self.look)
            self.hears = hears
