"""Slots: how many handlers of a worker may run at once, counted on whichever thread they begin and end."""

from __future__ import annotations

import threading

from mainspring.ports.executor import Attempt


class Slots:
    """Most are taken and left on the engine's loop; runs that begin at a moment of their own do so on the handlers'."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.taken = 0
        self._lock = threading.Lock()

    def take(self, attempt: Attempt) -> bool:
        """A slot for it, unless all are taken, or it is over."""
        with self._lock:
            if attempt.done or self.taken >= self.total:
                return False
            attempt.given = True
            self.taken += 1
            return True

    def leave(self, attempt: Attempt) -> None:
        """Give its slot back, if it has one."""
        with self._lock:
            if attempt.given:
                attempt.given = False
                self.taken -= 1

    def withhold(self, attempt: Attempt) -> bool:
        """See to it that it gets none; False when it has one already."""
        with self._lock:
            if attempt.given:
                return False
            attempt.done = True
            return True
