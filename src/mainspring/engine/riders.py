"""Two workers, one for Python handlers and one for HTTP agents, whose claims ride along with the same commits."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.engine.worker import Worker
from mainspring.model.change import Change
from mainspring.ports.store import Claimed, Wish


class Riders:
    """One claim for each commit; who rode last is asked last."""

    def __init__(self, *workers: Worker) -> None:
        self._workers = list(workers)

    def wish(self, changes: Sequence[Change]) -> Wish | None:
        for worker in self._workers:
            wish = worker.wish(changes)
            if wish is not None:
                self._workers.remove(worker)
                self._workers.append(worker)
                return wish
        return None

    def granted(self, claimed: Claimed | None) -> None:
        self._workers[-1].granted(claimed)
