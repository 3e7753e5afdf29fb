"""Fires that are planned and claimed in one commit, by the shortest way: their rows are written once, as running."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from mainspring.model.change import Result, ScheduleAt
from mainspring.model.gate import may_be_early
from mainspring.model.instant import Ms
from mainspring.model.run import Run, State
from mainspring.ports.store import Claimed, Wish
from mainspring.stores.batch import Indexed
from mainspring.stores.sqlite import apply_sql as sql
from mainspring.stores.sqlite.claim import claims_of, next_ready, pass_gates, write_started
from mainspring.stores.sqlite.database import Database
from mainspring.stores.sqlite.plans import birth_row, plain_plan
from mainspring.stores.sqlite.rows import INSERT_BEGUN, is_fresh, pack


class Surprised(Exception):
    """A row is not as it was seen: the transaction has to be taken back, and the batch written the long way."""


def begun(
    db: Database, changes: Indexed, results: list[Result], mark: int, wall: Ms, lease_now: Ms, wish: Wish
) -> Claimed | None:
    """Write plain plans whose fires are just what `claim` would take next, and take them; None if they are not."""
    offer = wish.offer
    rows: list[list[Any]] = []
    moved: list[tuple[Any, ...]] = []
    for _, change in changes:
        row = plain_plan(db, change, rows, mark)
        if row is None or change.schedule is None or change.schedule.state == "finished":
            return None
        moved.append(row)
    runs = [run for _, change in changes for run in change.runs]
    if not runs or len({row[1] for row in moved}) < len(moved) or not all(map(is_fresh, rows)):
        return None
    if len(runs) > wish.limit or not all(_is_wished(run, wish, wall) for run in runs):
        return None
    lanes, tasks = pack(offer.lanes), pack(offer.tasks)
    next_at = next_ready(db, lanes, tasks)
    if next_at is not None and next_at <= wall + offer.ahead:
        return None  # somebody was there before
    names = [name for run in runs for name in run.gates]
    if names and not pass_gates(db, names, wall):
        return None
    if db.run_rows(sql.MOVE_SCHEDULES, moved, mark) < len(changes):
        raise Surprised
    db.reach("apply:after_guard")
    lease_until = lease_now + offer.ttl
    if db.run_rows(INSERT_BEGUN, rows, wall, offer.owner, lease_until) < len(rows):
        raise Surprised
    last: int = db.value("SELECT last_insert_rowid()")
    first = last - len(runs) + 1
    db.reach("apply:after_rows")
    db.run_rows(sql.BIRTHS, _births(changes, first), wall)
    db.reach("apply:after_events")
    db.reach("claim:begin")
    taken = sorted(enumerate(runs, first), key=lambda one: (one[1].priority, one[1].ready_at, one[1].id))
    rids = [rid for rid, _ in taken]
    write_started(db, pack(rids))
    db.moved += len(changes)
    for index, change in changes:
        results[index] = Result("accepted", change.guard.n if isinstance(change.guard, ScheduleAt) else 0)
    started = [_started(run, wall, lease_until, offer.owner) for _, run in taken]
    return Claimed(wall, claims_of(db, started, rids), next_at)


def _is_wished(run: Run, wish: Wish, wall: Ms) -> bool:
    offer = wish.offer
    if run.state is not State.WAITING or run.lane != offer.lanes[0] or run.task not in offer.tasks:
        return False
    return run.ready_at <= wall or (run.ready_at <= wall + offer.ahead and may_be_early(run.gates, 0))


def _births(changes: Indexed, first: int) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for _, change in changes:
        for event in change.events:
            rows.append(birth_row(event, change, first + len(rows)))
    return rows


def _started(run: Run, wall: Ms, lease_until: Ms, owner: str) -> Run:
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
