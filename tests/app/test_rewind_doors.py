"""`rewind` by Python's sync door, the command line and the REST API, on a store that a wrong clock has written."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from mainspring import Mainspring
from mainspring.api.app import build
from mainspring.cli.main import mainspring
from mainspring.testing.time_travel import travel


def program(url: str) -> Mainspring:
    ms = Mainspring(url)

    @ms.task
    async def tick() -> None:
        return None

    return ms


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store whose schedule was made and planned by a clock that was wrong by many years."""
    where = f"sqlite:///{tmp_path / 'shop.db'}"

    async def live() -> None:
        async with travel(program(where), "2070-01-01T00:00Z") as t:
            await t.app.schedule("tick", "tick", every="1h")
            await t.advance("3h")

    asyncio.run(live())
    return where


def cli(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(mainspring, words)
    return done.exit_code, done.output


def test_the_command_that_the_ledger_names_rewinds(url: str) -> None:
    _, shown = cli("ledger", "--store", url)
    assert "! schedule 'tick' was planned up to 2070-01-01T03:00:00" in shown
    assert "Run: mainspring schedules rewind tick" in shown.replace("\n", " ")
    code, said = cli("schedules", "rewind", "tick", "--store", url)
    assert code == 0
    assert said.startswith("tick was planned up to 2070-01-01T03:00:00")
    assert "and is planned up to now again; its next run is at 20" in said
    assert cli("schedules", "rewind", "tick", "--store", url) == (
        0,
        "tick is not planned ahead of the clock; nothing was changed\n",
    )
    code, shown = cli("ledger", "--store", url)
    assert (code, "was planned up to" in shown) == (0, False)
    assert "runs from before a rewind, not planned again: 3" in shown
    assert cli("events", "verify", "--store", url)[0] == 0
    assert cli("schedules", "rewind", "tock", "--store", url)[0] == 1


def test_the_sync_door_rewinds(url: str) -> None:
    ms = program(url)
    row = ms.sync.rewind("tick")
    assert row.next_run is not None
    assert row.next_run.year < 2070
    asyncio.run(ms.close())


def test_a_request_rewinds(url: str) -> None:
    async def ask() -> None:
        ms = program(url)
        app = build(ms)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
            before = (await client.get("/api/schedules/tick")).json()
            assert before["nextRun"].startswith("2070-01-01T04:00:00")
            answer = await client.post("/api/schedules/tick/rewind")
            assert answer.status_code == 200, answer.text
            assert answer.json()["nextRun"] < "2070"
            again = (await client.post("/api/schedules/tick/rewind", json={})).json()
            assert again["nextRun"] == answer.json()["nextRun"]
            assert (await client.post("/api/schedules/tock/rewind")).status_code == 404
            assert (await client.post("/api/schedules/tick/rewind", json={"to": 1})).status_code == 422
        await ms.close()

    asyncio.run(ask())
