"""The decisions of a worker about a run that it has just claimed, such as whether it may begin or wait."""

from __future__ import annotations

from mainspring.model.events import Event, RunStarted
from mainspring.model.instant import Ms
from mainspring.model.outcome import Skipped
from mainspring.model.policies import RunOptions
from mainspring.model.run import Run
from mainspring.ports.executor import Attempt, HeldRun
from mainspring.ports.store import Claimed
from mainspring.rules.windows import is_open


def is_sole_crashed_run(claimed: Claimed) -> bool:
    """Return True if the claim brought a run that crashed before. It comes alone, so more runs may be due."""
    return bool(claimed.claims) and claimed.claims[0].run.crashes > 0


def is_last_chance(attempt: Attempt) -> bool:
    """Return True if the run crashed before and one more crash of the process would end it.

    False for a call of an HTTP agent, which crashes no process.
    """
    run = attempt.run
    if not run.crashes or attempt.handler.kind == "http":
        return False
    max_crashes = (None if run.options is None else run.options.max_crashes) or attempt.handler.max_crashes
    return run.crashes + 1 >= max_crashes


def must_not_wait(held: HeldRun) -> bool:
    """Return True if a run must not wait here for a slot, because a crash of this process would harm it.

    An at-most-once run would end as lost; a run that crashed before would be charged with one more crash.
    """
    return not held.is_done and (held.attempt.at_most_once or held.attempt.run.crashes > 0)


def skip_outcome(run: Run, options: RunOptions, now: Ms) -> Skipped | None:
    """Return the outcome `Skipped` if a run may not begin at `now`: outside its window, or past its start deadline.

    Return None if it may begin. A run that has begun before, or that was snoozed or reopened, is never skipped.
    """
    if run.failures or run.crashes or run.reason is not None:
        return None
    if options.window is not None and not is_open(options.window, now):
        return Skipped("outside_time_window")
    if options.start_deadline is not None and now > run.due_at + options.start_deadline:
        return Skipped("start_deadline")
    return None


def started_event(run: Run) -> Event:
    """Return the `RunStarted` event of a claimed run, to publish it here: the store wrote it but did not return it."""
    return RunStarted(
        at=run.started_at or 0,
        ns=run.ns,
        run_id=run.id,
        schedule_id=run.schedule_id,
        n=run.n,
        epoch=run.epoch,
        attempt=run.attempt,
        owner=run.owner,
    )
