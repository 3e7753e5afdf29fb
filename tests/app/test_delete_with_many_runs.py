"""The deletion of a schedule cancels its waiting runs in batches, not one by one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from mainspring import Mainspring
from mainspring.app.internals import host_of
from mainspring.backends.sqlite import SqliteStore
from mainspring.engine.deletions import BATCH_RUNS
from mainspring.model.events import RunCancelled
from mainspring.service.commands import Commands

MANY = 1_200


async def test_waiting_runs_are_cancelled_in_a_few_commits(tmp_path: Path) -> None:
    """Before, each run took a commit and a query: the deletion of a busy schedule had no answer in 150 s."""
    store = SqliteStore(tmp_path / "x.db", synchronous="NORMAL")
    ms = Mainspring(store=store)

    @ms.task
    async def work() -> None: ...

    schedule = await ms.schedule("busy", work, every="1h")
    commits = 0
    apply = store.apply

    async def counting(*args: Any, **options: Any) -> Any:
        nonlocal commits
        commits += 1
        return await apply(*args, **options)

    async def trigger_and_delete(commands: Commands) -> None:
        row = await commands.schedule("default", schedule.id)
        await asyncio.gather(*[commands.trigger(row) for _ in range(MANY)])
        store.apply = counting  # type: ignore[method-assign] # to count
        await commands.delete(row)

    await host_of(ms).call(lambda runtime: trigger_and_delete(runtime.commands))
    assert commits <= 2, "the deletion, and one batch"
    assert len(await ms.runs(schedule=schedule.id, state="cancelled", limit=2 * MANY)) == BATCH_RUNS
    await ms.close()

    store = SqliteStore(tmp_path / "x.db", synchronous="NORMAL")
    other = Mainspring(store=store)  # it has no task, so that no run begins
    rest, all_cancelled = [], asyncio.Event()

    def count(event: RunCancelled) -> None:
        rest.append(event)
        if len(rest) == MANY - BATCH_RUNS:
            all_cancelled.set()

    other.on_event(RunCancelled, count)
    async with other.running():
        await asyncio.wait_for(all_cancelled.wait(), 30)
        assert len(await other.runs(schedule=schedule.id, state="cancelled", limit=2 * MANY)) == MANY
