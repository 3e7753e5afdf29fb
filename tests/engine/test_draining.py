"""An instance that stops plans no more fires: the next start accounts for them, and none is skipped for an open run."""

from __future__ import annotations

import asyncio

from mainspring import Mainspring
from mainspring.ledger.account import ledger
from mainspring.testing import travel


async def test_fires_during_the_end_of_an_instance_are_planned_by_the_next_start() -> None:
    ms = Mainspring("memory://")
    began, go_on = asyncio.Event(), asyncio.Event()

    @ms.every("1s", overlap="forbid", missed="replay_all")
    async def tick() -> None: ...

    @ms.task
    async def long() -> None:
        began.set()
        await go_on.wait()

    async with travel(ms, "2026-01-01T00:00Z") as t:
        await t.advance("2500ms")
        assert len(await t.fires("tick")) == 2
        await long.enqueue()
        await t.advance("10ms")
        assert began.is_set()
        t.runtime.stop_claiming()  # the first signal: the running run may end
        await t.advance("9s")
        assert len(await t.fires("tick")) == 2
        book = await ledger(t.runtime.store, t.runtime.time.now())
        assert (book.skipped, book.behind, book.unexplained) == ({}, 9, 0)
        go_on.set()
        t.runtime.settler.enable_planning(enabled=True)  # the next start
        t.runtime.settler.wake()
        await t.advance("1s")
        book = await ledger(t.runtime.store, t.runtime.time.now())
        assert (book.planned, book.behind, book.unexplained) == (12, 0, 0)
