"""The history checker on a real app: what it leaves on each store violates no invariant."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import Mainspring, Retry
from mainspring.app.context import Context
from mainspring.testing.history import Call, check, read_history
from mainspring.testing.time_travel import travel


@pytest.mark.parametrize("url", ["memory://", "sqlite"])
async def test_a_real_app_leaves_a_clean_history(url: str, tmp_path: Any) -> None:
    ms = Mainspring(f"sqlite:///{tmp_path}/x.db" if url == "sqlite" else url, lease_ttl="6s")
    calls: list[Call] = []
    tries: dict[str, int] = {}

    def note(ctx: Context) -> None:
        calls.append(
            Call(
                run_id=ctx.run_id,
                key=ctx.idempotency_key,
                schedule=ctx.schedule_id,
                attempt=ctx.attempt,
                token=ctx.epoch,
                began=ms.clock.now(),
            )
        )

    @ms.cron("*/5 * * * * *", overlap="queue_all", missed="replay_all")
    async def quick(ctx: Context) -> None:
        note(ctx)

    @ms.every("7s", overlap="forbid", retry=Retry(max_attempts=2, initial="1s", jitter=0))
    async def shaky(ctx: Context) -> None:
        note(ctx)
        tries[ctx.run_id] = tries.get(ctx.run_id, 0) + 1
        if tries[ctx.run_id] == 1:
            raise LookupError("not yet")

    @ms.task
    async def once(ctx: Context, n: int) -> int:
        note(ctx)
        return n

    async with travel(ms, "2026-03-02T08:00:00Z") as t:
        await t.advance("20s")
        handle = await once.enqueue(3)
        await ms.pause("quick")
        await t.advance("17s")
        await ms.resume("quick")
        await ms.update("shaky", every="4s")
        await ms.trigger("quick")
        await t.advance("30s")
        await ms.delete("shaky")
        await t.advance("10s")
        store = t.runtime.store
        history = await read_history(store)
        now = t.clock.now()
    report = check(
        history, calls, until=now - 1_000, late=1_000, lease_ttl=6_000, acknowledged=[handle.id], healed=True
    )
    assert report.ok, str(report)
    assert report.fires > 20
    assert report.calls > 20
