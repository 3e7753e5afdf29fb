"""The recorder: an attempt's outcome becomes events, guarded by the lease under which it ran."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from mainspring.engine.batcher import Batcher, Haste
from mainspring.model.change import Change, Result, RunLease
from mainspring.model.errors import StoreError, StoreUnavailable
from mainspring.model.events import RunEvent, RunRetrying, StaleResultRejected
from mainspring.model.ids import plain
from mainspring.model.instant import Ms
from mainspring.model.outcome import Accepted, Cancelled, Failed, HandedBack, Outcome, Skipped, Snoozed, Succeeded
from mainspring.model.run import ENDED, Run
from mainspring.ports.clock import Clock
from mainspring.ports.executor import Attempt
from mainspring.rules.lanes import touches_of
from mainspring.rules.lifecycle import Complete, Expire, Fail, complete
from mainspring.rules.retry import Randomness, retry_at
from mainspring.rules.typestate import Moved, Running, RunState

log = logging.getLogger("mainspring.engine")

#: After so many refusals that are no outage, an outcome is replaced by one that says so.
POISON = 3
MAX_GIVEN_UP = 1_000


class Recorder:
    """Turns outcomes into changes; a stale one is refused by the store and noted."""

    def __init__(
        self, batcher: Batcher, clock: Clock, rng: Randomness, change_id: Callable[[], str], max_wait: float
    ) -> None:
        self._batcher = batcher
        self._clock = clock
        self._rng = rng
        self._change_id = change_id
        self._max_wait = max_wait
        self._pending: set[asyncio.Task[None]] = set()
        #: Attempts whose outcome is not stored yet: their leases must be kept, and they are no strays.
        self.unstored: dict[str, Attempt] = {}
        #: Of those, the runs that are over when it is.
        self.ending: set[str] = set()
        #: Outcomes that could not be stored in time: if the lease turns out to hold all the same, they still count.
        self._given_up: dict[tuple[str, int], tuple[Attempt, Outcome]] = {}

    def record(self, attempt: Attempt, outcome: Outcome, now: Ms | None = None) -> None:
        """Store the outcome with the next commit; try again while the store fails and the lease may hold."""
        change = self.change_of(attempt, outcome, self._clock.now() if now is None else now)
        if type(outcome) is Failed:
            _say(attempt, outcome, change)
        self.unstored[attempt.run.id] = attempt
        if change.run is not None and change.run.state in ENDED:
            self.ending.add(attempt.run.id)
        haste = _haste(attempt, change) if type(outcome) is Succeeded else Haste.SOON
        waited = 0.0
        if haste is Haste.LATER and attempt.handed:
            waited = self._clock.monotonic() - attempt.started - (attempt.ms or 0) / 1000
        self._batcher.post(change, partial(self._stored, attempt, outcome, change), haste, waited)

    def _stored(self, attempt: Attempt, outcome: Outcome, change: Change, result: Result | StoreError) -> None:
        if isinstance(result, StoreError):
            log.warning("run %s: outcome not stored yet: %s", attempt.run.id, result)
            task = asyncio.get_running_loop().create_task(self._again(attempt, outcome, change))
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)
            return
        self.settled(attempt)
        if not result.ok:
            self.stale(attempt, outcome)

    def settled(self, attempt: Attempt) -> None:
        """The outcome is stored, or given up."""
        if self.unstored.get(attempt.run.id) is attempt:
            del self.unstored[attempt.run.id]
            self.ending.discard(attempt.run.id)

    async def _again(self, attempt: Attempt, outcome: Outcome, change: Change) -> None:
        """The same change id, so an answer that was only lost counts as accepted."""
        delay, refused = 0.1, 0
        while self._clock.boot() < attempt.trust:
            await asyncio.sleep(delay)
            delay = min(delay * 2, self._max_wait)
            try:
                result = await self._batcher.submit(change)
            except StoreUnavailable:
                continue
            except StoreError as error:
                refused += 1
                if refused == POISON:  # not the store is ill but the outcome: say that instead
                    said = Failed(
                        f"the outcome could not be stored: {plain(str(error))[:500]}", reason="result", retry=False
                    )
                    change = self.change_of(attempt, said, self._clock.now())
                continue
            self.settled(attempt)
            if not result.ok:
                self.stale(attempt, outcome)
            return
        self.give_up(attempt, outcome)
        log.error("run %s: outcome could not be stored before the lease ended", attempt.run.id)

    def give_up(self, attempt: Attempt, outcome: Outcome) -> None:
        """Rely on the lease no longer; the newest outcomes are kept in case it holds."""
        self.settled(attempt)
        self._given_up[attempt.run.id, attempt.run.epoch] = (attempt, outcome)
        if len(self._given_up) > MAX_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]

    def recall(self, run: Run) -> tuple[Attempt, Outcome] | None:
        """The outcome of a run that was given up under this very lease."""
        return self._given_up.pop((run.id, run.epoch), None)

    def stale(self, attempt: Attempt, outcome: Outcome) -> None:
        """Note a result that came under a lease no longer held."""
        run = attempt.run
        log.warning("run %s: a result of attempt %d came too late and was refused", run.id, run.attempt)
        note = StaleResultRejected(
            ns=run.ns,
            run_id=run.id,
            schedule_id=run.schedule_id,
            epoch=run.epoch,
            attempt=run.attempt,
            owner=run.owner,
            outcome=type(outcome).__name__,
        )
        future = self._batcher.submit(Change(id=self._change_id(), events=(note,)))
        future.add_done_callback(lambda f: f.cancelled() or f.exception())

    def change_of(self, attempt: Attempt, outcome: Outcome, now: Ms) -> Change:
        """The write that an outcome makes."""
        event: RunEvent
        if type(outcome) is Succeeded:  # the short way for what happens most
            began_at = now if attempt.began_at is None else attempt.began_at
            after, event = complete(attempt.run, began_at, attempt.ms or 0, outcome.result)
        else:
            moved = self._moved(Running(attempt.run), attempt, outcome, now)
            after, event = moved.state.run, moved.event
        return Change(
            id=self._change_id(),
            guard=RunLease(after.id, after.epoch),
            run=after,
            events=(event,),
            releases=after.gates,
            touches=touches_of(after),
        )

    def _moved(self, run: Running, attempt: Attempt, outcome: Outcome, now: Ms) -> Moved[RunState]:
        match outcome:
            case Succeeded():
                return run.complete(Complete(attempt.began_at or now, attempt.ms or 0, outcome.result), now)
            case Failed():
                again = self._retry_at(attempt, now) if outcome.retry else None
                if again is not None and outcome.retry_after is not None:
                    again = max(again, now + outcome.retry_after)
                failure = Fail(
                    error=outcome.error,
                    began_at=attempt.began_at,
                    ms=attempt.ms,
                    retry_at=again,
                    reason=outcome.reason,
                    fingerprint=outcome.fingerprint,
                    trace=outcome.trace,
                )
                return run.fail(failure, now) if again is None else run.retry(failure, now)
            case Snoozed():
                return run.snooze(now + outcome.delay, now)
            case Cancelled():
                return run.cancel(outcome.reason, now)
            case HandedBack(began=True) if attempt.at_most_once:
                return run.expire(Expire(max_crashes=1, recovery="fail"), now)  # it must not be called again
            case HandedBack():
                return run.hand_back(outcome.reason, now, began=outcome.began)
            case Skipped():
                return run.skip(outcome.reason, now)
            case Accepted():
                raise AssertionError("the run goes on: its lease is passed on, nothing is recorded")

    def _retry_at(self, attempt: Attempt, now: Ms) -> Ms | None:
        options = attempt.run.options
        policy = options.retry if options is not None and options.retry is not None else attempt.handler.retry
        return retry_at(policy, attempt.run.failures + 1, now, self._rng)

    async def drain(self) -> None:
        """Return when every outcome is stored or given up."""
        await self._batcher.flush()
        while self._pending:
            await asyncio.wait(self._pending)
            await self._batcher.flush()


def _haste(attempt: Attempt, change: Change) -> Haste:
    """Of a success: it may wait if nothing waits behind it, and a crash meanwhile only repeats the run."""
    if change.touches:
        return Haste.SOON
    if attempt.early:
        return Haste.LATER
    return Haste.SOON if change.releases or attempt.at_most_once else Haste.EASY


def _say(attempt: Attempt, outcome: Failed, change: Change) -> None:
    """A failure is said where people look, with the trace when nothing more will be tried."""
    run = attempt.run
    event = change.events[0]
    if isinstance(event, RunRetrying):
        wait = (event.next_attempt_at - (attempt.began_at or event.next_attempt_at)) / 1000
        log.warning(
            "task %s: attempt %d failed, next in about %.1f s: %s (run %s)",
            run.task,
            run.attempt,
            wait,
            outcome.error,
            run.id,
        )
    else:
        trace = f"\n{outcome.trace.rstrip()}" if outcome.trace else ""
        log.error(
            "task %s failed after %d attempts: %s (run %s)%s", run.task, run.attempt, outcome.error, run.id, trace
        )
