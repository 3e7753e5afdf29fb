"""The history checker: a planted violation of each invariant is counted under that invariant and under no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mainspring.backends.memory.store import MemoryStore
from mainspring.engine.lookahead import PLAN_AHEAD_MS
from mainspring.ledger.replay import Replay, _run_of
from mainspring.ledger.replay import Report as Differences
from mainspring.model.events import (
    Event,
    FiresElided,
    LeaseExpired,
    RunEvent,
    RunRetrying,
    RunScheduled,
    RunStarted,
    RunSucceeded,
    ScheduleEvent,
)
from mainspring.model.ids import fire_id
from mainspring.model.policies import RunOptions
from mainspring.model.run import Run, State
from mainspring.model.schedule import Span
from mainspring.model.trigger import EverySpec
from mainspring.rules.run_commands import Complete, Expire, Fail
from mainspring.testing.contract.factories import T0, make_spec
from mainspring.testing.history import INVARIANTS, KINDS, Call, History, Report, check, read_history
from proof.scenario import Scenario
from tests.proof.test_history_names import refused_name

MINUTE = 60_000
LEASE_TTL_MS = 30_000
UNTIL = T0 + 12 * MINUTE + 30_000


class World:
    """A history, the handlers' log that belongs to it, and the arguments for `check`."""

    def __init__(self, history: History, calls: list[Call]) -> None:
        self.history = history
        self.calls = calls
        self.options: dict[str, Any] = {}

    def check(self) -> Report:
        asked: dict[str, Any] = {"until": UNTIL, "late": 1_000, "lease_ttl": LEASE_TTL_MS, "healed": True, "seed": 7}
        return check(self.history, self.calls, **asked | self.options)

    def stream(self, run_id: str) -> list[RunEvent]:
        return self.history.run_streams()[run_id]

    def run(self, minute: int) -> Run:
        """Return the run of one fire of the schedule that forbids overlap."""
        return next(
            run for run in self.history.runs if run.fire_time == T0 + minute * MINUTE and run.task == "t" and run.gates
        )

    def rewrite(self, events: list[Event]) -> None:
        """Replace the log and rebuild the rows from it, so that numbers and order are consistent."""
        numbers: dict[str | None, int] = {}
        log: list[Event] = []
        for seq, event in enumerate(events, 1):
            stream = event.run_id if isinstance(event, RunEvent) else event.schedule_id
            numbered = isinstance(event, RunEvent | ScheduleEvent)
            if numbered:
                numbers[stream] = numbers.get(stream, 0) + 1
            log.append(replace(event, seq=seq, n=numbers[stream] if numbered else None))
        replay = Replay(Differences())
        for event in log:
            replay.take(event)
        spans = [e for e in log if isinstance(e, FiresElided)]
        self.history.events = log
        self.history.tailed = [event.seq for event in log]
        self.history.runs = [run for kept in replay.runs.values() if (run := _run_of(kept)) is not None]
        self.history.schedules = list(replay.schedules.values())
        self.history.spans = [
            Span(e.schedule_id or "", e.revision, e.after, e.through, e.count, e.reason, e.ns) for e in spans
        ]


async def small_world() -> World:
    """Write the history of two schedules without an engine: successes, retry, rescue, pause, update, ad-hoc work."""
    drive = Scenario(store := MemoryStore())
    spec = make_spec(trigger=EverySpec(MINUTE), overlap="forbid")
    busy = await drive.create(spec, T0, "busy")
    calm = await drive.create(make_spec(trigger=EverySpec(3 * MINUTE), overlap="allow_parallel"), T0, "calm")
    for minute in range(1, 13):
        now = T0 + minute * MINUTE
        if minute == 6:
            await drive.pause(busy, now + 1)
        elif minute == 9:
            await drive.resume(busy, now + 1)
        elif minute == 10:
            await drive.update(busy, replace(spec, priority=1), now - 1)
            await drive.enqueue(now)
        for sid in (busy, calm):
            await drive.settle(sid, now)
        for run in await drive.claim(now + 5):
            if minute == 2 and run.schedule_id == busy:
                await drive.finish(run, Fail("no", now + 5, 10, retry_at=now + 1_000), now + 15)
                (run,) = await drive.claim(now + 1_001)
                await drive.finish(run, Complete(now + 1_001, 5), now + 1_010)
            elif minute == 3 and run.schedule_id == busy:
                await drive.finish(run, Expire(3, "retry"), now + 5 + LEASE_TTL_MS)
                (run,) = await drive.claim(now + 6 + LEASE_TTL_MS)
                await drive.finish(run, Complete(now + 6 + LEASE_TTL_MS, 5), now + 20 + LEASE_TTL_MS)
            else:
                await drive.finish(run, Complete(now + 5, 5), now + 20)
    history = await read_history(store)
    calls = [
        Call(run_id=e.run_id or "", key=e.run_id or "", attempt=e.attempt or 1, token=e.epoch or 1, began=e.at)
        for e in history.events
        if isinstance(e, RunStarted)
    ]
    return World(history, calls)


@pytest.fixture
async def world() -> World:
    return await small_world()


def counts(**expected: int) -> dict[str, int]:
    return dict.fromkeys((*KINDS, *INVARIANTS), 0) | expected


async def test_a_clean_history_has_no_violation(world: World) -> None:
    report = world.check()
    assert report.ok, str(report)
    assert report.fires == 16  # 12 of the busy one, four of the calm one
    assert report.counts == counts()
    assert "seed 7" in str(report)
    assert {State.SUCCEEDED} == {run.state for run in world.history.runs}
    assert [span.reason for span in world.history.spans] == ["paused"]


# ── one planted violation for each invariant ────────────────────────────────


def doubled_fire(world: World) -> None:
    """Add a second run of one fire, right after the first one ended."""
    original = world.stream(world.run(4).id)
    copies = [replace(event, run_id="twin") for event in original]
    at = world.history.events.index(original[-1]) + 1
    world.rewrite([*world.history.events[:at], *copies, *world.history.events[at:]])
    world.calls.append(Call(run_id="twin", key="twin", token=1, began=copies[1].at))


def span_over_a_run(world: World) -> None:
    """Let the span of the pause include a fire that had run."""
    world.rewrite(
        [
            replace(e, after=e.after - 1, count=e.count + 1) if isinstance(e, FiresElided) else e
            for e in world.history.events
        ]
    )


def lost_fire(world: World) -> None:
    gone = world.run(4).id
    world.calls = [call for call in world.calls if call.run_id != gone]
    world.rewrite([e for e in world.history.events if e.run_id != gone])


def lost_span(world: World) -> None:
    world.rewrite([e for e in world.history.events if not isinstance(e, FiresElided)])


def lost_enqueue(world: World) -> None:
    world.options["acknowledged"] = ["never-stored"]


def extra_fire(world: World) -> None:
    """Add a run at an instant that is no fire."""
    doubled_fire(world)
    fire = T0 + 4 * MINUTE + 10
    run_id = fire_id(world.run(4).schedule_id or "", str(fire), fire)
    world.calls[-1] = replace(world.calls[-1], run_id=run_id, key=run_id)
    world.rewrite([_at(e, fire, run_id) if e.run_id == "twin" else e for e in world.history.events])


def _at(event: Event, fire: int, run_id: str) -> Event:
    event = replace(event, run_id=run_id, at=event.at + 20)
    return replace(event, fire_time=fire, fire_key=str(fire)) if isinstance(event, RunScheduled) else event


def span_of_too_many(world: World) -> None:
    world.rewrite([replace(e, count=e.count + 2) if isinstance(e, FiresElided) else e for e in world.history.events])


def no_call(world: World) -> None:
    gone = world.run(4).id
    world.calls = [call for call in world.calls if call.run_id != gone]


def called_twice(world: World) -> None:
    """Call an at-most-once run again after a rescue."""
    run_id = world.run(3).id
    options = RunOptions(recovery="fail")
    world.rewrite(
        [
            replace(e, options=options) if isinstance(e, RunScheduled) and e.run_id == run_id else e
            for e in world.history.events
        ]
    )


def called_beside_itself(world: World) -> None:
    first, second = sorted((c for c in world.calls if c.run_id == world.run(2).id), key=lambda call: call.token)
    world.calls[world.calls.index(first)] = replace(first, ended=second.began + 1)


def call_without_lease(world: World) -> None:
    world.calls.append(Call(run_id=world.run(4).id, key=world.run(4).id, token=9, began=UNTIL))


def stale_result(world: World) -> None:
    run_id = world.run(3).id
    world.rewrite(
        [replace(e, epoch=1) if isinstance(e, RunSucceeded) and e.run_id == run_id else e for e in world.history.events]
    )


def stale_by_the_calls(world: World) -> None:
    """Let the handlers' log show a call under a newer token before an outcome of the older one was accepted."""
    run_id = world.run(2).id
    failed = next(e for e in world.stream(run_id) if isinstance(e, RunRetrying))
    world.calls = [replace(c, began=failed.at - 1) if c.run_id == run_id and c.token == 2 else c for c in world.calls]
    world.rewrite([replace(e, next_attempt_at=failed.at) if e is failed else e for e in world.history.events])


def early_fire(world: World) -> None:
    run_id = world.run(4).id
    _birth_at(world, run_id, T0 + 4 * MINUTE - PLAN_AHEAD_MS - 1)


def late_fire(world: World) -> None:
    _birth_at(world, world.run(4).id, T0 + 4 * MINUTE + 1_001)


def _birth_at(world: World, run_id: str, at: int) -> None:
    world.rewrite(
        [replace(e, at=at) if isinstance(e, RunScheduled) and e.run_id == run_id else e for e in world.history.events]
    )


def called_early(world: World) -> None:
    """Let the handler report an earlier call than the event log."""
    run_id = world.run(4).id
    world.calls = [replace(c, began=T0 + 4 * MINUTE - 3) if c.run_id == run_id else c for c in world.calls]


def started_early(world: World) -> None:
    run_id = world.run(2).id
    world.rewrite(
        [
            replace(e, next_attempt_at=e.next_attempt_at + 500) if isinstance(e, RunRetrying) else e
            for e in world.history.events
        ]
    )
    assert run_id


def two_leases(world: World) -> None:
    world.rewrite([e for e in world.history.events if not isinstance(e, LeaseExpired)])


def lease_cut_short(world: World) -> None:
    world.rewrite(
        [replace(e, at=e.at - 1, ready_at=e.at - 1) if isinstance(e, LeaseExpired) else e for e in world.history.events]
    )


async def test_a_schedule_without_its_creation_is_named_and_does_not_stop_the_checker(world: World) -> None:
    world.history.events = world.history.events[1:]
    report = world.check()
    assert report.counts["I8"] > 0
    assert "which is missing" in str(report)


def changed_row(world: World) -> None:
    row = world.run(4)
    world.history.runs = [replace(r, attempt=2) if r.id == row.id else r for r in world.history.runs]


def illegal_move(world: World) -> None:
    """End a run a second time."""
    last = world.stream(world.run(4).id)[-1]
    at = world.history.events.index(last) + 1
    world.rewrite([*world.history.events[:at], last, *world.history.events[at:]])


def not_handed_out(world: World) -> None:
    world.history.tailed.remove(20)


def handed_out_twice(world: World) -> None:
    world.history.tailed.append(20)


def out_of_order(world: World) -> None:
    tailed = world.history.tailed
    tailed[19], tailed[20] = tailed[20], tailed[19]


def unseen_by_a_subscriber(world: World) -> None:
    world.options["seen"] = [1, 1, *(seq for seq in world.history.tailed if seq != 20)]


def two_keys(world: World) -> None:
    run_id = world.run(3).id
    world.calls = [replace(c, key="another") if c.run_id == run_id and c.token == 2 else c for c in world.calls]


def overlap(world: World) -> None:
    """Let the run of minute 4 end after the run of minute 5 has begun."""
    ended = world.stream(world.run(4).id)[-1]
    begun = world.stream(world.run(5).id)[1]
    rest = [e for e in world.history.events if e is not ended]
    at = rest.index(begun) + 1
    world.rewrite([*rest[:at], replace(ended, at=begun.at), *rest[at:]])


def never_ended(world: World) -> None:
    """Leave the last run open, of a schedule whose runs block no others."""
    last = [e for e in world.history.events if isinstance(e, RunSucceeded)][-1]
    world.rewrite([e for e in world.history.events if e is not last])


PLANTED: list[tuple[Callable[[World], None], dict[str, int]]] = [
    (doubled_fire, {"I1": 1, "doubled": 1}),
    (span_over_a_run, {"I1": 1, "doubled": 1}),
    (lost_fire, {"I2": 1, "lost": 1}),
    (lost_span, {"I2": 3, "lost": 3}),
    (lost_enqueue, {"I2": 1, "lost": 1}),
    (extra_fire, {"I3": 1, "extra": 1}),
    (span_of_too_many, {"I3": 2, "extra": 2}),
    (no_call, {"I4": 1, "lost": 1}),
    (called_twice, {"I4": 1, "doubled": 1}),
    (called_beside_itself, {"I4": 1, "doubled": 1}),
    (call_without_lease, {"I4": 1, "extra": 1}),
    (stale_result, {"I5": 1}),
    (stale_by_the_calls, {"I5": 1}),
    (early_fire, {"I6": 1, "late": 1}),
    (late_fire, {"I6": 1, "late": 1}),
    (started_early, {"I6": 1, "late": 1}),
    (called_early, {"I6": 1, "late": 1}),
    (two_leases, {"I7": 1, "doubled": 1}),
    (lease_cut_short, {"I7": 1}),
    (changed_row, {"I8": 1}),
    (illegal_move, {"I8": 1}),
    (not_handed_out, {"I9": 1}),
    (handed_out_twice, {"I9": 1}),
    (out_of_order, {"I9": 1}),
    (unseen_by_a_subscriber, {"I9": 1}),
    (two_keys, {"I10": 1}),
    (overlap, {"I11": 1, "doubled": 1}),
    (refused_name, {"I12": 1, "extra": 1}),
    (never_ended, {"incomplete": 1}),
]


@pytest.mark.parametrize(("plant", "expected"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
async def test_a_planted_violation_is_counted_and_nothing_else(
    world: World, plant: Callable[[World], None], expected: dict[str, int]
) -> None:
    plant(world)
    report = world.check()
    assert report.counts == counts(**expected), str(report)
    assert not report.ok


def test_every_invariant_is_planted() -> None:
    assert {key for _, expected in PLANTED for key in expected} == {*INVARIANTS, *KINDS}


@pytest.mark.parametrize(("plant", "expected"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
async def test_a_report_prints_a_small_slice_of_the_log(
    world: World, plant: Callable[[World], None], expected: dict[str, int]
) -> None:
    plant(world)
    report = world.check()
    for violation in report.violations:
        assert len(violation.slice) <= 8
        assert violation.what in str(report)
        for event in violation.slice:
            assert type(event).__name__ in str(report)
    assert "(seed 7)" in str(report)


async def test_a_slice_contains_the_events_of_the_violation(world: World) -> None:
    stale_result(world)
    run_id = world.run(3).id
    (violation,) = world.check().violations
    assert [type(e).__name__ for e in violation.slice] == ["RunStarted", "LeaseExpired", "RunStarted", "RunSucceeded"]
    assert {e.run_id for e in violation.slice} == {run_id}
    lost = await small_world()
    before, gone, after = (lost.run(minute).id for minute in (3, 4, 5))
    lost_fire(lost)
    (violation,) = lost.check().violations
    assert {e.run_id for e in violation.slice if isinstance(e, RunEvent)} == {before, after}
    assert gone not in {e.run_id for e in violation.slice}


# ── nothing slips through ───────────────────────────────────────────────────


@given(st.data())
@settings(max_examples=60, deadline=None)
async def test_a_removed_event_is_always_found(data: st.DataObject) -> None:
    world = await small_world()
    moves = [e for e in world.history.events if e.n is not None]
    gone = data.draw(st.sampled_from(moves), label="gone")
    if data.draw(st.booleans(), label="rows rebuilt"):
        world.rewrite([e for e in world.history.events if e is not gone])
    else:
        world.history.events = [e for e in world.history.events if e is not gone]
    report = world.check()
    assert not report.ok or type(gone).__name__ in ("ScheduleUpdated", "SchedulePaused", "ScheduleResumed")


@given(st.data())
@settings(max_examples=60, deadline=None)
async def test_a_changed_column_is_always_found(data: st.DataObject) -> None:
    world = await small_world()
    index = data.draw(st.integers(0, len(world.history.runs) - 1))
    field = data.draw(
        st.sampled_from(["state", "n", "epoch", "attempt", "ready_at", "ended_at", "priority", "crashes"])
    )
    row = world.history.runs[index]
    other = State.FAILED if field == "state" else getattr(row, field) + 1
    world.history.runs[index] = replace(row, **{field: other})
    assert not world.check().ok


# ── a real app ──────────────────────────────────────────────────────────────
