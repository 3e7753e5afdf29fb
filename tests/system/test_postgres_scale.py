"""Scale on PostgreSQL: the cost of a tick, a claim and a retention step does not grow with the number of other rows.

`make test` counts pages and rows, which do not depend on the load of the machine. `make chaos` runs the same tests with
a million rows and with a clock.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainspring.backends.postgres import PostgresStore
from mainspring.backends.postgres.database import GateMode
from mainspring.model.instant import DAY_MS
from mainspring.model.retention import Retention
from mainspring.model.run import Run
from mainspring.ports.store import Agenda, ClaimRequest, Due, Offer
from mainspring.testing.contract.factories import (
    T0,
    Ids,
    create_schedule_change,
    enqueue_change,
    finish_change,
    make_run,
    make_schedule,
    plan_change,
)
from servers.for_tests import fresh_store, fresh_url
from tests.system.pg_crowd import (
    GROWING_ID,
    Cost,
    Times,
    measure_cost,
    multiply,
    run_sql,
    vacuum_tables,
    vacuum_until_clean,
)
from tests.system.pg_watch import Watch

#: Rows are written past the rules, which no log could rebuild: not for `events verify`.
pytestmark = [pytest.mark.tampers, pytest.mark.chaos]
TIMED = "MAINSPRING_PG_CROWD" in os.environ
CROWD = int(os.environ.get("MAINSPRING_PG_CROWD", "20000"))
HERD = int(os.environ.get("MAINSPRING_PG_HERD", "500"))
FEW = 1_000
CALLS = 300
OFFER = Offer("w", ("default/default",), ("t",), 30_000)
EVER = Retention(ended_before=T0 + 1_000 * DAY_MS)
LATER = T0 + 2_000 * DAY_MS
#: Milliseconds between two fires in a crowd of schedules: a hundred in a second.
GAP = 10


@pytest.fixture
def ids() -> Ids:
    return Ids()


@pytest.fixture
async def few() -> AsyncIterator[PostgresStore]:
    async for store in _opened():
        yield store


@pytest.fixture
async def many() -> AsyncIterator[PostgresStore]:
    async for store in _opened():
        yield store


async def _opened() -> AsyncIterator[PostgresStore]:
    store = fresh_store()
    await store.open()
    yield store
    await store.close()


def assert_equal_costs(few: Cost, many: Cost) -> None:
    """Assert equal costs: as many statements and rows, and few more pages for deeper index trees."""
    assert many.statements == few.statements
    assert many.rows <= few.rows, f"{many.worst_rows} rows in {many.worst}"
    assert many.pages <= 1.5 * few.pages + 20, f"{many.pages} pages, {few.pages} with few"


# ── a herd ──────────────────────────────────────────────────────────────────


@pytest.mark.timeout(120 + HERD // 20)
def test_schedules_due_at_the_same_instant_run_once_each_on_two_instances_within_their_pools() -> None:
    script = Path(__file__).parent / "pg_herd.py"
    words = [sys.executable, str(script), fresh_url(), f"--schedules={HERD}"]
    done = subprocess.run(words, capture_output=True, text=True)
    print(f"\n{done.stdout}{done.stderr}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[0])["runs"] == HERD


# ── ticks ───────────────────────────────────────────────────────────────────


async def fill_schedules(store: PostgresStore, ids: Ids, count: int) -> None:
    """Insert schedules of which a hundred are due in every second after T0."""
    schedule = make_schedule(ids, next_at=None)
    await store.apply([create_schedule_change(ids, schedule)], now=T0)
    values = {"id": GROWING_ID, "name": "'crowd ' || g", "next_at": f"{T0} + g * {GAP}"}
    await multiply(store, "schedule", f"o.id = '{schedule.id}'", 1, count, **values)
    await vacuum_tables(store, "schedule")


async def tick(store: PostgresStore, ids: Ids, count: int, now: int) -> Due:
    """Plan due schedules once; each fires again after all others have."""
    due = await store.due(Agenda.SCHEDULES, 100, now=now)
    plans = [
        plan_change(ids, row.schedule, [row.schedule.next_at or 0], next_at=(row.schedule.next_at or 0) + count * GAP)
        for row in due.schedules
    ]
    await store.apply(plans, now=now)
    return due


@pytest.mark.timeout(60 + CROWD // 1_000)
async def test_a_tick_costs_the_same_with_a_million_schedules_as_with_a_thousand(
    few: PostgresStore, many: PostgresStore, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {few: FEW, many: CROWD}
    costs: dict[PostgresStore, list[Cost]] = {few: [], many: []}
    for store, count in sizes.items():
        await fill_schedules(store, ids, count)
        async with measure_cost(monkeypatch) as idle:
            assert not (await tick(store, ids, count, T0)).schedules
        async with measure_cost(monkeypatch) as busy:
            due = await tick(store, ids, count, T0 + 100 * GAP)
        assert len(due.schedules) == 100
        async with measure_cost(monkeypatch) as others:
            for agenda in (Agenda.TOUCHED, Agenda.EXPIRED, Agenda.GATES):
                await store.due(agenda, 100, now=T0 + 100 * GAP)
        costs[store] = [idle, busy, others]
    for one, other in zip(costs[few], costs[many], strict=True):
        assert_equal_costs(one, other)
    if TIMED:
        times = {few: Times(), many: Times()}
        for second in range(2, CALLS):
            for store, count in sizes.items():  # in turns, so that other load of the machine affects both
                with times[store].one():
                    await tick(store, ids, count, T0 + second * 100 * GAP)
        for store, count in sizes.items():
            print(f"\ntick of 100 due, {count} schedules: {times[store]}, {costs[store][1].pages} pages")
        assert times[many].at(0.5) <= 1.5 * times[few].at(0.5)


# ── claims ──────────────────────────────────────────────────────────────────


async def fill_future(store: PostgresStore, ids: Ids, count: int, task: str = "t") -> None:
    """Insert runs that are due in a day."""
    run = make_run(ids, due_at=T0 + DAY_MS, task=task)
    await store.apply([enqueue_change(ids, run)], now=T0)
    ready = f"{T0 + DAY_MS} + g"
    await multiply(store, "run", f"o.id = '{run.id}'", 1, count, id=GROWING_ID, ready_at=ready, due_at=ready)


async def claims(store: PostgresStore, ids: Ids, patch: pytest.MonkeyPatch) -> list[Cost]:
    """Return the cost of each kind of claim while 200 runs are due, and of a claim while none is."""
    await store.apply([enqueue_change(ids, make_run(ids)) for _ in range(301)], now=T0)
    await vacuum_tables(store, "run")
    async with measure_cost(patch) as plain:
        taken = (await store.claim(OFFER, 100, now=T0)).claims
    done = [finish_change(ids, claim.run) for claim in taken]
    async with measure_cost(patch) as with_finish:
        applied = await store.apply(done, claim_request=ClaimRequest(OFFER, 100), now=T0)
    store._db.gate_mode = GateMode.OPEN
    async with measure_cost(patch) as through_gates:
        await store.claim(OFFER, 100, now=T0)
    assert applied.claimed is not None
    assert (len(taken), len(applied.claimed.claims)) == (100, 100)
    (last,) = (await store.claim(OFFER, 100, now=T0)).claims
    assert last.run.task == "t"
    async with measure_cost(patch) as none:
        answer = await store.claim(OFFER, 100, now=T0)
        await store.claim(OFFER, 0, now=T0)
    assert not answer.claims
    return [plain, with_finish, through_gates, none]


async def timed_claims(ids: Ids, *stores: PostgresStore) -> list[Times]:
    """Enqueue, claim and finish ten runs on each store in turn; return the times of the claims."""
    times = [Times() for _ in stores]
    for _ in range(CALLS):
        for store, measured in zip(stores, times, strict=True):
            await store.apply([enqueue_change(ids, make_run(ids)) for _ in range(10)], now=T0)
            with measured.one():
                taken = (await store.claim(OFFER, 10, now=T0)).claims
            assert len(taken) == 10
            await store.apply([finish_change(ids, claim.run) for claim in taken], now=T0)
    return times


@pytest.mark.timeout(60 + CROWD // 1_000)
async def test_a_claim_beside_a_million_future_runs_costs_what_it_costs_beside_none(
    few: PostgresStore, many: PostgresStore, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill_future(few, ids, 1)
    await fill_future(many, ids, CROWD)
    for one, other in zip(await claims(few, ids, monkeypatch), await claims(many, ids, monkeypatch), strict=True):
        assert_equal_costs(one, other)
    if TIMED:
        without, beside = await timed_claims(ids, few, many)
        print(f"\nclaim of 10, no future runs: {without}\nclaim of 10, {CROWD} future runs: {beside}")
        assert beside.at(0.99) <= 2 * without.at(0.99)


@pytest.mark.timeout(60 + CROWD // 1_000)
async def test_a_claim_reads_few_future_runs_of_a_task_that_is_not_offered(
    few: PostgresStore, many: PostgresStore, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill_future(few, ids, 1, task="other")
    await fill_future(many, ids, CROWD, task="other")
    one, other = await claims(few, ids, monkeypatch), await claims(many, ids, monkeypatch)
    for cost, crowded in zip(one, other, strict=True):
        assert crowded.rows <= cost.rows + 4_000, f"{crowded.worst_rows} rows in {crowded.worst}"
    # The next instant is still right for an offered run behind them.
    await many.apply([enqueue_change(ids, make_run(ids, due_at=T0 + 2 * DAY_MS))], now=T0)
    for limit in (0, 10):
        answer = await many.claim(OFFER, limit, now=T0)
        assert T0 < (answer.next_at or 0) <= T0 + 2 * DAY_MS


# ── retention ───────────────────────────────────────────────────────────────


async def fill_ended(store: PostgresStore, run: Run, first: int, last: int, **values: str) -> None:
    """Copy an ended run, each copy with events and a payload of its own."""
    body = f"'p' || {GROWING_ID}"
    payload = "'[[1,2,3],{}]'"
    await run_sql(store, f"INSERT INTO §body SELECT {body}, {payload} FROM generate_series({first}, {last}) g")
    ended = {"id": GROWING_ID, "ended_at": f"{T0} + g", "body": body, **values}
    await multiply(store, "run", f"o.id = '{run.id}'", first, last, **ended)
    await multiply(store, "event", f"o.run_id = '{run.id}'", first, last, run_id=GROWING_ID)


async def ended_run(store: PostgresStore, ids: Ids) -> Run:
    """Return an ended run that retention keeps."""
    await store.apply([enqueue_change(ids, make_run(ids))], now=LATER)
    (claim,) = (await store.claim(OFFER, 1, now=LATER)).claims
    await store.apply([finish_change(ids, claim.run)], now=LATER)
    return claim.run


async def measure_purge(store: PostgresStore, patch: pytest.MonkeyPatch) -> Cost:
    async with measure_cost(patch) as cost:
        purged = await store.purge(EVER, 100, now=LATER)
    assert (purged.runs, purged.events, purged.bodies, purged.more) == (100, 300, 100, True)
    return cost


async def test_a_step_of_retention_costs_the_same_beside_any_number_of_rows_that_stay(
    few: PostgresStore, many: PostgresStore, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended runs, dead letters and tallies of years lie beside; a step only reads the rows that it removes."""
    count = min(CROWD, 10_000)
    costs = []
    for store, dead, living, tallies in ((few, 0, FEW, 0), (many, count // 2, count, count)):
        run = await ended_run(store, ids)
        if dead:
            await fill_ended(store, run, 1, dead, dead="true", state="'failed'")
        await fill_ended(store, run, dead + 1, dead + living)
        years = f"SELECT 's' || g, 1, 'fire/succeeded', 1 FROM generate_series(1, {tallies}) g"
        await run_sql(store, f"INSERT INTO §tally {years}")
        await vacuum_tables(store, "run", "event", "body", "tally")
        costs.append(await measure_purge(store, monkeypatch))
    assert_equal_costs(*costs)


@pytest.mark.timeout(60 + CROWD // 400)
async def test_retention_of_a_million_runs_while_claims_go_on(
    few: PostgresStore, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = CROWD if TIMED else 5_000
    worker, keeper = few, PostgresStore(few.settings)
    run = await ended_run(worker, ids)
    await fill_ended(worker, run, 1, count)
    await keeper.open()
    steps, during, over = Times(), Times(), asyncio.Event()
    removed = 0

    async def retain() -> None:
        nonlocal removed
        more = True
        while more:
            with steps.one():
                purged = await keeper.purge(EVER, 500, now=LATER)
            assert purged.runs <= 500
            removed, more = removed + purged.runs, purged.more
        over.set()

    async def work() -> None:
        while not over.is_set() or len(during.ms) < 10:
            await worker.apply([enqueue_change(ids, make_run(ids, due_at=LATER)) for _ in range(10)], now=LATER)
            with during.one():
                taken = (await worker.claim(OFFER, 10, now=LATER)).claims
            assert len(taken) == 10
            await worker.apply([finish_change(ids, claim.run) for claim in taken], now=LATER)

    async with Watch(worker) as watch:
        await asyncio.gather(retain(), work())
    await keeper.close()
    assert removed == count
    assert not await run_sql(worker, "SELECT id FROM §body")
    print(f"\nretention of {count} runs: steps {steps}; claims meanwhile {during}; {watch}")
    assert watch.seen
    assert not watch.strong, "a lock on a whole table"
    assert watch.oldest < 5.0, "a transaction that outlives a lock's time-out"
    assert watch.waited < 1.0, "a session waited long for a lock"
    if TIMED:
        assert during.at(0.99) <= 50


@pytest.mark.timeout(120 + CROWD // 400)
async def test_tables_that_are_filled_and_purged_again_and_again_stop_growing(few: PostgresStore, ids: Ids) -> None:
    """The newest rows stay, as history does. In `make chaos` autovacuum cleans up."""
    count = CROWD // (10 if TIMED else 20)
    run = await ended_run(few, ids)
    sizes: list[int] = []
    for number in range(8):
        first = 1 + number * count
        await fill_ended(few, run, first, first + count - 1)
        purged = await few.purge(Retention(ended_before=T0 + first), 500, now=LATER)
        while purged.more:
            purged = await few.purge(Retention(ended_before=T0 + first), 500, now=LATER)
        if TIMED:
            await wait_for_autovacuum(few)
        else:
            await vacuum_until_clean(few, "run", "event", "body")
        sizes.append((await run_sql(few, _SIZE.format(schema=few.settings.schema)))[0][0])
    print(f"\n{count} runs filled and purged, megabytes after each time: {[size >> 20 for size in sizes]}")
    assert max(sizes[5:]) <= 1.1 * max(sizes[:5]), sizes


_SIZE = """
SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = '{schema}' AND c.relkind = 'r'
"""
#: Tables whose number of dead rows exceeds autovacuum's threshold, by its own formula.
_DIRTY = """
SELECT s.relname FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
WHERE s.schemaname = '{schema}' AND s.n_dead_tup > greatest(c.reltuples, 0)
    * coalesce((SELECT option_value FROM pg_options_to_table(c.reloptions)
                WHERE option_name = 'autovacuum_vacuum_scale_factor')::float, 0.2) + 2000
"""


async def wait_for_autovacuum(store: PostgresStore) -> None:
    """Wait until autovacuum has nothing left to do."""
    async with asyncio.timeout(300):
        while await run_sql(store, _DIRTY.format(schema=store.settings.schema)):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(1)
