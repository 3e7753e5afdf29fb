"""Fast path of `apply` for fires planned and claimed in one commit: their rows are written once, as running."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from mainspring.backends.change_batches import IndexedChanges
from mainspring.backends.sqlite import apply_sql as sql
from mainspring.backends.sqlite.claim import append_started, enter_gates, make_claims, next_ready
from mainspring.backends.sqlite.database import Database
from mainspring.backends.sqlite.fast.advance_schedules import Plans, match_plans, scheduled_event_row
from mainspring.backends.sqlite.rows import INSERT_RUNNING_RUNS, pack
from mainspring.model.change import Result, ScheduleAt
from mainspring.model.gate import can_claim_ahead
from mainspring.model.instant import Ms
from mainspring.model.run import Run, State
from mainspring.ports.store import Claimed, ClaimRequest


class FastPathMissed(Exception):
    """Failure of `plan_and_claim`: a schedule could not be advanced, or a run exists already.

    A schedule is not advanced if its plan's guard does not hold, if it is touched, or if the plan changes columns that
    `MOVE_SCHEDULES` does not write. Other rows may be written by then: `apply` rolls the transaction back and writes
    the batch without this fast path.
    """


def plan_and_claim(
    db: Database,
    changes: IndexedChanges,
    results: list[Result],
    mark: int,
    wall: Ms,
    lease_now: Ms,
    claim_request: ClaimRequest,
) -> Claimed | None:
    """Write a batch of plans and claim the runs of their fires, if a claim would take just these runs next.

    Set the `results` of the changes and return the claims. `mark`: the number for the column `mark` of the rows.
    `wall`: the present time. `lease_now`: the present time by the clock of leases.

    Write nothing and return None in these cases:

    - A change is not a plan or finishes its schedule, or two plans are of one schedule.
    - There are no fires, or more than requested.
    - A run has more values than a new run, does not fit the request, or is refused by a gate.
    - The request could take another run now.

    Raises: `FastPathMissed` if a schedule cannot be advanced, or if a run exists already.
    """
    offer = claim_request.offer
    plans = match_plans(db, changes, mark)
    if plans is None or plans.finished or not plans.runs:
        return None
    runs = [run for _, change in changes for run in change.runs]
    if len(runs) > claim_request.limit or not all(_fits_request(run, claim_request, wall) for run in runs):
        return None
    next_at = next_ready(db, pack(offer.lanes), pack(offer.tasks))
    if next_at is not None and next_at <= wall + offer.ahead:
        return None  # other runs wait already
    names = [name for run in runs for name in run.gates]
    if names and not enter_gates(db, names, wall):
        return None
    lease_until = lease_now + offer.ttl
    first = _write_rows(db, plans, mark, wall, offer.owner, lease_until)
    db.run_rows(sql.INSERT_SCHEDULED_EVENTS, _scheduled_event_rows(changes, first), wall)
    db.reach("apply:after_events")
    db.reach("claim:begin")
    taken = sorted(enumerate(runs, first), key=lambda one: (one[1].priority, one[1].ready_at, one[1].id))
    rids = [rid for rid, _ in taken]
    append_started(db, pack(rids))
    db.moved_schedules += len(changes)
    for index, change in changes:
        results[index] = Result("accepted", change.guard.n if isinstance(change.guard, ScheduleAt) else 0)
    started = [_as_running(run, wall, lease_until, offer.owner) for _, run in taken]
    return Claimed(wall, make_claims(db, started, rids), next_at)


def _write_rows(db: Database, plans: Plans, mark: int, wall: Ms, owner: str, lease_until: Ms) -> int:
    """Advance the schedules and insert the runs as running; return the first run's row number.

    `mark`: the number for the column `mark` of the rows. `wall`: the present time. `owner` and `lease_until`: the
    worker that claims the runs, and the end of its leases. Raises: `FastPathMissed` if a schedule cannot be advanced,
    or if a run exists already.
    """
    if db.run_rows(sql.MOVE_SCHEDULES, plans.moved, mark) < len(plans.moved):
        raise FastPathMissed
    db.reach("apply:after_guard")
    if db.run_rows(INSERT_RUNNING_RUNS, plans.runs, wall, owner, lease_until) < len(plans.runs):
        raise FastPathMissed
    last: int = db.value("SELECT last_insert_rowid()")
    db.reach("apply:after_rows")
    return last - len(plans.runs) + 1


def _fits_request(run: Run, claim_request: ClaimRequest, wall: Ms) -> bool:
    """Return True if the run waits in the request's lane with one of its tasks, and is due or may be claimed ahead.

    `wall`: the present time.
    """
    offer = claim_request.offer
    if run.state is not State.WAITING or run.lane != offer.lanes[0] or run.task not in offer.tasks:
        return False
    return run.ready_at <= wall or (run.ready_at <= wall + offer.ahead and can_claim_ahead(run.gates, 0))


def _scheduled_event_rows(changes: IndexedChanges, first: int) -> list[tuple[Any, ...]]:
    """Return rows for `INSERT_SCHEDULED_EVENTS`, one for each run. `first`: the row number of the first run."""
    rows: list[tuple[Any, ...]] = []
    for _, change in changes:
        for event in change.events:
            rows.append(scheduled_event_row(event, change, first + len(rows)))
    return rows


def _as_running(run: Run, wall: Ms, lease_until: Ms, owner: str) -> Run:
    """Return the new run with the values that its row has been given: running, under a lease until `lease_until`.

    `wall`: the present time. `owner`: the worker that holds the lease.
    """
    return replace(
        run,
        state=State.RUNNING,
        n=2,
        epoch=1,
        attempt=1,
        created_at=wall,
        started_at=max(wall, run.ready_at),
        owner=owner,
        lease_until=lease_until,
    )
