"""Schedules from Python: made, read, edited, paused, triggered, deleted; and the queries."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from mainspring import (
    Mainspring,
    Retry,
    State,
)
from mainspring.model.errors import DuplicateTask, InvalidInput, UnknownSchedule
from mainspring.model.events import (
    FiresElided,
    RunScheduled,
    RunStarted,
    RunSucceeded,
    ScheduleCreated,
    SchedulePaused,
    ScheduleUpdated,
)
from mainspring.model.schedule import Schedule
from mainspring.model.trigger import CronSpec
from mainspring.testing import travel
from tests.engine.support import START, WAIT, beside
from tests.stored_rows import stored


async def test_schedules_are_made_read_and_listed(clocked: Mainspring) -> None:
    ms = clocked
    async with travel(ms, START) as t:
        made = await stored(ms, ms.schedule("nightly", "report", cron="0 2 * * *", args=("acme",), tz="Europe/Berlin"))
        await ms.schedule("often", ms.tasks["report"], every="10m", kwargs={"copies": 2})
        await ms.schedule("soon", ms.tasks["report"].function, delay="1m")
        await ms.schedule("fixed", "report", at=[datetime(2026, 3, 2, 8, 30, tzinfo=UTC)])
        assert await stored(ms, ms.get("nightly")) == made == await stored(ms, ms.get(made.id))
        assert (made.revision, made.spec.tz, made.state) == (1, "Europe/Berlin", "active")
        await t.advance("31m")
        names = {schedule.name: schedule.state for schedule in await stored(ms, ms.schedules())}
        assert names == {"nightly": "active", "often": "active", "soon": "finished", "fixed": "finished"}
        assert {s.name for s in await stored(ms, ms.schedules(enabled=True))} == {"nightly", "often"}
        assert {s.name for s in await stored(ms, ms.schedules(enabled=False))} == {"soon", "fixed"}
        assert [r.result for r in await t.runs("often")] == ['"nobodynobody"'] * 3
        assert [at.minute for at in await t.fires("often")] == [10, 20, 30]
        assert [r.result for r in await t.runs("soon")] == ['"nobody"']
        page = await stored(ms, ms.schedules(limit=2))
        rest = await stored(ms, ms.schedules(limit=10, after=page[-1].id))
        assert [s.id for s in page + rest] == [s.id for s in await stored(ms, ms.schedules())]


async def test_an_unknown_schedule_is_answered_with_the_nearest(clocked: Mainspring) -> None:
    await clocked.schedule("nightly", "report", cron="0 2 * * *")
    with pytest.raises(UnknownSchedule, match=r"no schedule is called 'nightli'\. Did you mean 'nightly'\?"):
        await clocked.pause("nightli")


def cron_of(schedule: Schedule) -> tuple[str, str]:
    assert isinstance(schedule.spec.trigger, CronSpec)
    return schedule.spec.trigger.expr, schedule.spec.trigger.tz


async def test_update_of_one_field_keeps_the_others(clocked: Mainspring) -> None:
    ms = clocked
    before = await stored(
        ms,
        ms.schedule(
            "nightly",
            "report",
            cron="0 2 * * *",
            tz="Europe/Berlin",
            args=("acme",),
            missed="skip",
            grace="5m",
            overlap="queue_one",
            priority="high",
            max_runs=9,
            timeout="11s",
            retry=Retry(max_attempts=7),
            start_deadline="1h",
        ),
    )
    after = await stored(ms, ms.update("nightly", grace="10m"))
    assert after.revision == 2
    changed = {name for name in after.spec.__struct_fields__ if getattr(after.spec, name) != getattr(before.spec, name)}
    assert changed == {"grace"}
    (event,) = await ms.events(schedule="nightly", types=[ScheduleUpdated])
    assert isinstance(event, ScheduleUpdated)
    assert event.changed == ("grace",)
    # an option of the run
    after = await stored(ms, ms.update("nightly", timeout="12s"))
    assert after.spec.options is not None
    assert before.spec.options is not None
    assert after.spec.options.timeout == 12_000
    assert after.spec.options.retry == before.spec.options.retry
    assert after.spec.options.start_deadline == 3_600_000
    # the trigger alone keeps its zone; the payload alone keeps the trigger
    after = await stored(ms, ms.update("nightly", cron="30 3 * * *"))
    assert (after.spec.tz, cron_of(after)) == ("Europe/Berlin", ("30 3 * * *", "Europe/Berlin"))
    assert after.spec.body == before.spec.body
    after = await stored(ms, ms.update("nightly", args=("globex",)))
    assert after.spec.body != before.spec.body
    assert cron_of(after) == ("30 3 * * *", "Europe/Berlin")
    after = await stored(ms, ms.update("nightly", tz="Asia/Tokyo"))
    assert (after.spec.tz, cron_of(after)) == ("Asia/Tokyo", ("30 3 * * *", "Asia/Tokyo"))
    assert after.revision == 6
    # None takes a limit away; nothing new writes nothing
    after = await stored(ms, ms.update("nightly", max_runs=None))
    assert (after.spec.max_runs, after.revision) == (None, 7)
    assert (await stored(ms, ms.update("nightly", grace="10m"))).revision == 7


async def test_an_update_needs_no_arguments_again(ms: Mainspring) -> None:
    @ms.task
    async def send(customer: str) -> str:
        return customer

    before = await stored(ms, ms.schedule("nightly", send, cron="0 2 * * *", args=("acme",)))
    after = await stored(ms, ms.update("nightly", grace="5m"))
    assert (after.spec.grace, after.spec.body) == (300_000, before.spec.body)


async def test_answers_carry_what_the_store_filled_in(clocked: Mainspring) -> None:
    ms = clocked
    made = await ms.schedule("nightly", "report", cron="0 2 * * *")
    assert made.created_at.timestamp() > 0
    handle = await ms.tasks["report"].enqueue()
    cancelled = await ms.cancel(handle.id)
    assert cancelled == await handle.run()
    assert cancelled.ended_at


async def test_two_updates_at_once_both_hold(clocked: Mainspring) -> None:
    ms = clocked
    await ms.schedule("nightly", "report", cron="0 2 * * *")
    await asyncio.gather(ms.update("nightly", grace="10m"), ms.update("nightly", missed="skip"))
    spec = (await stored(ms, ms.get("nightly"))).spec
    assert (spec.grace, spec.missed) == (600_000, "skip")


async def test_an_update_affects_only_later_fires(clocked: Mainspring) -> None:
    ms = clocked
    async with travel(ms, START) as t:
        await ms.schedule("often", "report", cron="*/10 * * * *", args=("old",))
        await t.advance("15m")
        await ms.update("often", args=("new",))
        await t.advance("10m")
        assert [(r.revision, r.result) for r in await t.runs("often")] == [(1, '"old"'), (2, '"new"')]


async def test_pause_with_until_and_resume(clocked: Mainspring) -> None:
    ms = clocked
    async with travel(ms, START) as t:
        await ms.schedule("often", "report", cron="*/10 * * * *", missed="skip", grace="1s")
        await t.advance("10m")
        paused = await ms.pause("often", reason="migration", until=t.now + timedelta(minutes=25))
        assert (paused.state, paused.reason) == ("paused", "migration")
        await t.advance("20m")
        assert len(await t.runs("often")) == 1
        await t.advance("20m")
        assert [at.minute for at in await t.fires("often")] == [10, 40, 50]
        (span,) = [e for e in await ms.events(schedule="often") if isinstance(e, FiresElided)]
        assert (span.count, span.reason) == (2, "paused")
        (note,) = [e for e in await ms.events(schedule="often") if isinstance(e, SchedulePaused)]
        assert note.reason == "migration"
        # by hand
        await ms.pause("often")
        assert [s.name for s in await ms.schedules(enabled=False)] == ["often"]
        resumed = await ms.resume("often")
        assert resumed.state == "active"


async def test_trigger_now_and_with_other_arguments(clocked: Mainspring) -> None:
    ms = clocked
    await ms.schedule("nightly", "report", cron="0 2 * * *", args=("acme",))
    async with beside(ms):
        own = await ms.trigger("nightly")
        other = await ms.trigger("nightly", args=("globex",), kwargs={"copies": 2})
        assert await own.result(timeout=WAIT) == "acme"
        assert await other.result(timeout=WAIT) == "globexglobex"
        runs = await ms.runs(schedule="nightly")
        assert {(run.id, run.origin) for run in runs} == {(own.id, "trigger"), (other.id, "trigger")}
        assert (await ms.get("nightly")).revision == 1


async def test_delete_cancels_what_waits_with_a_reason(clocked: Mainspring) -> None:
    ms = clocked
    schedule = await ms.schedule("nightly", "report", cron="0 2 * * *")
    handle = await ms.trigger("nightly")
    await ms.delete("nightly", reason="not needed")
    run = await handle.run()
    assert (run.state, run.reason) == (State.CANCELLED, "the schedule was deleted")
    assert await ms.schedules() == []
    with pytest.raises(UnknownSchedule):
        await ms.get("nightly")
    with pytest.raises(UnknownSchedule):
        await ms.trigger(schedule.id)
    # the name is free again, the history stays
    again = await ms.schedule("nightly", "report", cron="0 3 * * *")
    assert again.id != schedule.id
    assert (await ms.find_by_id(handle.id)).schedule_id == schedule.id


async def test_declared_schedules_of_every_kind(ms: Mainspring) -> None:
    ran: list[str] = []

    @ms.cron("0 9 * * *", name="morning")
    async def one() -> None:
        ran.append("cron")

    @ms.every("30m", args=("x",))
    async def two(what: str) -> None:
        ran.append(f"every {what}")

    @ms.at(datetime(2026, 3, 2, 8, 45, tzinfo=UTC), kwargs={"what": "y"})
    def three(what: str) -> None:
        ran.append(f"at {what}")

    @ms.cron("30 9 * * *")
    @ms.task(name="renamed")
    async def four() -> None:
        ran.append("four")

    async with travel(ms, START) as t:
        await t.advance("91m")
        assert {s.name for s in await ms.schedules()} == {"morning", "two", "three", "renamed"}
    # those that fire at one instant have no order among them
    assert ran[:2] == ["every x", "at y"]
    assert sorted(ran[2:4]) == ["cron", "every x"]
    assert sorted(ran[4:]) == ["every x", "four"]
    with pytest.raises(DuplicateTask, match="a schedule called 'morning' is declared already"):
        ms.cron("0 1 * * *", name="morning")(print)


# ── queries ────────────────────────────────────────────────────────────────


async def test_finding_runs(ms: Mainspring) -> None:
    @ms.task(retry=Retry(max_attempts=1))
    async def work(fails: bool = False) -> None:
        if fails:
            raise OSError("x")

    @ms.task
    async def report() -> None: ...

    async with travel(ms, START) as t:
        good, bad = await work.enqueue(), await work.enqueue(fails=True)
        await t.settle()
        await ms.schedule("often", report, cron="*/10 * * * *")
        await t.advance("25m")
        mark = t.now
        late = await work.using(delay="5m").enqueue()
        assert [r.id for r in await ms.find_by_status("failed")] == [bad.id]
        assert [r.id for r in await ms.find_by_status(State.WAITING)] == [late.id]
        assert (await ms.find_by_id(good.id)).state is State.SUCCEEDED
        assert len(await ms.runs(schedule="often", state="succeeded")) == 2
        assert {r.id for r in await ms.runs(since=mark)} == {late.id}
        assert {r.id for r in await ms.runs(task="work")} == {good.id, bad.id, late.id}
        newest = await ms.runs(limit=2)
        assert newest[0].id == late.id
        rest = await ms.runs(after=newest[-1].id)
        assert len(newest) + len(rest) == 5


async def test_finding_what_is_due_and_overdue(ms: Mainspring) -> None:
    @ms.task
    async def work() -> None: ...

    now = datetime.now(UTC)
    old = await work.using(at=now - timedelta(minutes=10)).enqueue()
    due = await work.using(at=now - timedelta(seconds=5)).enqueue()
    future = await work.using(at=now + timedelta(hours=1)).enqueue()
    assert [r.id for r in await ms.find_due()] == [old.id, due.id]
    assert [r.id for r in await ms.find_due(now + timedelta(hours=2))] == [old.id, due.id, future.id]
    assert [r.id for r in await ms.find_overdue()] == [old.id]
    assert await ms.find_overdue(by="1h") == []
    assert [r.id for r in await ms.find_due(limit=1)] == [old.id]


async def test_querying_events(clocked: Mainspring) -> None:
    ms = clocked
    async with travel(ms, START) as t:
        await ms.schedule("often", "report", cron="*/10 * * * *")
        handle = await ms.tasks["report"].enqueue()
        await t.advance("10m")
        middle = t.now
        await t.advance("10m")
        assert [type(e) for e in await ms.events(run=handle.id)] == [RunScheduled, RunStarted, RunSucceeded]
        assert [type(e) for e in await ms.events(schedule="often", types=[ScheduleCreated])] == [ScheduleCreated]
        assert len(await ms.events(schedule="often", types=["RunSucceeded"])) == 2
        assert len(await ms.events(types=[RunSucceeded])) == 3
        early = await ms.events(until=middle - timedelta(seconds=1))
        late = await ms.events(since=middle + timedelta(seconds=1))
        assert early
        assert late
        assert max(e.seq for e in early) < min(e.seq for e in late)
        every = await ms.events()
        assert [e.seq for e in every] == sorted({e.seq for e in every})
        assert await ms.events(limit=3) == every[:3]


async def test_a_delay_counts_from_when_it_is_stored_so_that_even_none_fires(ms: Mainspring) -> None:
    """On the real clock: between saying "now" and storing it, time passes."""
    ran: list[str] = []

    @ms.task
    async def note(name: str) -> None:
        ran.append(name)

    await ms.schedule("later", note, every="1d", args=("edited",))
    async with beside(ms):
        for n in range(5):
            made = await ms.schedule(f"now{n}", note, delay=0, args=(f"now{n}",))
            assert made.next_run is not None
        await ms.update("later", delay="1ms")
        async with asyncio.timeout(20):
            while "now0" not in ran:  # noqa: ASYNC110 - a fire beside an open run is skipped
                await asyncio.sleep(0.01)
            await ms.schedule("now0", note, delay="1ms", args=("again",), on_conflict="replace")
            while len(ran) < 7:  # noqa: ASYNC110 - no event tells when the list grows
                await asyncio.sleep(0.01)
    assert sorted(ran) == ["again", "edited", *(f"now{n}" for n in range(5))]


async def test_runs_of_several_states_are_found_at_once(ms: Mainspring) -> None:
    @ms.task
    async def note() -> None: ...

    first = await note.enqueue()
    second = await note.using(delay="1h").enqueue()
    await ms.cancel(first.id)
    assert [run.id for run in await ms.runs(state=("waiting", State.CANCELLED))] == [second.id, first.id]
    assert [run.id for run in await ms.runs(state="cancelled")] == [first.id]
    with pytest.raises(InvalidInput, match=r"state: 'waitng' is not one of .*Did you mean 'waiting'"):
        await ms.runs(state=["cancelled", "waitng"])
