"""The recorder: stores the outcome of an attempt in the run's row and the event log, if the attempt's lease holds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from mainspring.engine.commit.batcher import Batcher, Urgency
from mainspring.engine.run_logger import RunLogger
from mainspring.model.change import Change, ChangeKind, Result, RunLease
from mainspring.model.errors import StoreError, StoreUnavailable
from mainspring.model.events import (
    RunCancelled,
    RunEvent,
    RunFailed,
    RunRetrying,
    RunSnoozed,
    RunSucceeded,
    StaleResultRejected,
)
from mainspring.model.ids import storable_text
from mainspring.model.instant import Ms
from mainspring.model.outcome import Accepted, Cancelled, Failed, HandedBack, Outcome, Skipped, Snoozed, Succeeded
from mainspring.model.policies import RetryPolicy
from mainspring.model.run import ENDED, Run, State
from mainspring.ports.clock import Clock
from mainspring.ports.executor import Attempt, Execution, HeldRun
from mainspring.rules.lanes import schedules_to_touch
from mainspring.rules.lifecycle import complete
from mainspring.rules.retry import Randomness, retry_at
from mainspring.rules.run_commands import Complete, Expire, Fail
from mainspring.rules.typestate import Moved, Running, RunState

#: After this many errors that are no outage of the store, the run fails instead, with the last error as its text.
MAX_REFUSALS = 3
#: The most outcomes that are kept although their lease may have ended; beyond that the oldest are forgotten.
MAX_GIVEN_UP_OUTCOMES = 1_000
#: The events that tell how long an attempt ran beyond its time limit.
_ENDS_OF_ATTEMPTS = (RunSucceeded, RunRetrying, RunFailed, RunSnoozed, RunCancelled)


class Recorder:
    """Turns outcomes into changes and commits them. Thread: engine loop.

    The store refuses the outcome of an attempt whose lease is no longer held ("stale"). An event then records that.
    """

    def __init__(
        self,
        batcher: Batcher,
        clock: Clock,
        rng: Randomness,
        change_id: Callable[[], str],
        max_wait: float,
        run_logger: RunLogger,
    ) -> None:
        """Commit through `batcher`. `max_wait`: the longest pause between two tries to store an outcome, in seconds.

        `change_id` returns a new id for a change. `rng` varies the time of the next attempt after a failure.
        `run_logger` logs failures and what becomes of outcomes that cannot be stored.
        """
        self._batcher = batcher
        self._clock = clock
        self._rng = rng
        self._change_id = change_id
        self._max_wait = max_wait
        self.run_logger = run_logger
        self._pending: set[asyncio.Task[None]] = set()
        #: Runs whose outcome is not stored yet, by run id: their leases are renewed, and they are not handed back.
        self.unstored: dict[str, HeldRun] = {}
        #: Ids of the runs in `unstored` whose outcome ends them.
        self.ending: set[str] = set()
        #: Outcomes that could not be stored in time, by run id and epoch, for `recall`.
        self._given_up: dict[tuple[str, int], tuple[HeldRun, Outcome]] = {}

    def record(self, held: HeldRun, outcome: Outcome, now: Ms | None = None) -> None:
        """Queue an outcome for a commit; log it if it is a failure. After an error, try again while the lease may hold.

        `now`: the present store time, if the caller knows it.
        """
        now = self._clock.now() if now is None else now
        change = self.change_of(held.attempt, held.execution, outcome, now)
        if type(outcome) is Failed:
            self._log_failure(held, outcome, change, now)
        elif type(outcome) is HandedBack and outcome.began and outcome.reason != "lease_lost":
            self._log_cut(held.attempt.run, change)
        self.unstored[held.attempt.run.id] = held
        if change.run is not None and change.run.state in ENDED:
            self.ending.add(held.attempt.run.id)
        urgency = _urgency(held, change) if type(outcome) is Succeeded else Urgency.NEXT_PACE
        waited = 0.0
        if urgency is Urgency.LINGER and held.starts_at is not None:
            waited = self._clock.monotonic() - held.execution.started - (held.execution.ms or 0) / 1000
        self._batcher.post(change, partial(self._stored, held, outcome, change), urgency, waited)

    def _stored(self, held: HeldRun, outcome: Outcome, change: Change, result: Result | StoreError) -> None:
        """Handle the result of the commit of `outcome`: after an error, try again in a task; report a refusal as stale.

        The batcher calls this. `change` stored the outcome, or was to store it.
        """
        if isinstance(result, StoreError):
            run = held.attempt.run
            self.run_logger.write(logging.WARNING, run, "has a result that is not stored yet, trying again: %s", result)
            task = asyncio.get_running_loop().create_task(self._store_again(held, outcome, change))
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)
            return
        self._forget_unstored(held)
        if not result.ok:
            self.report_stale_outcome(held, outcome)

    def _forget_unstored(self, held: HeldRun) -> None:
        """Remove a run from `unstored` and `ending`, because its outcome is stored, refused or given up."""
        if self.unstored.get(held.attempt.run.id) is held:
            del self.unstored[held.attempt.run.id]
            self.ending.discard(held.attempt.run.id)

    async def _store_again(self, held: HeldRun, outcome: Outcome, change: Change) -> None:
        """Submit `change` again and again while the lease may hold; after that, give the outcome up.

        The id of the change stays the same: if the store has stored it without answering, it accepts the repetition.
        After `MAX_REFUSALS` errors that are no outage, a change that stores a failure is submitted instead.
        """
        delay, refused = 0.1, 0
        while self._clock.boot() < held.lease_trusted_until:
            await asyncio.sleep(delay)
            delay = min(delay * 2, self._max_wait)
            try:
                result = await self._batcher.submit(change)
            except StoreUnavailable:
                continue
            except StoreError as error:
                refused += 1
                if refused == MAX_REFUSALS:  # the store works and cannot store this outcome: store that as a failure
                    failure = Failed(
                        f"the outcome could not be stored: {storable_text(str(error))[:500]}",
                        reason="result",
                        retry=False,
                    )
                    change = self.change_of(held.attempt, held.execution, failure, self._clock.now())
                continue
            self._forget_unstored(held)
            if not result.ok:
                self.report_stale_outcome(held, outcome)
            return
        self.give_up(held, outcome)
        self.run_logger.write(
            logging.ERROR,
            held.attempt.run,
            "has a result that could not be stored before the lease ended. Unless the lease still holds, the run will "
            "be handled as crashed",
        )

    def give_up(self, held: HeldRun, outcome: Outcome) -> None:
        """Give up storing an outcome. Keep it for `recall`, in case the store still counts the lease as held here."""
        self._forget_unstored(held)
        self._given_up[held.attempt.run.id, held.attempt.run.epoch] = (held, outcome)
        if len(self._given_up) > MAX_GIVEN_UP_OUTCOMES:
            del self._given_up[next(iter(self._given_up))]

    def recall(self, run: Run) -> tuple[HeldRun, Outcome] | None:
        """Return and forget the run and outcome of `give_up` under the lease of `run`; None if there are none."""
        return self._given_up.pop((run.id, run.epoch), None)

    def report_stale_outcome(self, held: HeldRun, outcome: Outcome) -> None:
        """Write to the log and to the event log that an outcome was refused, because its lease was no longer held.

        The event is only queued; if the store fails, it is lost.
        """
        run = held.attempt.run
        self.run_logger.write(logging.WARNING, run, "has a result that was refused: its lease was lost before")
        event = StaleResultRejected(
            ns=run.ns,
            run_id=run.id,
            schedule_id=run.schedule_id,
            epoch=run.epoch,
            attempt=run.attempt,
            owner=run.owner,
            outcome=type(outcome).__name__,
        )
        future = self._batcher.submit(Change(id=self._change_id(), events=(event,)))
        future.add_done_callback(lambda f: f.cancelled() or f.exception())

    def change_of(self, attempt: Attempt, execution: Execution, outcome: Outcome, now: Ms) -> Change:
        """Return the change that stores the outcome of an attempt. `now`: the present store time."""
        event: RunEvent
        kind: ChangeKind = "other"
        if type(outcome) is Succeeded:  # directly, because most outcomes are successes
            began_at = now if execution.began_at is None else execution.began_at
            after, event = complete(attempt.run, began_at, execution.ms or 0, outcome.result)
            kind = "success"
        else:
            moved = self._apply_outcome(attempt, execution, outcome, now)
            after, event = moved.state.run, moved.event
        overran = overran_ms(attempt, execution, outcome)
        if overran is not None and isinstance(event, _ENDS_OF_ATTEMPTS):
            event, kind = replace(event, overran_ms=overran), "other"
        touches = schedules_to_touch(after)
        return Change(
            id=self._change_id(),
            guard=RunLease(after.id, after.epoch),
            run=after,
            events=(event,),
            releases=after.gates,
            touches=touches,
            kind="other" if touches else kind,
        )

    def _apply_outcome(self, attempt: Attempt, execution: Execution, outcome: Outcome, now: Ms) -> Moved[RunState]:
        """Return the run's state after an outcome, with the event of that transition. `now`: the present store time.

        The outcome must not be `Accepted`, with which the run goes on.
        """
        run = Running(attempt.run)
        match outcome:
            case Succeeded():
                return run.complete(Complete(execution.began_at or now, execution.ms or 0, outcome.result), now)
            case Failed():
                again = self._retry_at(attempt, now) if outcome.retry else None
                if again is not None and outcome.retry_after is not None:
                    again = max(again, now + outcome.retry_after)
                failure = Fail(
                    error=outcome.error,
                    began_at=execution.began_at,
                    ms=execution.ms,
                    retry_at=again,
                    reason=outcome.reason,
                    fingerprint=outcome.fingerprint,
                    trace=outcome.trace,
                    answer=outcome.answer,
                )
                return run.fail(failure, now) if again is None else run.retry(failure, now)
            case Snoozed():
                return run.snooze(now + outcome.delay, now)
            case Cancelled():
                return run.cancel(outcome.reason, now)
            case HandedBack(began=True) if attempt.at_most_once:
                return run.expire(Expire(max_crashes=1, recovery="fail"), now)  # it must not be executed again
            case HandedBack():
                ready_at = max(attempt.run.ready_at, now + outcome.delay) if outcome.delay else None
                return run.hand_back(outcome.reason, now, began=outcome.began, ready_at=ready_at)
            case Skipped():
                return run.skip(outcome.reason, now)
            case Accepted():
                raise AssertionError("the run goes on: its lease is handed over, nothing is recorded")

    def _retry_at(self, attempt: Attempt, now: Ms) -> Ms | None:
        """Return the store time of the next attempt after a failure at `now`; None if no further attempt is allowed."""
        return retry_at(_retry_policy(attempt), attempt.run.failures + 1, now, self._rng)

    def _log_failure(self, held: HeldRun, outcome: Failed, change: Change, now: Ms) -> None:
        """Log an attempt that failed at `now`. If no retry follows, add the traceback. `change` stores the failure."""
        run = held.attempt.run
        event = change.events[0]
        max_attempts = _retry_policy(held.attempt).max_attempts
        if run.failures == run.attempt - 1:
            number = f"attempt {run.attempt} of {max_attempts}"
        else:  # attempts that crashed or were handed back count as no failure
            number = f"failure {run.failures + 1} of {max_attempts}"
        if isinstance(event, RunRetrying):
            wait = max(0, event.next_attempt_at - now) / 1000
            text = "failed (%s, next in about %.1f s): %s"
            self.run_logger.write(logging.WARNING, run, text, number, wait, outcome.error)
        else:
            text = "failed (%s, not retried): %s"
            self.run_logger.write(logging.ERROR, run, text, number, outcome.error, trace=outcome.trace or "")

    def _log_cut(self, run: Run, change: Change) -> None:
        """Log a run whose handler had begun and was stopped before its end. `change` hands it back or ends it."""
        if change.run is not None and change.run.state is State.LOST:
            text = "was stopped before its end; the run is now lost, because of recovery='fail'"
            self.run_logger.write(logging.ERROR, run, f"{text}; run it again with ms.retry(%r)", run.id)
        else:
            text = "was stopped before its end and handed back: another program, or the next start, runs it again"
            self.run_logger.write(logging.WARNING, run, text)

    async def drain(self) -> None:
        """Return once every outcome is stored, refused or given up. Called when a worker stops."""
        await self._batcher.flush()
        while self._pending:
            await asyncio.wait(self._pending)
            await self._batcher.flush()


def overran_ms(attempt: Attempt, execution: Execution, outcome: Outcome) -> int | None:
    """Return how many milliseconds beyond its time limit an attempt has ended by itself.

    Return None if it ended before, or if it has no limit, was stopped at it, or still runs.
    """
    if attempt.timeout is None or execution.ms is None or execution.ms < attempt.timeout:
        return None
    is_stopped = isinstance(outcome, Failed) and outcome.reason == "timeout"
    return None if is_stopped else execution.ms - attempt.timeout


def _urgency(held: HeldRun, change: Change) -> Urgency:
    """Return how urgently to commit `change`, which stores a success.

    `NEXT_PACE` if it touches a schedule. Else `LINGER` if the run was claimed ahead. Else `NEXT_PACE` if it releases a
    gate or the run is at-most-once, and `WHEN_IDLE` if not.
    """
    if change.touches:
        return Urgency.NEXT_PACE
    if held.is_early:
        return Urgency.LINGER
    return Urgency.NEXT_PACE if change.releases or held.attempt.at_most_once else Urgency.WHEN_IDLE


def _retry_policy(attempt: Attempt) -> RetryPolicy:
    """Return the retry policy of an attempt: the run's own, or else that of its task."""
    options = attempt.run.options
    return options.retry if options is not None and options.retry is not None else attempt.handler.retry
