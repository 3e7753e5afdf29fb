"""Slots: how many handlers of a worker may run at once."""

from __future__ import annotations

import threading

from mainspring.ports.executor import HeldRun


class Slots:
    """Counts the slots that are taken; at most `total` can be. Thread: any.

    It has a lock because attempts that were given to the handlers' loop ahead of their time take their slots there.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.taken = 0
        self._lock = threading.Lock()

    def take(self, held: HeldRun) -> bool:
        """Take a slot for a run. Return False if all slots are taken, or if the worker no longer holds the run."""
        with self._lock:
            if held.is_done or self.taken >= self.total:
                return False
            held.has_slot = True
            self.taken += 1
            return True

    def leave(self, held: HeldRun) -> None:
        """Release the run's slot, if it has one."""
        with self._lock:
            if held.has_slot:
                held.has_slot = False
                self.taken -= 1

    def withhold(self, held: HeldRun) -> bool:
        """Return False if the run has a slot. Else set its `is_done`, so that it never gets one, and return True."""
        with self._lock:
            if held.has_slot:
                return False
            held.is_done = True
            return True
