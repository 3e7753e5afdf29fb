"""Missed fires: each policy gives exactly what it says, bounded, decided fast, and the ledger explains every one."""

from __future__ import annotations

import itertools
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mainspring import Context, Mainspring
from mainspring.backends.memory.store import MemoryStore
from mainspring.ledger.account import Ledger, ledger
from mainspring.model.events import FiresElided, RunScheduled, RunSkipped
from mainspring.model.instant import Ms, instant_ms
from mainspring.model.policies import RunOptions
from mainspring.model.run import OPEN
from mainspring.model.schedule import Schedule, ScheduleSpec
from mainspring.model.trigger import AtSpec, CronSpec, EverySpec, TriggerSpec
from mainspring.ports.store import Runs, Spans
from mainspring.rules.planning import OpenRuns, count_owed, settle, trigger_of
from mainspring.rules.schedule_commands import create, pause, resume
from mainspring.rules.schedule_draft import ScheduleDraft
from mainspring.rules.windows import Window
from mainspring.testing.time_travel import Travel, travel
from proof.scenario import Scenario
from tests.ledger_checks import check_ledger
from tests.stored_rows import stored

START = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
T0: Ms = instant_ms(START)
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
Ran = list[tuple[datetime, bool]]


async def away(
    store: MemoryStore, off: timedelta, then: str, *, up: str = "1m30s", **options: Any
) -> tuple[Ran, Ledger, Travel]:
    """One schedule: up for a while, off, up again for `then`; what ran after the downtime."""
    ran: Ran = []

    def app() -> Mainspring:
        ms = Mainspring(store=store, concurrency=50, lease_ttl="10m")

        @ms.task
        async def note(ctx: Context) -> None:
            ran.append((ctx.fire_time, ctx.catch_up))

        return ms

    first = app()
    async with travel(first, START) as t:
        await first.schedule("s", "note", **{"every": "1m", **options})
        await t.advance(up)
        stopped = t.now
    ran.clear()
    async with travel(app(), stopped + off) as t:
        await t.advance(then)
        return ran, await check_ledger(t), t


def minute(n: int) -> datetime:
    return START + timedelta(minutes=n)


# ── the three policies, small ──


async def test_skip_runs_none_of_the_missed() -> None:
    ran, book, _ = await away(MemoryStore(), timedelta(minutes=10), "30s", missed="skip", grace=0)
    assert ran == [(minute(12), False)]
    assert (book.planned, book.ended, book.missed) == (12, 2, 10)


async def test_skip_runs_the_newest_when_it_is_within_the_grace() -> None:
    """08:11:30: of 08:02 … 08:11 the newest is 30 s old, which is late and not missed."""
    ran, book, _ = await away(MemoryStore(), timedelta(minutes=10), "1s", missed="skip")
    assert ran == [(minute(11), False)]
    assert (book.planned, book.ended, book.missed) == (11, 2, 9)


async def test_catch_up_once_uses_the_last_missed_fire_time() -> None:
    ran, book, _ = await away(
        MemoryStore(), timedelta(minutes=10), "1s", missed="catch_up_once", grace="10s", overlap="allow_parallel"
    )
    assert ran == [(minute(11), True)]
    assert (book.planned, book.ended, book.missed) == (11, 2, 9)


async def test_catch_up_once_says_how_many_it_stands_for() -> None:
    store = MemoryStore()
    await away(store, timedelta(minutes=10), "1s", missed="catch_up_once", grace="10s")
    (event,) = [e for e in store._log if isinstance(e, RunScheduled) and e.catch_up]
    assert (event.coalesced, event.fire_time) == (9, instant_ms(minute(11)))


async def test_catch_up_once_and_the_late_ones_within_the_grace() -> None:
    ran, book, _ = await away(
        MemoryStore(), timedelta(minutes=10), "1s", missed="catch_up_once", grace="3m", overlap="queue_all"
    )
    assert ran == [(minute(8), True), (minute(9), False), (minute(10), False), (minute(11), False)]
    assert (book.planned, book.ended, book.missed) == (11, 5, 6)


async def test_replay_all_replays_in_order_one_after_the_other() -> None:
    ran, book, _ = await away(MemoryStore(), timedelta(minutes=10), "1s", missed="replay_all", grace="10s")
    assert ran == [(minute(n), True) for n in range(2, 12)]
    assert (book.planned, book.ended, book.missed) == (11, 11, 0)


@pytest.mark.parametrize("overlap", ["forbid", "queue_one", "queue_all", "allow_parallel"])
async def test_replays_keep_their_order_under_every_overlap(overlap: str) -> None:
    ran, book, _ = await away(MemoryStore(), timedelta(minutes=30), "1s", missed="replay_all", grace=0, overlap=overlap)
    assert [fire for fire, _ in ran] == [minute(n) for n in range(2, 32)]
    assert (book.skipped, book.missed) == ({}, 0)


# ── grace ──


@pytest.mark.parametrize(("grace", "catch_up"), [("29999ms", True), ("30s", False), ("1h", False)])
async def test_planned_up_to_the_grace_late_it_simply_runs_late(grace: str, catch_up: bool) -> None:
    ran, _, _ = await away(MemoryStore(), timedelta(minutes=1), "1s", missed="catch_up_once", grace=grace)
    assert ran == [(minute(2), catch_up)]


async def test_the_default_grace_is_60_s_and_the_default_policy_catches_up_once() -> None:
    ran, book, _ = await away(MemoryStore(), timedelta(minutes=10), "1s", overlap="queue_all")
    assert ran == [(minute(10), True), (minute(11), False)]
    assert (book.planned, book.missed) == (11, 8)


# ── bounds ──


async def test_replay_max_keeps_the_newest_and_the_rest_is_one_span() -> None:
    store = MemoryStore()
    ran, book, _ = await away(
        store, timedelta(minutes=30), "1s", missed="replay_all", grace=0, replay_max=5, overlap="queue_all"
    )
    assert ran == [(minute(n), True) for n in range(27, 32)]
    assert (book.planned, book.ended, book.missed) == (31, 6, 25)
    (span,) = await store.find(Spans())
    assert (span.after, span.through, span.count, span.reason) == (
        instant_ms(minute(1)),
        instant_ms(minute(27)) - 1,
        25,
        "missed",
    )


async def test_replay_age_leaves_out_what_is_too_old() -> None:
    ran, book, _ = await away(
        MemoryStore(), timedelta(minutes=30), "1s", missed="replay_all", grace=0, replay_age="10m", overlap="queue_all"
    )
    assert ran == [(minute(n), True) for n in range(22, 32)]  # it is 08:31:30
    assert (book.ended, book.missed) == (11, 20)


async def test_replay_age_shorter_than_the_grace_still_runs_what_is_only_late() -> None:
    ran, book, _ = await away(
        MemoryStore(),
        timedelta(minutes=10),
        "1s",
        missed="replay_all",
        grace="2m",
        replay_age="1m",
        overlap="queue_all",
    )
    assert ran == [(minute(10), False), (minute(11), False)]
    assert (book.ended, book.missed) == (3, 8)


async def test_the_default_bound_is_1000_runs_and_24_hours() -> None:
    ran, book, _ = await away(MemoryStore(), timedelta(hours=47), "1s", missed="replay_all", overlap="allow_parallel")
    assert len([catch_up for _, catch_up in ran if catch_up]) == 1_000
    assert [fire for fire, _ in ran] == sorted(fire for fire, _ in ran)
    assert book.planned == 47 * 60 + 1
    assert book.ended + book.missed == book.planned
    hourly, book, _ = await away(
        MemoryStore(), timedelta(hours=47), "1s", every="1h", up="90m", missed="replay_all", overlap="allow_parallel"
    )
    assert [fire for fire, _ in hourly] == [START + timedelta(hours=n) for n in range(25, 49)]  # it is +48 h 30 min
    assert book.missed == 23


async def test_max_runs_counts_the_missed_too() -> None:
    ran, book, _ = await away(
        MemoryStore(), timedelta(minutes=10), "5m", missed="skip", grace=0, max_runs=8, overlap="queue_all"
    )
    assert ran == []
    assert (book.planned, book.ended, book.missed) == (8, 1, 7)


async def test_on_sqlite_too(tmp_path: Path) -> None:
    ran: Ran = []

    def app() -> Mainspring:
        ms = Mainspring(f"sqlite:///{tmp_path}/missed.db", lease_ttl="10m")

        @ms.every("1m", name="s", missed="replay_all", grace=0, replay_max=300)
        async def note(ctx: Context) -> None:
            ran.append((ctx.fire_time, ctx.catch_up))

        return ms

    async with travel(app(), START) as t:
        await t.advance("90s")
    ran.clear()
    async with travel(app(), START + timedelta(hours=10, seconds=1)) as t:
        await t.advance("10s")
        assert ran == [(minute(n), True) for n in range(301, 601)]
        book = await check_ledger(t)
        assert (book.planned, book.ended, book.missed) == (600, 301, 299)


# ── 30 days off, a fire each minute ──

OFF = 30 * DAY
FIRES = 43_200


def best_of_3(decide: Any) -> float:
    best = 1.0
    for _ in range(3):
        begin = time.perf_counter()
        decide()
        best = min(best, time.perf_counter() - begin)
    return best


def expected(missed: str) -> tuple[int, int]:
    """(runs, fires in spans) of 30 days with one fire a minute: two are late within the grace of 60 s."""
    return {"skip": (1, FIRES - 1), "catch_up_once": (3, FIRES - 3), "replay_all": (1_002, FIRES - 1_002)}[missed]


@pytest.mark.parametrize("trigger", [EverySpec(MINUTE), CronSpec("* * * * *")], ids=["every", "cron"])
@pytest.mark.parametrize("missed", ["skip", "catch_up_once", "replay_all"])
async def test_30_days_off_with_a_one_minute_schedule(missed: Any, trigger: TriggerSpec) -> None:
    s = Scenario(MemoryStore())
    spec = ScheduleSpec(trigger, "t", missed=missed, overlap="allow_parallel")
    sid = await s.create(spec, T0)
    now = T0 + OFF
    row = await s.schedule(sid)
    assert best_of_3(lambda: settle(row, OpenRuns(), now)) < 0.050
    draft = settle(row, OpenRuns(), now)
    assert len(draft.runs) <= 200
    assert len(draft.spans) <= 1
    await s.settle(sid, now)
    runs, elided = expected(missed)
    assert len(await s.store.find(Runs(schedule_id=sid, limit=10_000))) == runs
    assert sum(span.count for span in await s.store.find(Spans(schedule_id=sid))) == elided
    book = await ledger(s.store, now)
    assert (book.planned, book.open, book.missed, book.behind, book.unexplained) == (FIRES, runs, elided, 0, 0)


@pytest.mark.parametrize("missed", ["skip", "catch_up_once", "replay_all"])
async def test_30_days_off_through_the_engine(missed: str) -> None:
    ran, book, _ = await away(
        MemoryStore(), timedelta(days=30), "1s", up="30s", missed=missed, overlap="allow_parallel"
    )
    runs, elided = expected(missed)
    runs -= missed != "skip"  # it is 30 s past the minute: only one is late within the grace
    elided += missed != "skip"
    assert (book.planned, book.ended, book.missed) == (FIRES, runs, elided)
    assert ran[-1] == (minute(FIRES), False)
    assert [catch_up for _, catch_up in ran].count(True) == runs - 1
    assert ran == sorted(ran)


async def test_a_one_second_schedule_paused_for_30_days_is_one_span() -> None:
    store = MemoryStore()
    ms = Mainspring(store=store, lease_ttl="10m")

    @ms.every("1s", name="s")
    async def note() -> None: ...

    async with travel(ms, START) as t:
        await t.advance("5s")
        await ms.pause("s", reason="migration")
        before = len(store._log)
    ran = len(store._runs)
    again = Mainspring(store=store, lease_ttl="10m")

    @again.every("1s", name="s")
    async def note_again() -> None: ...

    async with travel(again, START + timedelta(days=30, milliseconds=500)) as t:
        assert len(store._runs) == ran
        row = await stored(again, again.get("s"))
        assert best_of_3(lambda: resume(row, t.clock.now())) < 0.050
        await again.resume("s")
        elided = [event for event in store._log[before:] if isinstance(event, FiresElided)]
        assert [(event.count, event.reason) for event in elided] == [(30 * 86_400 - 5, "paused")]
        assert len(await store.find(Spans())) == 1
        book = await check_ledger(t)
        assert (book.planned, book.skipped) == (30 * 86_400, {"paused": 30 * 86_400 - 5})
        assert (await stored(again, again.get("s"))).fired == 5  # paused time counts for no limit
        await t.advance("2s")
        assert len(store._runs) == ran + 2


def test_pausing_a_schedule_that_is_far_behind_is_bounded_too() -> None:
    draft = create("s", "default", "s", ScheduleSpec(EverySpec(SECOND), "t", missed="replay_all"), T0)
    began = time.perf_counter()
    paused = pause(draft.schedule, OpenRuns(), T0 + OFF, reason="x")
    assert time.perf_counter() - began < 1.0
    assert len(paused.runs) <= 1_000 + 61
    assert paused.schedule.state == "paused"


# ── properties of the decision ──

DROPPING = CronSpec("30 2 * * *", tz="Europe/Berlin", gap="skip")  # has no fire on 29 March
TRIGGERS: st.SearchStrategy[TriggerSpec] = st.one_of(
    st.builds(EverySpec, interval=st.integers(5_000, 3 * HOUR)),
    st.sampled_from(
        [
            CronSpec("* * * * *"),
            CronSpec("*/7 3-5 * * *"),
            CronSpec("30 2 * * *", tz="Europe/Berlin"),
            DROPPING,
            CronSpec("30 2 * * *", tz="Europe/Berlin", overlap="both"),
            CronSpec("30 1,2 * * *", tz="Europe/Berlin", gap="skip", overlap="last"),
            CronSpec("*/20 * * * * *", tz="Asia/Kathmandu"),
            CronSpec("0 12 1 * *"),
        ]
    ),
    st.builds(
        lambda steps: AtSpec(tuple(sorted({BASE + step for step in steps}))),
        st.lists(st.integers(-DAY, 5 * DAY), max_size=30),
    ),
)
BASE = instant_ms(datetime(2026, 3, 27, 12, tzinfo=UTC))  # the clock change of 29 March is near
WINDOWS = st.sampled_from(
    [None, Window("09:00-17:00"), Window("22:00-03:00", weekdays="fri-sun", tz="Europe/Berlin"), Window("02:30-02:31")]
)


@st.composite
def specs(draw: st.DrawFn) -> ScheduleSpec:
    start = draw(st.none() | st.integers(BASE - DAY, BASE + DAY))
    window = draw(WINDOWS)
    return ScheduleSpec(
        trigger=draw(TRIGGERS),
        task="t",
        missed=draw(st.sampled_from(["skip", "catch_up_once", "replay_all"])),
        grace=draw(st.sampled_from([0, 1, MINUTE, HOUR, DAY])),
        replay_max=draw(st.sampled_from([1, 7, 1_000])),
        replay_age=draw(st.sampled_from([0, HOUR, DAY])),
        overlap=draw(st.sampled_from(["forbid", "queue_one", "queue_all", "cancel_running", "allow_parallel"])),
        start=start,
        end=draw(st.none() | st.integers((start or BASE) + 1, BASE + 4 * DAY) | st.just(BASE + 2 * DAY)),
        max_runs=draw(st.none() | st.integers(1, 5_000)),
        options=None if window is None else RunOptions(window=window),
    )


OPENED = st.sampled_from([OpenRuns(), OpenRuns(1, 0, "a"), OpenRuns(2, 1, "a")])
QUIET = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def born(spec: ScheduleSpec) -> Schedule:
    return create("0198-s", "default", "s", spec, BASE).schedule


def pieces(draft: ScheduleDraft) -> list[tuple[Ms, Ms, int, str]]:
    """(after, through, count, what) of every run and span, in the order of the log."""
    found: list[tuple[Ms, Ms, int, str]] = []
    for event in draft.events:
        if isinstance(event, FiresElided):
            found.append((event.after, event.through, event.count, event.reason))
        elif isinstance(event, RunScheduled | RunSkipped):
            assert event.fire_time is not None
            found.append((event.fire_time - 1, event.fire_time, 1, "run"))
    return found


def owed_between(schedule: Schedule, low: Ms, high: Ms) -> int:
    """The fires in (low, high], counted one by one."""
    spec = schedule.spec
    low = low if spec.start is None else max(low, spec.start - 1)
    high = high if spec.end is None else min(high, spec.end)
    if high <= low:
        return 0
    trigger = trigger_of(spec, schedule.anchor)
    return len(trigger.fires_ms(low, high, 10**6)) + len(trigger.dropped_ms(low, high))


def all_settled(schedule: Schedule, opened: OpenRuns, now: Ms) -> tuple[Schedule, list[tuple[Ms, Ms, int, str]]]:
    """Settle until nothing is left, as the engine does; the schedule and all pieces."""
    found: list[tuple[Ms, Ms, int, str]] = []
    for _ in range(1_000):
        draft = settle(schedule, opened, now)
        found += pieces(draft)
        schedule = draft.schedule
        opened = OpenRuns(
            opened.count + sum(run.state in OPEN for run in draft.runs),
            opened.waiting + sum(run.state in OPEN for run in draft.runs),
            opened.oldest,
        )
        if not draft.more:
            return schedule, found
    raise AssertionError("settling does not end")


@QUIET
@given(specs(), OPENED, st.integers(0, 6 * DAY))
def test_every_due_fire_is_in_exactly_one_piece(spec: ScheduleSpec, opened: OpenRuns, late: Ms) -> None:
    schedule, now = born(spec), BASE + late
    if schedule.state != "active":
        return
    after, found = all_settled(schedule, opened, now)
    assert after.cursor <= max(now, schedule.cursor)
    # Each piece stands for what lies in it, and the fires of the runs are strictly increasing.
    fires = [through for _, through, _, what in found if what == "run"]
    assert fires == sorted(set(fires))
    trigger = trigger_of(spec, schedule.anchor)
    for low, high, count, what in found:
        assert low < high <= now
        if what == "dst":
            assert len(trigger.dropped_ms(low, high)) == count == 1
        else:
            assert trigger.count_ms(low, high) == count
    # No two of them overlap; a span may enclose the point of a dropped fire.
    solid = [(low, high) for low, high, _, what in found if what != "dst"]
    assert all(before[1] <= later[0] for before, later in itertools.pairwise(solid))
    consumed = sum(count for *_, count, what in found if what != "dst")
    assert after.fired == consumed
    total = sum(count for *_, count, _ in found)
    if spec.max_runs is not None and consumed == spec.max_runs:
        assert (after.state, after.reason) == ("finished", "max_runs")
        assert total == owed_between(schedule, BASE, after.cursor)
    else:
        assert total == owed_between(schedule, BASE, now)


@QUIET
@given(specs(), OPENED, st.integers(0, 6 * DAY))
def test_settling_again_at_the_same_instant_changes_nothing(spec: ScheduleSpec, opened: OpenRuns, late: Ms) -> None:
    schedule = born(spec)
    once, _ = all_settled(schedule, opened, BASE + late)
    again = settle(once, opened, BASE + late)
    assert not again.events
    assert again.schedule.cursor == once.cursor
    assert again.schedule.next_at == once.next_at


@QUIET
@example(ScheduleSpec(trigger=DROPPING, task="t", end=BASE + 2 * DAY), [24 * HOUR, 3 * DAY])
@given(specs(), st.lists(st.integers(0, 6 * DAY), min_size=1, max_size=6))
def test_settling_in_several_steps_gives_the_same_total_as_at_once(spec: ScheduleSpec, steps: list[Ms]) -> None:
    if spec.missed == "replay_all":
        spec = replace(spec, missed="skip")
    schedule = born(spec)
    if schedule.state != "active":
        return
    stepped, total = schedule, 0
    for step in sorted(steps):
        stepped, found = all_settled(stepped, OpenRuns(), BASE + step)
        total += sum(count for *_, count, _ in found)
    at_once, found = all_settled(schedule, OpenRuns(), BASE + max(steps))
    assert total == sum(count for *_, count, _ in found)
    assert (stepped.fired, stepped.state, stepped.reason) == (at_once.fired, at_once.state, at_once.reason)


@pytest.mark.parametrize("steps", [[HOUR, 3 * DAY], [24 * HOUR, 3 * DAY], [37 * HOUR], [3 * DAY]])
def test_a_schedule_ends_after_the_dropped_fire_it_still_owes(steps: list[Ms]) -> None:
    """The last fire is on 28 March, the clock change drops the one of the 29th, and then comes the end."""
    spec = ScheduleSpec(trigger=DROPPING, task="t", end=BASE + 2 * DAY)
    schedule, found = born(spec), []
    for step in steps:
        schedule, more = all_settled(schedule, OpenRuns(), BASE + step)
        found += more
    run, gap = instant_ms("2026-03-28T01:30:00Z"), instant_ms("2026-03-29T01:00:00Z")
    assert [(through, what) for _, through, _, what in found] == [(run, "run"), (gap, "dst")]
    assert (schedule.state, schedule.reason, schedule.cursor) == ("finished", "ended", gap)
    assert count_owed(spec, BASE, BASE, schedule.cursor) == 2


@QUIET
@given(specs(), st.integers(0, 6 * DAY), st.integers(0, 3 * DAY))
def test_the_next_look_never_comes_after_a_fire_that_could_run(spec: ScheduleSpec, late: Ms, more: Ms) -> None:
    """What the engine does not look at before `next_at` is elided by the window when it does look."""
    schedule, _ = all_settled(born(spec), OpenRuns(), BASE + late)
    if schedule.state != "active" or schedule.next_at is None or schedule.next_at > BASE + late + more:
        return
    draft = settle(replace(schedule), OpenRuns(), schedule.next_at)
    between = [piece for piece in pieces(draft) if piece[3] not in ("outside_time_window", "dst")]
    assert all(through >= schedule.next_at for _, through, _, _ in between)
