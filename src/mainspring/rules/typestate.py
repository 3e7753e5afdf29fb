"""Typestate: the life of a run in types. Each state is a class with only its legal moves as methods.

So a type checker refuses an illegal move: `Waiting(run).dispatch(…)` returns a `Running`, which can `complete`, `fail`
or `retry`; a `Retrying` can `reschedule`. At run time the table in `rules/lifecycle.py` decides, and a run in another
state cannot be wrapped.
"""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

from mainspring.model.errors import IllegalTransition
from mainspring.model.events import RunEvent, RunStarted, RunUnblocked
from mainspring.model.instant import Ms
from mainspring.model.run import ENDED, Run, State
from mainspring.rules.lifecycle import (
    Command,
    Complete,
    Discard,
    Expire,
    Fail,
    HandBack,
    Reopen,
    RequestCancel,
    Skip,
    SnoozeUntil,
    StopCancelled,
    decide,
    evolve,
)

S_co = TypeVar("S_co", bound="RunState", covariant=True)


class RunState:
    """A run that is known to be in one of the `allowed` states.

    Raises `IllegalTransition` for a run in another state.
    """

    __slots__ = ("run",)
    allowed: ClassVar[frozenset[State]] = frozenset()

    def __init__(self, run: Run) -> None:
        if run.state not in self.allowed:
            raise IllegalTransition(f"run {run.id} is {run.state}, not {' or '.join(sorted(self.allowed))}")
        self.run = run

    def _move(self, command: Command, now: Ms) -> tuple[Run, RunEvent]:
        event = decide(self.run, command, now)[0]
        return evolve(self.run, event), event


class Moved(Generic[S_co]):
    """The result of a move: the run in its new state, and the event to store."""

    __slots__ = ("event", "state")

    def __init__(self, state: S_co, event: RunEvent) -> None:
        self.state = state
        self.event = event


class Ended(RunState):
    """A run that has succeeded, failed, or was cancelled, skipped or lost."""

    __slots__ = ()
    allowed = ENDED

    def reopen(self, now: Ms, by: str = "") -> Moved[Waiting]:
        """Open the run again, as `ms.retry` does."""
        run, event = self._move(Reopen(by), now)
        return Moved(Waiting(run), event)

    def discard(self, now: Ms, by: str = "") -> Moved[Ended]:
        """Dismiss a dead letter."""
        run, event = self._move(Discard(by), now)
        return Moved(Ended(run), event)


class Blocked(RunState):
    """A run that waits for other runs to end."""

    __slots__ = ()
    allowed = frozenset({State.BLOCKED})

    def unblock(self, now: Ms) -> Moved[Waiting]:
        """Let the run be claimed: its parents have ended."""
        event = RunUnblocked(ns=self.run.ns, run_id=self.run.id, schedule_id=self.run.schedule_id, ready_at=now)
        return Moved(Waiting(evolve(self.run, event)), event)

    def cancel(self, reason: str, now: Ms) -> Moved[Ended]:
        """End the run as cancelled."""
        run, event = self._move(RequestCancel(reason), now)
        return Moved(Ended(run), event)


class Waiting(RunState):
    """A run that can be claimed once it is ready."""

    __slots__ = ()
    allowed = frozenset({State.WAITING})

    def dispatch(self, owner: str) -> Moved[Running]:
        """Give the run to a worker: a new attempt under a new lease."""
        event = _started(self.run, owner)
        return Moved(Running(evolve(self.run, event)), event)

    def cancel(self, reason: str, now: Ms) -> Moved[Ended]:
        """End the run as cancelled."""
        run, event = self._move(RequestCancel(reason), now)
        return Moved(Ended(run), event)

    def skip(self, reason: str, now: Ms) -> Moved[Ended]:
        """End the run before its handler begins."""
        run, event = self._move(Skip(reason), now)
        return Moved(Ended(run), event)


class Retrying(RunState):
    """A run that failed and can be claimed again at the time of its next attempt."""

    __slots__ = ()
    allowed = frozenset({State.RETRYING})

    def reschedule(self, at: Ms) -> Moved[Waiting]:
        """Move the next attempt to an instant."""
        run, event = self._move(SnoozeUntil(at), at)
        return Moved(Waiting(run), event)

    def dispatch(self, owner: str) -> Moved[Running]:
        """Give the run to a worker: a new attempt under a new lease."""
        event = _started(self.run, owner)
        return Moved(Running(evolve(self.run, event)), event)

    def cancel(self, reason: str, now: Ms) -> Moved[Ended]:
        """End the run as cancelled."""
        run, event = self._move(RequestCancel(reason), now)
        return Moved(Ended(run), event)


class Running(RunState):
    """A run that a worker executes under a lease."""

    __slots__ = ()
    allowed = frozenset({State.RUNNING})

    def complete(self, outcome: Complete, now: Ms) -> Moved[Ended]:
        """End the run as succeeded."""
        run, event = self._move(outcome, now)
        return Moved(Ended(run), event)

    def fail(self, failure: Fail, now: Ms) -> Moved[Ended]:
        """End the run as failed. Raises `IllegalTransition` if the failure has a time for a retry."""
        if failure.retry_at is not None:
            raise IllegalTransition("a failure that will be tried again is a retry: call retry()")
        run, event = self._move(failure, now)
        return Moved(Ended(run), event)

    def retry(self, failure: Fail, now: Ms) -> Moved[Retrying]:
        """Plan the next attempt. Raises `IllegalTransition` if the failure has no time for it."""
        if failure.retry_at is None:
            raise IllegalTransition("a retry needs the time of the next attempt: set retry_at, or call fail()")
        run, event = self._move(failure, now)
        return Moved(Retrying(run), event)

    def snooze(self, until: Ms, now: Ms) -> Moved[Waiting]:
        """Let the run be claimed again at an instant. Not a failure."""
        run, event = self._move(SnoozeUntil(until), now)
        return Moved(Waiting(run), event)

    def hand_back(self, reason: str, now: Ms, *, began: bool = False) -> Moved[Waiting]:
        """Give the run back, for any worker to claim. `began`: its handler had started."""
        run, event = self._move(HandBack(reason, began), now)
        return Moved(Waiting(run), event)

    def skip(self, reason: str, now: Ms) -> Moved[Ended]:
        """End the run before its handler begins."""
        run, event = self._move(Skip(reason), now)
        return Moved(Ended(run), event)

    def cancel(self, reason: str, now: Ms) -> Moved[Ended]:
        """End the run as cancelled, after the worker has stopped its handler."""
        run, event = self._move(StopCancelled(reason), now)
        return Moved(Ended(run), event)

    def request_cancel(self, reason: str, now: Ms) -> Moved[Running]:
        """Ask the worker to stop the run."""
        run, event = self._move(RequestCancel(reason), now)
        return Moved(Running(run), event)

    def expire(self, rule: Expire, now: Ms) -> Moved[Waiting | Ended]:
        """Count a crash: the lease ended without an outcome."""
        run, event = self._move(rule, now)
        return Moved(Waiting(run) if run.state is State.WAITING else Ended(run), event)


def _started(run: Run, owner: str) -> RunStarted:
    return RunStarted(
        ns=run.ns,
        run_id=run.id,
        schedule_id=run.schedule_id,
        epoch=run.epoch + 1,
        attempt=run.attempt + 1,
        owner=owner,
    )
