"""Wake-ups: after a commit of this instance, wake the loops that have work because of it.

After a hint from another process, wake the settler, the workers and the log follower.
"""

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
    """Wakes the settler, the workers, the log follower, and callers that wait for the end of a run.

    Thread: engine loop.
    """

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
        """Wake the settler, the workers and the log follower, because another process has changed the store."""
        self._settler.wake()
        self._workers.wake()
        self._publisher.log_has_grown()

    def after_commit(self, changes: Sequence[Change], applied: Applied) -> None:
        """Wake only the loops that have work because of these changes, which the store has accepted.

        `applied` is the store's answer. Also stop the attempts here whose cancellation is among the changes, and have
        the broker link announce the runs of the changes to other processes. The batcher calls this after each commit.
        """
        to_run = touched = released = False
        for change in changes:
            to_run = to_run or change.runs != ()
            touched = touched or change.touches != ()
            released = released or change.releases != ()
            if change.schedule is not None and change.schedule.next_at is not None:
                self._settler.plan_no_later_than(change.schedule.next_at)
            if change.run is not None:
                to_run = self._wake_for_run(change.run) or to_run
        if self._broker_link is not None:
            self._broker_link.committed(changes)
        self._publisher.log_has_grown()
        # A worker whose claim shared the commit has claimed the runs already.
        if to_run and (applied.claimed is None or self._workers.agents is not None):
            self._workers.wake()
        if touched:
            self._settler.wake(Agenda.TOUCHED)
        if released and applied.parked:
            self._settler.check_gates_soon()

    def _wake_for_run(self, run: Run) -> bool:
        """Stop the attempt of a changed run if it was cancelled. If it ended, wake the callers that wait for it.

        Return True if the run is in a state in which workers may claim it.
        """
        if run.cancel is not None:
            self._workers.cancel(run.id, run.cancel)
        if run.state in CLAIMABLE:
            return True
        if self._waiters.waiting and run.state in ENDED:
            self._waiters.notify(run.id)
        return False
