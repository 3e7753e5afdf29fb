"""The heartbeat of a worker: renews its leases and learns which runs were cancelled or lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from mainspring.engine.lease_trust import LEASE_TRUST_RATIO
from mainspring.engine.loop import Loop
from mainspring.engine.work.recorder import Recorder
from mainspring.model.errors import StoreError
from mainspring.model.instant import Ms
from mainspring.model.outcome import Accepted, HandedBack, Outcome
from mainspring.model.run import Run
from mainspring.ports.clock import Clock
from mainspring.ports.executor import Attempt, Handler, HeldRun
from mainspring.ports.store import Store

log = logging.getLogger("mainspring.engine")


class LeaseHolder(Protocol):
    """The worker whose leases are renewed, as the heartbeat uses it."""

    #: Number of claims that were answered.
    claims: int
    #: True while a claim is under way.
    claiming: bool

    @property
    def running(self) -> Mapping[str, HeldRun]:
        """The attempts the worker holds leases on, by run id."""
        ...

    def cancel(self, run_id: str, reason: str) -> None:
        """Stop the attempt of a run, if this worker holds it, so that the run ends as cancelled."""
        ...

    def stop_attempt(self, held: HeldRun, why: Outcome) -> None:
        """End an attempt with the outcome `why`."""
        ...


class Heartbeat(Loop):
    """Renews the leases of one worker once per interval.

    It also stops attempts whose lease was lost or whose run was cancelled, hands back runs that the store lists as this
    worker's although it does not know them, and extends the leases of accepted runs (202) one last time.
    """

    def __init__(
        self,
        name: str,
        holder: LeaseHolder,
        store: Store,
        recorder: Recorder,
        clock: Clock,
        owner: str,
        handlers: Mapping[str, Handler],
        *,
        interval: float,
        lease_ttl: Ms,
    ) -> None:
        """`interval`: seconds between two renewals. `owner`: the name under which the worker claims."""
        super().__init__(interval)
        self.name = name
        self._holder = holder
        self._store = store
        self._recorder = recorder
        self._clock = clock
        self._owner = owner
        self._handlers = handlers
        self._lease_ttl = lease_ttl
        #: By run and epoch that the worker does not know: the number of answered claims from which on it is a stray.
        self._suspects: dict[tuple[str, int], int] = {}
        #: Attempts that an agent accepted (202) and whose lease still has a worker's length, with the silence allowed.
        self._to_hand_over: dict[tuple[str, int], tuple[HeldRun, Ms]] = {}
        #: Runs whose lease is the agent's to renew, by its callbacks.
        self._handed_over: set[tuple[str, int]] = set()
        #: Tasks that ask for a lease before they record an outcome, kept so that they are not collected.
        self._recording: set[asyncio.Task[None]] = set()

    def hand_over(self, held: HeldRun, accepted: Accepted) -> None:
        """Leave a run to its agent: a heartbeat, which is woken now, extends the lease for the last time.

        The lease then lasts for the silence that the agent is allowed.
        """
        self._to_hand_over[held.attempt.run.id, held.attempt.run.epoch] = (held, accepted.silence)
        self.wake()

    async def renew_handed_over(self) -> None:
        """Extend the leases of accepted runs for the last time, to the silence that their agents are allowed.

        A lease that is lost already needs no care: a callback ended its run. Raises: StoreError.
        """
        while self._to_hand_over:
            ttl = next(iter(self._to_hand_over.values()))[1]
            leases = [key for key, (_, silence) in self._to_hand_over.items() if silence == ttl]
            await self._store.renew(self._owner, leases, ttl)
            for key in leases:
                self._to_hand_over.pop(key, None)
            self._handed_over.update(leases)

    async def run_once(self) -> float:
        """Renew all leases; stop attempts that were lost or cancelled; hand back strays. Return the seconds to wait.

        Raises: StoreError, after stopping the attempts whose trust deadline has passed.
        """
        holder = self._holder
        sent = self._clock.boot()
        accepted = {run_id: held for (run_id, _), (held, _) in self._to_hand_over.items()}
        all_held = {**accepted, **self._recorder.unstored, **holder.running}
        leases = [(run_id, held.attempt.run.epoch) for run_id, held in all_held.items()]
        try:
            answer = await self._store.renew(self._owner, leases, self._lease_ttl)
        except StoreError:
            for overdue in [h for h in holder.running.values() if h.stop is None and sent >= h.lease_trusted_until]:
                holder.stop_attempt(overdue, _lease_lost(overdue))
            raise
        trust = sent + int(self._lease_ttl * LEASE_TRUST_RATIO)
        for run_id in answer.kept:
            all_held[run_id].lease_trusted_until = trust
        for run_id in answer.lost:
            self._stop_lost(run_id, all_held[run_id])
        for run_id, reason in answer.cancel.items():
            holder.cancel(run_id, reason)
        for run in self._strays(answer.strays):
            self._give_back(run, trust)
        self._handed_over.intersection_update([(run.id, run.epoch) for run in answer.strays])
        await self.renew_handed_over()
        return self.poll

    def _stop_lost(self, run_id: str, held: HeldRun) -> None:
        """Stop an attempt whose lease was lost, unless it ended meanwhile or the worker has claimed its run again."""
        if self._holder.running.get(run_id) is held and held.stop is None:
            log.warning("run %s: the lease was lost; its result will be refused", run_id)
            self._holder.stop_attempt(held, _lease_lost(held))

    def record_after_renewal(self, held: HeldRun, outcome: Outcome) -> None:
        """Start a task that records an outcome past the trust deadline if the store says that the lease still holds."""
        self._recorder.unstored[held.attempt.run.id] = held  # so that it is not handed back as a stray meanwhile
        task = asyncio.get_running_loop().create_task(self._record_if_held(held, outcome))
        self._recording.add(task)
        task.add_done_callback(self._recording.discard)

    async def _record_if_held(self, held: HeldRun, outcome: Outcome) -> None:
        """Renew the lease and record the outcome; if the lease was lost or the store fails, give the outcome up."""
        run = held.attempt.run
        sent = self._clock.boot()
        try:
            answer = await self._store.renew(self._owner, [(run.id, run.epoch)], self._lease_ttl)
        except StoreError as error:
            log.error("run %s: outcome lost, the lease ended while the store failed: %s", run.id, error)
            self._recorder.give_up(held, outcome)
            return
        if run.id in answer.kept:
            held.lease_trusted_until = sent + int(self._lease_ttl * LEASE_TRUST_RATIO)
            self._recorder.record(held, outcome)
        else:
            # The outcome is refused. But until an instance rescues the run, the store may list it as a stray of this
            # worker. It is handed back then, and it must be known that the attempt had begun.
            self._recorder.give_up(held, _lease_lost(held))
            self._recorder.note_stale(held, outcome)

    def _strays(self, held: Sequence[Run]) -> list[Run]:
        """Return the runs of `held` that this worker does not know, but for those that a claim under way may bring.

        `held`: the runs that the store lists as this worker's although the renewal did not name them.
        """
        holder = self._holder
        unknown = [
            run
            for run in held
            if run.id not in holder.running
            and run.id not in self._recorder.unstored
            and (run.id, run.epoch) not in self._handed_over
            and (run.id, run.epoch) not in self._to_hand_over
        ]
        answered = holder.claims + holder.claiming
        self._suspects = {(run.id, run.epoch): self._suspects.get((run.id, run.epoch), answered) for run in unknown}
        return [run for run in unknown if self._suspects[run.id, run.epoch] <= holder.claims]

    def _give_back(self, run: Run, trust: Ms) -> None:
        """Record the outcome of a stray that was given up earlier, or hand the stray back if there is none.

        A stray without an outcome comes from a claim whose answer was lost. A stray of a task without a handler here is
        left alone. `trust`: its trust deadline, in boot time.
        """
        ended = self._recorder.recall(run)
        if ended is not None:
            held, outcome = ended
            held.lease_trusted_until = trust
            self._recorder.record(held, outcome)
            return
        handler = self._handlers.get(run.task)
        if handler is not None:
            self._recorder.record(HeldRun(Attempt(run, None, handler, None), trust), HandedBack("stray"))


def _lease_lost(held: HeldRun) -> HandedBack:
    return HandedBack("lease_lost", began=held.execution.began_at is not None)
