"""Turns at a host that grow and shrink while calls are under way."""

from __future__ import annotations

import asyncio

from mainspring.agents.turns import Turns


async def test_more_turns_wake_those_who_wait_and_fewer_are_kept_to() -> None:
    turns = Turns(1)
    assert await turns.take("a", 0)
    waiting = [asyncio.create_task(turns.take(name, 30)) for name in ("b", "c", "d")]
    await asyncio.sleep(0)
    turns.resize(3)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [task.done() for task in waiting] == [True, True, False]
    turns.resize(1)
    turns.give_back("a")
    turns.give_back("b")
    await asyncio.sleep(0)
    assert not waiting[2].done()  # "c" still has the only turn
    turns.give_back("c")
    assert await waiting[2]
    turns.give_back("d")
    assert turns.unused
