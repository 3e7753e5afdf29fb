"""The heartbeat of a worker: renews its leases, and learns which runs lost their lease or are to be cancelled."""

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


class LeaseHolder(Protocol):
    """What the heartbeat needs of the worker whose leases it renews."""

    #: Number of claims that ended, with an answer or an error.
    claims: int
    #: True while a claim is under way.
    claiming: bool

    @property
    def running(self) -> Mapping[str, HeldRun]:
        """The runs that the worker holds leases on, by run id."""
        ...

    def cancel(self, run_id: str, reason: str) -> None:
        """Stop the attempt of a run, so that the run ends as cancelled for `reason`. Ignore a run that is not held."""
        ...

    def stop_attempt(self, held: HeldRun, why: Outcome) -> None:
        """Stop an attempt, so that it ends with the outcome `why`."""
        ...


class Heartbeat(Loop):
    """Renews the leases of one worker once per interval. Thread: engine loop.

    It also stops attempts whose lease was lost or whose run was cancelled. It hands back strays: runs that the store
    lists as held by the worker, but that the worker does not know. For a run that an HTTP agent accepted (status 202),
    it extends the lease one last time; afterwards the agent's callbacks renew the lease.
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
        """Renew the leases of `holder` every `interval` seconds. `owner`: the name under which the worker claims.

        `name`: this loop's name in the log. `handlers`: task name → handler. `lease_ttl`: length of a renewed lease in
        milliseconds.
        """
        super().__init__(interval)
        self.name = name
        self._holder = holder
        self._store = store
        self._recorder = recorder
        self._clock = clock
        self._owner = owner
        self._handlers = handlers
        self._lease_ttl = lease_ttl
        #: Runs that may be strays, by id and epoch. Such a run is a stray once `LeaseHolder.claims` reaches the number.
        self._suspects: dict[tuple[str, int], int] = {}
        #: Runs that an agent accepted, by id and epoch, whose lease is still to be extended for the last time. Each has
        #: its silence: the longest time between two callbacks of the agent, in milliseconds.
        self._to_hand_over: dict[tuple[str, int], tuple[HeldRun, Ms]] = {}
        #: Runs whose lease the agent renews by its callbacks, by id and epoch. The store still lists them as held here.
        self._handed_over: set[tuple[str, int]] = set()
        #: Tasks that renew a lease before they record an outcome, kept here so that they are not garbage-collected.
        self._recording: set[asyncio.Task[None]] = set()

    def hand_over(self, held: HeldRun, accepted: Accepted) -> None:
        """Leave a run to the agent that accepted it: extend its lease soon, for the last time.

        The lease then lasts `accepted.silence` milliseconds; the agent's callbacks renew it.
        """
        self._to_hand_over[held.attempt.run.id, held.attempt.run.epoch] = (held, accepted.silence)
        self.wake()

    async def renew_handed_over(self) -> None:
        """Extend the lease of each accepted run for the last time, to `Accepted.silence` milliseconds from now.

        The silence is the longest time between two callbacks of the agent. A lease that is lost already is ignored: a
        callback has ended its run, or another instance has rescued it. Raises: StoreError.
        """
        while self._to_hand_over:
            ttl = next(iter(self._to_hand_over.values()))[1]
            leases = [key for key, (_, silence) in self._to_hand_over.items() if silence == ttl]
            await self._store.renew(self._owner, leases, ttl)
            for key in leases:
                self._to_hand_over.pop(key, None)
            self._handed_over.update(leases)

    async def run_once(self) -> float:
        """Renew all leases, stop attempts whose lease was lost or whose run was cancelled, and hand back strays.

        Also extend the leases of accepted runs for the last time. Return the seconds to wait. Raises: StoreError. If
        the renewal failed, the attempts whose trust deadline has passed are stopped before the error is raised.
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
            text = "lost its lease; the attempt is stopped and its result will be refused"
            self._recorder.run_logger.write(logging.WARNING, held.attempt.run, text)
            self._holder.stop_attempt(held, _lease_lost(held))

    def record_after_renewal(self, held: HeldRun, outcome: Outcome) -> None:
        """Start a task that renews a lease after its trust deadline and then records the outcome of its run.

        If the lease cannot be renewed, the outcome is given up.
        """
        self._recorder.unstored[held.attempt.run.id] = held  # so that it is not handed back as a stray meanwhile
        task = asyncio.get_running_loop().create_task(self._record_if_held(held, outcome))
        self._recording.add(task)
        task.add_done_callback(self._recording.discard)

    async def _record_if_held(self, held: HeldRun, outcome: Outcome) -> None:
        """Renew a run's lease after its trust deadline, to learn if it is still held. If so, record the outcome.

        If the store fails, the recorder keeps the outcome, in case the store later lists the run as a stray of this
        worker. If the lease is lost, report the outcome as refused.
        """
        run = held.attempt.run
        sent = self._clock.boot()
        try:
            answer = await self._store.renew(self._owner, [(run.id, run.epoch)], self._lease_ttl)
        except StoreError as error:
            self._recorder.run_logger.write(
                logging.ERROR,
                run,
                "has a result that is not stored: the store failed until the lease ended (%s). Unless the lease still "
                "holds, the run will be handled as crashed",
                error,
            )
            self._recorder.give_up(held, outcome)
            return
        if run.id in answer.kept:
            held.lease_trusted_until = sent + int(self._lease_ttl * LEASE_TRUST_RATIO)
            self._recorder.record(held, outcome)
        else:
            # The outcome is refused. But until an instance rescues the run, the store may list it as a stray of this
            # worker. It is handed back then, and it must be known that the attempt had begun.
            self._recorder.give_up(held, _lease_lost(held))
            self._recorder.report_stale_outcome(held, outcome)

    def _strays(self, held: Sequence[Run]) -> list[Run]:
        """Return the strays among `held`, the runs that this worker holds in the store but did not renew.

        A run is no stray if this worker knows it after all, or if the answer to a claim under way may bring it.
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
        """Hand back a stray, or record its outcome if an attempt here ended but its outcome was given up.

        A stray without an outcome comes from a claim whose answer was lost; if its task has no handler here, do
        nothing. `trust`: the trust deadline of the lease, in boot time.
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
    """Return the outcome `HandedBack` of an attempt whose lease was lost. It tells whether the handler had begun."""
    return HandedBack("lease_lost", began=held.execution.began_at is not None)
