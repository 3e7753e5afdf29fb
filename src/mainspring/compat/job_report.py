"""Report of a job, which `Scheduler.run` returns: the job's state and its newest runs, read from the store."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct

from mainspring import Mainspring, State
from mainspring.app.internals import queries_of
from mainspring.model.events import FiresElided
from mainspring.model.instant import Ms, to_datetime
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule

#: State of an ended run → its status in a report. Skipped runs are not reported.
_STATUS: dict[State, Literal["success", "failed", "cancelled", "lost"]] = {
    State.SUCCEEDED: "success",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
    State.LOST: "lost",
}


class RunRecord(Struct, frozen=True, kw_only=True):
    """One run of a job that has ended."""

    run_id: str
    #: The time for which the run was planned.
    scheduled_at: datetime
    #: None if no attempt of the run succeeded or failed, for example if the run was cancelled.
    started_at: datetime | None
    finished_at: datetime
    #: True if the run made up for a missed fire.
    catch_up: bool
    status: Literal["success", "failed", "cancelled", "lost"]
    error: str | None = None


class JobState(Struct, frozen=True, kw_only=True):
    """State of a job when the report was made."""

    job_id: str
    #: Number of fires that count against the job's `max_runs`, those of earlier processes included.
    trigger_count: int
    #: `started_at` of the newest ended run; None if there is none.
    last_run_at: datetime | None = None
    #: When the newest successful run ended; None if there is none.
    last_success_at: datetime | None = None
    #: None if the job has ended or was stopped.
    next_run_at: datetime | None = None
    #: Error of the newest ended run; None if it has none.
    last_error: str | None = None


class SchedulerReport(Struct, frozen=True, kw_only=True):
    """Report of a job, which `Scheduler.run` returns."""

    job_id: str
    state: JobState
    #: The newest runs that have ended, oldest first; up to `history_limit` of the scheduler's configuration.
    history: list[RunRecord]
    #: Why the newest skipped fire did not run; None if no fire was skipped.
    last_skip_reason: str | None = None


async def report_of(app: Mainspring, schedule_id: str, history_limit: int) -> SchedulerReport:
    """Return the report of the job that has this schedule, with up to `history_limit` runs.

    It is read from the store, and so includes runs of earlier processes.
    """
    queries = queries_of(app)
    schedule = await queries.find_schedule(schedule_id)
    ended = await queries.find_runs(schedule=schedule.id, state=_STATUS, limit=max(1, history_limit))
    succeeded = await queries.find_runs(schedule=schedule.id, state="succeeded", limit=1)
    newest = ended[0] if ended else None
    return SchedulerReport(
        job_id=schedule.name,
        state=JobState(
            job_id=schedule.name,
            trigger_count=schedule.fired,
            last_run_at=None if newest is None else _instant(newest.began_at),
            last_success_at=_instant(succeeded[0].ended_at) if succeeded else None,
            next_run_at=_instant(schedule.next_at),
            last_error=None if newest is None else newest.error,
        ),
        history=[_record(run) for run in reversed(ended[:history_limit])],
        last_skip_reason=await _last_skip(app, schedule),
    )


async def _last_skip(app: Mainspring, schedule: Schedule) -> str | None:
    """Return why the newest skipped fire of a job did not run; None if no fire was skipped.

    A skipped fire is a run of its own in the state "skipped", or part of a span.
    """
    skipped = await queries_of(app).find_runs(schedule=schedule.id, state="skipped", limit=1)
    spans = await app.events(schedule=schedule.id, types=[FiresElided], limit=10_000)
    found = [(run.fire_time or 0, run.reason) for run in skipped]
    found += [(span.through, span.reason) for span in spans[-1:] if isinstance(span, FiresElided)]
    return max(found, key=lambda one: one[0])[1] if found else None


def _record(run: Run) -> RunRecord:
    """Return the record of an ended run for the report."""
    return RunRecord(
        run_id=run.id,
        scheduled_at=to_datetime(run.due_at if run.fire_time is None else run.fire_time),
        started_at=_instant(run.began_at),
        finished_at=to_datetime(run.ended_at or 0),
        catch_up=run.catch_up,
        status=_STATUS[run.state],
        error=run.error,
    )


def _instant(at: Ms | None) -> datetime | None:
    """Return an instant as a datetime in UTC; None for None."""
    return None if at is None else to_datetime(at)
