"""Progress lines are stored at a bounded rate, and the newest line of a running attempt is always stored."""

from __future__ import annotations

import asyncio

import pytest

from mainspring import Context, Mainspring
from mainspring.backends.memory.store import MemoryStore
from mainspring.testing import travel


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the texts of all calls of `MemoryStore.progress`."""
    texts: list[str] = []
    original = MemoryStore.progress

    async def progress(self: MemoryStore, run_id: str, epoch: int, text: str) -> bool:
        texts.append(text)
        return await original(self, run_id, epoch, text)

    monkeypatch.setattr(MemoryStore, "progress", progress)
    return texts


async def test_a_hundred_reports_in_a_second_are_three_writes(written: list[str]) -> None:
    ms = Mainspring("memory://")

    @ms.task
    async def work(ctx: Context) -> None:
        for percent in range(100):
            ctx.progress(percent / 100)
            await asyncio.sleep(0.01)
        await asyncio.sleep(5)

    async with travel(ms, "2026-03-28T22:00Z") as t:
        await work.enqueue()
        await t.advance("4s")
    assert len(written) <= 3
    assert written[0] == "0%"
    assert written[-1] == "99%"


async def test_a_report_after_a_pause_is_written_at_once(written: list[str]) -> None:
    ms = Mainspring("memory://")

    @ms.task
    async def work(ctx: Context) -> None:
        ctx.progress(0.1)
        await asyncio.sleep(2)
        ctx.progress(0.2)
        await asyncio.sleep(5)

    async with travel(ms, "2026-03-28T22:00Z") as t:
        await work.enqueue()
        await t.advance("1s")
        assert written == ["10%"]
        await t.advance("1100ms")
        assert written == ["10%", "20%"]
