"""Retention on Redis: all data is in memory, so history is short by default and ended runs have a maximum."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mainspring import Mainspring
from mainspring.app.internals import host_of
from mainspring.backends.redis import RedisStore
from mainspring.backends.redis.scripts import Script
from mainspring.model.change import Change, RunAt
from mainspring.model.events import LogCompacted, RunCancelled
from mainspring.model.retention import Purged, Retention
from mainspring.model.run import Run, State
from mainspring.ports.store import Events, Runs, Schedules, Tallies
from mainspring.testing.contract.factories import (
    T0,
    Ids,
    create_schedule_change,
    enqueue_change,
    make_run,
    make_schedule,
    plan_change,
)
from servers.for_tests_redis import fresh_url

HOUR = 3_600_000
pytestmark = pytest.mark.tampers  # rows are written that no log could rebuild


async def open_store() -> RedisStore:
    store = RedisStore(fresh_url())
    await store.open()
    return store


async def test_purge_removes_the_longest_ended_runs_down_to_the_maximum() -> None:
    store, ids = await open_store(), Ids()
    for number in range(30):
        run = make_run(ids, state=State.FAILED if number % 10 == 0 else State.SUCCEEDED, dead=number % 10 == 0)
        await store.apply([enqueue_change(ids, run)], now=T0 + number)
    policy = Retention(ended_before=0, at_most=10)
    answers = [await store.purge(policy, 12, now=T0 + 99) for _ in range(3)]
    assert [(answer.runs, answer.more) for answer in answers] == [(12, True), (5, False), (0, False)]
    left = await store.find(Runs(oldest_first=True))
    assert sum(run.dead for run in left) == 3  # dead letters stay, and do not count
    assert [run.created_at - T0 for run in left if not run.dead] == [19, *range(21, 30)]
    assert (await store.purge(Retention(ended_before=T0 + 22, at_most=100), 99, now=T0 + 99)).runs == 2
    await store.close()


async def test_purge_leaves_no_keys_of_removed_runs() -> None:
    """After every run was removed, the keys are those of an empty store: no row, payload, event or index is left."""
    store, ids = await open_store(), Ids()
    await store.apply([enqueue_change(ids, make_run(ids), body='"x"') for _ in range(5)], now=T0)
    (before,) = await store._db.run_commands(("KEYS", f"{store._db.key_prefix}*"))
    for run in await store.find(Runs()):
        await store.apply([cancelled(ids, run)], now=T0 + 1)
    purged = await store.purge(Retention(ended_before=T0 + 2), 99, now=T0 + 3)
    assert (purged.runs, purged.events, purged.bodies) == (5, 10, 1)
    (after,) = await store._db.run_commands(("KEYS", f"{store._db.key_prefix}*"))
    names = sorted(key.decode().removeprefix(store._db.key_prefix) for key in after)
    assert names == ["blocks", "compacted", "log:0", "notes", "seq", "tallied", "tally:"]
    assert len(before) > len(after)
    await store.close()


def cancelled(ids: Ids, run: Run) -> Change:
    event = RunCancelled(run_id=run.id, reason="user")
    return Change(id=ids.change(), guard=RunAt(run.id, run.n), run=replace(run, state=State.CANCELLED), events=(event,))


async def test_a_schedule_planned_during_a_purge_is_left_for_the_next_purge(monkeypatch: pytest.MonkeyPatch) -> None:
    store, ids = await open_store(), Ids()
    busy, idle = make_schedule(ids), make_schedule(ids)
    await store.apply([create_schedule_change(ids, one) for one in (busy, idle)], now=T0)
    for one in await store.find(Schedules()):
        await store.apply([plan_change(ids, one, [T0 + 1_000], state=State.SKIPPED)], now=T0 + 1_000)
    write = store._db.run_write
    planned = False

    async def plan_before_purge(script: Script, *words: Any) -> Any:
        nonlocal planned
        if script.name == "purge" and not planned:
            planned = True
            (row,) = await store.find(Schedules(id=busy.id))
            await store.apply([plan_change(ids, row, [T0 + 2_000])], now=T0 + 2_000)
        return await write(script, *words)

    monkeypatch.setattr(store._db, "run_write", plan_before_purge)
    policy = Retention(ended_before=T0 + HOUR)
    first = await store.purge(policy, 99, now=T0 + 3_000)
    assert (first.runs, first.more) == (1, True)
    assert {run.schedule_id for run in await store.find(Runs())} == {busy.id}
    second = await store.purge(policy, 99, now=T0 + 4_000)
    assert (second.runs, second.more) == (1, False)
    assert [row.count for row in await store.find(Tallies())] == [1, 1]
    notes = await store.find(Events(types=("LogCompacted",)))
    assert [note.streams for note in notes if isinstance(note, LogCompacted)] == [1, 1]
    await store.close()


@pytest.mark.parametrize(("history", "hours", "most"), [(None, 24, 200_000), ("7d", 168, None)])
async def test_history_is_a_day_or_200_000_runs_by_default(
    history: str | None, hours: int, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Retention] = []

    async def purge(self: RedisStore, policy: Retention, limit: int, *, now: int | None = None) -> Purged:
        asked.append(policy)
        return Purged()

    monkeypatch.setattr(RedisStore, "purge", purge)
    ms = Mainspring(fresh_url(), history=history)
    async with ms.running():
        await host_of(ms).call(lambda runtime: runtime.keeper.retain())
        now = host_of(ms).now()
    policy = next(one for one in asked if one.ended_before)
    assert abs(now - policy.ended_before - hours * HOUR) < 60_000
    assert policy.at_most == most
