"""SQLite's fast paths of `apply` answer and write the same as the general way."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mainspring.backends.sqlite import apply as module
from mainspring.backends.sqlite.store import SqliteStore
from mainspring.model.change import Body, Change, Result
from mainspring.model.events import ScheduleFinished
from mainspring.model.ids import IdFactory, body_id
from mainspring.model.schedule import Origin, ScheduleSpec
from mainspring.model.trigger import AtSpec, EverySpec
from mainspring.rules.planning import OpenRuns, settle
from mainspring.rules.schedule_commands import create, pause
from mainspring.testing.contract.factories import Ids, enqueue_change, make_run
from tests.backends.bulks import bulk_change, mixed_bulks

NOW = 1_700_000_000_000
BODY = Body(body_id(b'{"k":{"x":1}}'), '{"k":{"x":1}}')
TABLES = ("schedule", "event", "gate", "body", "run", "span")


def creations(names: Sequence[str]) -> list[Change]:
    """Return changes that create schedules with gates, bodies, ends and texts of all kinds."""
    ids = IdFactory(random.Random(7))
    changes = []
    for number, name in enumerate(names):
        trigger: Any = EverySpec(1_000 + number) if number % 3 else AtSpec((NOW + 5_000 + number,))
        spec = ScheduleSpec(
            trigger=trigger,
            task="tâche",
            body=BODY.id if number % 2 else None,
            overlap="allow_parallel" if number % 5 == 0 else "forbid",
            end=NOW + 10_000_000 if number == 4 else None,
        )
        origin: Origin = "code" if number % 7 == 3 else "api"
        author: dict[str, str] = {"by": "code@1", "app": "shop", "version": "1"} if origin == "code" else {"by": "api"}
        now = NOW + number // 100
        digest = f"d{number}" if number % 11 else ""
        draft = create(ids.uuid7(NOW), "default", name, spec, now, origin=origin, digest=digest, **author)
        if number % 2:
            draft.bodies.append(BODY)
        changes.append(draft.change(ids.uuid7(NOW)))
    return changes


async def written(
    path: Path, batches: Sequence[Sequence[Change]], *, short: bool, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[list[Result]], dict[str, list[Any]], int]:
    """Apply the batches to a new store, with or without the fast path of new schedules.

    Returns the answers, every row of every table, and how many batches took that path.
    """
    taken = 0

    def new_schedules(*args: Any) -> bool:
        nonlocal taken
        done = short and original(*args)
        taken += done
        return done

    original = module.insert_schedules
    with monkeypatch.context() as patched:
        patched.setattr(module, "insert_schedules", new_schedules)
        store = SqliteStore(str(path))
        await store.open()
        answers = [(await store.apply(batch, now=NOW)).results for batch in batches]
        dump = {table: [[v for k, v in row if k != "mark"] for row in rows(store, table)] for table in TABLES}
        await store.close()
    return answers, dump, taken


def rows(store: SqliteStore, table: str) -> list[list[tuple[str, Any]]]:
    cursor = store._db.connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2")
    names = [column[0] for column in cursor.description]
    return [list(zip(names, row, strict=True)) for row in cursor.fetchall()]


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c", "d"], [f"schedule {i}" for i in range(700)]])
async def test_both_ways_of_creating_schedules_write_the_same_rows(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [creations(names)]
    short = await written(tmp_path / "short.db", batches, short=True, monkeypatch=monkeypatch)
    long = await written(tmp_path / "long.db", batches, short=False, monkeypatch=monkeypatch)
    assert short[:2] == long[:2]
    assert short[2] == 1


async def test_one_taken_name_sends_the_batch_the_long_way_which_refuses_only_that_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *later = creations(["a", "b", "c", "a"])
    batches = [[first], later]
    short = await written(tmp_path / "short.db", batches, short=True, monkeypatch=monkeypatch)
    long = await written(tmp_path / "long.db", batches, short=False, monkeypatch=monkeypatch)
    assert short[:2] == long[:2]
    assert [result.status for result in short[0][1]] == ["accepted", "accepted", "refused"]
    assert short[2] == 1, "only the first batch"


async def test_of_two_schedules_with_one_name_in_a_batch_the_first_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, dump, taken = await written(
        tmp_path / "one.db", [creations(["a", "b", "a"])], short=True, monkeypatch=monkeypatch
    )
    assert [result.status for result in answers[0]] == ["accepted", "accepted", "refused"]
    assert (len(dump["schedule"]), taken) == (2, 0)


async def test_a_batch_sent_again_is_answered_as_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = creations(["a", "b", "c"])
    answers, dump, _ = await written(tmp_path / "one.db", [batch, batch], short=True, monkeypatch=monkeypatch)
    assert [result.status for result in answers[1]] == ["repeated"] * 3
    assert len(dump["event"]) == 3


# ── plans ───────────────────────────────────────────────────────────────────


def planned(created: Sequence[Change], now: int) -> list[Change]:
    """Return the settler's plans of these schedules at an instant: they advance, and some finish."""
    ids = IdFactory(random.Random(8))
    drafts = [settle(change.schedule, OpenRuns(), now) for change in created if change.schedule is not None]
    return [draft.change(ids.uuid7(now)) for draft in drafts if draft.runs]


async def with_plans(
    path: Path, batches: Sequence[Sequence[Change]], *, short: bool, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[list[Result]], dict[str, list[Any]], int]:
    taken = 0

    def plans(db: Any, changes: Any, *args: Any) -> Any:
        nonlocal taken
        rest = original(db, changes, *args) if short else changes
        taken += len(changes) - len(rest)
        return rest

    original = module.advance_schedules
    with monkeypatch.context() as patched:
        patched.setattr(module, "advance_schedules", plans)
        answers, dump, _ = await written(path, batches, short=True, monkeypatch=monkeypatch)
    return answers, dump, taken


@pytest.mark.parametrize("count", [2, 5, 300])
async def test_both_ways_of_advancing_schedules_write_the_same_rows(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = creations([f"s{number}" for number in range(count)])
    first = planned(created, NOW + 1_500)
    second = planned(first, NOW + 2_700)
    ends = planned([c for c in created if c.schedule and isinstance(c.schedule.spec.trigger, AtSpec)], NOW + 9_000)
    batches = [created, [*ends[::2], *first, *ends[1::2]], second]
    short = await with_plans(tmp_path / "short.db", batches, short=True, monkeypatch=monkeypatch)
    long = await with_plans(tmp_path / "long.db", batches, short=False, monkeypatch=monkeypatch)
    assert short[:2] == long[:2]
    assert (short[2], long[2]) == (len(first) + len(second) + len(ends), 0)
    assert len(second) > 0
    assert all(isinstance(change.events[-1], ScheduleFinished) for change in ends)
    assert len(ends) > 0


async def test_only_the_plan_of_a_schedule_changed_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = creations([f"s{number}" for number in range(9)])
    plans = planned(created, NOW + 1_500)
    other = plans[1].schedule
    assert other is not None
    before = next(change.schedule for change in created if change.schedule and change.schedule.id == other.id)
    paused = pause(before, OpenRuns(), NOW, reason="by hand").change("p")
    batches = [created, [paused], plans]
    short = await with_plans(tmp_path / "short.db", batches, short=True, monkeypatch=monkeypatch)
    long = await with_plans(tmp_path / "long.db", batches, short=False, monkeypatch=monkeypatch)
    assert short[0] == long[0]
    assert [result.status for result in short[0][2]].index("refused") == 1
    assert short[2] == len(plans) - 1
    same = ("schedule", "gate", "body", "span")
    assert {table: short[1][table] for table in same} == {table: long[1][table] for table in same}
    for table, number in (
        ("run", 0),
        ("event", 4),
    ):  # only the row numbers of runs differ: one was used and rolled back
        assert _without(short[1][table], number) == _without(long[1][table], number)


def _without(rows: list[list[Any]], column: int) -> list[list[Any]]:
    return [row[:column] + row[column + 1 :] for row in rows]


async def test_plans_sent_again_are_answered_as_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    created = creations(["a", "b", "c"])
    plans = planned(created, NOW + 1_500)
    answers, dump, taken = await with_plans(
        tmp_path / "one.db", [created, plans, plans], short=True, monkeypatch=monkeypatch
    )
    assert [result.status for result in answers[2]] == ["repeated"] * len(plans)
    assert len(dump["run"]) == sum(len(change.runs) for change in plans)
    assert taken == len(plans)


# ── rows that exist already ───────────────────────────────────────────────────


@pytest.mark.parametrize("there", [0, 1, 3, 5])
async def test_a_fire_that_exists_already_does_not_undo_others_of_its_batch(there: int, tmp_path: Path) -> None:
    """Rows that INSERT OR IGNORE skips use up row numbers, so inserted rows cannot be found by their number alone."""
    created = creations([f"s{number}" for number in range(10)])
    plans = planned(created, NOW + 1_500)
    store = SqliteStore(tmp_path / "one.db")
    await store.open()
    await store.apply(created, now=NOW)
    first = await store.apply([plans[there]], now=NOW + 1_500)
    again = await store.apply(plans, now=NOW + 1_501)
    assert [result.status for result in first.results] == ["accepted"]
    assert [result.status for result in again.results] == [
        "repeated" if number == there else "accepted" for number in range(len(plans))
    ]
    rows = store._db.connection.execute(
        "SELECT r.id, (SELECT count(*) FROM event e WHERE e.rid = r.rid) FROM run r ORDER BY r.id"
    ).fetchall()
    assert rows == sorted((run.id, 1) for plan in plans for run in plan.runs)
    await store.close()


@pytest.mark.parametrize("there", [0, 1, 3])
async def test_a_run_that_exists_already_does_not_undo_others_of_its_batch(there: int, tmp_path: Path) -> None:
    ids = Ids()
    runs = [make_run(ids) for _ in range(5)]
    store = SqliteStore(tmp_path / "one.db")
    await store.open()
    await store.apply([enqueue_change(ids, runs[there])], now=NOW)
    again = await store.apply([enqueue_change(ids, run) for run in runs], now=NOW)
    assert [result.status for result in again.results] == [
        "refused" if number == there else "accepted" for number in range(5)
    ]
    rows = store._db.connection.execute(
        "SELECT r.id, (SELECT count(*) FROM event e WHERE e.rid = r.rid) FROM run r ORDER BY r.id"
    ).fetchall()
    assert rows == sorted((run.id, 1) for run in runs)
    await store.close()


@pytest.mark.parametrize("count", [1, 2, 40])
async def test_both_ways_of_inserting_runs_write_the_same_rows(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = Ids()
    made = [
        enqueue_change(
            ids, make_run(ids, task=f"tâche {i}", origin="enqueue", gates=("g",) if i % 3 else ()), body=body
        )
        for i, body in zip(range(40), ['{"k":{"x":1}}', None] * 20, strict=True)
    ]
    batches = [made[start : start + count] for start in range(0, 40, count)]
    short = await written(tmp_path / "short.db", batches, short=True, monkeypatch=monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(module, "insert_runs", lambda *args: False)
        long = await written(tmp_path / "long.db", batches, short=True, monkeypatch=monkeypatch)
    assert short == long
    assert len(short[1]["run"]) == 40


async def test_both_ways_of_inserting_many_runs_in_one_change_write_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = Ids()
    batches = [[bulk_change(ids, runs, bodies)] for runs, bodies in mixed_bulks(ids)]
    batches.append([bulk_change(ids, runs, bodies) for runs, bodies in mixed_bulks(ids)])
    taken: list[bool] = []

    def births(*args: Any) -> bool:
        taken.append(original(*args))
        return taken[-1]

    original = module.insert_runs
    with monkeypatch.context() as patched:
        patched.setattr(module, "insert_runs", births)
        short = await written(tmp_path / "short.db", batches, short=True, monkeypatch=monkeypatch)
        patched.setattr(module, "insert_runs", lambda *args: False)
        patched.setattr(module, "insert_run", lambda *args: None)
        long = await written(tmp_path / "long.db", batches, short=True, monkeypatch=monkeypatch)
    assert short == long
    assert taken == [True] * (len(batches) - 1), "a single run has a fast path of its own"
    assert len(short[1]["run"]) == len(short[1]["event"]) == 2 * sum(len(runs) for runs, _ in mixed_bulks(ids))


async def test_a_single_run_that_exists_already_is_refused(tmp_path: Path) -> None:
    ids = Ids()
    run = make_run(ids)
    store = SqliteStore(tmp_path / "one.db")
    await store.open()
    change = enqueue_change(ids, run)
    answers = [(await store.apply([each], now=NOW)).results[0] for each in (change, change, enqueue_change(ids, run))]
    assert [answer.status for answer in answers] == ["accepted", "repeated", "refused"]
    assert len(rows(store, "run")) == len(rows(store, "event")) == 1
    await store.close()
