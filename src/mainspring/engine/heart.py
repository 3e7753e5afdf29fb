"""The heart of a worker: renews its leases, hears who was cancelled and what it lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mainspring.engine.service import Service
from mainspring.model.errors import StoreError
from mainspring.model.instant import Ms
from mainspring.model.outcome import Accepted, HandedBack
from mainspring.model.run import Run
from mainspring.ports.executor import Attempt

if TYPE_CHECKING:
    from mainspring.engine.worker import Worker

log = logging.getLogger("mainspring.engine")

#: The part of a lease a worker relies on; the rest is for clocks and commits that take their time.
TRUST = 0.9


class Heart(Service):
    """Renews the worker's leases every heartbeat; hears who was cancelled and what it lost."""

    name = "heart"

    def __init__(self, worker: Worker, beat: float) -> None:
        super().__init__(beat)
        self._worker = worker
        self._suspects: dict[tuple[str, int], int] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        #: Attempts an agent took over (202): their leases become the agent's to keep, by its callbacks.
        self._passing: dict[tuple[str, int], tuple[Attempt, Ms]] = {}
        self._passed: set[tuple[str, int]] = set()

    def pass_on(self, attempt: Attempt, accepted: Accepted) -> None:
        """Leave a run to its agent; the lease is made as long as the agent may stay silent, then not renewed here."""
        self._passing[attempt.run.id, attempt.run.epoch] = (attempt, accepted.silence)
        self.wake()

    async def passing(self) -> None:
        """Give the leases of accepted runs their last length; one that does not hold has ended by a callback."""
        while self._passing:
            ttl = next(iter(self._passing.values()))[1]
            leases = [key for key, (_, silence) in self._passing.items() if silence == ttl]
            await self._worker._store.renew(self._worker._owner, leases, ttl)
            for key in leases:
                self._passing.pop(key, None)
            self._passed.update(leases)

    async def run_once(self) -> float:
        """Renew all; stop what is lost or cancelled; hand back what we hold without knowing it."""
        worker = self._worker
        sent = worker._clock.boot()
        passing = {run_id: attempt for (run_id, _), (attempt, _) in self._passing.items()}
        held = {**passing, **worker._recorder.unstored, **worker.running}
        leases = [(run_id, attempt.run.epoch) for run_id, attempt in held.items()]
        try:
            answer = await worker._store.renew(worker._owner, leases, worker._settings.lease_ttl)
        except StoreError:
            for held_too_long in [a for a in worker.running.values() if a.stop is None and sent >= a.trust]:
                worker.stop_attempt(held_too_long, HandedBack("lease_lost", began=held_too_long.began_at is not None))
            raise
        trust = sent + int(worker._settings.lease_ttl * TRUST)
        for run_id in answer.kept:
            held[run_id].trust = trust
        for run_id in answer.lost:
            attempt = held[run_id]  # the run may have ended meanwhile, and be ours again under a new lease
            if worker.running.get(run_id) is attempt and attempt.stop is None:
                log.warning("run %s: the lease was lost; its result will be refused", run_id)
                worker.stop_attempt(attempt, HandedBack("lease_lost", began=attempt.began_at is not None))
        for run_id, reason in answer.cancel.items():
            worker.cancel(run_id, reason)
        for run in self._strays(answer.strays):
            self._give_back(run, trust)
        self._passed.intersection_update([(run.id, run.epoch) for run in answer.strays])
        await self.passing()
        return self.poll

    def _strays(self, held: Sequence[Run]) -> list[Run]:
        """Runs we hold and know nothing of, unless the answer of a claim that brings them is still under way."""
        worker = self._worker
        unknown = [
            run
            for run in held
            if run.id not in worker.running
            and run.id not in worker._recorder.unstored
            and (run.id, run.epoch) not in self._passed
            and (run.id, run.epoch) not in self._passing
        ]
        answered = worker.claims + worker.claiming
        self._suspects = {(run.id, run.epoch): self._suspects.get((run.id, run.epoch), answered) for run in unknown}
        return [run for run in unknown if self._suspects[run.id, run.epoch] <= worker.claims]

    def _give_back(self, run: Run, trust: Ms) -> None:
        """A claim whose answer never reached us, or an outcome that never reached the store."""
        ended = self._worker._recorder.recall(run)
        if ended is not None:
            attempt, outcome = ended
            attempt.trust = trust
            self._worker._recorder.record(attempt, outcome)
            return
        handler = self._worker._handlers.get(run.task)
        if handler is not None:
            self._worker._recorder.record(Attempt(run, None, handler, None, trust), HandedBack("stray"))
