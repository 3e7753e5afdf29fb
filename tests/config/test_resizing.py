"""Turns at a host that grow and shrink while calls are under way."""

from __future__ import annotations

import asyncio

from mainspring.agents.fair_limiter import FairLimiter


async def test_more_agent_slots_wake_waiting_calls_and_fewer_are_respected() -> None:
    turns = FairLimiter(4, lambda: 0.0)  # a quarter more, five, for schedules without a call
    for name in ("a", "b", "c", "d", "e"):
        assert await turns.acquire(name)
    waiting = asyncio.create_task(turns.acquire("f"))
    await asyncio.sleep(0)
    assert not waiting.done()
    turns.resize(8)
    assert await waiting
    turns.resize(4)
    turns.release("a")
    late = asyncio.create_task(turns.acquire("g"))
    await asyncio.sleep(0)
    assert not late.done()
    turns.release("b")
    assert await late
    for name in ("c", "d", "e", "f", "g"):
        turns.release(name)
    assert turns.unused
