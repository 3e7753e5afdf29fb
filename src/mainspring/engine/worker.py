"""The worker: claims what is due into free slots, keeps the leases alive, hands outcomes to the recorder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from mainspring.engine.recorder import Recorder
from mainspring.engine.service import Service
from mainspring.model.errors import StoreError
from mainspring.model.events import Event, RunStarted
from mainspring.model.instant import Ms
from mainspring.model.outcome import Cancelled, HandedBack, Outcome, Skipped
from mainspring.model.run import Run
from mainspring.model.settings import Settings
from mainspring.ports.clock import Clock
from mainspring.ports.executor import Attempt, Executor, Handler, Kind
from mainspring.ports.store import Claim, Claimed, Offer, Store
from mainspring.rules.lanes import lane_of
from mainspring.rules.windows import is_open

log = logging.getLogger("mainspring.engine")

CLAIM_BATCH = 100
#: The part of a lease a worker relies on; the rest is for clocks and commits that take their time.
TRUST = 0.9


class Worker(Service):
    """Runs on the engine's loop; handlers run elsewhere and come back through `finished`."""

    name = "worker"

    def __init__(
        self,
        store: Store,
        recorder: Recorder,
        clock: Clock,
        settings: Settings,
        owner: str,
        handlers: Mapping[str, Handler],
        executors: Mapping[Kind, Executor],
        publish: Callable[[Event], None] | None = None,
    ) -> None:
        super().__init__(settings.poll / 1000)
        self._store = store
        self._recorder = recorder
        self._clock = clock
        self._settings = settings
        self._owner = owner
        self._handlers = handlers
        self._executors = executors
        self.publish = publish
        self.running: dict[str, Attempt] = {}
        self.draining = False
        self.idle = asyncio.Event()
        self.heart = Heart(self, settings.heartbeat / 1000)

    # ── claiming ───────────────────────────────────────────────────────────

    async def run_once(self) -> float:
        """Claim into the free slots and start what was claimed.

        1. Note the boot time: trust in the leases counts from before the claim was sent.
        2. Claim at most as many runs as there are free slots.
        3. Consume those outside their window or too late; start the rest.
        """
        free = self._settings.concurrency - len(self.running)
        if self.draining or free <= 0 or not self._handlers:
            return self.poll
        sent = self._clock.boot()
        claimed = await self._store.claim(self._offer(), min(free, CLAIM_BATCH))
        if claimed.claims:
            self._take(claimed, sent)
        if self.running or claimed.claims:
            self.idle.clear()
        else:
            self.idle.set()
        if len(claimed.claims) == min(free, CLAIM_BATCH):
            return 0.0
        return self.poll if claimed.next_at is None else max(0.0, (claimed.next_at - claimed.now) / 1000)

    def _offer(self) -> Offer:
        lanes = tuple(lane_of(self._settings.namespace, queue) for queue in self._settings.queues)
        return Offer(self._owner, lanes, tuple(self._handlers), self._settings.lease_ttl)

    def _take(self, claimed: Claimed, sent: Ms) -> None:
        trust = sent + int(self._settings.lease_ttl * TRUST)
        starts: dict[Kind, list[Attempt]] = {}
        for claim in claimed.claims:
            attempt = self._attempt(claim, trust)
            if self.publish is not None:
                self.publish(_started(claim.run, claimed.now))
            refused = _not_now(claim.run, claimed.now)
            before = self.running.get(claim.run.id)
            if before is not None:  # we lost this run's lease and got it again: the old attempt must not go on
                self.stop_attempt(before, HandedBack("lease_lost", began=before.began_at is not None))
            self.running[claim.run.id] = attempt
            if refused is not None:
                self._end(attempt, refused)
            elif claim.run.cancel is not None:
                self._end(attempt, Cancelled(claim.run.cancel))
            else:
                starts.setdefault(attempt.handler.kind, []).append(attempt)
        for kind, attempts in starts.items():
            self._executors[kind].start(attempts)

    def _attempt(self, claim: Claim, trust: Ms) -> Attempt:
        handler = self._handlers[claim.run.task]
        options = claim.run.options
        timeout = options.timeout if options is not None and options.timeout is not None else handler.timeout
        return Attempt(claim.run, claim.body, handler, timeout or None, trust)

    # ── outcomes ───────────────────────────────────────────────────────────

    def finished(self, attempt: Attempt, outcome: Outcome) -> None:
        """An attempt ended; called on the engine's loop."""
        if self.running.get(attempt.run.id) is attempt:
            self._end(attempt, outcome)
            self.wake()

    def _end(self, attempt: Attempt, outcome: Outcome) -> None:
        del self.running[attempt.run.id]
        attempt.done = True
        if attempt.timer is not None:
            attempt.timer.cancel()
        if not self.running:
            self.idle.set()
        if self._clock.boot() < attempt.trust:
            self._recorder.record(attempt, outcome)
        else:
            self._recorder.unstored[attempt.run.id] = attempt  # so that no heartbeat takes it for a stray
            task = asyncio.get_running_loop().create_task(self._record_after_renewal(attempt, outcome))
            self.heart.tasks.add(task)
            task.add_done_callback(self.heart.tasks.discard)

    async def _record_after_renewal(self, attempt: Attempt, outcome: Outcome) -> None:
        """Past the trust deadline nothing is recorded unless the store says that the lease still holds."""
        run = attempt.run
        sent = self._clock.boot()
        try:
            answer = await self._store.renew(self._owner, [(run.id, run.epoch)], self._settings.lease_ttl)
        except StoreError as error:
            log.error("run %s: outcome lost, the lease ended while the store failed: %s", run.id, error)
            self._recorder.settled(attempt)
            return
        if run.id in answer.kept:
            attempt.trust = sent + int(self._settings.lease_ttl * TRUST)
            self._recorder.record(attempt, outcome)
        else:
            self._recorder.settled(attempt)
            self._recorder.stale(attempt, outcome)

    # ── stopping ───────────────────────────────────────────────────────────

    def cancel(self, run_id: str, reason: str) -> None:
        """Ask a run of ours to stop."""
        attempt = self.running.get(run_id)
        if attempt is not None and attempt.stop is None:
            self.stop_attempt(attempt, Cancelled(reason))

    def stop_attempt(self, attempt: Attempt, why: Outcome) -> None:
        """Tell the executor; the attempt ends through `finished` as always."""
        attempt.stop = why
        attempt.cancelled.set()
        self._executors[attempt.handler.kind].stop(attempt)

    async def drain(self, timeout: float) -> None:
        """Take nothing more, let what runs finish within `timeout` seconds, hand the rest back."""
        self.draining = True
        await self.stop()
        try:
            async with asyncio.timeout(timeout):
                while self.running:
                    self.idle.clear()
                    await self.idle.wait()
        except TimeoutError:
            await self.hand_back("shutdown")

    async def hand_back(self, reason: str) -> None:
        """Stop everything and give it back now; nothing of it is lost."""
        attempts = list(self.running.values())
        for attempt in attempts:
            if attempt.stop is None:
                self.stop_attempt(attempt, HandedBack(reason, began=attempt.began_at is not None))
        # Coroutines unwind within a moment; threads cannot be stopped, so they are given back while they still run.
        for _ in range(20):
            if not self.running:
                break
            await asyncio.sleep(0.01)
        for attempt in list(self.running.values()):
            attempt.abandoned = True
            self._end(attempt, HandedBack(reason, began=attempt.began_at is not None))
        await self._recorder.drain()


class Heart(Service):
    """Renews the worker's leases every heartbeat; hears who was cancelled and what it lost."""

    name = "heart"

    def __init__(self, worker: Worker, beat: float) -> None:
        super().__init__(beat)
        self._worker = worker
        self.tasks: set[asyncio.Task[None]] = set()

    async def run_once(self) -> float:
        """Renew all; stop what is lost or cancelled; hand back what we hold without knowing it."""
        worker = self._worker
        sent = worker._clock.boot()
        held = {**worker._recorder.unstored, **worker.running}
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
            if (attempt := worker.running.get(run_id)) is not None and attempt.stop is None:
                log.warning("run %s: the lease was lost; its result will be refused", run_id)
                worker.stop_attempt(attempt, HandedBack("lease_lost", began=attempt.began_at is not None))
        for run_id, reason in answer.cancel.items():
            worker.cancel(run_id, reason)
        for run in answer.strays:
            if run.id not in worker.running and run.id not in worker._recorder.unstored:
                self._give_back(run, trust)
        return self.poll

    def _give_back(self, run: Run, trust: Ms) -> None:
        """A claim whose answer never reached us."""
        handler = self._worker._handlers.get(run.task)
        if handler is not None:
            self._worker._recorder.record(Attempt(run, None, handler, None, trust), HandedBack("stray"))


def _not_now(run: Run, now: Ms) -> Skipped | None:
    options = run.options
    begun = run.failures or run.crashes or run.reason is not None
    if options is None or begun:
        return None
    if options.window is not None and not is_open(options.window, now):
        return Skipped("outside_time_window")
    if options.start_deadline is not None and now > run.due_at + options.start_deadline:
        return Skipped("start_deadline")
    return None


def _started(run: Run, now: Ms) -> Event:
    return RunStarted(
        at=now,
        ns=run.ns,
        run_id=run.id,
        schedule_id=run.schedule_id,
        n=run.n,
        epoch=run.epoch,
        attempt=run.attempt,
        owner=run.owner,
    )
