"""Typestate: the life of a run in types. Each state is a class whose methods are the legal changes of that state.

So a type checker refuses an illegal change. `Waiting(run).dispatch("w1").state` is a `Running`, which can `complete`,
`fail` or `retry`; only a `Retrying` can `reschedule`. A method writes nothing: it returns the run in its new state, and
the event to store. At run time, the table in `rules/lifecycle.py` decides what is legal.
"""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

from mainspring.model.errors import IllegalTransition
from mainspring.model.events import RunEvent, RunStarted, RunUnblocked
from mainspring.model.instant import Ms
from mainspring.model.run import ENDED, Run, State
from mainspring.rules.lifecycle import decide, evolve
from mainspring.rules.run_commands import (
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
)

S_co = TypeVar("S_co", bound="RunState", covariant=True)


class RunState:
    """Base class of a run that is known to be in one of the states `allowed`.

    The constructor raises `IllegalTransition` for a run in another state.
    """

    __slots__ = ("run",)
    allowed: ClassVar[frozenset[State]] = frozenset()

    def __init__(self, run: Run) -> None:
        if run.state not in self.allowed:
            raise IllegalTransition(f"run {run.id} is {run.state}, not {' or '.join(sorted(self.allowed))}")
        self.run = run

    def _apply(self, command: Command, now: Ms) -> tuple[Run, RunEvent]:
        """Return the run's row after a command, and the event that carries the command out."""
        event = decide(self.run, command, now)[0]
        return evolve(self.run, event), event


class Moved(Generic[S_co]):
    """The result of a change of state: the run in its new state (`state.run`), and the event to store."""

    __slots__ = ("event", "state")

    def __init__(self, state: S_co, event: RunEvent) -> None:
        self.state = state
        self.event = event


class Ended(RunState):
    """A run that has ended: it succeeded or failed, or was cancelled, skipped or lost."""

    __slots__ = ()
    allowed = ENDED

    def reopen(self, now: Ms, by: str = "") -> Moved[Waiting]:
        """Let the run be claimed again, as `ms.retry` does. Raises `IllegalTransition` if it succeeded or was skipped.

        `by` is the person or API key behind the call.
        """
        run, event = self._apply(Reopen(by), now)
        return Moved(Waiting(run), event)

    def discard(self, now: Ms, by: str = "") -> Moved[Ended]:
        """Dismiss a dead letter: the run is no longer listed as one. `by` is the person or API key behind the call.

        Raises `IllegalTransition` unless the run failed or was lost.
        """
        run, event = self._apply(Discard(by), now)
        return Moved(Ended(run), event)


class Blocked(RunState):
    """A run that waits until other runs, its parents, have ended. Reserved: nothing creates such a run yet."""

    __slots__ = ()
    allowed = frozenset({State.BLOCKED})

    def unblock(self, now: Ms) -> Moved[Waiting]:
        """Let the run be claimed from `now` on, because its parents have ended."""
        event = RunUnblocked(ns=self.run.ns, run_id=self.run.id, schedule_id=self.run.schedule_id, ready_at=now)
        return Moved(Waiting(evolve(self.run, event)), event)

    def cancel(self, reason: str, now: Ms) -> Moved[Ended]:
        """End the run as cancelled."""
        run, event = self._apply(RequestCancel(reason), now)
        return Moved(Ended(run), event)


class Waiting(RunState):
    """A run that a worker can claim from `ready_at` on."""

    __slots__ = ()
    allowed = frozenset({State.WAITING})

    def dispatch(self, owner: str) -> Moved[Running]:
        """Give the run to the worker `owner`, which begins a new attempt under a new lease."""
        event = _started(self.run, owner)
        return Moved(Running(evolve(self.run, event)), event)

    def cancel(self, reason: str, now: Ms) -> Moved[Ended]:
        """End the run as cancelled."""
        run, event = self._apply(RequestCancel(reason), now)
        return Moved(Ended(run), event)

    def skip(self, reason: str, now: Ms) -> Moved[Ended]:
        """End the run as skipped, before its handler begins."""
        run, event = self._apply(Skip(reason), now)
        return Moved(Ended(run), event)


class Retrying(RunState):
    """A run whose last attempt failed, and that a worker can claim again from `ready_at` on."""

    __slots__ = ()
    allowed = frozenset({State.RETRYING})

    def reschedule(self, at: Ms) -> Moved[Waiting]:
        """Set the time of the next attempt to `at`. The run then counts as waiting, no longer as retrying."""
        run, event = self._apply(SnoozeUntil(at), at)
        return Moved(Waiting(run), event)

    def dispatch(self, owner: str) -> Moved[Running]:
        """Give the run to the worker `owner`, which begins a new attempt under a new lease."""
        event = _started(self.run, owner)
        return Moved(Running(evolve(self.run, event)), event)

    def cancel(self, reason: str, now: Ms) -> Moved[Ended]:
        """End the run as cancelled."""
        run, event = self._apply(RequestCancel(reason), now)
        return Moved(Ended(run), event)


class Running(RunState):
    """A run that a worker executes under a lease."""

    __slots__ = ()
    allowed = frozenset({State.RUNNING})

    def complete(self, outcome: Complete, now: Ms) -> Moved[Ended]:
        """End the run as succeeded."""
        run, event = self._apply(outcome, now)
        return Moved(Ended(run), event)

    def fail(self, failure: Fail, now: Ms) -> Moved[Ended]:
        """End the run as failed. Raises `IllegalTransition` if `failure.retry_at` is set."""
        if failure.retry_at is not None:
            raise IllegalTransition("a failure that will be tried again is a retry: call retry()")
        run, event = self._apply(failure, now)
        return Moved(Ended(run), event)

    def retry(self, failure: Fail, now: Ms) -> Moved[Retrying]:
        """Plan the next attempt at `failure.retry_at`. Raises `IllegalTransition` if that is None."""
        if failure.retry_at is None:
            raise IllegalTransition("a retry needs the time of the next attempt: set retry_at, or call fail()")
        run, event = self._apply(failure, now)
        return Moved(Retrying(run), event)

    def snooze(self, until: Ms, now: Ms) -> Moved[Waiting]:
        """Let the run be claimed again from `until` on. This does not count as a failure."""
        run, event = self._apply(SnoozeUntil(until), now)
        return Moved(Waiting(run), event)

    def hand_back(self, reason: str, now: Ms, *, began: bool = False, ready_at: Ms | None = None) -> Moved[Waiting]:
        """Give the run back without an outcome, for any worker to claim. `began`: True if its handler had started.

        `ready_at`: when it may be claimed; None: as before.
        """
        run, event = self._apply(HandBack(reason, began, ready_at), now)
        return Moved(Waiting(run), event)

    def skip(self, reason: str, now: Ms) -> Moved[Ended]:
        """End the run as skipped, before its handler begins."""
        run, event = self._apply(Skip(reason), now)
        return Moved(Ended(run), event)

    def cancel(self, reason: str, now: Ms) -> Moved[Ended]:
        """End the run as cancelled, after the worker has stopped its handler."""
        run, event = self._apply(StopCancelled(reason), now)
        return Moved(Ended(run), event)

    def request_cancel(self, reason: str, now: Ms) -> Moved[Running]:
        """Ask the run's worker to stop its handler. The worker reads the request with its next heartbeat."""
        run, event = self._apply(RequestCancel(reason), now)
        return Moved(Running(run), event)

    def expire(self, rule: Expire, now: Ms) -> Moved[Waiting | Ended]:
        """End the attempt, because its lease ended without an outcome. By `rule`, the run waits again or ends.

        This counts as a crash, unless a cancellation was requested: then the run ends as cancelled.
        """
        run, event = self._apply(rule, now)
        return Moved(Waiting(run) if run.state is State.WAITING else Ended(run), event)


def _started(run: Run, owner: str) -> RunStarted:
    """Return the event of a claim by the worker `owner`."""
    return RunStarted(
        ns=run.ns,
        run_id=run.id,
        schedule_id=run.schedule_id,
        epoch=run.epoch + 1,
        attempt=run.attempt + 1,
        owner=owner,
    )
