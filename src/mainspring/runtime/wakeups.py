"""Wake-ups: which loops of an instance have work after a commit here, or after a hint from another process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mainspring.engine.events.publisher import EventPublisher
from mainspring.engine.events.run_waiters import RunWaiters
from mainspring.engine.settler import Settler
from mainspring.model.change import Change
from mainspring.model.run import CLAIMABLE, ENDED, Run
from mainspring.ports.store import Agenda, Applied
from mainspring.runtime.worker_set import WorkerSet

if TYPE_CHECKING:
    from mainspring.engine.broker.link import BrokerLink


class Wakeups:
    """Wakes the settler, the workers, the log follower and callers that wait for a run. Thread: engine loop."""

    def __init__(
        self,
        settler: Settler,
        workers: WorkerSet,
        waiters: RunWaiters,
        publisher: EventPublisher,
        broker_link: BrokerLink | None,
    ) -> None:
        self._settler = settler
        self._workers = workers
        self._waiters = waiters
        self._publisher = publisher
        self._broker_link = broker_link

    def after_hint(self) -> None:
        """Wake the settler, the workers and the log follower: another process changed something."""
        self._settler.wake()
        self._workers.wake()
        self._publisher.log_has_grown()

    def after_commit(self, changes: Sequence[Change], applied: Applied) -> None:
        """Wake the loops that have work because of these accepted changes, and no others.

        `applied` is the store's answer to their commit. Runs here whose cancellation is among the changes are stopped,
        and the broker link announces the runs of the changes to other processes.
        """
        to_run = touched = released = False
        for change in changes:
            to_run = to_run or change.runs != ()
            touched = touched or change.touches != ()
            released = released or change.releases != ()
            if change.schedule is not None and change.schedule.next_at is not None:
                self._settler.expect(change.schedule.next_at)
            if change.run is not None:
                to_run = self._note_run(change.run) or to_run
        if self._broker_link is not None:
            self._broker_link.committed(changes)
        self._publisher.log_has_grown()
        # A worker whose claim shared the commit has seen its runs already.
        if to_run and (applied.claimed is None or self._workers.agents is not None):
            self._workers.wake()
        if touched:
            self._settler.wake(Agenda.TOUCHED)
        if released and applied.parked:
            self._settler.released()

    def _note_run(self, run: Run) -> bool:
        """Stop the run if it was cancelled, and wake the callers that wait for it if it ended.

        Return True if the run is in a state in which workers may claim it.
        """
        if run.cancel is not None:
            self._workers.cancel(run.id, run.cancel)
        if run.state in CLAIMABLE:
            return True
        if self._waiters.waiting and run.state in ENDED:
            self._waiters.notify(run.id)
        return False
