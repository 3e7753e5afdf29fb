"""The commands of the page of questions print what it shows: a schedule is paused, a clock was wrong."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from mainspring import Mainspring
from mainspring.backends.redis.store import RedisStore
from mainspring.backends.sqlite.database import BUSY_TIMEOUT_MS
from mainspring.backends.sqlite.store import SqliteStore
from mainspring.testing import travel
from tests.docs.page_commands import DOCS, run_page

PAGE = (DOCS / "faq.md").read_text(encoding="utf-8")
PROGRAM = """
from mainspring import Mainspring

ms = Mainspring("sqlite:///jobs.db", tz="Europe/Berlin")


@ms.cron("0 9 * * Mon-Fri")
def report() -> None: ...


if __name__ == "__main__":
    ms.run(until_idle=True)
    ms.sync.pause("report", reason="holidays")
    ms.sync.close()
"""


def test_the_page_runs(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(PROGRAM, encoding="utf-8")
    subprocess.run([sys.executable, "jobs.py"], cwd=tmp_path, check=True)
    asyncio.run(plan_by_a_wrong_clock(f"sqlite:///{tmp_path}/jobs.db"))
    run_page(PAGE, tmp_path)


async def plan_by_a_wrong_clock(url: str) -> None:
    """Let a schedule fire in a year that has not come."""
    ms = Mainspring(url, name="clock")

    @ms.task
    async def tick() -> None: ...

    async with travel(ms, "2070-01-01T00:00Z") as t:
        await ms.schedule("tick", tick, every="1m")
        await t.advance("3m")


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    days = SqliteStore.capabilities.history // 86_400_000
    assert f"kept for {days} days" in PAGE
    assert RedisStore.capabilities.history == 86_400_000
    assert f"{RedisStore.capabilities.ended_runs:,} runs at most".replace(",", " ") in PAGE
    assert f"for more than {BUSY_TIMEOUT_MS // 1000} s" in PAGE
