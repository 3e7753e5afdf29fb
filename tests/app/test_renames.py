"""Renames of schedules from Python and the command line: what stays, what is refused, and who gets a name first."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from mainspring import Every, Http, Mainspring
from mainspring.app.internals import host_of
from mainspring.cli.main import mainspring
from mainspring.ledger.verify import verify
from mainspring.model.errors import DeclaredInCode, InvalidInput, ScheduleConflict, UnknownSchedule
from mainspring.model.events import ScheduleFinished, ScheduleUpdated
from mainspring.model.keyvalue import HEADERS_KIND
from mainspring.ports.store import KeyValues
from mainspring.testing.time_travel import travel
from tests.ledger_checks import check_ledger
from tests.stored_rows import stored

START = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
AGENT = "http://127.0.0.1:5678/"


def make(url: str = "memory://") -> Mainspring:
    ms = Mainspring(url)

    @ms.task
    def note() -> None: ...

    return ms


async def test_runs_history_and_times_stay_with_a_renamed_schedule(ms: Mainspring) -> None:
    @ms.task
    def note() -> None: ...

    before = await stored(ms, ms.schedule("old", note, cron="H H * * *", max_runs=9))
    run = await ms.trigger("old")
    after = await stored(ms, ms.rename("old", "new"))
    assert (after.id, after.name, after.revision, after.spec) == (before.id, "new", 2, before.spec)
    assert (after.anchor, after.next_at) == (before.anchor, before.next_at)
    assert [one.id for one in await ms.runs(schedule="new")] == [run.id]
    *_, event = await ms.events(schedule="new")
    assert isinstance(event, ScheduleUpdated)
    assert (event.name, event.changed) == ("new", ())
    with pytest.raises(UnknownSchedule, match="no schedule is called 'old'"):
        await ms.get("old")
    assert (await ms.rename("new", "new")).revision == 2  # nothing to change
    assert (await ms.rename(before.id, "old")).name == "old"
    other = await ms.schedule("new", note, every="1h")
    assert other.id != before.id


def test_a_synchronous_program_renames(tmp_path: Path) -> None:
    ms = make(f"sqlite:///{tmp_path / 'sync.db'}")
    row = ms.sync.schedule("old", "note", every="1h")
    assert ms.sync.rename("old", "new").id == row.id
    assert ms.sync.get("new").name == "new"
    ms.sync.close()


async def test_names_that_are_taken_or_unfit_are_refused(ms: Mainspring) -> None:
    @ms.task
    def note() -> None: ...

    await ms.schedule("old", note, every="1h")
    holder = await ms.schedule("taken", note, every="1h")
    with pytest.raises(ScheduleConflict, match=rf"a schedule called 'taken' exists: {holder.id}\. Choose another name"):
        await ms.rename("old", "taken")
    for wrong in ("", "a/b", "a?b", "#", "..", "a\nb", holder.id, "x" * 256):
        with pytest.raises(InvalidInput, match="name"):
            await ms.rename("old", wrong)
    with pytest.raises(UnknownSchedule):
        await ms.rename("nowhere", "new")
    assert sorted(one.name for one in await ms.schedules()) == ["old", "taken"]


async def test_of_renames_at_once_to_one_name_one_wins(ms: Mainspring) -> None:
    @ms.task
    def note() -> None: ...

    for n in range(3):
        await ms.schedule(f"old {n}", note, every="1h")
    results = await asyncio.gather(*(ms.rename(f"old {n}", "new") for n in range(3)), return_exceptions=True)
    refused = [one for one in results if isinstance(one, ScheduleConflict)]
    assert len(refused) == 2, results
    assert sum(one.name == "new" for one in await ms.schedules()) == 1


async def test_a_rename_and_an_edit_at_once_both_hold(ms: Mainspring) -> None:
    @ms.task
    def note() -> None: ...

    row = await ms.schedule("old", note, every="1h")
    await asyncio.gather(ms.rename(row.id, "new"), ms.update(row.id, grace="10m"), ms.pause(row.id))
    found = await stored(ms, ms.get("new"))
    assert (found.spec.grace, found.state) == (600_000, "paused")


async def test_a_schedule_that_code_declares_is_renamed_in_the_code() -> None:
    ms = make()

    @ms.every("1h")
    def tick() -> None: ...

    async with travel(ms, START) as t:
        words = r"declares the schedule 'tick' and would create it again under this name\. Change the name in its code"
        with pytest.raises(DeclaredInCode, match=words):
            await t.app.rename("tick", "tack")
        assert (await t.app.get("tick")).revision == 1


async def test_a_schedule_that_code_took_over_is_renamed_in_the_code(tmp_path: Path) -> None:
    """A person made the schedule, then a program declared it under the same name."""
    url = f"sqlite:///{tmp_path / 'adopted.db'}"
    async with travel(make(url), START) as t:
        await t.app.schedule("tick", "note", every="2h")
    ms = make(url)
    ms.every("1h", name="tick")(ms.tasks["note"])
    async with travel(ms, START) as t:
        with pytest.raises(DeclaredInCode, match="a program declares"):
            await t.app.rename("tick", "tack")


async def test_a_fixed_delay_keeps_its_next_fire_and_a_finished_schedule_stays_finished() -> None:
    async with travel(make(), START) as t:
        await t.app.schedule("delay", "note", every=Every("1h", fixed_delay=True))
        ended = START + timedelta(minutes=90)
        await t.app.schedule("over", "note", every=Every("1h", fixed_delay=True), end=ended)
        await t.app.schedule("once", "note", at=START + timedelta(minutes=5))
        await t.advance("20m")
        for name in ("delay", "once"):
            await t.app.rename(name, f"new {name}")
        assert (await t.app.get("new delay")).next_run == START + timedelta(hours=1)
        once = await stored(t.app, t.app.get("new once"))
        assert (once.state, once.reason) == ("finished", "exhausted")
        await t.advance("4h")
        await t.app.rename("over", "new over")
        over = await stored(t.app, t.app.get("new over"))
        assert (over.state, over.reason, over.next_at) == ("finished", "ended", None)
        assert len(await t.app.events(schedule="new over", types=[ScheduleFinished])) == 2
        await t.advance("4h")
        assert len(await t.app.runs(schedule="new over")) == 1
        assert len(await t.app.runs(schedule="new delay")) == 8
        await check_ledger(t)
        assert (await verify(t.runtime.store)).ok


async def test_header_values_belong_to_the_new_name(ms: Mainspring) -> None:
    """Before, a schedule that got the old name and equal values lost them with the renamed one."""
    await ms.schedule("old", Http(AGENT, headers={"A": "1"}), every="1h")
    await ms.rename("old", "new")
    second = await stored(ms, ms.schedule("old", Http(AGENT, headers={"A": "1"}), every="1h"))
    first = await stored(ms, ms.get("new"))
    refs = [one.spec.options.http.headers_ref for one in (first, second) if one.spec.options and one.spec.options.http]
    assert refs[0] != refs[1]
    secret = await ms.signing_secret("new")
    assert secret
    await ms.delete("new")
    kept = await host_of(ms).call(lambda runtime: runtime.store.find(KeyValues(kind=HEADERS_KIND)))
    assert {one.id: one.expires_at is None for one in kept} == {refs[0]: False, refs[1]: True}
    found = await host_of(ms).call(lambda runtime: runtime.vault.headers(refs[1]))
    assert found == {"A": "1"}


async def test_the_command_renames(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'cli.db'}"
    async with travel(make(url), START) as t:
        await t.app.schedule("old", "note", every="1h")
        await t.app.schedule("taken", "note", every="1h")

    async def run(*words: str) -> tuple[int, str]:
        done = await asyncio.to_thread(CliRunner().invoke, mainspring, ["schedules", "rename", *words, "--store", url])
        return done.exit_code, done.output

    assert await run("old", "new") == (0, "old is now new: revision 2\n")
    assert await run("new", "new") == (0, "the name is new already; nothing was changed\n")
    code, output = await run("new", "taken")
    assert code != 0
    assert "a schedule called 'taken' exists" in output
    code, output = await run("old", "newer")
    assert code != 0
    assert "no schedule is called 'old'" in output
