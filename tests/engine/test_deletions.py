"""The waiting runs of a deleted schedule are cancelled in batches, also after a crash between two of them."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.backends.memory.store import MemoryStore
from mainspring.engine.deletions import BATCH_RUNS
from mainspring.model.errors import StoreError
from mainspring.model.run import State
from mainspring.ports.store import Agenda, Runs
from mainspring.testing.time_travel import Travel, manual, travel
from tests.engine.noting import START, App, at
from tests.ledger_checks import check_ledger

MANY = 3 * BATCH_RUNS + 7


async def delete_with_many_runs(t: Travel, app: App) -> str:
    """Delete a schedule of which many runs wait; its id."""
    schedule = await app.ms.schedule("s", "note", every="1h")
    row = await t.runtime.commands.schedule("default", schedule.id)
    await asyncio.gather(*[t.runtime.commands.trigger(row) for _ in range(MANY)])
    await app.ms.delete("s")
    return schedule.id


async def states(store: MemoryStore, schedule_id: str) -> dict[State, int]:
    found = await store.find(Runs(schedule_id=schedule_id, limit=2 * MANY))
    return {state: sum(run.state is state for run in found) for state in {run.state for run in found}}


async def test_a_deletion_is_answered_after_one_batch_and_the_settler_cancels_the_rest() -> None:
    app = App()
    async with manual(app.ms, START) as t:
        id_ = await delete_with_many_runs(t, app)
        for batches in (1, 2, 3):
            cancelled = batches * BATCH_RUNS
            assert await states(app.store, id_) == {State.CANCELLED: cancelled, State.WAITING: MANY - cancelled}
            assert await t.runtime.settler.update_touched() == 0.0  # between two batches, other work is done
        assert await states(app.store, id_) == {State.CANCELLED: MANY}
        assert await t.runtime.settler.update_touched() > 0
        assert (await app.store.due(Agenda.TOUCHED, 9, hold=0, now=t.clock.now() + 600_000)).schedules == ()
        await check_ledger(t)


async def test_another_instance_continues_where_a_crash_interrupted_the_deletion() -> None:
    first = App()
    async with manual(first.ms, START) as t:
        id_ = await delete_with_many_runs(t, first)
        await t.runtime.settler.update_touched()
    assert (await states(first.store, id_))[State.WAITING] == MANY - 2 * BATCH_RUNS
    second = App(first.store)
    async with travel(second.ms, at(9)) as t:
        await t.advance("2h")
        found = await states(second.store, id_)
        assert found.keys() <= {State.CANCELLED, State.SUCCEEDED}
        assert found[State.CANCELLED] + len(second.ran) == MANY
        assert len(second.ran) <= second.ms.settings.concurrency  # claimed before they were cancelled
        await check_ledger(t)


async def test_a_crash_right_after_the_deletion_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first = App()

    async def crash(*_: object) -> bool:
        raise StoreError("the process is gone")

    async with manual(first.ms, START) as t:
        with monkeypatch.context() as patched, pytest.raises(StoreError):
            patched.setattr("mainspring.service.commands.cancel_waiting_runs", crash)
            await delete_with_many_runs(t, first)
        (schedule,) = (await first.store.due(Agenda.TOUCHED, 9, hold=0, now=t.clock.now())).schedules
    id_ = schedule.schedule.id
    assert await states(first.store, id_) == {State.WAITING: MANY}
    second = App(first.store)
    async with travel(second.ms, at(9)) as t:
        await t.advance("2h")
        assert (await states(second.store, id_))[State.CANCELLED] >= MANY - second.ms.settings.concurrency
        assert State.WAITING not in await states(second.store, id_)


async def test_a_run_of_a_deleted_schedule_that_is_under_way_may_end() -> None:
    app = App()
    app.seconds = 60.0
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every="1h")
        await app.ms.trigger("s")
        await t.settle()
        schedule = await app.ms.get("s")
        await app.ms.delete("s")
        await t.advance("5m")
        assert await states(app.store, schedule.id) == {State.SUCCEEDED: 1}
