"""Several connections on one schema: notifications, locks, late events, and plans of prepared statements."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest

from mainspring.backends.postgres import PostgresStore, apply_sql, claim_sql, due, run_leases
from mainspring.backends.postgres.database import Session
from mainspring.backends.postgres.fast import insert_runs_sql
from mainspring.backends.remote.failures import WriteConflict
from mainspring.model.change import Change, Result
from mainspring.model.errors import StoreError
from mainspring.model.events import Event, InstanceJoined
from mainspring.model.gate import Gate
from mainspring.model.retention import Retention
from mainspring.model.run import Run, State
from mainspring.model.schedule import Schedule
from mainspring.ports.store import Agenda, Bodies, Events, Gates, Offer, Runs
from mainspring.testing.contract.factories import (
    T0,
    Ids,
    create_schedule_change,
    enqueue_change,
    finish_change,
    make_body,
    make_run,
    make_schedule,
)
from servers.for_tests import fresh_url

#: Rows are written past the rules, which no log could rebuild: not for `events verify`.
pytestmark = pytest.mark.tampers
OFFER = Offer("w", ("default/default",), ("t",), 30_000)


@pytest.fixture
def url() -> str:
    return fresh_url()


@pytest.fixture
async def stores(url: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    one, two = PostgresStore(url), PostgresStore(url)
    await one.open()
    await two.open()
    yield one, two
    await one.close()
    await two.close()


@pytest.fixture
def ids() -> Ids:
    return Ids()


def note(ids: Ids, name: str) -> Change:
    return Change(id=ids.change(), events=(InstanceJoined(instance=name),))


def instances(events: list[Event]) -> list[str]:
    return [event.instance for event in events if isinstance(event, InstanceJoined)]


async def test_the_tables_have_the_columns_of_the_model(stores: tuple[PostgresStore, ...]) -> None:
    store = stores[0]

    async def columns(table: str) -> set[str]:
        async with store._db.read_only() as session:
            rows = await session.fetch(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = $1 AND table_name = $2",
                store.settings.schema,
                table,
            )
        return {row[0] for row in rows}

    assert await columns("run") == {*Run.__struct_fields__, "held_until"}
    assert await columns("schedule") == {*Schedule.__struct_fields__, "body", "touched", "held_until"}


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not fact():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.005)


# ── hints ───────────────────────────────────────────────────────────────────


async def test_a_change_by_another_store_wakes_a_waiting_store(stores: tuple[PostgresStore, ...], ids: Ids) -> None:
    one, two = stores
    waiting = asyncio.create_task(two.wait(20.0))
    await until(lambda: two._notifications._connection is not None)
    await one.apply([enqueue_change(ids, make_run(ids))])
    assert await waiting


async def test_a_notification_between_two_waits_is_kept_and_own_notifications_are_ignored(
    stores: tuple[PostgresStore, ...], ids: Ids
) -> None:
    one, two = stores
    for store in stores:
        assert not await store.wait(0.01)
    await one.apply([enqueue_change(ids, make_run(ids))])
    assert await two.wait(20.0)
    assert not await one.wait(0.05)
    await two.apply([note(ids, "a note needs no action")])
    assert not await one.wait(0.05)


async def test_a_listener_that_was_cut_off_listens_again(
    stores: tuple[PostgresStore, ...], ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = stores
    assert not await two.wait(0.01)
    two._notifications._connection.terminate()
    two._notifications._retry_at = 0.0
    assert await two.wait(20.0), "a notification may have been sent meanwhile"
    await one.apply([enqueue_change(ids, make_run(ids))])
    assert await two.wait(20.0)


# ── late events ─────────────────────────────────────────────────────────────


async def test_a_log_cursor_skips_no_event_and_waits_for_no_transaction(
    stores: tuple[PostgresStore, ...], ids: Ids
) -> None:
    one, two = stores
    cursor = two.open_cursor()
    await one.apply([note(ids, "first")])
    assert instances(await cursor.read_events(10)) == ["first"]
    async with one._db.transaction("test") as slow:
        await _insert_note(slow, "slow")
        await two.apply([note(ids, "quick")])
        assert instances(await cursor.read_events(10)) == ["quick"], "a plain tail by the greatest number ends here"
        assert cursor.gaps == 1
        await two.apply([note(ids, "second")])
        assert instances(await cursor.read_events(10)) == ["second"]
    assert instances(await cursor.read_events(10)) == ["slow"]
    assert await cursor.read_events(10) == []
    assert cursor.gaps == 0
    assert instances(await two.tail(0, 10)) == ["first", "slow", "quick", "second"]


async def test_a_late_event_of_a_transaction_newer_than_all_ended_ones_is_returned(
    stores: tuple[PostgresStore, ...], ids: Ids
) -> None:
    """A snapshot lists open transactions only up to the newest that ended; this one is newer."""
    one, two = stores
    cursor = two.open_cursor()
    async with contextlib.AsyncExitStack() as open_one:
        async with two._db.transaction("test") as quick:
            await quick.row(apply_sql.BEGIN, None)
            slow = await open_one.enter_async_context(one._db.transaction("test"))
            await _insert_note(slow, "slow")
            await _insert_note(quick, "quick")
        assert instances(await cursor.read_events(10)) == ["quick"]
        assert await cursor.read_events(10) == []
        assert cursor.gaps == 1
    assert instances(await cursor.read_events(10)) == ["slow"]
    assert cursor.gaps == 0


async def test_a_cursor_opened_at_any_position_returns_all_later_events_once(
    stores: tuple[PostgresStore, ...], ids: Ids
) -> None:
    two = stores[1]
    changes = [[note(ids, f"{writer} {number}") for number in range(30)] for writer in range(4)]

    async def write(store: PostgresStore, mine: list[Change]) -> None:
        for change in mine:
            await store.apply([change])

    writing = asyncio.gather(*[write(stores[i % 2], mine) for i, mine in enumerate(changes)])
    seen: list[Event] = []
    place = "0"
    async with asyncio.timeout(30):
        while len(seen) < 120:
            steps = await two.open_cursor(place).read(7)
            taken = steps[: (len(steps) + 1) // 2]  # the reader stops in the middle of the batch
            seen += [event for _, event in taken]
            place = taken[-1][0] if taken else place
    await writing
    assert sorted(instances(seen)) == sorted(f"{writer} {number}" for writer in range(4) for number in range(30))


async def test_a_gap_left_by_a_rollback_is_dropped(stores: tuple[PostgresStore, ...], ids: Ids) -> None:
    one, two = stores
    cursor = two.open_cursor()
    with pytest.raises(ZeroDivisionError):
        async with one._db.transaction("test") as doomed:
            await _insert_note(doomed, "doomed")
            await two.apply([note(ids, "kept")])
            assert instances(await cursor.read_events(10)) == ["kept"]
            raise ZeroDivisionError
    async with asyncio.timeout(20):
        while cursor.gaps:  # an older transaction of another test may still be open
            assert await cursor.read_events(10) == []


async def test_late_events_of_one_gap_are_each_returned_once(stores: tuple[PostgresStore, ...], ids: Ids) -> None:
    one, two = stores
    cursor = two.open_cursor()
    async with one._db.transaction("test") as first:
        await _insert_note(first, "a")
        async with one._db.transaction("test") as second:
            await _insert_note(second, "b")
            async with one._db.transaction("test") as third:
                await _insert_note(third, "c")
                await two.apply([note(ids, "d")])
                assert instances(await cursor.read_events(10)) == ["d"]
            assert instances(await cursor.read_events(10)) == ["c"]
        assert instances(await cursor.read_events(10)) == ["b"]
    assert instances(await cursor.read_events(10)) == ["a"]
    assert await cursor.read_events(10) == []


async def _insert_note(session: Session, name: str) -> None:
    await session.row(apply_sql.BEGIN, None)
    await session.fetch(
        "INSERT INTO §event (at, ns, type, v, data) VALUES (0, 'default', 'InstanceJoined', 1, $1)",
        f'{{"instance":"{name}"}}',
    )


# ── writers that meet ───────────────────────────────────────────────────────


async def test_of_concurrent_inserts_with_one_unique_key_one_is_accepted(
    stores: tuple[PostgresStore, ...], ids: Ids
) -> None:
    batches = [[enqueue_change(ids, make_run(ids, unique_key=f"k{i}")) for i in range(5)] for _ in range(6)]
    for batch in batches[1::2]:
        batch.reverse()
    answers = await asyncio.gather(*(stores[i % 2].apply(batch) for i, batch in enumerate(batches)))
    results: list[Result] = [result for answer in answers for result in answer.results]
    assert Counter(result.status for result in results) == {"accepted": 5, "refused": 25}
    assert all(isinstance(result.current, Run) for result in results if result.status == "refused")
    assert len(await stores[0].find(Runs())) == len(await stores[0].find(Events())) == 5


@pytest.mark.parametrize("mixed", [False, True])
async def test_writers_of_the_same_unique_keys_in_opposite_orders_do_not_deadlock(
    stores: tuple[PostgresStore, ...], ids: Ids, mixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the server ended such deadlocks after a second each, and a waiting writer could fail after five.

    `mixed`: with a change that no fast path takes.
    """
    conflicts: list[StoreError] = []

    class CountedConflict(WriteConflict):
        def __init__(self, error: StoreError) -> None:
            super().__init__(error)
            conflicts.append(error)

    monkeypatch.setattr("mainspring.backends.postgres.database.WriteConflict", CountedConflict)
    for round_ in range(15):
        batches = [[enqueue_change(ids, make_run(ids, unique_key=f"{round_}-{i}")) for i in range(200)] for _ in "ab"]
        batches[1].reverse()
        if mixed:
            batches = [[*batch, note(ids, "x")] for batch in batches]
        await asyncio.gather(*(store.apply(batch) for store, batch in zip(stores, batches, strict=True)))
    assert len(await stores[0].find(Runs(limit=10_000))) == 15 * 200
    assert conflicts == []


async def test_a_gate_never_admits_more_than_its_maximum_and_ends_empty(
    stores: tuple[PostgresStore, ...], ids: Ids
) -> None:
    runs = [make_run(ids, gates=("g", "h")) for _ in range(24)]
    gates = [Gate("g", 2), Gate("h", 3)]
    await stores[0].apply([enqueue_change(ids, run, gates=gates) for run in runs])
    most = 0
    ended: set[str] = set()

    async def work(number: int) -> None:
        nonlocal most
        store = stores[number % 2]
        offer = Offer(f"w{number}", OFFER.lanes, OFFER.tasks, 30_000)
        while len(ended) < len(runs):
            for claim_ in (await store.claim(offer, 4)).claims:
                (gate,) = await store.find(Gates(names=("g",)))
                most = max(most, gate.held)
                applied = await store.apply([finish_change(ids, claim_.run)])
                assert applied.results[0].ok
                ended.add(claim_.run.id)
            await store.due(Agenda.GATES, 100)

    await asyncio.wait_for(asyncio.gather(*(work(number) for number in range(4))), 50)
    assert most <= 2
    assert [gate.held for gate in await stores[0].find(Gates())] == [0, 0]
    started = Counter(event.run_id for event in await stores[0].find(Events(types=("RunStarted",), limit=1_000)))
    assert set(started.values()) == {1}


@pytest.mark.parametrize("gates", [(), ("g",)])
async def test_runs_locked_by_a_stopped_instance_delay_no_other_claim(
    stores: tuple[PostgresStore, ...], ids: Ids, gates: tuple[str, ...]
) -> None:
    one, two = stores
    runs = [make_run(ids, gates=gates) for _ in range(100)]
    await one.apply([enqueue_change(ids, run, gates=[Gate("g", 1_000)]) for run in runs], now=T0)
    async with one._db.transaction("test") as stopped:
        await stopped.fetch("SELECT 1 FROM §run WHERE id = ANY ($1::text[]) FOR UPDATE", [run.id for run in runs[:60]])
        claimed = await two.claim(OFFER, 10, now=T0)
        assert [claim_.run.id for claim_ in claimed.claims] == [run.id for run in runs[60:70]]
        claimed = await two.claim(OFFER, 50, now=T0)
        assert [claim_.run.id for claim_ in claimed.claims] == [run.id for run in runs[70:]]
        claimed = await two.claim(OFFER, 10, now=T0)
        assert claimed.claims == []
        assert claimed.next_at is not None
        assert claimed.next_at > T0, "asked again at once it would spin"
    assert len((await two.claim(OFFER, 100, now=T0)).claims) == 60


async def test_schedules_due_at_once_are_each_returned_to_one_instance(
    stores: tuple[PostgresStore, ...], ids: Ids
) -> None:
    await stores[0].apply([create_schedule_change(ids, make_schedule(ids)) for _ in range(40)], now=T0)
    answers = await asyncio.gather(*(stores[i % 2].due(Agenda.SCHEDULES, 10, now=T0 + 5_000) for i in range(6)))
    given = Counter(row.schedule.id for answer in answers for row in answer.schedules)
    assert set(given.values()) == {1}
    assert len(given) == 40


async def test_a_payload_that_is_needed_again_is_not_removed(stores: tuple[PostgresStore, ...], ids: Ids) -> None:
    one, two = stores
    body = make_body("shared")
    await one.apply([enqueue_change(ids, make_run(ids, state=State.SKIPPED), body="shared")], now=T0)
    policy = Retention(ended_before=T0 + 1)
    async with one._db.transaction("test") as session:
        # A caller's own transaction needs the payload and is still open when retention runs.
        await session.fetch(apply_sql.INSERT_BODIES, [body.id], [body.data])
        purged = await asyncio.wait_for(two.purge(policy, 10, now=T0 + 2), 20)
        assert (purged.runs, purged.bodies) == (1, 0)
    assert await two.find(Bodies(ids=(body.id,))) == [body]


async def test_concurrent_purges_remove_each_run_once(stores: tuple[PostgresStore, ...], ids: Ids) -> None:
    await stores[0].apply([enqueue_change(ids, make_run(ids, state=State.SKIPPED)) for _ in range(50)], now=T0)
    policy = Retention(ended_before=T0 + 1)
    answers = await asyncio.gather(*(store.purge(policy, 20, now=T0 + 2) for store in stores))
    while any(answer.more for answer in answers):
        answers += await asyncio.gather(*(store.purge(policy, 20, now=T0 + 2) for store in stores))
        if not await stores[0].find(Runs()):
            break
    assert sum(answer.runs for answer in answers) == 50
    assert await stores[0].find(Runs()) == []


# ── the rest ────────────────────────────────────────────────────────────────


async def test_the_stores_time_is_the_servers(stores: tuple[PostgresStore, ...]) -> None:
    async with stores[0]._db.read_only() as session:
        server = await session.value("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint")
    assert stores[0].capabilities.own_clock
    assert 0 <= (await stores[1].due(Agenda.TOUCHED, 0)).now - server < 60_000


async def test_the_application_name_is_set_on_connections() -> None:
    for options, name in (({}, "mainspring"), ({"application_name": "shop"}, "shop")):
        store = PostgresStore(fresh_url(None, **options))
        await store.open()
        async with store._db.read_only() as session:
            assert await session.value("SELECT current_setting('application_name')") == name
        await store.close()


async def test_a_fork_must_open_its_own_store(
    stores: tuple[PostgresStore, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: mine + 1)
        with pytest.raises(StoreError, match=rf"opened by process {mine}, before this process was forked"):
            await stores[0].find(Runs())


async def test_plans_made_for_empty_tables_use_indexes_with_conditions(stores: tuple[PostgresStore, ...]) -> None:
    """A plan is kept while the tables grow, so one that reads an index from end to end becomes slow later."""
    statements = {
        "claim": claim_sql.CLAIM,
        "complete and claim": claim_sql.COMPLETE_AND_CLAIM,
        "claim through gates": claim_sql.CLAIM_THROUGH_GATES,
        "claim ahead": claim_sql.CLAIM_AHEAD,
        "claim named": claim_sql.CLAIM_NAMED,
        "candidates": claim_sql.LOCK_CANDIDATES,
        "due": due._HOLD_DUE_SCHEDULES,
        "touched": due._HOLD_TOUCHED_SCHEDULES,
        "renew": run_leases._RENEW,
        "move": apply_sql.MOVE_RUNS,
        "insert runs": insert_runs_sql.statement((0, 5, 9), with_bodies=True),
        "insert a run": insert_runs_sql.statement((), with_bodies=True),
        "move schedules": apply_sql.MOVE_SCHEDULES,
        "advance schedules with runs": insert_runs_sql.statement((0, 5, 9), with_advances=True),
        "advance a schedule with a run": insert_runs_sql.statement((), with_advances=True),
        "advance schedules without runs": insert_runs_sql.ADVANCE_SCHEDULES,
    }
    async with stores[0]._db.transaction("test") as session:
        for name, statement in statements.items():
            count = max(int(word) for word in _parameters(statement))
            await session.connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            place = stores[0]._db.qualify(statement)
            await session.connection.execute(f"PREPARE it AS {place}")
            rows = await session.connection.fetch(f"EXPLAIN EXECUTE it({', '.join(['NULL'] * count)})")
            await session.connection.execute("DEALLOCATE it")
            plan = "\n".join(row[0] for row in rows)
            for table in ("run", "schedule"):
                assert f"Seq Scan on {table}" not in plan, f"{name}:\n{plan}"
            lines = plan.splitlines()
            for i, line in enumerate(lines):
                whole = "Scan using run_" in line and "Cond" not in "".join(lines[i + 1 : i + 2])
                if whole:
                    pytest.fail(f"{name} reads an index whole: {line}\n{plan}")


def _parameters(statement: str) -> list[str]:
    return re.findall(r"\$(\d+)", statement)
