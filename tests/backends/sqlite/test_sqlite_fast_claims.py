"""SQLite's fast paths of claiming and completing runs answer and write the same as the general ways."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mainspring.backends.sqlite import apply, claim
from mainspring.backends.sqlite.database import Database
from mainspring.backends.sqlite.fast import complete_runs as successes
from mainspring.backends.sqlite.store import SqliteStore
from mainspring.model.change import Change
from mainspring.model.gate import Gate
from mainspring.model.policies import RunOptions
from mainspring.model.run import Run, State
from mainspring.ports.store import Agenda, Claimed, ClaimRequest, Offer
from mainspring.testing.contract.factories import T0, Ids, enqueue_change, finish_change, make_run

OFFER = Offer("w", ("default/default",), ("t", "tâche"), 30_000)


def success(ids: Ids, run: Run, **values: Any) -> Change:
    """Return a plain success, without the error of an earlier attempt."""
    return finish_change(ids, replace(run, error=None), **values)


class Recorder:
    """A store, with everything that it answered."""

    def __init__(self, path: Path) -> None:
        self.store = SqliteStore(path)
        self.ids = Ids()
        self.answers: list[Any] = []

    async def apply(
        self, changes: Sequence[Change], *, claim_request: ClaimRequest | None = None, now: int = T0
    ) -> Claimed | None:
        applied = await self.store.apply(changes, claim_request=claim_request, now=now)
        self.answers.append(applied)
        return applied.claimed

    async def claim(self, limit: int, *, offer: Offer = OFFER, now: int = T0 + 50) -> list[Run]:
        claimed = await self.store.claim(offer, limit, now=now)
        self.answers.append(claimed)
        return [one.run for one in claimed.claims]

    def rows(self) -> list[Any]:
        dump: list[Any] = []
        for table in ("run", "event", "gate", "body"):
            cursor = self.store._db.connection.execute(f"SELECT * FROM {table} ORDER BY 1")
            kept = [i for i, column in enumerate(cursor.description) if column[0] != "mark"]
            dump.append([[row[i] for i in kept] for row in cursor])
        return dump


def queue(ids: Ids) -> list[Change]:
    """Insert runs of all kinds, all of which can be claimed when they are due."""
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
    """Insert three runs that share a gate for one run, and runs with one or two own gates, one of them closed."""
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


async def claims(recorder: Recorder, *, gates: bool, ahead: int) -> None:
    """Claim alone and with a write until the queue is empty, with retries and runs of other tasks in between."""
    offer = replace(OFFER, ahead=ahead)
    await recorder.apply(queue(recorder.ids) + (gated(recorder.ids) if gates else []))
    for turn in range(20):
        now = T0 + 20 + 5 * turn
        runs = await recorder.claim(turn % 5, offer=offer, now=now)
        ended = [
            finish_change(recorder.ids, run, State.RETRYING)
            if turn % 4 == 2 and not run.failures
            else success(recorder.ids, run)
            for run in runs
        ]
        granted = await recorder.apply(ended, claim_request=ClaimRequest(offer, 3), now=now + 1)
        assert granted is not None
        await recorder.apply([success(recorder.ids, one.run) for one in granted.claims], now=now + 2)


@pytest.mark.parametrize("ahead", [0, 30])
@pytest.mark.parametrize("gates", [False, True])
async def test_both_ways_of_claiming_lease_and_write_the_same_rows(
    gates: bool, ahead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def plain(*args: Any) -> Any:
        found = original(*args)
        taken.append(-1 if found is None else len(found))
        return found

    original = claim._claim_uncontended
    ways = []
    for way in (plain, lambda *_: None):
        with monkeypatch.context() as patched:
            patched.setattr(claim, "_claim_uncontended", way)
            recorder = Recorder(tmp_path / f"{len(ways)}.db")
            await recorder.store.open()
            await claims(recorder, gates=gates, ahead=ahead)
            ways.append((recorder.answers, recorder.rows()))
            await recorder.store.close()
    assert ways[0] == ways[1]
    assert max(taken) > 1
    assert (-1 in taken) == gates
    assert "succeeded" in {row[16] for row in ways[0][1][0]}


async def test_the_fast_way_of_claiming_is_left_after_a_gate_refused_and_taken_again_later(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "one.db")
    await recorder.store.open()
    database: Database = recorder.store._db
    await recorder.apply(
        [*gated(recorder.ids)[:2], enqueue_change(recorder.ids, make_run(recorder.ids, due_at=T0 + 90))]
    )
    met = []
    for limit, now in ((1, T0 + 50), (1, T0 + 60), (1, T0 + 100)):
        met.append((len(await recorder.claim(limit, now=now)), database.gates_refused))
    assert met == [(1, False), (0, True), (1, False)]  # one run passes, one is parked, one has no gate
    await recorder.store.close()


async def test_a_gate_without_holders_has_no_row_in_gate_held(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "one.db")
    await recorder.store.open()

    def held() -> list[Any]:
        return recorder.store._db.connection.execute("SELECT name, held FROM gate_held ORDER BY name").fetchall()

    await recorder.apply(
        [
            enqueue_change(recorder.ids, make_run(recorder.ids, gates=names), gates=[Gate("a", 3), Gate("b", 2)])
            for names in (("a",), ("a", "b"), ("a",))
        ]
    )
    assert held() == []
    runs = await recorder.claim(10)
    assert held() == [("a", 3), ("b", 1)]
    await recorder.apply([success(recorder.ids, run) for run in runs[:1]])
    await recorder.apply([success(recorder.ids, run) for run in runs[1:2]])
    assert held() == [("a", 1)]
    await recorder.apply([success(recorder.ids, run) for run in runs[2:]])
    assert held() == []
    await recorder.store.close()


async def test_a_release_answers_whether_any_run_is_parked(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "one.db")
    await recorder.store.open()
    runs = [
        make_run(recorder.ids, gates=("a",)),
        make_run(recorder.ids, gates=("b",)),
        make_run(recorder.ids, gates=("b",)),
    ]
    await recorder.apply(
        [enqueue_change(recorder.ids, run, gates=[Gate("a", 1), Gate("b", 1)]) for run in runs],
        claim_request=ClaimRequest(OFFER, 9),
    )
    assert recorder.answers[-1].parked, "the store did not look, so a run may be parked"
    started = [one.run for one in recorder.answers[-1].claimed.claims]
    assert len(started) == 2
    left_a, left_b = (success(recorder.ids, run) for run in sorted(started, key=lambda run: run.gates))
    await recorder.apply([left_a])
    assert recorder.answers[-1].parked, "a run is parked, though at another gate"
    await recorder.apply([left_b])
    assert (await recorder.store.due(Agenda.GATES, 10, now=T0 + 60)).unparked == 1
    await recorder.apply([success(recorder.ids, run) for run in await recorder.claim(9, now=T0 + 70)])
    assert not recorder.answers[-1].parked
    await recorder.store.close()


async def successful(recorder: Recorder) -> None:
    """Complete runs whose values are equal, all different, or mixed; some of them after their lease was lost."""
    ids = recorder.ids
    await recorder.apply([enqueue_change(ids, make_run(ids, due_at=T0 + number % 3)) for number in range(300)])
    same = await recorder.claim(100)
    named = [replace(success(ids, run), id=f'"ü" {number}') for number, run in enumerate(same)]
    await recorder.apply(named, now=T0 + 60)
    different = await recorder.claim(20)
    await recorder.apply(
        [success(ids, run, result=f'"{number}"') for number, run in enumerate(different)],
        now=T0 + 61,
    )
    both = await recorder.claim(60)
    lost = [success(ids, replace(run, epoch=run.epoch + number % 2)) for number, run in enumerate(both[:8])]
    again = [success(ids, run) for run in different[:2]]
    await recorder.apply([*lost, *(success(ids, run, result="3") for run in both[8:]), *again], now=T0 + 62)
    retried = await recorder.claim(30)
    await recorder.apply([finish_change(ids, run, State.RETRYING) for run in retried], now=T0 + 63)
    await recorder.apply([success(ids, run) for run in await recorder.claim(200)], now=T0 + 64)


async def test_all_ways_of_completing_runs_write_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grouped: list[str] = []
    ways = []
    original = Database.run

    def run(self: Database, sql: str, *parameters: Any) -> Any:
        if sql == successes.sql.SUCCEED_GROUP:
            grouped.append(sql)
        return original(self, sql, *parameters)

    for way in ("as it is", "one by one", "long"):
        with monkeypatch.context() as patched:
            patched.setattr(Database, "run", run)
            if way == "one by one":
                patched.setattr(successes, "MIN_GROUP_SIZE", 1_000)
            if way == "long":
                patched.setattr(apply, "complete_runs", lambda db, changes, *_: list(enumerate(changes)))
            recorder = Recorder(tmp_path / f"{way}.db")
            await recorder.store.open()
            await successful(recorder)
            ways.append((recorder.answers, recorder.rows()))
            await recorder.store.close()
        grouped.append(way)
    assert ways[0] == ways[1]
    assert ways[0] == ways[2]
    assert len(grouped) > 5
    assert grouped[-3:] == ["as it is", "one by one", "long"]
    statuses = {result.status for said in ways[0][0] if hasattr(said, "results") for result in said.results}
    assert statuses == {"accepted", "refused"}


async def test_no_lease_is_shorter_than_its_ttl(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "one.db")
    await store.open()
    ids = Ids()
    for _ in range(20):  # on the system clock, whose milliseconds a lease rounds
        await store.apply([enqueue_change(ids, make_run(ids))])
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        (one,) = (await store.claim(OFFER, 1)).claims
        assert (one.run.lease_until or 0) * 1_000_000 >= before + OFFER.ttl * 1_000_000
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        await store.renew(OFFER.owner, [(one.run.id, one.run.epoch)], OFFER.ttl)
        until = store._db.value("SELECT lease_until FROM run WHERE id = ?", one.run.id)
        assert until * 1_000_000 >= before + OFFER.ttl * 1_000_000
    await store.close()
