"""The fast paths of PostgreSQL's `apply` write the same rows as the slow path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mainspring.backends.postgres import PostgresStore, apply
from mainspring.backends.postgres.fast import complete_runs
from mainspring.model.change import Change
from mainspring.model.errors import StoreUnavailable
from mainspring.model.gate import Gate
from mainspring.ports.store import ClaimRequest, Gates, Offer, Runs, Schedules
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
from servers.for_tests import fresh_store
from tests.backends.bulks import bulk_change, mixed_bulks

TABLES = ("run", "event", "schedule", "gate", "body", "span")
OFFER = Offer("w", ("default/default",), ("t",), 30_000)

Story = Callable[[PostgresStore, Ids], Awaitable[list[Any]]]


async def plain(store: PostgresStore, ids: Ids, changes: list[Change], now: int = T0) -> list[Any]:
    """Apply changes and return status and number of each result."""
    return [(result.status, result.n) for result in (await store.apply(changes, now=now)).results]


async def enqueued(store: PostgresStore, ids: Ids) -> list[Any]:
    """Insert one run, several equal ones, several that differ in every column, and some that exist."""
    one = enqueue_change(ids, make_run(ids))
    alike = [enqueue_change(ids, make_run(ids)) for _ in range(3)]
    differ = [
        enqueue_change(ids, make_run(ids, priority=0, unique_key="k", lane="a/b", task="tâche\0")),
        enqueue_change(ids, make_run(ids, due_at=T0 + 5, ready_at=T0 + 9, body=None, gates=("g",)), body='{"a":1}'),
        enqueue_change(ids, make_run(ids), body='{"a":1}'),
        enqueue_change(ids, make_run(ids), body='{"b":2}'),
    ]
    again = enqueue_change(ids, make_run(ids, unique_key="k"))
    said = []
    for batch in ([one], alike, differ, [again], [*alike, enqueue_change(ids, make_run(ids))]):
        said += await plain(store, ids, batch)
    return said


async def enqueued_together(store: PostgresStore, ids: Ids) -> list[Any]:
    """Insert many runs in one change: equal, with other payloads, without, with options, with U+0000 in a text."""
    said = []
    for runs, bodies in mixed_bulks(ids):
        said += await plain(store, ids, [bulk_change(ids, runs, bodies)])
    (runs, _), many, *_ = mixed_bulks(ids)
    batch = [*[enqueue_change(ids, run) for run in runs], bulk_change(ids, *many)]
    said += await plain(store, ids, batch)
    return said + await plain(store, ids, [enqueue_change(ids, runs[0])])


async def planned(store: PostgresStore, ids: Ids) -> list[Any]:
    """Plan one schedule, several, one with two fires, one without; one that moved, one whose fire exists."""
    schedules = [make_schedule(ids, name=f"s{i}") for i in range(6)]
    await store.apply([create_schedule_change(ids, schedule) for schedule in schedules], now=T0)
    schedules = sorted(await store.find(Schedules()), key=lambda schedule: schedule.name)
    fire = schedules[0].cursor + 1_000
    first = plan_change(ids, schedules[0], [fire])
    said = await plain(store, ids, [first])
    batch = [
        plan_change(ids, schedules[0], [fire + 1]),  # moved meanwhile
        plan_change(ids, schedules[3], [fire, fire + 1_000], next_at=fire + 9_000),
        plan_change(ids, schedules[2], [], next_at=fire + 7_000, touched=1),
        plan_change(ids, schedules[1], [fire]),
    ]
    said += await plain(store, ids, batch, T0 + 1)
    said += await plain(store, ids, [first], T0 + 2)
    assert first.schedule is not None
    assert said[0][0] == "accepted"
    said += await plain(store, ids, [plan_change(ids, first.schedule, [fire], next_at=fire + 3_000)], T0 + 3)
    said += await plain(store, ids, [plan_change(ids, schedules[4], []), plan_change(ids, schedules[5], [])], T0 + 4)
    return said


async def finished(store: PostgresStore, ids: Ids) -> list[Any]:
    """Complete runs with gates in one batch; a run whose lease was lost does not leave its gate."""
    names = (("g",), ("g", "h"), ("h",), ("g",), ())
    births = [enqueue_change(ids, make_run(ids, gates=gates), gates=[Gate(g, 9) for g in gates]) for gates in names]
    await store.apply(births, now=T0)
    claims = (await store.claim(OFFER, 5, now=T0)).claims
    assert len(claims) == 5
    changes = [finish_change(ids, claim.run) for claim in claims]
    await store.apply([changes.pop(3)], now=T0 + 1)
    changes[0] = finish_change(ids, claims[0].run, result='"r"')
    said = await plain(store, ids, [*changes, finish_change(ids, claims[3].run)], T0 + 2)
    return [*said, [(gate.name, gate.held) for gate in await store.find(Gates())]]


async def rows(store: PostgresStore) -> dict[str, list[Any]]:
    found = {}
    async with store._db.read_only() as session:
        for table in TABLES:
            records = await session.fetch(f"SELECT * FROM §{table} ORDER BY 1")
            without = {"sid"} if table == "span" else {"seq"}
            found[table] = [{k: v for k, v in record.items() if k not in without} for record in records]
            if table != "event":  # the order of events matters
                found[table].sort(key=str)
    return found


@pytest.mark.tampers
@pytest.mark.parametrize("story", [enqueued, enqueued_together, planned, finished])
async def test_a_fast_path_writes_the_rows_of_the_slow_path(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    async def told() -> tuple[list[Any], dict[str, list[Any]]]:
        store = fresh_store()
        await store.open()
        try:
            return await story(store, Ids()), await rows(store)
        finally:
            await store.close()

    taken: list[object] = []

    def spy(name: str) -> None:
        original = getattr(apply, name)

        def plain(*args: Any) -> Any:
            taken.extend([name] if (found := original(*args)) is not None else [])
            return found

        async def waits(*args: Any) -> Any:
            taken.extend([name] if (found := await original(*args)) is not None else [])
            return found

        patched.setattr(apply, name, waits if name == "complete_runs" else plain)

    with monkeypatch.context() as patched:
        for name in ("match_run_inserts", "match_schedule_advances", "complete_runs"):
            spy(name)
        quick = await told()
    paths = {
        enqueued: "match_run_inserts",
        enqueued_together: "match_run_inserts",
        planned: "match_schedule_advances",
        finished: "complete_runs",
    }
    assert paths[story] in taken

    async def no(*_: Any) -> None:
        return None

    with monkeypatch.context() as patched:
        patched.setattr(apply, "match_run_inserts", lambda changes: None)
        patched.setattr(apply, "match_schedule_advances", lambda changes: None)
        patched.setattr(apply, "complete_runs", no)
        slow = await told()
    assert quick[0] == slow[0]
    assert quick[1] == slow[1]
    assert any(status == "accepted" for status, *_ in quick[0])
    assert any(status != "accepted" for status, *_ in quick[0] if isinstance(status, str))


async def test_an_outcome_is_reported_although_the_claim_after_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome is stored: a caller that received an error would send it again."""
    store, ids = fresh_store(), Ids()
    await store.open()
    try:
        await store.apply([enqueue_change(ids, make_run(ids, gates=("g",)), gates=[Gate("g", 1)])], now=T0)
        (claim,) = (await store.claim(OFFER, 1, now=T0)).claims

        async def away(*_: Any) -> None:
            raise StoreUnavailable("gone")

        with monkeypatch.context() as patched:
            patched.setattr(complete_runs, "claim", away)
            applied = await store.apply([finish_change(ids, claim.run)], claim_request=ClaimRequest(OFFER, 1), now=T0)
        assert [result.status for result in applied.results] == ["accepted"]
        assert applied.claimed is None
        (run,) = await store.find(Runs(id=claim.run.id))
        assert run.state.value == "succeeded"
    finally:
        await store.close()
