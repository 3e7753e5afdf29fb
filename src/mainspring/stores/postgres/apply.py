"""The one write: what a batch mostly holds goes in one statement, everything else in a transaction of a few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from mainspring.model.change import Change, Result, RunAbsent, RunAt, RunLease, ScheduleAbsent, ScheduleAt
from mainspring.model.events import Event, RunEvent, ScheduleEvent
from mainspring.model.instant import Ms
from mainspring.model.run import ENDED, Run
from mainspring.ports.store import Applied, Claimed, Wish
from mainspring.stores.batch import Indexed, independent
from mainspring.stores.postgres import apply_sql as sql
from mainspring.stores.postgres.births import births
from mainspring.stores.postgres.claim import claim, claim_here
from mainspring.stores.postgres.database import Database, Session
from mainspring.stores.postgres.explain import explain
from mainspring.stores.postgres.plans import plans
from mainspring.stores.postgres.rows import (
    EVENT_COLUMNS,
    INSERT_EVENTS,
    INSERT_RUNS,
    NOW,
    RUN_COLUMNS,
    STATE_TEXT,
    arrays,
    body_rows,
    event_row,
    plain_text,
    run_row,
    schedule_values,
)
from mainspring.stores.postgres.successes import part, successes

#: A change sent again is looked for this far back, in milliseconds.
_RECENT = 600_000


async def apply(db: Database, changes: Sequence[Change], wish: Wish | None, now: Ms | None, again: bool) -> Applied:
    """One transaction for the batch; each change all or nothing. `again`: it may have been committed before."""
    if not changes:
        if wish is None:
            async with db.reading() as session:
                return Applied(await session.value(f"SELECT {NOW}", db.now(now)), [])
        claimed = await claim(db, wish.offer, wish.limit, (), now)
        return Applied(claimed.now, [], claimed)
    db.reach("apply:begin")
    if not again:
        applied = await successes(db, changes, wish, now)
        if applied is not None:
            return applied
        apart = await _apart(db, changes, wish, now)
        if apart is not None:
            return apart
    results: list[Result] = [Result("refused")] * len(changes)
    born = None if again else births(changes) or plans(changes)
    if born is not None and wish is None:
        async with db.single("apply") as session:
            wall, refused = await born.write(session, results, db.now(now))
        if refused:
            async with db.reading() as session:
                await explain(session, refused, results)
        return Applied(wall, results)
    claimed_here: Claimed | None = None
    async with db.transaction("apply") as session:
        if born is not None:
            wall, refused = await born.write(session, results, db.now(now))
            if refused:
                await explain(session, refused, results)
        else:
            wall = (await session.row(sql.BEGIN, db.now(now)))["now"]
            rest: Indexed = list(enumerate(changes))
            if again:
                rest = await _not_yet(session, rest, results, wall)
            for part in independent(rest):
                await _Writer(db, session, wall, results).write(part)
        if wish is not None:
            claimed_here = await claim_here(db, session, wish.offer, wish.limit, (), wall)
    for change in changes if db.claimed else ():
        if isinstance(change.guard, RunLease):
            ended = db.claimed.get(change.guard.id)
            if ended is not None and ended.epoch == change.guard.epoch:  # not one that was claimed again just now
                del db.claimed[change.guard.id]
    return Applied(wall, results, claimed_here)


async def _apart(db: Database, changes: Sequence[Change], wish: Wish | None, now: Ms | None) -> Applied | None:
    """Ends and fresh runs in one batch: each by its short way, one commit after the other."""
    parts = part(db, changes)
    if parts is None:
        return None
    ended, others = ([changes[place] for place in places] for places in parts)
    if births(others) is None and plans(others) is None:
        return None
    first = await successes(db, ended, None, now)
    if first is None:
        return None
    second = await apply(db, others, wish, now, again=False)
    results: list[Result] = [Result("refused")] * len(changes)
    for places, applied in zip(parts, (first, second), strict=True):
        for place, result in zip(places, applied.results, strict=True):
            results[place] = result
    return Applied(second.now, results, second.claimed)


async def _not_yet(session: Session, changes: Indexed, results: list[Result], wall: Ms) -> Indexed:
    """Of changes sent again, those that are not stored; a guard tells by itself, the rest is asked for by its id."""
    free = [(index, change) for index, change in changes if change.guard is None]
    wrote = [(index, run.id, change.id) for index, change in free for run in change.runs]
    found = {row["idx"] for row in await session.fetch(sql.WROTE, *arrays(wrote, 3))} if wrote else set()
    notes = [change.id for _, change in free if change.events]
    noted = {row["change"] for row in await session.fetch(sql.NOTED, notes, wall - _RECENT)} if notes else set()
    rest: Indexed = []
    for index, change in changes:
        if change.guard is None and (index in found or change.id in noted):
            results[index] = Result("repeated")
        else:
            rest.append((index, change))
    return rest


class _Writer:
    """One part of a batch: guards first, then what the changes whose guard held bring along, then their events."""

    def __init__(self, db: Database, session: Session, wall: Ms, results: list[Result]) -> None:
        self._db = db
        self._session = session
        self._wall = wall
        self._results = results
        #: By place in the batch: the number the guarded row's stream is at.
        self._accepted: dict[int, int] = {}

    async def write(self, part: Indexed) -> None:
        await self._guard(part)
        self._db.reach("apply:after_guard")
        holding = [(index, change) for index, change in part if index in self._accepted]
        born = await self._write_rows(holding)
        self._db.reach("apply:after_rows")
        await self._append_events(holding, born)
        self._db.reach("apply:after_events")
        for index, change in holding:
            n = 0 if isinstance(change.guard, RunLease) else self._accepted[index]
            self._results[index] = Result("accepted", n)
        if len(holding) < len(part):
            lost = [(index, change) for index, change in part if index not in self._accepted]
            await explain(self._session, lost, self._results)

    async def _guard(self, part: Indexed) -> None:
        moves: list[list[Any]] = []
        absent: list[list[Any]] = []
        at: list[list[Any]] = []
        created: list[list[Any]] = []
        places: dict[str, int] = {}
        for index, change in part:
            guard = change.guard
            if isinstance(guard, RunLease | RunAt):
                moves.append(_move(index, change, guard))
            elif isinstance(guard, RunAbsent):
                run = change.run
                assert run is not None, "a guard on a run needs the run's values"
                places[run.id] = index
                absent.append(self._new_run(run, _moves(change.events, run.id)))
            elif isinstance(guard, ScheduleAt):
                at.append(_schedule_at(index, change, guard))
            elif isinstance(guard, ScheduleAbsent):
                schedule = change.schedule
                assert schedule is not None, "a guard on a schedule needs the schedule's values"
                places[schedule.id] = index
                created.append([schedule.id, _schedule_moves(change, schedule.id), *schedule_values(schedule)])
            else:
                self._accepted[index] = 0
        session, wall, accepted = self._session, self._wall, self._accepted
        if moves:
            moves.sort(key=lambda row: row[1])  # rows are locked in the order of ids
            rows = await session.fetch(sql.MOVE_RUNS, wall, *arrays(moves, len(sql.MOVE_COLUMNS)))
            accepted.update((row["idx"], row["n"]) for row in rows)
        if at:
            at.sort(key=lambda row: row[1])
            rows = await session.fetch(sql.MOVE_SCHEDULES, wall, *arrays(at, len(sql.SCHEDULE_AT_COLUMNS)))
            accepted.update((row["idx"], row["n"]) for row in rows)
        if created:
            numbers = {row[0]: row[1] for row in created}
            rows = await session.fetch(sql.INSERT_SCHEDULES, wall, *arrays(created, len(sql.NEW_SCHEDULE_COLUMNS)))
            accepted.update((places[row["id"]], numbers[row["id"]]) for row in rows)
        if absent:
            rows = await session.fetch(INSERT_RUNS, *arrays(absent, len(RUN_COLUMNS)))
            change_of = dict(part)
            for row in rows:
                index = places[row["id"]]
                accepted[index] = _moves(change_of[index].events, row["id"])

    def _new_run(self, run: Run, moves: int) -> list[Any]:
        return run_row(run, moves, self._wall, self._wall if run.state in ENDED else None)

    async def _write_rows(self, holding: Indexed) -> set[str]:
        """Everything a change brings beside its guarded row; the ids of the runs that were not there before."""
        runs: list[list[Any]] = []
        spans: list[Any] = []
        gates: dict[str, Any] = {}
        touches: Counter[str] = Counter()
        releases: Counter[str] = Counter()
        for _, change in holding:
            if change.runs:
                moves = Counter(event.run_id for event in change.events if isinstance(event, RunEvent))
                runs += [self._new_run(run, moves[run.id]) for run in change.runs]
            spans += [msgspec.structs.astuple(span) for span in change.spans]
            for gate in change.gates:
                first = gates.get(gate.name)
                held, closed = (gate.held, gate.closed_until) if first is None else first[2:]
                gates[gate.name] = (gate.name, gate.max, held, closed)
            touches.update(change.touches)
            releases.update(change.releases)
        session = self._session
        bodies = body_rows(body for _, change in holding for body in change.bodies)
        if bodies:
            await session.fetch(sql.INSERT_BODIES, *arrays(bodies, 2))
        if gates:
            await session.fetch(sql.UPSERT_GATES, *arrays([gates[name] for name in sorted(gates)], 4))
        born: set[str] = set()
        if runs:
            rows = await session.fetch(INSERT_RUNS, *arrays(runs, len(RUN_COLUMNS)))
            born = {row["id"] for row in rows}
        if spans:
            await session.fetch(sql.INSERT_SPANS, *arrays(spans, len(sql.SPAN_COLUMNS)))
        if touches:
            await session.fetch(sql.TOUCH_SCHEDULES, *arrays(sorted(touches.items()), 2))
        if releases:
            await session.fetch(sql.RELEASE_GATES, *arrays(sorted(releases.items()), 2))
        return born

    async def _append_events(self, holding: Indexed, born: set[str]) -> None:
        rows: list[tuple[Any, ...]] = []
        for index, change in holding:
            guarded = change.guard.id if change.guard is not None else None
            numbers: dict[str | None, int] = {}
            if guarded is not None and change.events:
                own = sum(_is_move_of(event, guarded) for event in change.events)
                numbers[guarded] = self._accepted[index] - own
            for event in change.events:
                n: int | None = None
                if isinstance(event, RunEvent):
                    if event.run_id != guarded and event.run_id not in born:
                        continue
                    n = numbers[event.run_id] = numbers.get(event.run_id, 0) + 1
                elif isinstance(event, ScheduleEvent):
                    n = numbers[event.schedule_id] = numbers.get(event.schedule_id, 0) + 1
                rows.append(event_row(event, change.id, n))
        if rows:
            await self._session.fetch(INSERT_EVENTS, self._wall, *arrays(rows, len(EVENT_COLUMNS)))


def _move(index: int, change: Change, guard: RunLease | RunAt) -> list[Any]:
    run = change.run
    assert run is not None, "a guard on a run needs the run's values"
    leased = isinstance(guard, RunLease)
    return [
        index,
        guard.id,
        guard.epoch if isinstance(guard, RunLease) else None,
        guard.n if isinstance(guard, RunAt) else None,
        _moves(change.events, guard.id),
        STATE_TEXT[run.state],
        run.ready_at,
        run.failures,
        run.crashes,
        plain_text(run.reason),
        plain_text(run.result),
        plain_text(run.error),
        run.began_at,
        run.ms,
        run.dead,
        None if leased else plain_text(run.cancel),
        None if leased else run.body,
        run.ns,
        run.unique_key,
    ]


def _schedule_at(index: int, change: Change, guard: ScheduleAt) -> list[Any]:
    schedule = change.schedule
    assert schedule is not None, "a guard on a schedule needs the schedule's values"
    moves = _schedule_moves(change, guard.id)
    seen = (guard.revision, guard.cursor, guard.n, guard.touched)
    return [index, guard.id, moves, *schedule_values(schedule), *seen]


def _schedule_moves(change: Change, schedule_id: str) -> int:
    return sum(isinstance(event, ScheduleEvent) and event.schedule_id == schedule_id for event in change.events)


def _moves(events: tuple[Event, ...], run_id: str) -> int:
    return sum(isinstance(event, RunEvent) and event.run_id == run_id for event in events)


def _is_move_of(event: Event, row_id: str) -> bool:
    return (isinstance(event, RunEvent) and event.run_id == row_id) or (
        isinstance(event, ScheduleEvent) and event.schedule_id == row_id
    )
