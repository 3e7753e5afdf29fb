"""The short ways of SQLite's claims and successes give and write what the long ones do, row for row."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mainspring.model.change import Change
from mainspring.model.gate import Gate
from mainspring.model.policies import RunOptions
from mainspring.model.run import Run, State
from mainspring.ports.store import Agenda, Claimed, Offer, Wish
from mainspring.stores.sqlite import apply, claim, successes
from mainspring.stores.sqlite.database import Database
from mainspring.stores.sqlite.store import SqliteStore
from mainspring.testing.factories import T0, Ids, enqueue_change, finish_change, make_run

OFFER = Offer("w", ("default/default",), ("t", "tâche"), 30_000)


def success(ids: Ids, run: Run, **values: Any) -> Change:
    """A success forgets the error before it."""
    return finish_change(ids, replace(run, error=None), **values)


class Told:
    """What a store answered, and what it holds in the end."""

    def __init__(self, path: Path) -> None:
        self.store = SqliteStore(path)
        self.ids = Ids()
        self.said: list[Any] = []

    async def apply(self, changes: Sequence[Change], *, wish: Wish | None = None, now: int = T0) -> Claimed | None:
        applied = await self.store.apply(changes, wish=wish, now=now)
        self.said.append(applied)
        return applied.claimed

    async def claim(self, limit: int, *, offer: Offer = OFFER, now: int = T0 + 50) -> list[Run]:
        claimed = await self.store.claim(offer, limit, now=now)
        self.said.append(claimed)
        return [one.run for one in claimed.claims]

    def rows(self) -> list[Any]:
        dump: list[Any] = []
        for table in ("run", "event", "gate", "body"):
            cursor = self.store._db.connection.execute(f"SELECT * FROM {table} ORDER BY 1")
            kept = [i for i, column in enumerate(cursor.description) if column[0] != "mark"]
            dump.append([[row[i] for i in kept] for row in cursor])
        return dump


def queue(ids: Ids) -> list[Change]:
    """Runs of all kinds, none of which is kept back by anything."""
    changes = []
    for number in range(60):
        run = make_run(
            ids,
            priority=number % 4,
            due_at=T0 + number * 7 % 90,
            task=("t", "tâche", "another's")[number % 3 if number % 5 else 0],
            lane="another/lane" if number % 11 == 5 else "default/default",
            catch_up=number % 6 == 0,
            unique_key=f"k{number}" if number % 8 == 1 else None,
            options=RunOptions(timeout=5, tz="null") if number % 7 == 2 else None,
            origin="trigger" if number % 9 == 4 else "enqueue",
        )
        changes.append(enqueue_change(ids, run, body=f'{{"k":{{"x":{number % 4}}}}}' if number % 2 else None))
    return changes


def gated(ids: Ids) -> list[Change]:
    """Three that keep each other out, and more that pass gates of their own, some of them two; one is closed."""
    changes = []
    for number in range(3):
        run = make_run(ids, priority=2, due_at=T0 + 3 * number, gates=("g",))
        changes.append(enqueue_change(ids, run, gates=[Gate("g", 1)]))
    for number in range(12):
        own = Gate(f"schedule:{number}", 1 + number % 2, closed_until=T0 + 60 if number == 7 else 0)
        wide = [Gate(f"wide {number}", 5)] if number % 3 == 0 else []
        names = tuple(gate.name for gate in (own, *wide))
        run = make_run(ids, priority=1, due_at=T0 + 6 * number, gates=names)
        changes.append(enqueue_change(ids, run, gates=[own, *wide]))
    return changes


async def claims(told: Told, *, gates: bool, ahead: int) -> None:
    """Claims alone and with a write, to the end of the queue, with retries and other tasks in between."""
    offer = replace(OFFER, ahead=ahead)
    await told.apply(queue(told.ids) + (gated(told.ids) if gates else []))
    for turn in range(20):
        now = T0 + 20 + 5 * turn
        runs = await told.claim(turn % 5, offer=offer, now=now)
        ended = [
            finish_change(told.ids, run, State.RETRYING)
            if turn % 4 == 2 and not run.failures
            else success(told.ids, run)
            for run in runs
        ]
        granted = await told.apply(ended, wish=Wish(offer, 3), now=now + 1)
        assert granted is not None
        await told.apply([success(told.ids, one.run) for one in granted.claims], now=now + 2)


@pytest.mark.parametrize("ahead", [0, 30])
@pytest.mark.parametrize("gates", [False, True])
async def test_claims_are_given_and_written_alike(
    gates: bool, ahead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def plain(*args: Any) -> Any:
        found = original(*args)
        taken.append(-1 if found is None else len(found))
        return found

    original = claim._claim_plain
    ways = []
    for way in (plain, lambda *_: None):
        with monkeypatch.context() as patched:
            patched.setattr(claim, "_claim_plain", way)
            told = Told(tmp_path / f"{len(ways)}.db")
            await told.store.open()
            await claims(told, gates=gates, ahead=ahead)
            ways.append((told.said, told.rows()))
            await told.store.close()
    assert ways[0] == ways[1]
    assert max(taken) > 1
    assert (-1 in taken) == gates
    assert "succeeded" in {row[16] for row in ways[0][1][0]}


async def test_the_short_way_of_claims_is_left_where_gates_refuse_and_found_again(tmp_path: Path) -> None:
    told = Told(tmp_path / "one.db")
    await told.store.open()
    database: Database = told.store._db
    await told.apply([*gated(told.ids)[:2], enqueue_change(told.ids, make_run(told.ids, due_at=T0 + 90))])
    met = []
    for limit, now in ((1, T0 + 50), (1, T0 + 60), (1, T0 + 100)):
        met.append((len(await told.claim(limit, now=now)), database.refused))
    assert met == [(1, False), (0, True), (1, False)]  # it passes; it is parked; and one that meets no gate
    await told.store.close()


async def test_a_gate_that_nobody_holds_has_no_row_for_it(tmp_path: Path) -> None:
    told = Told(tmp_path / "one.db")
    await told.store.open()

    def held() -> list[Any]:
        return told.store._db.connection.execute("SELECT name, held FROM gate_held ORDER BY name").fetchall()

    await told.apply(
        [
            enqueue_change(told.ids, make_run(told.ids, gates=names), gates=[Gate("a", 3), Gate("b", 2)])
            for names in (("a",), ("a", "b"), ("a",))
        ]
    )
    assert held() == []
    runs = await told.claim(10)
    assert held() == [("a", 3), ("b", 1)]
    await told.apply([success(told.ids, run) for run in runs[:1]])
    await told.apply([success(told.ids, run) for run in runs[1:2]])
    assert held() == [("a", 1)]
    await told.apply([success(told.ids, run) for run in runs[2:]])
    assert held() == []
    await told.store.close()


async def test_whoever_leaves_a_gate_is_told_whether_anybody_waits_at_one(tmp_path: Path) -> None:
    told = Told(tmp_path / "one.db")
    await told.store.open()
    runs = [make_run(told.ids, gates=("a",)), make_run(told.ids, gates=("b",)), make_run(told.ids, gates=("b",))]
    await told.apply(
        [enqueue_change(told.ids, run, gates=[Gate("a", 1), Gate("b", 1)]) for run in runs], wish=Wish(OFFER, 9)
    )
    assert told.said[-1].parked, "nobody asked"
    started = [one.run for one in told.said[-1].claimed.claims]
    assert len(started) == 2
    left_a, left_b = (success(told.ids, run) for run in sorted(started, key=lambda run: run.gates))
    await told.apply([left_a])
    assert told.said[-1].parked, "one waits, if not at this gate"
    await told.apply([left_b])
    assert (await told.store.due(Agenda.GATES, 10, now=T0 + 60)).unparked == 1
    await told.apply([success(told.ids, run) for run in await told.claim(9, now=T0 + 70)])
    assert not told.said[-1].parked
    await told.store.close()


async def successful(told: Told) -> None:
    """Batches whose runs are alike, or all different, or both, some of them under a lease that is lost."""
    ids = told.ids
    await told.apply([enqueue_change(ids, make_run(ids, due_at=T0 + number % 3)) for number in range(300)])
    same = await told.claim(100)
    named = [replace(success(ids, run), id=f'"ü" {number}') for number, run in enumerate(same)]
    await told.apply(named, now=T0 + 60)
    different = await told.claim(20)
    await told.apply(
        [success(ids, run, result=f'"{number}"') for number, run in enumerate(different)],
        now=T0 + 61,
    )
    both = await told.claim(60)
    lost = [success(ids, replace(run, epoch=run.epoch + number % 2)) for number, run in enumerate(both[:8])]
    again = [success(ids, run) for run in different[:2]]
    await told.apply([*lost, *(success(ids, run, result="3") for run in both[8:]), *again], now=T0 + 62)
    retried = await told.claim(30)
    await told.apply([finish_change(ids, run, State.RETRYING) for run in retried], now=T0 + 63)
    await told.apply([success(ids, run) for run in await told.claim(200)], now=T0 + 64)


async def test_successes_are_written_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grouped: list[str] = []
    ways = []
    original = Database.run

    def run(self: Database, sql: str, *parameters: Any) -> Any:
        if sql == successes.sql.SUCCEED_ALIKE:
            grouped.append(sql)
        return original(self, sql, *parameters)

    for way in ("as it is", "one by one", "long"):
        with monkeypatch.context() as patched:
            patched.setattr(Database, "run", run)
            if way == "one by one":
                patched.setattr(successes, "_WORTH_GROUPING", 1_000)
            if way == "long":
                patched.setattr(apply, "successes", lambda db, changes, *_: list(enumerate(changes)))
            told = Told(tmp_path / f"{way}.db")
            await told.store.open()
            await successful(told)
            ways.append((told.said, told.rows()))
            await told.store.close()
        grouped.append(way)
    assert ways[0] == ways[1]
    assert ways[0] == ways[2]
    assert len(grouped) > 5
    assert grouped[-3:] == ["as it is", "one by one", "long"]
    statuses = {result.status for said in ways[0][0] if hasattr(said, "results") for result in said.results}
    assert statuses == {"accepted", "refused"}


async def test_no_lease_is_shorter_than_it_says(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "one.db")
    await store.open()
    ids = Ids()
    for _ in range(20):  # on the real clock, of which a lease counts whole milliseconds
        await store.apply([enqueue_change(ids, make_run(ids))])
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        (one,) = (await store.claim(OFFER, 1)).claims
        assert (one.run.lease_until or 0) * 1_000_000 >= before + OFFER.ttl * 1_000_000
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        await store.renew(OFFER.owner, [(one.run.id, one.run.epoch)], OFFER.ttl)
        until = store._db.value("SELECT lease_until FROM run WHERE id = ?", one.run.id)
        assert until * 1_000_000 >= before + OFFER.ttl * 1_000_000
    await store.close()
