"""Turns at a host that grow and shrink while calls are under way."""

from __future__ import annotations

import asyncio

from mainspring.agents.turns import Turns


async def test_more_turns_wake_those_who_wait_and_fewer_are_kept_to() -> None:
    turns = Turns(4, lambda: 0.0)  # a quarter more, five, for schedules without a call
    for name in ("a", "b", "c", "d", "e"):
        assert await turns.take(name)
    waiting = asyncio.create_task(turns.take("f"))
    await asyncio.sleep(0)
    assert not waiting.done()
    turns.resize(8)
    assert await waiting
    turns.resize(4)
    turns.give_back("a")
    late = asyncio.create_task(turns.take("g"))
    await asyncio.sleep(0)
    assert not late.done()
    turns.give_back("b")
    assert await late
    for name in ("c", "d", "e", "f", "g"):
        turns.give_back(name)
    assert turns.unused
