"""Simulated worlds: they have no violation, a seed replays exactly, crashes run no code, planted mistakes are found."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from mainspring.engine import lookahead
from mainspring.engine.store_clock import StoreClock
from mainspring.engine.work import worker
from mainspring.model.change import Change, RunAt, RunLease, ScheduleAt
from mainspring.model.run import State
from mainspring.ports.store import Agenda, Applied, ClaimRequest, Due, Runs
from proof import simulated_loop
from proof.simulated_loop import Process, SimulatedLoop
from proof.simulated_store import FaultyStore
from proof.simulation import run_world
from proof.simulation_main import run_worlds

#: Worlds that once found a mistake, with that mistake.
REGRESSIONS = [
    (4, "a client whose clock was ahead settled fires that had not come"),
    (43, "a claim whose answer was under way was handed back as a stray, and called twice"),
    (63, "a run whose outcome could not be stored in time was handed back as if it had never begun"),
    (102_461, "a late write that changed nothing undid the next fire of a fixed delay"),
    (103_430, "a claim that rode along with a commit was handed back as a stray after another claim was answered"),
    (100_639, "a run whose lease had ended was handed back as if it had never begun"),
    (260, "a run that must run at most once was handed back by a shutdown, and called again"),
]
CHUNKS, SIZE = 27, 12
FIRST = 1_000


@pytest.mark.timeout(300)  # for a busy machine
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_simulated_worlds_have_no_violation(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 300 worlds; in every second chunk the engine always plans ahead, whatever its load."""
    if chunk % 2:
        monkeypatch.setattr(lookahead, "BUSY_FIRES_PER_SECOND", 0.0)
        monkeypatch.setattr(lookahead, "RATE_WINDOW_SECONDS", 0.0)
    for seed in range(FIRST + chunk * SIZE, FIRST + (chunk + 1) * SIZE):
        outcome = run_world(seed)
        assert outcome.ok, str(outcome)


@pytest.mark.parametrize(("seed", "found"), REGRESSIONS, ids=[str(seed) for seed, _ in REGRESSIONS])
def test_worlds_that_once_found_a_mistake(seed: int, found: str) -> None:
    outcome = run_world(seed)
    assert outcome.ok, f"{found}\n{outcome}"


@pytest.mark.chaos
@pytest.mark.timeout(3_600)
def test_many_worlds() -> None:
    """`make chaos` runs thousands of worlds, shared among processes."""
    count = int(os.environ.get("MAINSPRING_WORLDS", "10"))
    start = int(os.environ.get("MAINSPRING_FIRST_WORLD", "100000"))
    total = {"fires": 0, "calls": 0, "crashes": 0, "stale": 0}
    wrong: list[str] = []
    for outcome in run_worlds(range(start, start + count), os.cpu_count() or 1):
        for name in total:
            total[name] += getattr(outcome, name, None) or getattr(outcome.report, name, 0)
        if not outcome.ok:
            wrong.append(str(outcome))
    print(f"{count} worlds: {total}, {len(wrong)} wrong")
    assert not wrong, "\n\n".join(wrong[:5])


# ── a seed is a world ───────────────────────────────────────────────────────


def test_a_seed_replays_exactly() -> None:
    digests = [[run_world(seed).digest for seed in (3, 11, 26, 34)] for _ in range(2)]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 4


def test_a_seed_replays_exactly_in_another_process() -> None:
    """A process with another hash seed prints an equal digest and equal faults."""
    command = [sys.executable, "-m", "proof.simulation", "26"]
    env = {**os.environ, "PYTHONHASHSEED": "4711"}
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    here = run_world(26)
    assert f"digest {here.digest}" in said
    assert str(here.plan.faults[0]) in said
    assert "replay it with: python -m proof.simulation 26" in said


# ── a crash is a crash ──────────────────────────────────────────────────────


@pytest.mark.usefixtures("frozen_heap")  # it collects garbage 16 times
def test_no_line_runs_after_a_crash() -> None:
    """A crash at any await runs no `finally`, `except` or callback, and leaves the collector nothing to close."""
    died = 0
    for steps in range(16):
        loop = SimulatedLoop()
        process = Process(loop, "p")
        lines: list[str] = []

        async def child(lines: list[str] = lines) -> None:
            try:
                for number in range(4):
                    await asyncio.sleep(0.1)
                    lines.append(f"child {number}")
            except BaseException:
                lines.append("child except")
                raise
            finally:
                lines.append("child finally")

        async def parent(lines: list[str] = lines, loop: SimulatedLoop = loop) -> None:
            loop.call_later(0.25, lines.append, "timer")
            try:
                async with asyncio.timeout(10):
                    await asyncio.create_task(child())
            finally:
                lines.append("parent finally")

        at_death: list[list[str]] = []
        process.kill_after_steps(steps, lambda lines=lines, at_death=at_death: at_death.append(list(lines)))  # type: ignore[misc]
        process.start(parent())
        loop.run_until_complete(asyncio.sleep(60))
        gc.collect()
        assert at_death == ([] if process.alive else [lines])
        assert process.alive == ("parent finally" in lines)
        died += not process.alive
        process.dispose()
        loop.close()
    assert 10 <= died < 16


def test_a_crashed_node_releases_nothing() -> None:
    """After the crash of a real engine, no event is written in the name of the dead process."""
    outcome = run_world(CRASHY, keep_log=True)
    assert outcome.crashes > 0
    left = {event.instance for event in outcome.log if type(event).__name__ == "InstanceLeft"}  # type: ignore[attr-defined]
    joined = {event.instance for event in outcome.log if type(event).__name__ == "InstanceJoined"}  # type: ignore[attr-defined]
    assert left < joined


CRASHY = 260


def test_a_stopped_process_continues_where_it_was() -> None:
    loop = SimulatedLoop()
    process = Process(loop, "p")
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(loop.time())

    async def world() -> None:
        process.start(tick())
        await asyncio.sleep(2.5)
        process.stop()
        await asyncio.sleep(5)
        process.resume()
        await asyncio.sleep(1.2)

    loop.run_until_complete(world())
    assert ticks == [1, 2, 7.5, 8.5]
    process.dispose()
    loop.close()


def test_a_world_that_spins_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A world whose loop never lets time pass fails instead of hanging."""
    monkeypatch.setattr(simulated_loop, "MAX_WORLD_STEPS", 1_000)
    outcome = run_world(1)
    assert not outcome.ok
    assert "does not come to rest" in str(outcome)


# ── planted mistakes are found ──────────────────────────────────────────────


class NoGuard(FaultyStore):
    """Mistake: outcomes are accepted from any worker, in any state of the run."""

    async def apply(
        self, changes: Sequence[Change], *, claim_request: ClaimRequest | None = None, now: int | None = None
    ) -> Applied:
        forged = []
        for change in changes:
            guard = change.guard
            if isinstance(guard, RunLease):
                (run,) = await self._store.find(Runs(id=guard.id))
                change = replace(change, guard=RunAt(run.id, run.n))
            forged.append(change)
        return await super().apply(forged, claim_request=claim_request, now=now)


class ExpiresLiveLeases(FaultyStore):
    """Mistake: the rescue takes every running run instead of those whose lease has ended."""

    async def due(
        self, agenda: Agenda, limit: int, *, hold: int = 1_000, ahead: int = 0, now: int | None = None
    ) -> Due:
        answer = await super().due(agenda, limit, hold=hold, ahead=ahead, now=now)
        if agenda is Agenda.EXPIRED:
            return replace(answer, runs=tuple(await self._store.find(Runs(states=(State.RUNNING,)))))
        return answer


class CursorFromNow(FaultyStore):
    """Mistake: the cursor is moved beyond the fire that was settled."""

    async def apply(
        self, changes: Sequence[Change], *, claim_request: ClaimRequest | None = None, now: int | None = None
    ) -> Applied:
        forged = []
        for change in changes:
            if isinstance(change.guard, ScheduleAt) and change.schedule is not None and change.runs:
                change = replace(change, schedule=replace(change.schedule, cursor=change.schedule.cursor + 2_500))
            forged.append(change)
        return await super().apply(forged, claim_request=claim_request, now=now)


class NoGates(FaultyStore):
    """Mistake: the gates that keep runs apart are never created."""

    async def apply(
        self, changes: Sequence[Change], *, claim_request: ClaimRequest | None = None, now: int | None = None
    ) -> Applied:
        return await super().apply([replace(change, gates=()) for change in changes], now=now)


@pytest.mark.parametrize(
    ("connect", "invariant"),
    [(ExpiresLiveLeases, "I7"), (CursorFromNow, "I2"), (NoGates, "I11")],
)
@pytest.mark.timeout(300)
@pytest.mark.tampers
def test_the_simulation_finds_mistakes_in_the_protocol(connect: type[FaultyStore], invariant: str) -> None:
    """A mistake in the protocol is found within 15 worlds, under the invariant that it breaks."""
    assert any(run_world(seed, connect=connect).report.counts[invariant] for seed in range(200, 215))


@pytest.mark.timeout(300)
@pytest.mark.tampers
def test_the_guards_of_the_store_suffice_without_lease_trust_and_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that trust their leases for too long do no harm, as long as the store checks the guards of changes."""
    monkeypatch.setattr(worker, "LEASE_TRUST_RATIO", 50.0)
    seeds = (200, 207, 209, 211)
    assert all(run_world(seed).ok for seed in seeds)
    assert any(not run_world(seed, connect=NoGuard).ok for seed in seeds)


@pytest.mark.timeout(300)
@pytest.mark.tampers
def test_the_simulation_finds_a_machine_that_trusts_its_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(self: Any) -> int:
        return int(self._clock.now())

    monkeypatch.setattr(StoreClock, "read", ask)
    assert any(run_world(seed).report.counts["I6"] for seed in range(1, 40))
