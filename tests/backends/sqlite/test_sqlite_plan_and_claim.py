"""The fast path that plans and claims fires in one commit answers and writes the same as two separate steps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mainspring.backends.sqlite import apply as module
from mainspring.backends.sqlite.store import SqliteStore
from mainspring.model.change import Body, Change
from mainspring.model.gate import Gate
from mainspring.model.ids import IdFactory, body_id
from mainspring.model.run import State
from mainspring.model.schedule import ScheduleSpec
from mainspring.model.trigger import AtSpec, EverySpec
from mainspring.ports.store import Applied, ClaimRequest, Offer
from mainspring.rules.planning import OpenRuns, settle
from mainspring.rules.schedule_commands import create, pause
from mainspring.testing.contract.factories import Ids, enqueue_change, make_run

NOW = 1_700_000_000_000
#: Schedules of this file fire between one and two seconds later; this is when they are planned, a little ahead.
PLANNED = NOW + 1_100
OFFER = Offer("w", ("default/default",), ("t", "other"), 30_000, ahead=500)
BODY = Body(body_id(b'{"k":{"x":1}}'), '{"k":{"x":1}}')
TABLES = ("schedule", "event", "gate", "gate_held", "body", "run", "span")


def created(count: int = 9, **over: Any) -> list[Change]:
    """Return changes that create schedules with all kinds of payloads and priorities, most of them with an own gate."""
    ids = IdFactory(random.Random(7))
    changes = []
    for number in range(count):
        values: dict[str, Any] = {
            "trigger": EverySpec(1_000 + 50 * (number % 10)),
            "task": "other" if number % 4 == 1 else "t",
            "body": BODY.id if number % 2 else None,
            "overlap": "allow_parallel" if number % 5 == 2 else "forbid",
            "priority": number % 3,
        }
        draft = create(ids.uuid7(NOW), "default", f"s{number}", ScheduleSpec(**values | over), NOW)
        draft.bodies.append(BODY)
        changes.append(draft.change(ids.uuid7(NOW)))
    return changes


def planned(changes: Sequence[Change]) -> list[Change]:
    """Return the settler's plan of each schedule at its fire time."""
    ids = IdFactory(random.Random(8))
    plans = []
    for change in changes:
        assert change.schedule is not None
        draft = settle(change.schedule, OpenRuns(), change.schedule.next_at or 0)
        plans.append(draft.change(ids.uuid7(NOW)))
    return plans


class Recorder:
    """A store that may take the fast path or never does, with everything that it answered."""

    def __init__(self, path: Path, *, short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = SqliteStore(path)
        self.short = short
        self.taken = 0
        self._patch = monkeypatch
        self.answers: list[Any] = []
        self._original = module.plan_and_claim

    def _begun(self, *args: Any) -> Any:
        claimed = self._original(*args) if self.short else None
        self.taken += claimed is not None
        return claimed

    async def apply(
        self, changes: Sequence[Change], claim_request: ClaimRequest | None = None, now: int = NOW
    ) -> Applied:
        with self._patch.context() as patched:
            patched.setattr(module, "plan_and_claim", self._begun)
            applied = await self.store.apply(changes, claim_request=claim_request, now=now)
        self.answers.append(applied)
        return applied

    async def end(self) -> dict[str, list[Any]]:
        dump = {}
        for table in TABLES:
            cursor = self.store._db.connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2")
            kept = [i for i, column in enumerate(cursor.description) if column[0] != "mark"]
            dump[table] = [[row[i] for i in kept] for row in cursor]
        await self.store.close()
        return dump


async def both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Sequence[Any]
) -> tuple[Recorder, dict[str, Any]]:
    """Run the steps with and without the fast path and compare answers and rows; return the former's store and rows."""
    recorders = []
    for short in (True, False):
        recorder = Recorder(tmp_path / f"{short}.db", short=short, monkeypatch=monkeypatch)
        await recorder.store.open()
        for step in steps:
            await recorder.apply(*step)
        recorders.append((recorder, await recorder.end()))
    (one, dump), (other, same) = recorders
    assert one.answers == other.answers
    assert dump == same
    return one, dump


async def test_fires_are_leased_and_written_as_by_planning_and_claiming_separately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = created()
    plans = planned(made)
    recorder, dump = await both(tmp_path, monkeypatch, [(made,), (plans, ClaimRequest(OFFER, 20), PLANNED)])
    assert recorder.taken == 1
    claims = recorder.answers[-1].claimed.claims
    assert {claim.run.state for claim in claims} == {State.RUNNING}
    assert [claim.run.priority for claim in claims] == sorted(claim.run.priority for claim in claims)
    assert {claim.body for claim in claims} == {None, BODY.data}
    assert len(dump["run"]) == len(claims) == 9
    assert [row[7] for row in dump["event"]].count("RunStarted") == 9


async def test_runs_claimed_with_their_plan_can_be_completed_by_the_fast_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = created(4, overlap="forbid")
    recorder = Recorder(tmp_path / "one.db", short=True, monkeypatch=monkeypatch)
    await recorder.store.open()
    await recorder.apply(made)
    applied = await recorder.apply(planned(made), ClaimRequest(OFFER, 20), PLANNED)
    assert applied.claimed is not None
    assert set(recorder.store._db.claimed_runs) == {claim.run.id for claim in applied.claimed.claims}
    assert len((await recorder.end())["gate_held"]) == 4


def waits_before(made: list[Change], plans: list[Change]) -> list[Any]:
    first = enqueue_change(Ids(), make_run(Ids(), due_at=NOW, task="t"))
    return [([*made],), ([first],), (plans, ClaimRequest(OFFER, 20), PLANNED)]


def no_room(made: list[Change], plans: list[Change]) -> list[Any]:
    return [(made,), (plans, ClaimRequest(OFFER, len(plans) - 1), PLANNED)]


def not_so_far_ahead(made: list[Change], plans: list[Change]) -> list[Any]:
    return [(made,), (plans, ClaimRequest(replace(OFFER, ahead=100), 20), PLANNED)]


def of_a_task_that_is_not_known(made: list[Change], plans: list[Change]) -> list[Any]:
    return [(made,), (plans, ClaimRequest(replace(OFFER, tasks=("t",)), 20), PLANNED)]


def behind_a_gate_that_is_held(made: list[Change], plans: list[Change]) -> list[Any]:
    gate = next(run.gates[0] for plan in plans for run in plan.runs if run.gates)
    holds = enqueue_change(Ids(), make_run(Ids(), due_at=NOW, task="t", gates=(gate,)))
    return [(made,), ([holds], ClaimRequest(OFFER, 1), NOW), (plans, ClaimRequest(OFFER, 20), PLANNED)]


def behind_a_gate_that_is_closed(made: list[Change], plans: list[Change]) -> list[Any]:
    gate = next(run.gates[0] for plan in plans for run in plan.runs if run.gates)
    closed = replace(made[0], gates=(Gate(gate, 1, closed_until=PLANNED + 100),))
    return [([closed, *made[1:]],), (plans, ClaimRequest(OFFER, 20), PLANNED)]


def in_two_lanes(made: list[Change], plans: list[Change]) -> list[Any]:
    return [(made,), (plans, ClaimRequest(replace(OFFER, lanes=("default/default", "default/more")), 20), PLANNED)]


@pytest.mark.parametrize(
    "steps",
    [
        waits_before,
        no_room,
        not_so_far_ahead,
        of_a_task_that_is_not_known,
        behind_a_gate_that_is_held,
        behind_a_gate_that_is_closed,
        in_two_lanes,
    ],
)
async def test_the_fast_path_is_not_taken_where_a_claim_would_take_other_runs(
    steps: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = created()
    recorder, _ = await both(tmp_path, monkeypatch, steps(made, planned(made)))
    assert recorder.taken == 0


async def test_the_fast_path_is_not_taken_ahead_of_time_for_runs_that_share_a_task_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = created(gates=("task:t",))
    made[0] = replace(made[0], gates=(*made[0].gates, Gate("task:t", 50)))
    recorder, _ = await both(tmp_path, monkeypatch, [(made,), (planned(made), ClaimRequest(OFFER, 20), PLANNED)])
    assert recorder.taken == 0


async def test_the_fast_path_is_not_taken_for_a_schedule_that_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [*created(3), *created(4, trigger=AtSpec((NOW + 1_000,)))[3:]]
    recorder, _ = await both(tmp_path, monkeypatch, [(made,), (planned(made), ClaimRequest(OFFER, 20), PLANNED)])
    assert recorder.taken == 0


async def test_only_the_plan_of_a_changed_schedule_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = created()
    before = made[2].schedule
    assert before is not None
    paused = pause(before, OpenRuns(), NOW, reason="by hand").change("p")
    recorder, dump = await both(
        tmp_path, monkeypatch, [(made,), ([paused],), (planned(made), ClaimRequest(OFFER, 20), PLANNED)]
    )
    assert [result.status for result in recorder.answers[-1].results].index("refused") == 2
    assert len(recorder.answers[-1].claimed.claims) == len(dump["run"]) == 8


async def test_a_fire_that_exists_already_is_answered_as_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = created()
    plans = planned(made)
    recorder, dump = await both(
        tmp_path, monkeypatch, [(made,), ([plans[3]],), (plans, ClaimRequest(replace(OFFER, ahead=0), 20), PLANNED)]
    )
    assert [result.status for result in recorder.answers[-1].results].count("repeated") == 1
    assert len(dump["run"]) == 9


@pytest.mark.tampers
async def test_the_batch_is_rolled_back_and_written_the_long_way_when_a_run_exists_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run exists although its schedule did not advance. Only a damaged file has that; nothing may be lost."""
    made = created()
    plans = planned(made)
    there = plans[4].runs[0]
    early = replace(there, ready_at=there.ready_at + 3_600_000)
    recorder, dump = await both(
        tmp_path, monkeypatch, [(made,), ([enqueue_change(Ids(), early)],), (plans, ClaimRequest(OFFER, 20), PLANNED)]
    )
    assert recorder.taken == 0
    assert {result.status for result in recorder.answers[-1].results} == {"accepted"}
    assert len(dump["run"]) == 9
    assert len(recorder.answers[-1].claimed.claims) == 8
