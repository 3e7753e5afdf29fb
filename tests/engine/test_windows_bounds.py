"""Windows, start and end, max_runs, deadlines, jitter and spread."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mainspring import Cron, Every, Mainspring, Schedule, State, Window
from mainspring.app.internals import registry_of
from mainspring.backends.memory.store import MemoryStore
from mainspring.model.errors import InvalidInput
from mainspring.model.events import RunScheduled
from mainspring.model.instant import Ms, instant_ms
from mainspring.model.policies import WindowSpec
from mainspring.rules.definition import SpecTarget, build_spec, digest_of
from mainspring.rules.next_run import find_next_run
from mainspring.rules.planning import start_offset
from mainspring.rules.windows import is_open, next_opening
from mainspring.testing.time_travel import travel
from tests.engine.noting import START, App, at, ms_at, spans
from tests.ledger_checks import check_ledger
from tests.stored_rows import stored


@pytest.fixture
def app() -> App:
    return App()


# ── what a window holds ──


@pytest.mark.parametrize(
    ("window", "when", "open_"),
    [
        (Window("09:00-17:00"), at(9), True),
        (Window("09:00-17:00"), at(8, 59, 59), False),
        (Window("09:00-17:00"), at(16, 59, 59), True),
        (Window("09:00-17:00"), at(17), False),
        (Window("00:00-24:00"), at(23, 59, 59), True),
        (Window("22:00-06:00"), at(22), True),
        (Window("22:00-06:00"), at(5, 59, 59), True),
        (Window("22:00-06:00"), at(6), False),
        (Window("22:00-06:00"), at(12), False),
        (Window("22:00-06:00", weekdays="mon"), at(23), True),
        (Window("22:00-06:00", weekdays="mon"), at(3, day=6), True),  # belongs to the Monday it began on
        (Window("22:00-06:00", weekdays="mon"), at(3), False),
        (Window("22:00-06:00", weekdays="mon"), at(23, day=6), False),
        (Window(weekdays="mon-fri"), at(0), True),
        (Window(weekdays="mon-fri"), at(12, day=10), False),
        (Window(weekdays="fri-mon"), at(12), True),
        (Window(weekdays=["sat", "sun"]), at(12, day=11), True),
        (Window("09:00-12:00", "13:00-18:00"), at(12), False),
        (Window("09:00-12:00", "13:00-18:00"), at(13), True),
        (Window("09:00-17:00", tz="Asia/Shanghai"), at(2), True),
        (Window("09:00-17:00", tz="Asia/Shanghai"), at(9), False),
        (Window("00:00-02:00", weekdays="tue", tz="Asia/Shanghai"), at(17), True),  # Tuesday there, Monday in UTC
        (Window(), at(12), True),
    ],
)
def test_a_window_holds_its_start_and_not_its_end(window: Any, when: datetime, open_: bool) -> None:
    assert is_open(window, instant_ms(when)) is open_


def test_the_next_opening() -> None:
    assert next_opening(Window("09:00-17:00"), ms_at(8)) == ms_at(9)
    assert next_opening(Window("09:00-17:00"), ms_at(10)) == ms_at(10)
    assert next_opening(Window("09:00-17:00"), ms_at(17)) == ms_at(9, day=6)
    assert next_opening(Window("09:00-12:00", "13:00-18:00"), ms_at(12)) == ms_at(13)
    assert next_opening(Window("22:00-06:00", weekdays="fri"), ms_at(12)) == ms_at(22, day=9)
    assert next_opening(Window("22:00-06:00", weekdays="fri"), ms_at(3, day=10)) == ms_at(3, day=10)
    assert next_opening(Window(weekdays="sat"), ms_at(12)) == ms_at(0, day=10)


@pytest.mark.parametrize("wrong", ["9", "09:00", "09:00-09:00", "09:00-25:00", "nine-ten"])
def test_a_wrong_segment_is_refused_with_the_reason(wrong: str) -> None:
    with pytest.raises(InvalidInput) as told:
        Window(wrong)
    assert told.value.field == "window.segments"


# ── the zone of a window ──


@pytest.mark.parametrize("start", ["2026-01-12T00:00Z", "2026-07-06T00:00Z"])
async def test_a_window_without_a_zone_is_in_the_schedules_zone_in_winter_and_summer(start: str) -> None:
    app = App(tz="Europe/Berlin")
    async with travel(app.ms, start) as t:
        await app.ms.schedule("s", "note", cron="0 9 * * Mon-Fri", window=Window("08:00-18:00"))
        await t.advance("7d")
        assert [fire.hour for fire in app.fires] == [9] * 5  # in Berlin
        assert window_zone(await app.ms.get("s")) == "Europe/Berlin"


async def test_the_zone_is_that_of_the_schedule_then_of_its_cron_then_of_the_app() -> None:
    app, window = App(tz="Europe/Berlin"), Window("09:00-17:00")
    async with travel(app.ms, START):
        own = await app.ms.schedule("own", "note", every="1h", tz="Asia/Tokyo", window=window)
        cron = await app.ms.schedule("cron", "note", cron=Cron("0 * * * *", tz="Asia/Seoul"), window=window)
        apps = await app.ms.schedule("app", "note", every="1h", window=window)
        said = await app.ms.schedule("said", "note", every="1h", window=Window("09:00-17:00", tz="UTC"))
        assert [window_zone(one) for one in (own, cron, apps, said)] == [
            "Asia/Tokyo",
            "Asia/Seoul",
            "Europe/Berlin",
            "UTC",
        ]


async def test_a_window_in_the_schedules_zone_follows_it_to_a_new_zone_and_another_stays() -> None:
    app = App(tz="Europe/Berlin")
    async with travel(app.ms, START):
        await app.ms.schedule("s", "note", every="1h", window=Window("09:00-17:00"))
        assert window_zone(await app.ms.update("s", tz="Asia/Tokyo")) == "Asia/Tokyo"
        await app.ms.update("s", window=Window("09:00-17:00", tz="UTC"))
        assert window_zone(await app.ms.update("s", tz="Europe/Berlin")) == "UTC"
        assert window_zone(await app.ms.update("s", window=Window("08:00-17:00"))) == "Europe/Berlin"


def test_the_digest_of_a_window_in_utc_is_that_of_earlier_versions() -> None:
    """Else each redeploy of a program in UTC would write a new revision of every schedule with a window."""

    def digest(window: WindowSpec) -> str:
        return digest_of(build_spec(SpecTarget("note"), {"every": "1h", "window": window}, name="s", now=0))

    of_version_1 = "875a5bd5fcf83a01553bf0fa6aaf87ba"
    assert digest(Window("09:00-17:00")) == digest(Window("09:00-17:00", tz="UTC")) == of_version_1


async def test_the_next_run_is_a_fire_that_will_run(app: App) -> None:
    """At most `grace` before an opening, a fire is planned as a run. It usually begins too early and is skipped."""
    async with travel(app.ms, at(16, 44)) as t:
        await app.ms.schedule("s", "note", cron="* * * * *", window=Window("18:00-20:00"))
        row = await stored(app.ms, app.ms.get("s"))
        assert (row.next_at, find_next_run(row), (await app.ms.get("s")).next_run) == (ms_at(17, 59), ms_at(18), at(18))
        await t.advance("80m")
        assert app.fires[0] == at(18)
        assert (await app.ms.pause("s")).next_run is None


async def test_the_next_run_passes_over_days_on_which_the_window_is_shut(app: App) -> None:
    async with travel(app.ms, at(10)):
        await app.ms.schedule("s", "note", cron="0 9 * * *", window=Window("08:00-18:00", weekdays="sat"))
        assert (await app.ms.get("s")).next_run == at(9, day=10)
        await app.ms.schedule("never", "note", cron="0 9 * * *", window=Window("12:00-18:00"))
        assert (await app.ms.get("never")).next_run is None
        await app.ms.schedule("ended", "note", cron="0 9 * * *", end=at(8, day=6))
        assert (await app.ms.get("ended")).next_run is None


def window_zone(schedule: Schedule) -> str:
    assert schedule.window is not None
    return str(schedule.window["tz"])


# ── windows through the engine ──


async def test_start_in_end_out(app: App) -> None:
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every="1h", window=Window("09:00-12:00"))
        await t.advance("25h")
        assert app.fires == [at(9), at(10), at(11), at(9, day=6)]
        book = await check_ledger(t)
        assert (book.planned, book.skipped, book.missed) == (25, {"outside_time_window": 21}, 0)


async def test_the_first_fire_after_the_opening_is_no_catch_up_and_is_not_skipped(app: App) -> None:
    """What lay outside the window is not missed: it must not come back as a compensating run."""
    async with travel(app.ms, at(16)) as t:
        await app.ms.schedule("s", "note", cron="0 * * * *", window=Window("09:00-17:00"), overlap="forbid")
        await t.advance("18h")
        runs = await t.runs("s")
        assert [run.fire_time for run in runs] == [ms_at(9, day=6), ms_at(10, day=6)]
        assert {(run.state, run.catch_up) for run in runs} == {(State.SUCCEEDED, False)}
        assert (await check_ledger(t)).missed == 0


@pytest.mark.parametrize("missed", ["skip", "catch_up_once", "replay_all"])
async def test_outside_the_window_nothing_is_missed_under_any_policy(missed: Any, app: App) -> None:
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every="10m", window=Window("12:00-13:00"), missed=missed)
        await t.advance("6h")
        assert app.fires == [at(12, m) for m in range(0, 60, 10)]
        book = await check_ledger(t)
        assert (book.missed, book.skipped) == (0, {"outside_time_window": book.planned - 6})


async def test_crossing_midnight_on_weekdays_in_a_zone(app: App) -> None:
    window = Window("22:00-02:00", weekdays="mon-fri", tz="Europe/Berlin")
    async with travel(app.ms, datetime(2026, 1, 9, 12, 30, tzinfo=UTC)) as t:  # a Friday
        await app.ms.schedule("s", "note", cron="0 * * * *", tz="Europe/Berlin", window=window)
        await t.advance("4d")
        seen = [(fire.strftime("%a"), fire.hour) for fire in app.fires]
        assert seen == [
            ("Fri", 22),
            ("Fri", 23),
            ("Sat", 0),
            ("Sat", 1),  # still Friday's
            ("Mon", 22),
            ("Mon", 23),
            ("Tue", 0),
            ("Tue", 1),
        ]
        await check_ledger(t)


async def test_several_segments(app: App) -> None:
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every="30m", window=Window("09:00-10:00", "15:00-16:00"))
        await t.advance("12h")
        assert app.fires == [at(9), at(9, 30), at(15), at(15, 30)]
        # 08:30 and 10:00 … 14:30; the rest of the night is accounted for at the next opening.
        assert (await check_ledger(t)).skipped == {"outside_time_window": 11}
        await t.advance_to(at(9, day=6))
        assert (await check_ledger(t)).skipped == {"outside_time_window": 11 + 34}


async def test_a_dense_schedule_outside_its_window_becomes_one_span_a_night(app: App) -> None:
    async with travel(app.ms, at(16, 59, 50)) as t:
        await app.ms.schedule("s", "note", every="5s", window=Window("09:00-17:00"), grace="0s")
        await t.advance("15s")
        scheduled = len(await t.runs("s"))
        await t.advance_to(at(9, 0, 10, day=6))
        book = await check_ledger(t)
        assert scheduled == 1  # 16:59:55; 17:00:00 is outside
        assert len(app.fires) == 1 + 3
        night = [span for span in await spans(t) if span.reason == "outside_time_window"]
        assert [span.count for span in night] == [16 * 720]
        assert book.planned == 4 + 16 * 720
        assert len(await t.runs("s")) == 4


async def test_a_fire_shortly_before_the_opening_is_left_to_the_worker(app: App) -> None:
    """Within the grace it could still begin inside; here it begins at once and is consumed."""
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", at=[at(8, 58), at(8, 59, 30), at(9, 30)], window=Window("09:00-10:00"))
        await t.advance("2h")
        runs = await t.runs("s")
        assert [(run.fire_time, run.state, run.reason) for run in runs] == [
            (ms_at(8, 59, 30), "skipped", "outside_time_window"),
            (ms_at(9, 30), "succeeded", None),
        ]
        assert [(span.count, span.reason) for span in await spans(t)] == [(1, "outside_time_window")]
        assert (await check_ledger(t)).skipped == {"outside_time_window": 2}


async def test_a_manual_trigger_ignores_the_window(app: App) -> None:
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every="1h", window=Window("12:00-13:00"))
        await (await app.ms.trigger("s")).result()
        assert len(app.fires) == 1
        await check_ledger(t)


async def test_a_retry_may_fall_outside_the_window(app: App) -> None:
    """The window says when a run may begin; one that has begun is brought to its end."""
    app.fails = True
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", at=[at(8, 59, 55)], window=Window("08:00-09:00"))
        await t.advance("2h")
        (run,) = await t.runs("s")
        assert (run.state, run.attempt) == (State.FAILED, 2)
        await check_ledger(t)


async def test_a_window_that_never_opens_elides_everything(app: App) -> None:
    async with travel(app.ms, START) as t:
        window = Window("09:00-10:00", weekdays="mon")
        await app.ms.schedule("s", "note", cron="30 10 * * *", window=window, end=at(12, day=8))
        await t.advance("5d")
        assert app.fires == []
        book = await check_ledger(t)
        assert (book.planned, book.skipped) == (4, {"outside_time_window": 4})


async def test_a_catch_up_after_downtime_is_checked_against_the_window_when_it_runs() -> None:
    store = MemoryStore()
    app = App(store)
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every="1h", window=Window("08:00-12:00"))
        await t.advance("30m")
    again = App(store)
    async with travel(again.ms, at(15)) as t:
        await t.advance("1s")
        assert again.fires == []
        runs = await t.runs("s")
        assert {(run.state, run.reason) for run in runs} == {("skipped", "outside_time_window")}
        book = await check_ledger(t)
        assert book.planned == 7


# ── start and end ──


@pytest.mark.parametrize(
    "when", [{"every": "30m"}, {"cron": "*/30 * * * *"}, {"at": [at(8, 30), at(9), at(9, 30), at(10), at(10, 30)]}]
)
async def test_start_and_end_are_inclusive(app: App, when: dict[str, Any]) -> None:
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", start=at(9), end=at(10), **when)
        await t.advance("1d")
        assert app.fires == [at(9), at(9, 30), at(10)]
        assert ((await app.ms.get("s")).state, (await app.ms.get("s")).reason) == ("finished", "ended")
        assert (await check_ledger(t)).planned == 3


async def test_an_end_before_the_first_fire_finishes_at_once(app: App) -> None:
    async with travel(app.ms, START) as t:
        made = await app.ms.schedule("s", "note", every="2h", end=at(9))
        assert (made.state, made.reason) == ("finished", "ended")
        await t.advance("1d")
        assert (app.fires, (await check_ledger(t)).planned) == ([], 0)


async def test_an_end_before_the_start_is_refused(app: App) -> None:
    async with travel(app.ms, START):
        with pytest.raises(InvalidInput) as told:
            await app.ms.schedule("s", "note", every="1h", start=at(10), end=at(9))
        assert told.value.field == "end"


# ── max_runs ──

KINDS: dict[str, dict[str, Any]] = {
    "interval": {"every": "1h"},
    "fixed_delay": {"every": Every("1h", fixed_delay=True)},
    "cron": {"cron": "0 * * * *"},
    "at": {"at": [at(hour) for hour in range(9, 20)]},
    "trigger": {"trigger": Every("1h", anchor=START)},
}


@pytest.mark.parametrize("kind", KINDS)
async def test_max_runs_on_every_kind(app: App, kind: str) -> None:
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", max_runs=3, **KINDS[kind])
        await t.advance("1d")
        assert app.fires == [at(9), at(10), at(11)]
        row = await app.ms.get("s")
        assert (row.state, row.reason, row.fired) == ("finished", "max_runs", 3)
        assert (await check_ledger(t)).planned == 3


@pytest.mark.parametrize("kind", KINDS)
async def test_max_runs_0_on_every_kind_exits_at_once(app: App, kind: str) -> None:
    async with travel(app.ms, START) as t:
        made = await stored(app.ms, app.ms.schedule("s", "note", max_runs=0, **KINDS[kind]))
        assert (made.state, made.reason, made.next_at) == ("finished", "max_runs", None)
        await t.advance("1d")
        assert (app.fires, (await check_ledger(t)).planned) == ([], 0)


async def test_max_runs_of_a_one_time_and_a_delayed_schedule(app: App) -> None:
    async with travel(app.ms, START) as t:
        await app.ms.schedule("once", "note", at=at(9), max_runs=1)
        await app.ms.schedule("delayed", "note", delay="30m", max_runs=0)
        await t.advance("1d")
        assert app.fires == [at(9)]
        assert (await check_ledger(t)).planned == 1


async def test_max_runs_counts_what_overlap_skipped_and_not_what_was_paused(app: App) -> None:
    app.seconds = 90
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every="1m", max_runs=3, overlap="forbid")
        await t.advance("2m30s")  # 08:01 runs, 08:02 is skipped
        await app.ms.pause("s")
        await t.advance("10m")
        await app.ms.resume("s")
        await t.advance("10m")
        assert app.fires == [at(8, 1), at(8, 13)]
        assert (await app.ms.get("s")).reason == "max_runs"
        book = await check_ledger(t)
        assert (book.planned, book.skipped) == (13, {"overlap": 1, "paused": 10})


async def test_a_finished_schedule_goes_on_when_its_limit_is_raised(app: App) -> None:
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every="1h", max_runs=1)
        await t.advance("3h")
        await app.ms.update("s", max_runs=3)
        await t.advance("9h")
        assert app.fires == [at(9), at(12), at(13)]
        assert (await check_ledger(t)).planned == 3


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "3"])
async def test_a_wrong_max_runs_is_refused(app: App, wrong: Any) -> None:
    async with travel(app.ms, START):
        with pytest.raises(InvalidInput) as told:
            await app.ms.schedule("s", "note", every="1h", max_runs=wrong)
        assert told.value.field == "max_runs"


# ── start_deadline ──


@pytest.mark.parametrize(("deadline", "state"), [("10m", "succeeded"), ("9m59s", "skipped")])
async def test_start_deadline_consumes_what_could_not_begin_in_time(deadline: str, state: str) -> None:
    app = App(concurrency=1)
    app.seconds = 15 * 60
    async with travel(app.ms, START) as t:
        await app.ms.schedule("first", "note", at=[at(8, 10)])
        await app.ms.schedule("second", "note", at=[at(8, 15)], start_deadline=deadline)
        await t.advance("2h")
        (run,) = await t.runs("second")
        assert (run.state, run.reason) == (state, "start_deadline" if state == "skipped" else None)
        assert (await check_ledger(t)).planned == 2


# ── jitter and spread ──


async def due_times(name: str, n: int = 5, **options: Any) -> tuple[str, list[tuple[Ms, Ms, str]]]:
    app = App(overlap_free := MemoryStore())
    async with travel(app.ms, START) as t:
        made = await app.ms.schedule(name, "note", cron="0 * * * *", overlap="allow_parallel", **options)
        await t.advance(f"{n}h30m")
        await check_ledger(t)
        born = [e for e in overlap_free._log if isinstance(e, RunScheduled)]
        began = [run.started_at or 0 for run in await t.runs(name)]
        assert began == [event.due_at for event in born]
        return made.id, [(event.fire_time or 0, event.due_at, event.fire_key or "") for event in born]


async def test_jitter_moves_due_at_and_not_the_fire_key() -> None:
    schedule_id, born = await due_times("s", jitter="20m")
    assert [fire for fire, _, _ in born] == [ms_at(hour) for hour in range(9, 14)]
    assert all(key == str(fire) for fire, _, key in born)
    late = [due - fire for fire, due, _ in born]
    assert all(0 <= wait < 1_200_000 for wait in late)
    assert len(set(late)) > 1
    spec = replace((await _spec("s", jitter="20m")), spread=0)
    assert late == [start_offset(schedule_id, spec, fire) for fire, _, _ in born]  # the same on every node


async def test_spread_is_the_same_for_every_fire_of_a_schedule() -> None:
    _, born = await due_times("s", spread="20m")
    late = {due - fire for fire, due, _ in born}
    assert len(late) == 1
    assert 0 <= late.pop() < 1_200_000


async def test_spread_spreads_schedules_over_the_window(app: App) -> None:
    async with travel(app.ms, START) as t:
        for n in range(40):
            await app.ms.schedule(f"s{n}", "note", at=[at(9)], spread="1h")
        await t.advance("1h")
        assert 0 <= len(app.fires) < 5
        await t.advance("30m")
        assert 8 < len(app.fires) < 32
        await t.advance("30m")
        assert app.fires == [at(9)] * 40
        assert len(set(app.ran)) > 30
        await check_ledger(t)


async def _spec(name: str, **options: Any) -> Any:
    app = App()
    return (
        registry_of(app.ms).make_request(name, task="note", cron="0 * * * *", overlap="allow_parallel", **options).spec
    )


async def test_on_sqlite_a_day_of_everything(tmp_path: Path) -> None:
    ms = Mainspring(f"sqlite:///{tmp_path}/day.db", lease_ttl="10m")
    ran: dict[str, int] = {}

    @ms.task
    async def note(name: str) -> None:
        ran[name] = ran.get(name, 0) + 1

    async with travel(ms, START) as t:
        await ms.schedule("window", note, args=("window",), every="10m", window=Window("09:00-10:00"), max_runs=100)
        await ms.schedule("delay", note, args=("delay",), every=Every("1h", fixed_delay=True), max_runs=4)
        await ms.schedule("dst", note, args=("dst",), cron=Cron("0 9 * * *", tz="Europe/Berlin"), end=at(12))
        await ms.schedule("once", note, args=("once",), delay="1h", jitter="10m", spread="10m")
        await t.advance("1d")
        assert ran == {"window": 6, "delay": 4, "once": 1}
        book = await check_ledger(t)
        assert book.skipped == {"outside_time_window": 5}  # the night follows at the next opening
    async with travel(Mainspring(f"sqlite:///{tmp_path}/day.db"), START + timedelta(days=2)) as t:
        await check_ledger(t)
