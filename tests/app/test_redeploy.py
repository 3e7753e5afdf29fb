"""Redeploy: what a new version of the code does to the schedules that the old one declared."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mainspring import Context, Cron, Mainspring, State, Window
from mainspring.app.internals import host_of, runner_of
from mainspring.ledger.account import ledger
from mainspring.model.events import DeclarationConflict, SchedulePaused, ScheduleResumed, ScheduleUpdated
from mainspring.model.instant import instant_ms
from mainspring.rules.redeploy import LiveDeclaration, judge_declaration, version_key
from mainspring.testing.time_travel import Travel, travel
from tests.ledger_checks import check_ledger
from tests.stored_rows import stored

START = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
Declare = Callable[..., Mainspring]


def at(hour: int, minute: int = 0) -> datetime:
    return START.replace(hour=hour, minute=minute)


def ms_at(hour: int, minute: int = 0) -> int:
    return instant_ms(at(hour, minute))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "redeploy.db"


@pytest.fixture
def app(path: Path) -> Declare:
    """A deployment of the app: `app(every="1h")` declares `nightly`, `app()` declares nothing."""

    def make(*, version: str = "", on_drift: Any = "keep", name: str = "shop", **when: Any) -> Mainspring:
        ms = Mainspring(
            f"sqlite:///{path}", name=name, version=version, on_drift=on_drift, lease_ttl="10m", heartbeat="1m"
        )

        async def nightly(ctx: Context, region: str = "eu") -> str:
            return region

        if "every" in when:
            ms.every(when.pop("every"), **when)(nightly)
        elif "cron" in when:
            ms.cron(when.pop("cron"), **when)(nightly)
        else:
            ms.task(nightly)
        return ms

    return make


def events(path: Path) -> list[str]:
    """The log without the instances that come and go, and lead."""
    with sqlite3.connect(path) as db:
        rows = db.execute("SELECT seq, type FROM event ORDER BY seq").fetchall()
    db.close()
    return [f"{seq} {kind}" for seq, kind in rows if not kind.startswith(("Instance", "Leader"))]


def schedule_row(path: Path) -> tuple[Any, ...]:
    with sqlite3.connect(path) as db:
        row: tuple[Any, ...] = db.execute("SELECT * FROM schedule").fetchone()
    db.close()
    return row


# ── unchanged ──


async def test_unchanged_writes_nothing(app: Declare, path: Path) -> None:
    async with travel(app(every="1h"), START) as t:
        await t.advance("90m")
        before = await stored(t.app, t.app.get("nightly"))
    log, row = events(path), schedule_row(path)
    for hour in (9.75, 9.8, 9.9):
        async with travel(app(every="1h"), START + timedelta(hours=hour - 8)) as t:
            after = await stored(t.app, t.app.get("nightly"))
            assert after == before
            assert (after.updated_at, after.revision, after.anchor) == (before.updated_at, 1, instant_ms(START))
            await check_ledger(t)
    assert (events(path), schedule_row(path)) == (log, row)


async def test_unchanged_under_a_new_version_writes_nothing(app: Declare, path: Path) -> None:
    async with travel(app(every="1h", version="1.0"), START) as t:
        await t.advance("90m")
    log, row = events(path), schedule_row(path)
    async with travel(app(every="1h", version="2.0"), at(9, 45)) as t:
        assert (await stored(t.app, t.app.get("nightly"))).version == "1.0"
        await check_ledger(t)
    assert (events(path), schedule_row(path)) == (log, row)


async def test_a_declared_schedule_belongs_to_the_code(app: Declare) -> None:
    async with travel(app(every="1h", version="1.0"), START) as t:
        row = await stored(t.app, t.app.get("nightly"))
        assert (row.origin, row.app, row.version, row.owner, row.drifted) == ("code", "shop", "1.0", "code@1.0", False)


# ── changed ──


async def test_changed_is_a_new_revision_that_affects_only_later_fires(app: Declare) -> None:
    async with travel(app(every="1h", version="1"), START) as t:
        await t.advance("2h30m")
    async with travel(app(every="20m", version="2"), at(10, 30)) as t:
        row = await stored(t.app, t.app.get("nightly"))
        assert (row.revision, row.fired, row.version, row.owner) == (2, 2, "2", "code@2")
        await t.advance("1h")
        runs = await t.runs("nightly")
        assert [(run.fire_time, run.revision) for run in runs] == [
            (ms_at(9), 1),
            (ms_at(10), 1),
            (ms_at(10, 50), 2),
            (ms_at(11, 10), 2),
            (ms_at(11, 30), 2),
        ]
        (event,) = await t.app.events(types=[ScheduleUpdated])
        assert isinstance(event, ScheduleUpdated)
        assert (event.changed, event.by, event.origin) == (("trigger",), "code@2", "code")
        await check_ledger(t)


async def test_a_window_that_was_stored_in_utc_moves_to_the_schedules_zone_as_a_new_revision(app: Declare) -> None:
    """Earlier versions stored UTC for a window without a zone, and the code now means the schedule's zone."""
    cron, window = Cron("0 9 * * *", tz="Europe/Berlin"), Window("08:00-18:00")
    async with travel(app(cron=cron, window=replace(window, tz="UTC")), START) as t:
        assert (await t.app.get("nightly")).revision == 1
    async with travel(app(cron=cron, window=window), at(9)) as t:
        schedule = await stored(t.app, t.app.get("nightly"))
        assert schedule.revision == 2
        assert schedule.spec.options is not None
        assert schedule.spec.options.window == replace(window, tz="Europe/Berlin")
        await check_ledger(t)


async def test_changed_while_down_first_settles_what_was_due(app: Declare) -> None:
    """09:00 … 12:00 were owed by the old definition: one catches up, the others are missed, none is lost."""
    async with travel(app(every="1h"), START) as t:
        await t.advance("30m")
    async with travel(app(every="2h"), at(12, 30)) as t:
        await t.advance("1m")
        runs = await t.runs("nightly")
        assert [(run.fire_time, run.revision, run.catch_up) for run in runs] == [(ms_at(12), 1, True)]
        assert (await t.app.get("nightly")).fired == 4
        await check_ledger(t)


async def test_changed_interval_moves_the_anchor(app: Declare) -> None:
    async with travel(app(every="1h"), START) as t:
        await t.advance("90m")
    async with travel(app(every="2h"), at(9, 45)) as t:
        row = await stored(t.app, t.app.get("nightly"))
        assert (row.anchor, row.next_at) == (ms_at(9, 45), ms_at(11, 45))
        await check_ledger(t)


@pytest.mark.parametrize("change", [{"priority": "high"}, {"kwargs": {"region": "us"}}, {"grace": "5m"}])
async def test_changed_otherwise_keeps_the_anchor_and_the_next_fire(app: Declare, change: dict[str, Any]) -> None:
    async with travel(app(every="1h"), START) as t:
        await t.advance("90m")
    async with travel(app(every="1h", **change), at(9, 45)) as t:
        row = await stored(t.app, t.app.get("nightly"))
        assert (row.revision, row.anchor, row.next_at, row.fired) == (2, instant_ms(START), ms_at(10), 1)
        await t.advance("30m")
        results = [run.result for run in await t.runs("nightly")]
        assert results == ['"eu"', '"us"' if "kwargs" in change else '"eu"']
        await check_ledger(t)


async def test_changed_a_planned_run_keeps_its_revision(app: Declare) -> None:
    async with travel(app(every="1h", jitter="50m"), START) as t:
        await t.advance("1h")
        (planned,) = await t.runs("nightly")
        assert planned.state is State.WAITING
    async with travel(app(every="1h", jitter="50m", kwargs={"region": "us"}), at(9)) as t:
        await t.advance("55m")
        (run,) = await t.runs("nightly")
        assert (run.revision, run.due_at, run.result) == (1, planned.due_at, '"eu"')
        await check_ledger(t)


async def test_changed_and_paused_by_a_human_stays_paused(app: Declare) -> None:
    async with travel(app(every="1h"), START) as t:
        await t.app.pause("nightly", reason="migration")
    async with travel(app(every="2h"), at(12)) as t:
        row = await t.app.get("nightly")
        assert (row.state, row.reason, row.revision) == ("paused", "migration", 2)
        await t.advance("6h")
        assert await t.runs("nightly") == []
        await t.app.resume("nightly")
        await check_ledger(t)


# ── removed ──


async def test_removed_is_paused_as_not_declared_after_10_minutes_and_never_deleted(app: Declare) -> None:
    async with travel(app(every="1h"), START) as t:
        await t.advance("30m")
    async with travel(app(), at(8, 30)) as t:
        await t.advance("9m59s")
        await t.runtime.keeper.run_once()
        assert (await t.app.get("nightly")).state == "active"
        await t.advance("2s")
        await t.runtime.keeper.run_once()
        row = await t.app.get("nightly")
        assert (row.state, row.reason) == ("paused", "not_declared")
        assert [s.name for s in await t.app.schedules()] == ["nightly"]
        assert [s.name for s in await t.app.schedules(enabled=False)] == ["nightly"]
        await t.advance("6h")
        assert (await t.app.get("nightly")).state == "paused"
        assert await t.runs("nightly") == []
        await check_ledger(t)


async def test_removed_the_keeper_does_it_by_itself(app: Declare) -> None:
    async with travel(app(every="12h"), START) as t:
        await t.advance("30m")
    async with travel(app(), at(8, 30)) as t:
        await t.advance("3h")
        assert (await t.app.get("nightly")).reason == "not_declared"
        assert len(await t.app.events(types=[SchedulePaused])) == 1


async def test_removed_and_declared_again_is_resumed_with_one_span(app: Declare) -> None:
    async with travel(app(every="1h"), START) as t:
        await t.advance("30m")
    async with travel(app(), at(8, 45)) as t:
        await t.advance("11m")
        await t.runtime.keeper.run_once()
        assert (await stored(t.app, t.app.get("nightly"))).reason == "not_declared"
    async with travel(app(every="1h"), at(11, 30)) as t:
        row = await stored(t.app, t.app.get("nightly"))
        assert (row.state, row.reason, row.revision, row.next_at) == ("active", None, 1, ms_at(12))
        (event,) = await t.app.events(types=[ScheduleResumed])
        assert isinstance(event, ScheduleResumed)
        assert event.reason == "declared again"
        book = await ledger(t.runtime.store, t.clock.now())
        assert (book.unexplained, book.skipped) == (0, {"paused": 3})


async def test_removed_and_declared_again_with_a_change_is_resumed_too(app: Declare) -> None:
    async with travel(app(every="1h"), START) as t:
        await t.advance("30m")
    async with travel(app(), at(8, 45)) as t:
        await t.advance("11m")
        await t.runtime.keeper.run_once()
    async with travel(app(every="2h"), at(11, 30)) as t:
        row = await t.app.get("nightly")
        assert (row.state, row.revision) == ("active", 2)
        await check_ledger(t)


async def test_removed_after_a_humans_edit_and_declared_again_with_a_change_is_resumed_as_edited(app: Declare) -> None:
    async with travel(app(every="1h"), START) as t:
        await t.app.update("nightly", every="3h")
    async with travel(app(), at(8, 45)) as t:
        await t.advance("11m")
        await t.runtime.keeper.run_once()
        assert (await t.app.get("nightly")).reason == "not_declared"
    async with travel(app(every="2h"), at(11, 30)) as t:
        row = await t.app.get("nightly")
        assert (row.state, row.drifted, row.revision) == ("active", True, 2)
        await check_ledger(t)


async def test_a_live_instance_that_declares_it_keeps_it_alive(app: Declare) -> None:
    old = app(every="1h", version="1")
    async with travel(old, START) as t:
        # A second process of the next version that no longer declares it; both are up.
        new = app(version="2")
        async with _beside(new, t):
            await t.advance("2h")
            await t.runtime.keeper.run_once()
            assert (await old.get("nightly")).state == "active"
        await check_ledger(t)


async def test_another_apps_schedules_are_left_alone(app: Declare) -> None:
    async with travel(app(every="1h", name="shop"), START) as t:
        await t.advance("30m")
    async with travel(app(name="billing"), at(12)) as t:
        await t.runtime.keeper.run_once()
        await t.advance("5h")
        assert (await t.app.get("nightly")).state == "active"
        await check_ledger(t)


async def test_code_cannot_declare_a_schedule_of_the_api(app: Declare) -> None:
    async with travel(app(), START) as t:
        await t.app.schedule("by-hand", "nightly", every="1h")
    async with travel(app(), at(12)) as t:
        await t.advance("1h")
        await t.runtime.keeper.run_once()
        assert (await t.app.get("by-hand")).state == "active"
        await check_ledger(t)


# ── paused or edited by a human ──


async def test_a_humans_pause_survives(app: Declare, path: Path) -> None:
    async with travel(app(every="1h"), START) as t:
        await t.app.pause("nightly", reason="migration")
    log = events(path)
    async with travel(app(every="1h"), at(12)) as t:
        row = await t.app.get("nightly")
        assert (row.state, row.reason, row.drifted) == ("paused", "migration", False)
        await t.advance("6h")
        assert await t.runs("nightly") == []
        await check_ledger(t)
    assert events(path) == log


async def test_a_humans_edit_survives_and_the_drift_is_shown(app: Declare, path: Path) -> None:
    async with travel(app(every="1h"), START) as t:
        edited = await stored(t.app, t.app.update("nightly", every="30m"))
        assert (edited.drifted, edited.origin, edited.revision) == (True, "api", 2)
    log = events(path)
    async with travel(app(every="1h"), at(8, 10)) as t:
        row = await stored(t.app, t.app.get("nightly"))
        assert (row.drifted, row.revision, row.next_at) == (True, 2, ms_at(8, 30))
        await check_ledger(t)
    assert events(path) == log


async def test_a_humans_edit_survives_a_change_of_the_code(app: Declare, path: Path) -> None:
    async with travel(app(every="1h"), START) as t:
        await t.app.update("nightly", every="30m")
    log = events(path)
    async with travel(app(every="2h"), at(8, 10)) as t:
        row = await stored(t.app, t.app.get("nightly"))
        assert (row.drifted, row.revision, row.next_at) == (True, 2, ms_at(8, 30))
        await check_ledger(t)
    assert events(path) == log


@pytest.mark.parametrize("every", ["1h", "2h"], ids=["unchanged", "changed"])
async def test_on_drift_code_takes_the_schedule_back(app: Declare, every: str) -> None:
    async with travel(app(every="1h"), START) as t:
        await t.app.update("nightly", every="30m")
    async with travel(app(every=every, on_drift="code"), at(8, 10)) as t:
        row = await stored(t.app, t.app.get("nightly"))
        assert (row.drifted, row.origin, row.revision) == (False, "code", 3)
        assert row.next_at == (ms_at(9, 10) if every == "1h" else ms_at(10, 10))
        await check_ledger(t)


async def test_on_drift_code_leaves_a_humans_pause(app: Declare) -> None:
    async with travel(app(every="1h"), START) as t:
        await t.app.update("nightly", every="30m")
        await t.app.pause("nightly", reason="migration")
    async with travel(app(every="1h", on_drift="code"), at(8, 10)) as t:
        row = await t.app.get("nightly")
        assert (row.state, row.reason, row.drifted) == ("paused", "migration", False)


# ── two versions at once ──


class _Beside:
    """A second instance on the same file and the same virtual clock."""

    def __init__(self, app: Mainspring, t: Travel) -> None:
        self.app, self.t = app, t

    async def __aenter__(self) -> Mainspring:
        host, other = host_of(self.app), host_of(self.t.app)
        settings = replace(host.settings, poll=other.settings.poll)
        host.move_to(replace(host.environment, clock=other.clock, engine=other.engine, settings=settings))
        await runner_of(self.app).start()
        return self.app

    async def __aexit__(self, *_: object) -> None:
        runtime = host_of(self.app).runtime
        assert runtime is not None
        await runtime.stop_now()
        await runtime.stop(0)
        await self.app.close()


def _beside(app: Mainspring, t: Travel) -> _Beside:
    return _Beside(app, t)


async def test_an_older_version_beside_a_newer_is_not_applied_and_noted(app: Declare) -> None:
    newer = app(every="2h", version="1.10")
    async with travel(newer, START) as t:
        async with _beside(app(every="1h", version="1.9"), t) as older:
            row = await stored(older, older.get("nightly"))
            assert (row.revision, row.version, row.next_at) == (1, "1.10", ms_at(10))
            (note,) = await older.events(types=[DeclarationConflict])
            assert isinstance(note, DeclarationConflict)
            assert (note.name, note.declared, note.live, note.schedule_id) == ("nightly", "1.9", "1.10", row.id)
        await check_ledger(t)


async def test_the_note_names_the_newest_of_several(app: Declare) -> None:
    async with travel(app(every="2h", version="1.10"), START) as t:
        async with (
            _beside(app(every="2h", version="1.9"), t),
            _beside(app(every="1h", version="1.8"), t) as older,
        ):
            (note,) = await older.events(types=[DeclarationConflict])
            assert isinstance(note, DeclarationConflict)
            assert note.live == "1.10"
        await check_ledger(t)


async def test_a_newer_version_beside_an_older_is_applied(app: Declare) -> None:
    async with travel(app(every="1h", version="1.9"), START) as t:
        async with _beside(app(every="2h", version="1.10"), t) as newer:
            row = await stored(newer, newer.get("nightly"))
            assert (row.revision, row.version) == (2, "1.10")
            assert await newer.events(types=[DeclarationConflict]) == []
        await check_ledger(t)


async def test_an_older_version_alone_is_a_rollback_and_is_applied(app: Declare) -> None:
    async with travel(app(every="2h", version="2"), START) as t:
        await t.advance("30m")
    async with travel(app(every="1h", version="1"), at(9)) as t:
        row = await stored(t.app, t.app.get("nightly"))
        assert (row.revision, row.version) == (2, "1")
        assert await t.app.events(types=[DeclarationConflict]) == []
        await check_ledger(t)


async def test_two_instances_of_one_version_write_once(app: Declare, path: Path) -> None:
    async with travel(app(every="1h", version="1"), START) as t:
        before = [line for line in events(path) if "Schedule" in line]
        async with _beside(app(every="1h", version="1"), t):
            await t.advance("3h")
            assert len(await t.runs("nightly")) == 3
        assert [line for line in events(path) if "ScheduleUpdated" in line or "ScheduleCreated" in line] == before
        await check_ledger(t)


# ── the decision by itself ──


def test_version_key_orders_versions_as_people_do() -> None:
    ordered = ["", "dev", "1", "1.2", "1.9", "1.10", "2.0rc", "2.0.1", "10"]
    shuffled = random.Random(1).sample(ordered, len(ordered))
    assert sorted(shuffled, key=version_key) == ordered


async def test_judge(app: Declare) -> None:
    async with travel(app(every="1h", version="1"), START) as t:
        row = await stored(t.app, t.app.get("nightly"))
    assert judge_declaration(None, "d", "1", (), "keep") == "create"
    assert judge_declaration(row, row.digest, "1", (), "keep") == "nothing"
    assert judge_declaration(row, "other", "1", (), "keep") == "update"
    assert judge_declaration(row, "other", "1", (LiveDeclaration("1", "third"),), "keep") == "update"
    assert (
        judge_declaration(row, "other", "1", (LiveDeclaration("2", "other"),), "keep") == "update"
    )  # the newer one says the same
    assert judge_declaration(row, "other", "1", (LiveDeclaration("2", "third"),), "keep") == "conflict"
