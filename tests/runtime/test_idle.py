"""Idleness is seen in several questions; what moves between two of them must not slip through."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mainspring.backends.memory.store import MemoryStore
from mainspring.model.instant import Ms
from mainspring.model.settings import Settings
from mainspring.ports.store import Offer, Query, Runs
from mainspring.runtime.idle import is_idle
from mainspring.runtime.lingering import EXIT_GRACE_MS
from mainspring.runtime.runtime import Runtime
from mainspring.testing.contract.factories import T0
from proof.scenario import Scenario


class ClaimedMeanwhile(MemoryStore):
    """A worker, perhaps another instance's, takes the run right after the nth question about runs."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self.left = nth

    async def find(self, query: Query[Any]) -> list[Any]:
        found = await super().find(query)
        if isinstance(query, Runs):
            self.left -= 1
            if self.left == 0:
                await self.claim(Offer("w", ("default/default",), ("t",), 30_000), 1, now=T0)
        return found


def instance(store: MemoryStore) -> Runtime:
    """What idleness is asked of; its own idea of the store's time lags, as it does over a network."""

    async def read() -> Ms:
        return T0

    runtime = SimpleNamespace(
        batcher=SimpleNamespace(waiting=0),
        workers=SimpleNamespace(running=0, tasks=("t",)),
        time=SimpleNamespace(now=lambda: T0 - 5, read=read),
        settings=Settings(),
        store=store,
    )
    return cast("Runtime", runtime)


@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_a_run_that_is_claimed_between_two_questions_is_seen(nth: int) -> None:
    store = ClaimedMeanwhile(nth)
    await Scenario(store).enqueue(T0)
    assert not await is_idle(instance(store))


async def test_a_run_that_is_due_by_the_stores_clock_is_seen() -> None:
    store = MemoryStore()
    await Scenario(store).enqueue(T0)
    assert not await is_idle(instance(store))
    moment = MemoryStore()
    await Scenario(moment).enqueue(T0 + EXIT_GRACE_MS)
    assert not await is_idle(instance(moment))
    later = MemoryStore()
    await Scenario(later).enqueue(T0 + EXIT_GRACE_MS + 1)
    assert await is_idle(instance(later))
