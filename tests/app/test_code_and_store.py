"""A declared schedule that a person edited: the warning, what shows the difference, and `use_code` in all its forms."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from mainspring import Mainspring
from mainspring.api.app import build
from mainspring.app.internals import runtime_of
from mainspring.cli.main import mainspring
from mainspring.ledger.account import ledger
from mainspring.model.errors import InvalidInput
from mainspring.model.events import ScheduleUpdated
from mainspring.testing.time_travel import travel
from tests.ledger_checks import check_ledger

START = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
LATER = START + timedelta(minutes=10)
TEXT = (
    "schedule 'tick' is not as the code declares it: the code says every 10 minutes; api edited it at "
    "2026-01-05T08:00:00Z, so it stays every 2 hours. To use the code's definition: mainspring schedules use-code tick"
)


def make(path: Path, every: str = "1h", **options: Any) -> Mainspring:
    ms = Mainspring(f"sqlite:///{path}", **options)

    @ms.every(every)
    def tick(name: str = "x") -> None:
        return None

    return ms


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A store in which a person edited the declared schedule."""
    path = tmp_path / "drift.db"
    async with travel(make(path), START) as t:
        await t.app.update("tick", every="2h")
    return path


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_the_start_names_both_definitions_the_editor_the_time_and_the_command(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with travel(make(path, "10m"), LATER) as t:
        assert warnings(caplog) == [TEXT]
        assert t.app.health().warnings == (TEXT,)
        assert t.app.health().status == "ok"
        assert (await ledger(t.runtime.store, t.clock.now())).warnings == [TEXT]
        transport = httpx.ASGITransport(app=build(t.app))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as api:
            answer = (await api.get("/api/schedules/tick")).json()
            assert answer["drift"] == {
                "code": "every 10 minutes",
                "stored": "every 2 hours",
                "editedBy": "api",
                "editedAt": "2026-01-05T08:00:00Z",
                "command": "mainspring schedules use-code tick",
            }
            assert (await api.get("/api/schedules")).json()[0]["drift"] == answer["drift"]
            same = await api.put("/api/schedules/tick", json=answer)
            assert (same.status_code, same.json()["revision"]) == (200, 2)


async def test_an_edit_is_reported_at_each_start_also_if_the_code_did_not_change(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        caplog.clear()
        async with travel(make(path), LATER):
            (line,) = warnings(caplog)
            assert "the code says every hour" in line


async def test_the_time_is_that_of_the_edit_and_not_of_a_later_pause(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with travel(make(path), LATER) as t:
        await t.app.pause("tick")
    caplog.clear()
    async with travel(make(path), LATER + timedelta(hours=1)):
        assert "edited it at 2026-01-05T08:00:00Z" in warnings(caplog)[0]


async def test_an_edit_that_the_code_caught_up_with_is_no_difference(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with travel(make(path, "2h"), LATER) as t:
        assert warnings(caplog) == []
        assert t.app.health().warnings == ()


async def test_other_fields_are_named_with_their_values(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "fields.db"
    async with travel(make(path), START) as t:
        await t.app.update("tick", grace="5s", overlap="allow_parallel")
    async with travel(make(path), LATER):
        assert "the code says grace=60000, overlap='forbid';" in warnings(caplog)[0]
        assert "so it stays grace=5000, overlap='allow_parallel'." in warnings(caplog)[0]


async def test_use_code_applies_the_code_while_its_program_runs(path: Path) -> None:
    async with travel(make(path, "10m"), LATER) as t:
        row = await t.app.use_code("tick")
        assert (row.revision, row.every) == (3, "10m")
        (_, event) = await t.app.events(types=[ScheduleUpdated])
        assert isinstance(event, ScheduleUpdated)
        assert (event.origin, event.changed) == ("code", ("trigger",))
        assert (await t.app.use_code("tick")) == row  # again: nothing to change
        await t.advance("21m")
        assert [at.minute for at in await t.fires("tick")] == [20, 30]
        assert t.app.health().warnings == ()  # the next look found no difference
        await check_ledger(t)


async def test_use_code_needs_no_program(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with travel(make(path, "10m"), LATER):
        pass
    words = ["schedules", "use-code", "tick", "--store", f"sqlite:///{path}"]
    import asyncio

    done = await asyncio.to_thread(CliRunner().invoke, mainspring, words)
    assert (done.exit_code, done.output) == (0, "tick is as the code declares it again: revision 3\n")
    done = await asyncio.to_thread(CliRunner().invoke, mainspring, words)
    assert (done.exit_code, done.output) == (0, "tick is as the code declares it; nothing was changed\n")
    caplog.clear()
    async with travel(make(path, "10m"), datetime(2027, 1, 1, tzinfo=UTC)) as t:
        assert (await t.app.get("tick")).revision == 3
        assert warnings(caplog) == []


async def test_use_code_keeps_arguments_gates_and_payloads(tmp_path: Path) -> None:
    path = tmp_path / "arguments.db"
    seen: list[str] = []

    def app() -> Mainspring:
        ms = Mainspring(f"sqlite:///{path}")

        @ms.every("1h", args=("from code",), limit=2)
        async def note(text: str) -> None:
            seen.append(text)

        return ms

    async with travel(app(), START) as t:
        before = await t.app.get("note")
        assert before.revision == 1
        await t.app.update("note", args=("edited",), every="2h")
        row = await t.app.use_code("note")
        assert (row.revision, row.every, row.kwargs, row.args) == (3, before.every, before.kwargs, before.args)
        await t.advance("1h")
        assert seen == ["from code"]


async def test_a_schedule_that_no_code_declares_is_refused(path: Path) -> None:
    async with travel(make(path), LATER) as t:
        await t.app.schedule("by hand", "tick", every="1h")
        with pytest.raises(InvalidInput, match=r"no definition in code is known of 'by hand'. Edit or delete it"):
            await t.app.use_code("by hand")
        transport = httpx.ASGITransport(app=build(t.app))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as api:
            assert (await api.post("/api/schedules/by%20hand/use-code")).status_code == 409
            assert (await api.post("/api/schedules/unknown/use-code")).status_code == 404
            done = await api.post("/api/schedules/tick/use-code")
            assert (done.status_code, done.json()["revision"], "drift" in done.json()) == (200, 3, False)


async def test_a_store_of_an_earlier_version_needs_one_start(path: Path) -> None:
    """Earlier versions stored no definition of the code: the next start of the program does."""
    async with travel(make(path), LATER) as t:
        await runtime_of(t.app).store.remove("declared", ["default/tick"])
        with pytest.raises(InvalidInput, match="Start the program that declares it once"):
            await t.app.use_code("tick")
    async with travel(make(path), LATER + timedelta(hours=1)) as t:
        assert (await t.app.use_code("tick")).revision == 3


async def test_an_unchanged_program_writes_its_definitions_once(path: Path) -> None:
    async with travel(make(path), LATER) as t:
        store = t.runtime.store
        (before,) = await t.runtime.commands.find_values("declared", ["default/tick"])
    async with travel(make(path), LATER + timedelta(hours=1)) as t:
        found = await t.runtime.commands.find_values("declared", ["default/tick"])
        assert list(found) == [before]
        assert store is not t.runtime.store
        assert found[before].created_at < (LATER + timedelta(hours=1)).timestamp() * 1000
