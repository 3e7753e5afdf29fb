"""What people are told without asking: failures, schedules that never fire, options that do not exist."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mainspring import Fail, InvalidInput, Mainspring, Retry, RunNotSuccessful, Window
from mainspring.testing import travel


async def test_a_failure_is_said_and_the_last_one_with_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    ms = Mainspring("memory://")

    @ms.task(retry=Retry(max_attempts=2, initial="1s", jitter=0))
    async def work() -> None:
        raise ValueError("no paper left")

    async with travel(ms, "2026-01-01T00:00Z") as t:
        await work.enqueue()
        await t.advance("10s")
    said = [(r.levelname, r.getMessage()) for r in caplog.records if "no paper left" in r.getMessage()]
    assert [level for level, _ in said] == ["WARNING", "ERROR"]
    assert "task work failed (attempt 1 of 2, next in about 1.0 s): " in said[0][1]
    assert "failed (attempt 2 of 2, not retried): " in said[1][1]
    assert 'raise ValueError("no paper left")' in said[1][1]


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_the_trace_begins_with_the_frames_of_the_handler(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    ms = Mainspring("memory://")
    work = ms.task(name="work", retry=Retry(max_attempts=1))(fail_in_coroutine if kind == "coroutine" else fail)
    async with ms.running():
        with pytest.raises(RunNotSuccessful):
            await (await work.enqueue()).result(timeout="20s")
    (said,) = [one.getMessage() for one in caplog.records if "no paper left" in one.getMessage()]
    first, second, *_ = said.splitlines()[1:]
    assert first == "Traceback (most recent call last):"
    assert second.startswith(f'  File "{__file__}"')


def fail() -> None:
    raise ValueError("no paper left")


async def fail_in_coroutine() -> None:
    fail()


@pytest.mark.parametrize("cause", [False, True])
async def test_a_failure_that_the_handler_meant_has_only_the_trace_of_its_cause(
    cause: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ms = Mainspring("memory://")

    @ms.task
    def work() -> None:
        if not cause:
            raise Fail("there is no such customer")
        try:
            fail()
        except ValueError as error:
            raise Fail("there is no such customer") from error

    async with travel(ms, "2026-01-01T00:00Z"):
        await work.enqueue()
    (said,) = [one.getMessage() for one in caplog.records if "no such customer" in one.getMessage()]
    assert ("Traceback" in said, "no paper left" in said) == (cause, cause)


async def test_the_wait_for_a_retry_is_counted_from_the_failure(caplog: pytest.LogCaptureFixture) -> None:
    """Before, it was counted from the beginning of the attempt: "next in about 41.0 s"."""
    ms = Mainspring("memory://")

    @ms.task(retry=Retry(max_attempts=2, initial="1s", jitter=0))
    async def work() -> None:
        await asyncio.sleep(40)
        raise ValueError("no paper left")

    async with travel(ms, "2026-01-01T00:00Z") as t:
        await work.enqueue()
        await t.advance("2m")
    assert "task work failed (attempt 1 of 2, next in about 1.0 s): " in caplog.text


async def test_a_task_without_retries_failed_after_one_attempt(caplog: pytest.LogCaptureFixture) -> None:
    ms = Mainspring("memory://")

    @ms.task(retry=Retry(max_attempts=1))
    async def work() -> None:
        raise ValueError("no paper left")

    async with travel(ms, "2026-01-01T00:00Z"):
        await work.enqueue()
    assert "task work failed (attempt 1 of 1, not retried): " in caplog.text


async def test_a_schedule_that_will_never_fire_is_said(caplog: pytest.LogCaptureFixture) -> None:
    ms = Mainspring("memory://")

    @ms.task
    async def work() -> None: ...

    async with travel(ms, "2026-01-01T00:00Z"):
        await ms.schedule("past", work, at=datetime(2020, 1, 1, tzinfo=UTC))
        await ms.schedule("february", work, cron="0 0 30 2 *")
        await ms.schedule("none", work, every="1h", max_runs=0)
    assert "schedule 'past': L001: never fires again" in caplog.text
    assert "schedule 'february': L001: never fires: February has no day 30" in caplog.text
    assert "'none'" not in caplog.text


async def test_a_declared_schedule_whose_window_shuts_out_its_fires_is_said_once(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    for _ in range(2):
        ms = Mainspring(f"sqlite:///{tmp_path / 'shop.db'}", tz="Europe/Berlin")

        @ms.cron("0 9 * * *", window=Window("10:00-18:00"))
        async def morning() -> None: ...

        async with travel(ms, "2026-01-01T00:00Z"):
            pass
    said = [r.getMessage() for r in caplog.records if "L010" in r.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("schedule 'morning': L010: the window (in Europe/Berlin) shuts out all fires")


@pytest.mark.parametrize(
    ("options", "field", "hint"),
    [
        ({"retries": 3}, "retries", "Write retry=Retry(max_attempts=…)"),
        ({"timout": "3s"}, "timout", "Did you mean 'timeout'?"),
        ({"limit": "2"}, "limit", "Use at least 1"),
    ],
)
def test_an_option_a_task_does_not_have(options: dict[str, object], field: str, hint: str) -> None:
    ms = Mainspring("memory://")
    with pytest.raises(InvalidInput, match=field) as caught:
        ms.task(**options)(print)  # type: ignore[call-overload]
    assert hint in str(caught.value)


def test_the_name_another_scheduler_uses_is_understood_in_the_hint() -> None:
    ms = Mainspring("memory://")
    with pytest.raises(InvalidInput, match="Write tz="):

        @ms.cron("0 9 * * *", timezone="Europe/Berlin")  # type: ignore[call-arg]
        def work() -> None: ...


def test_one_text_is_not_a_list_of_arguments() -> None:
    ms = Mainspring("memory://")
    with pytest.raises(InvalidInput, match=r"args=\('acme',\)"):

        @ms.every("1h", args="acme")
        def work(customer: str) -> None: ...


@pytest.mark.parametrize(
    "url", ["jobs.db", "sqlite://jobs.db", "mysql://localhost/x", "postgresql://h/x?pol=3", "sqlit:///x"]
)
def test_a_wrong_url_is_refused_when_the_object_is_made(url: str) -> None:
    with pytest.raises(InvalidInput, match="url"):
        Mainspring(url)


UNGUARDED = """
from mainspring import Mainspring
ms = Mainspring("sqlite:///x.db")
@ms.task
def work(): print("worked", flush=True)
if __name__ != "__main__":
    work.sync.enqueue()
ms.run()
"""


def test_mainspring_run_runs_a_program_that_ends_with_its_own_run_once(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(UNGUARDED)
    command = [sys.executable, "-m", "mainspring.cli.main", "run", "app:ms", "--until-idle"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout) == (0, "worked\n"), done.stderr
    assert done.stderr.count("stopped cleanly") == 1


LOGGING = """
import logging
from mainspring import Context, Mainspring
logging.basicConfig(level=logging.INFO)
ms = Mainspring("sqlite:///x.db")
@ms.task(executor="process")
def work(ctx: Context) -> None: ctx.log("hello from the child")
if __name__ == "__main__":
    work.sync.enqueue()
    ms.run(until_idle=True)
"""


def test_log_lines_of_a_process_handler_are_seen(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(LOGGING)
    done = subprocess.run(
        [sys.executable, "app.py"], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
    )
    assert "hello from the child" in done.stderr, done.stderr
