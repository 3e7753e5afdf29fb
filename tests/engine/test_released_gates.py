"""When gates with room are looked at: in the round that is under way, else at once, else with others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mainspring import Mainspring, State
from mainspring.app.internals import host_of, runtime_of
from mainspring.engine.settler import GATE_DEBOUNCE_SECONDS, IDLE_GATE_CHECKS, Settler
from mainspring.ports.store import Agenda, Due
from mainspring.testing import travel
from mainspring.testing.virtual_time import VirtualClock


class Looks:
    """A store that has nothing due, and notes when gates were looked at."""

    def __init__(self) -> None:
        self.clock = VirtualClock(0)
        self.at: list[float] = []
        self.during_plan: list[Any] = []
        self.settler = Settler(
            cast("Any", self),
            cast("Any", SimpleNamespace(submit_all=None)),
            lambda: "id",
            {},
            self.clock,
            60.0,
            cast("Any", None),
            lambda: None,
        )

    async def due(self, agenda: Agenda, limit: int, *, ahead: int = 0) -> Due:
        if agenda is Agenda.SCHEDULES:
            for call in self.during_plan:
                call()
        if agenda is Agenda.GATES:
            self.at.append(self.clock.monotonic())
        return Due(self.clock.now())


async def rounds(looks: Looks) -> int:
    """Let the settler run until it sleeps; how many rounds it took."""
    taken = 0
    run_once = looks.settler.run_once

    async def counted() -> float:
        nonlocal taken
        taken += 1
        return await run_once()

    looks.settler.run_once = counted  # type: ignore[method-assign]  # only counted
    looks.settler.wake(Agenda.SCHEDULES)
    looks.settler.start()
    for _ in range(10):
        await asyncio.sleep(0)
    await looks.settler.stop()
    return taken


async def test_a_gate_that_a_plan_released_is_looked_at_in_the_same_round() -> None:
    looks = Looks()
    await looks.settler.run_once()
    for _ in range(IDLE_GATE_CHECKS):
        looks.settler.wake(Agenda.GATES)
        await looks.settler.run_once()
    looks.at.clear()
    looks.during_plan = [looks.settler.check_gates_soon]
    assert await rounds(looks) == 1
    assert len(looks.at) == 1


async def test_between_rounds_several_releases_share_a_check_when_no_run_waited_lately() -> None:
    looks = Looks()
    await looks.settler.run_once()
    looks.at.clear()
    looks.settler.check_gates_soon()
    assert await looks.settler.run_once() > 1
    assert len(looks.at) == 1, "at once"
    for _ in range(IDLE_GATE_CHECKS):
        looks.settler.wake(Agenda.GATES)
        await looks.settler.run_once()
    looks.at.clear()
    looks.settler.check_gates_soon()
    looks.settler.check_gates_soon()
    assert 0 < await looks.settler.run_once() <= GATE_DEBOUNCE_SECONDS
    assert looks.at == []
    looks.clock.move_to(looks.clock.monotonic() + GATE_DEBOUNCE_SECONDS)
    await looks.settler.run_once()
    assert len(looks.at) == 1


@pytest.mark.parametrize("overlap", ["forbid", "queue_all"])
async def test_gates_are_not_checked_where_no_run_is_parked(overlap: Any, tmp_path: Path) -> None:
    ms = Mainspring(f"sqlite:///{tmp_path}/x.db")
    looked = 0

    @ms.every("10s", overlap=overlap)
    async def tick() -> None:
        await asyncio.sleep(15 if overlap == "queue_all" else 0)

    async with travel(ms, "2026-03-28T22:00Z") as t:
        assert host_of(ms).runtime is not None
        unpark_runs = runtime_of(ms).settler.unpark_runs

        async def counted() -> float:
            nonlocal looked
            looked += 1
            await unpark_runs()
            return 3_600.0

        runtime_of(ms).settler._steps[Agenda.GATES] = counted
        runtime_of(ms).settler.poll = 3_600.0
        await t.advance("61s")
        ended = [run for run in await t.runs() if run.state is State.SUCCEEDED]
    assert len(ended) == (6 if overlap == "forbid" else 3)
    assert (looked > 1) == (overlap == "queue_all")
