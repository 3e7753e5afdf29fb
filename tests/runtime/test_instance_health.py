"""An instance says how it is: degraded while the store is away or silent, and well again by itself."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from mainspring import Mainspring, State
from mainspring.model.errors import StoreUnavailable
from mainspring.testing import travel

START = "2026-01-01T00:00Z"
VERBS = ("due", "claim", "renew", "lease", "apply")


def ticking() -> Mainspring:
    ms = Mainspring("memory://", lease_ttl="30s", poll_interval="1s")

    @ms.every("1s", missed="replay_all")
    async def tick() -> None: ...

    return ms


async def away(*_: Any, **__: Any) -> Any:
    raise StoreUnavailable("the cable is cut")


async def silent(*_: Any, **__: Any) -> Any:
    await asyncio.Event().wait()


async def test_it_is_degraded_while_the_store_is_away_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    ms = ticking()
    assert ms.health().status == "stopped"
    async with travel(ms, START) as t:
        await t.advance("5s")
        assert ms.health().ok
        with monkeypatch.context() as patch:
            for verb in VERBS:
                patch.setattr(t.runtime.store, verb, away)
            await t.advance("15s")
            health = ms.health()
            assert (health.status, health.ok) == ("degraded", False)
            assert {"settler", "worker", "heartbeat", "presence"} <= set(health.failing)
            assert all("the cable is cut" in why for why in health.failing.values())
        await t.advance("15s")
        assert ms.health().ok
        assert ms.health().failing == {}
    assert ms.health().status == "stopped"


async def test_a_store_that_says_nothing_counts_as_away(monkeypatch: pytest.MonkeyPatch) -> None:
    ms = ticking()
    async with travel(ms, START) as t:
        with monkeypatch.context() as patch:
            patch.setattr(t.runtime.store, "claim", silent)
            patch.setattr(t.runtime.store, "renew", silent)
            await t.advance("15s")
            assert ms.health().status == "degraded"
            assert "has not answered for" in ms.health().failing["heartbeat"]


async def test_a_store_that_was_away_for_long_is_asked_again_every_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that whatever is due is planned and claimed within that time after it is back."""
    ms = ticking()
    asked: dict[str, list[float]] = {"due": [], "claim": [], "renew": []}

    def verb(name: str) -> Any:
        async def ask(*_: Any, **__: Any) -> Any:
            asked[name].append(asyncio.get_running_loop().time())
            raise StoreUnavailable("the cable is cut")

        return ask

    async with travel(ms, START) as t:
        await t.advance("5s")
        done = len(await t.runs("tick"))
        with monkeypatch.context() as patch:
            for name in asked:
                patch.setattr(t.runtime.store, name, verb(name))
            await t.advance("60s")
        for name, times in asked.items():
            gaps = [after - before for before, after in itertools.pairwise(times)]
            assert max(gaps) <= 2.1, (name, gaps)
        await t.advance("3s")
        assert len([run for run in await t.runs("tick") if run.state is State.SUCCEEDED]) > done
