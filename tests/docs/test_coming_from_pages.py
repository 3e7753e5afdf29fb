"""The pages for users of other schedulers: our programs run as they are, and the words of their tables exist."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mainspring import Http, Mainspring, Retry, RunFailed, Window
from mainspring.app.options import AppOptions
from mainspring.app.registry import DeclareOptions, TaskSettings
from mainspring.app.task import BaseTask
from mainspring.model.errors import InvalidInput
from mainspring.rules.definition import WhenAndHow
from mainspring.testing import travel

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "coming-from"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
_FILE = re.compile(r"```python\n# (\S+)\n(.*?)```", re.S)


def load(page: str) -> dict[str, Any]:
    """Return the names of a page's program, which is not run as `__main__`."""
    ((name, text),) = _FILE.findall(PAGES[page])
    names: dict[str, Any] = {"__name__": name.removesuffix(".py")}
    exec(compile(text, name, "exec"), names)
    return names


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_page_has_one_program_and_a_test() -> None:
    assert set(PAGES) == {"apscheduler.md", "celery-beat.md", "cron.md", "huey.md"}
    for text in PAGES.values():
        assert text.count("```python") == len(_FILE.findall(text)) == 1
        assert "## What does not exist" in text


def test_the_program_for_users_of_apscheduler_runs(tmp_path: Path) -> None:
    ((name, text),) = _FILE.findall(PAGES["apscheduler.md"])
    (tmp_path / name).write_text(text)
    for _ in range(2):  # a second start replaces what the first one stored
        done = subprocess.run([sys.executable, name], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "('poll', None)" in done.stdout
        assert "('remind-acme', datetime.datetime(2030, 1, 1, 10, 0, tzinfo=" in done.stdout


async def test_the_schedules_for_users_of_apscheduler_fire() -> None:
    names = load("apscheduler.md")
    async with travel(names["ms"], "2026-03-01T01:00Z") as t:
        await t.advance("61s")
        assert len(await t.fires("poll")) == 2
        await t.advance("2h")
        assert [f"{fire:%H:%M}" for fire in await t.fires("backup")] == ["03:30"]


async def test_the_program_for_users_of_celery_works(capsys: pytest.CaptureFixture[str]) -> None:
    names = load("celery-beat.md")
    ms: Mainspring = names["ms"]
    async with ms.running():
        assert await asyncio.to_thread(names["order"]) == "acme paid 100"
        waiting = await ms.runs(state="waiting")
    assert [(run.queue, run.priority) for run in waiting] == [("slow", "critical")]
    assert "attempt 1" in capsys.readouterr().out
    policy = names["charge"].options.retry
    assert (policy.max_attempts, policy.initial, policy.max_delay) == (5, 5_000, 600_000)


async def test_the_schedule_for_users_of_celery_fires() -> None:
    names = load("celery-beat.md")
    async with travel(names["ms"], "2026-03-01T00:00Z") as t:
        await t.advance("2h")
        assert [f"{fire:%H:%M}" for fire in await t.fires("nightly")] == ["02:00"]
        (run,) = await names["ms"].runs(schedule="nightly")
        assert (run.task, run.kwargs) == ("report", {"day": "yesterday"})


async def test_the_program_for_users_of_huey_works() -> None:
    names = load("huey.md")
    ms: Mainspring = names["ms"]
    async with ms.running():
        assert await asyncio.to_thread(names["order"]) == "sent to acme"
        assert len(await ms.runs(state="waiting")) == 1
        assert [schedule.name for schedule in await ms.schedules()] == ["nightly"]
    assert names["send"]("acme") == "sent to acme"  # a call runs the function at once
    policy = names["send"].options.retry
    assert (policy.max_attempts, policy.backoff, policy.initial) == (3, "fixed", 10_000)


async def test_the_program_for_users_of_cron_runs_commands(capsys: pytest.CaptureFixture[str]) -> None:
    names = load("cron.md")
    ms: Mainspring = names["ms"]
    async with ms.running():
        good = await names["sh"].enqueue("echo one; echo two >&2; echo 100%")
        assert await good.result(timeout="20s") == 0
        assert [line.text for line in await ms.logs(good.id)] == ["one", "two", "100%"]
        bad = await names["sh"].enqueue("echo oh; exit 3")
        with pytest.raises(Exception, match="exit code 3"):
            await bad.result(timeout="20s")
        told = await _told(ms)
        assert "exit code 3" in told.args[0] if told.args else "exit code 3" in told.kwargs["text"]
        slow = await names["sh"].using(timeout="300ms").enqueue("sleep 600 & echo $!; wait")
        with pytest.raises(Exception, match="timed out"):
            await slow.result(timeout="20s")
        (line,) = await ms.logs(slow.id)
        assert not _is_running(int(line.text)), "the whole process group is killed"
        assert {schedule.name for schedule in await ms.schedules()} == {"backup", "poll", "report", "clean"}
        report = await ms.get("report")
        assert (report.jitter, report.cron, report.args or report.kwargs) == (
            "5m",
            "0 9 * * 1-5",
            {"command": "/usr/local/bin/report"},
        )
    assert "mail to ops@example.com" in capsys.readouterr().out


async def _told(ms: Mainspring) -> Any:
    """Return the run that tells of the failure, once it has ended."""
    while True:
        for run in await ms.runs(task="tell_ops", state="succeeded"):
            return run
        await asyncio.sleep(0.01)


def _is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_number_of_a_weekday_counts_from_sunday_and_names_work() -> None:
    from mainspring import Cron

    monday = datetime(2026, 3, 2, 7, 30, tzinfo=UTC)
    for expression in ("30 7 * * 1", "30 7 * * Mon"):
        assert Cron(expression).next_ms(int(monday.timestamp() - 1) * 1000) == int(monday.timestamp()) * 1000
    sunday = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp()) * 1000
    for expression in ("0 0 * * 0", "0 0 * * 7"):
        assert Cron(expression).next_ms(sunday - 1) == sunday
    both = Cron("0 9 1 * 1")  # the first of the month, and every Monday
    assert both.count_ms(sunday - 1, sunday + 31 * 86_400_000) == 1 + 5
    assert Cron("0 0 L * *").next_ms(sunday) == int(datetime(2026, 3, 31, tzinfo=UTC).timestamp()) * 1000


@pytest.mark.parametrize("page", PAGES)
def test_every_option_in_the_tables_exists(page: str) -> None:
    known = {"cron", "every", "at", "wait", "connection"}
    for options in (AppOptions, TaskSettings, DeclareOptions, WhenAndHow):
        known |= set(options.__annotations__)
    for function in (Retry, BaseTask.using, Mainspring.schedule, Mainspring.pause, Http, Window):
        known |= set(inspect.signature(inspect.unwrap(function)).parameters)
    known |= {"schedule", "state", "limit", "lifespan", "timeout"}
    rows = re.findall(r"^\| .* \| (.*) \|$", PAGES[page], re.M)
    assert len(rows) > 10
    for row in rows:
        for text in re.findall(r"`([^`]*)`", row):
            for name in re.findall(r"\b([a-z_]+)=(?!=)", text):
                assert name in known, (page, text)


@pytest.mark.parametrize("page", PAGES)
def test_every_method_in_the_tables_exists(page: str) -> None:
    ms = Mainspring("memory://")

    @ms.task
    def f() -> None: ...

    for name in re.findall(r"\bms\.(?:sync\.)?([a-z_]+)\b", PAGES[page].replace("`ms.add_job`", "")):
        assert hasattr(ms, name), name
    for name in re.findall(r"\b(?:send|charge|f)\.(enqueue\w*|using|sync)\b", PAGES[page]):
        assert hasattr(f, name), name


def test_words_of_other_schedulers_are_answered_with_ours() -> None:
    ms = Mainspring("memory://")

    @ms.task
    def charge() -> None: ...

    with pytest.raises(AttributeError, match=r"ms\.schedule"):
        ms.add_job  # type: ignore[attr-defined]  # noqa: B018 - the mistake
    with pytest.raises(AttributeError, match="enqueue"):
        charge.delay  # type: ignore[attr-defined]  # noqa: B018 - the mistake
    with pytest.raises(InvalidInput, match="Retry"):
        ms.task(max_retries=3)  # type: ignore[call-overload]  # the mistake


async def test_a_run_that_waits_for_its_retry_counts_as_open() -> None:
    ms = Mainspring("memory://")
    logging.getLogger("mainspring").setLevel(logging.CRITICAL)

    @ms.every("10s", retry=Retry(backoff="fixed", initial_delay="25s", jitter=0))
    def fails() -> None:
        raise ConnectionError

    async with travel(ms, "2026-03-01T00:00Z") as t:
        await t.advance("31s")
        states = {f"{run.fire_time:%S}": run.state for run in await ms.runs(schedule="fails")}
        assert states == {"10": "retrying", "20": "skipped", "30": "skipped"}
        assert not await ms.events(types=[RunFailed])
    logging.getLogger("mainspring").setLevel(logging.NOTSET)
