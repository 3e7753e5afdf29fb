"""The life of a run in types: each open state has only its legal methods, so a type checker refuses the others.

`Waiting(run).dispatch(…)` gives a `Running`; `Running` can `complete`, `fail` or `retry`; `Retrying` can `reschedule`.
At run time the same table decides (`rules/lifecycle.py`), so a run in another state cannot be wrapped.
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
    """A run known to be in one of some states."""

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
    """The state after a move, and the event that says so."""

    __slots__ = ("event", "state")

    def __init__(self, state: S_co, event: RunEvent) -> None:
        self.state = state
        self.event = event


class Ended(RunState):
    """Succeeded, failed, cancelled, skipped or lost."""

    __slots__ = ()
    allowed = ENDED

    def reopen(self, now: Ms, by: str = "") -> Moved[Waiting]:
        run, event = self._move(Reopen(by), now)
        return Moved(Waiting(run), event)

    def discard(self, now: Ms, by: str = "") -> Moved[Ended]:
        run, event = self._move(Discard(by), now)
        return Moved(Ended(run), event)


class Blocked(RunState):
    """Waits for other runs."""

    __slots__ = ()
    allowed = frozenset({State.BLOCKED})

    def unblock(self, now: Ms) -> Moved[Waiting]:
        event = RunUnblocked(ns=self.run.ns, run_id=self.run.id, schedule_id=self.run.schedule_id, ready_at=now)
        return Moved(Waiting(evolve(self.run, event)), event)

    def cancel(self, reason: str, now: Ms) -> Moved[Ended]:
        run, event = self._move(RequestCancel(reason), now)
        return Moved(Ended(run), event)


class Waiting(RunState):
    """Will be claimed when its time has come."""

    __slots__ = ()
    allowed = frozenset({State.WAITING})

    def dispatch(self, owner: str) -> Moved[Running]:
        event = _started(self.run, owner)
        return Moved(Running(evolve(self.run, event)), event)

    def cancel(self, reason: str, now: Ms) -> Moved[Ended]:
        run, event = self._move(RequestCancel(reason), now)
        return Moved(Ended(run), event)

    def skip(self, reason: str, now: Ms) -> Moved[Ended]:
        run, event = self._move(Skip(reason), now)
        return Moved(Ended(run), event)


class Retrying(RunState):
    """Failed, and will be claimed again at its next attempt's time."""

    __slots__ = ()
    allowed = frozenset({State.RETRYING})

    def reschedule(self, at: Ms) -> Moved[Waiting]:
        run, event = self._move(SnoozeUntil(at), at)
        return Moved(Waiting(run), event)

    def dispatch(self, owner: str) -> Moved[Running]:
        event = _started(self.run, owner)
        return Moved(Running(evolve(self.run, event)), event)

    def cancel(self, reason: str, now: Ms) -> Moved[Ended]:
        run, event = self._move(RequestCancel(reason), now)
        return Moved(Ended(run), event)


class Running(RunState):
    """Held by a worker under a lease."""

    __slots__ = ()
    allowed = frozenset({State.RUNNING})

    def complete(self, outcome: Complete, now: Ms) -> Moved[Ended]:
        run, event = self._move(outcome, now)
        return Moved(Ended(run), event)

    def fail(self, failure: Fail, now: Ms) -> Moved[Ended]:
        if failure.retry_at is not None:
            raise IllegalTransition("a failure that will be tried again is a retry: call retry()")
        run, event = self._move(failure, now)
        return Moved(Ended(run), event)

    def retry(self, failure: Fail, now: Ms) -> Moved[Retrying]:
        if failure.retry_at is None:
            raise IllegalTransition("a retry needs the time of the next attempt: set retry_at, or call fail()")
        run, event = self._move(failure, now)
        return Moved(Retrying(run), event)

    def snooze(self, until: Ms, now: Ms) -> Moved[Waiting]:
        run, event = self._move(SnoozeUntil(until), now)
        return Moved(Waiting(run), event)

    def hand_back(self, reason: str, now: Ms, *, began: bool = False) -> Moved[Waiting]:
        run, event = self._move(HandBack(reason, began), now)
        return Moved(Waiting(run), event)

    def skip(self, reason: str, now: Ms) -> Moved[Ended]:
        run, event = self._move(Skip(reason), now)
        return Moved(Ended(run), event)

    def cancel(self, reason: str, now: Ms) -> Moved[Ended]:
        run, event = self._move(StopCancelled(reason), now)
        return Moved(Ended(run), event)

    def request_cancel(self, reason: str, now: Ms) -> Moved[Running]:
        run, event = self._move(RequestCancel(reason), now)
        return Moved(Running(run), event)

    def expire(self, rule: Expire, now: Ms) -> Moved[Waiting | Ended]:
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
