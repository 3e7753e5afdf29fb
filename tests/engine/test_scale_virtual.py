"""A month of a hundred schedules in seconds: the real engine on the virtual clock."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from mainspring import Context, Mainspring
from mainspring.backends.memory.store import MemoryStore
from mainspring.ledger.account import ledger
from mainspring.testing.time_travel import travel

SCHEDULES = 100
DAYS = 30
RUNS = SCHEDULES * DAYS * 24


@pytest.mark.alone
@pytest.mark.timeout(240)
async def test_a_hundred_hourly_schedules_over_30_days_are_72_000_runs_in_20_s() -> None:
    store = MemoryStore()
    ms = Mainspring(store=store, concurrency=100, lease_ttl="10m", history="60d")
    ran: Counter[str] = Counter()

    @ms.task(executor="loop", timeout=None)
    def work(ctx: Context) -> None:
        ran[ctx.schedule_id or ""] += 1

    async with travel(ms, "2026-01-05T00:00Z") as t:
        for number in range(SCHEDULES):
            await ms.schedule(f"s{number}", work, cron="0 * * * *")
        wall, cpu = time.perf_counter(), time.process_time()
        await t.advance(f"{DAYS}d")
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(f"{RUNS} runs in {wall:.1f} s ({cpu:.1f} s of CPU)")
        assert set(ran.values()) == {DAYS * 24}
        assert Counter(run.state for run in store._runs.values()) == {"succeeded": RUNS}
        book = await ledger(store, t.clock.now())
        assert (book.planned, book.ended, book.open, book.missed, book.behind) == (RUNS, RUNS, 0, 0, 0)
        assert (book.skipped, book.unexplained) == ({}, 0), book.differences
    # Others may use this machine too: the smaller of the two is what we are answerable for.
    assert min(wall, cpu) < 20, f"{wall:.1f} s, {cpu:.1f} s of CPU"
