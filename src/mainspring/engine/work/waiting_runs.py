"""The local queue of a worker: claimed runs that wait for a slot."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from mainspring.ports.executor import HeldRun


class WaitingRuns:
    """A queue of held runs, ordered by priority, then by when they were added. Thread: engine loop."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, float, HeldRun]] = []
        self._added = 0

    def __len__(self) -> int:
        """Return the number of queued runs, including runs that are done meanwhile (`is_done`)."""
        return len(self._heap)

    def add(self, held: HeldRun, now: float) -> None:
        """Queue a run. `now`: the present monotonic time in seconds, from which its waiting time counts."""
        self._added += 1
        heappush(self._heap, (held.attempt.run.priority, self._added, now, held))

    def first(self) -> HeldRun:
        """Return the most urgent run without removing it. The queue must not be empty."""
        return self._heap[0][3]

    def remove_first(self) -> None:
        """Remove the most urgent run. The queue must not be empty."""
        heappop(self._heap)

    def waiting_since(self, latest: float) -> list[HeldRun]:
        """Return the runs that were queued at `latest` (monotonic seconds) or earlier and are not done."""
        return [held for _, _, since, held in self._heap if since <= latest and not held.is_done]

    def all(self) -> list[HeldRun]:
        """Return every queued run, in no particular order."""
        return [entry[3] for entry in self._heap]

    def remove_done(self) -> None:
        """Remove the runs that are done, because they were handed back or stopped while they waited."""
        self._heap = [entry for entry in self._heap if not entry[3].is_done]
        heapify(self._heap)
