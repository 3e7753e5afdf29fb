"""A schedule that the engine pauses by itself is named in the log, with the reason and the command that resumes it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from mainspring import Mainspring
from mainspring.cli.main import mainspring
from mainspring.testing.time_travel import travel
from tests.engine.noting import START, App


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def test_spent_retries(caplog: pytest.LogCaptureFixture) -> None:
    app = App()
    app.fails = True
    async with travel(app.ms, START) as t:
        await app.ms.schedule("nightly report", "note", every="1h", on_exhausted="pause")
        await t.advance("3h")
    (line,) = [text for text in warnings(caplog) if "was paused" in text]
    assert line == (
        "schedule 'nightly report' was paused: a run of it failed for good, and it has on_exhausted=\"pause\". "
        "To resume it: mainspring schedules resume 'nightly report'"
    )


async def test_a_schedule_that_no_program_declares(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"

    def nightly() -> None:
        return None

    before = Mainspring(url, namespace="eu")
    before.every("1h")(nightly)
    async with travel(before, START):
        pass
    async with travel(Mainspring(url, namespace="eu"), START) as t:
        await t.advance("20m")
        await t.runtime.keeper.run_once()
        assert (await t.app.get("nightly")).state == "paused"
    (line,) = [text for text in warnings(caplog) if "was paused" in text]
    assert line == (
        "schedule 'nightly' was paused: no program declares it any more. "
        "To resume it: mainspring schedules resume nightly --namespace eu"
    )


def test_the_command_that_the_log_names_resumes_the_schedule(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    ms = Mainspring(url)

    @ms.task
    def nightly() -> None:
        return None

    ms.sync.schedule("nightly report", nightly, every="1h")
    ms.sync.pause("nightly report", reason="not_declared")
    words = ["schedules", "resume", "nightly report", "--store", url]
    done = CliRunner().invoke(mainspring, words)
    assert (done.exit_code, done.output) == (0, "nightly report is resumed; it was paused: not_declared\n")
    again = CliRunner().invoke(mainspring, words)
    assert (again.exit_code, again.output) == (0, "nightly report is active, not paused; nothing was changed\n")
    assert ms.sync.get("nightly report").state == "active"
    unknown = CliRunner().invoke(mainspring, ["schedules", "resume", "nightly", "--store", url])
    assert unknown.exit_code == 1
    assert unknown.output == "error: no schedule is called 'nightly'. Did you mean 'nightly report'?\n"
