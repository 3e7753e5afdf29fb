"""The engine says what its changes are: each that a fast path could take carries that kind, on real work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mainspring import Mainspring, Retry
from mainspring.backends.memory.store import MemoryStore
from mainspring.model.change import Change
from mainspring.ports.store import Applied
from mainspring.rules.change_shape import shape_of
from mainspring.testing import travel


class RecordingStore(MemoryStore):
    """Keeps every change that it is asked to apply."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Change] = []

    async def apply(self, changes: Sequence[Change], **options: Any) -> Applied:
        self.changes += changes
        return await super().apply(changes, **options)


async def test_every_change_of_the_engine_has_the_kind_that_its_parts_allow() -> None:
    store = RecordingStore()
    ms = Mainspring(store=store)
    attempts = 0

    @ms.task(limit=2)
    async def work(n: int = 0) -> int:
        return n

    @ms.task(retry=Retry(max_attempts=2, initial="1s", jitter=0))
    async def fail_once() -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise LookupError("the first attempt")

    ms.every("1m", name="often")(work)
    async with travel(ms, "2026-03-28T22:00Z") as time:
        await work.enqueue(1)
        await work.using(unique="acme").enqueue(2)
        await work.enqueue_many([(n,) for n in range(20)])
        await fail_once.enqueue()
        await ms.schedule_many(work, ({"name": f"client-{n}", "every": "1h"} for n in range(5)))
        await ms.schedule("short", work, every="1m", max_runs=2)
        await time.advance("5m")
        await ms.pause("often")
        await time.advance("5m")
        await ms.resume("often")
        await time.advance("2m")

    wrong = [(change.kind, shape_of(change), change) for change in store.changes if change.kind != shape_of(change)]
    assert not wrong
    assert {change.kind for change in store.changes} == {"success", "new_runs", "plan", "new_schedule", "other"}
