"""`wait` returns after a commit of another process, also if `due` is what polls for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mainspring.backends.sqlite.change_watch import ChangeWatch
from mainspring.backends.sqlite.store import SqliteStore
from mainspring.ports.store import Agenda
from mainspring.testing.contract.factories import Ids, enqueue_change, make_run


@pytest.mark.parametrize("ahead", [0, 400])
async def test_planning_ahead_also_polls_for_commits_of_other_processes(
    ahead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChangeWatch, "interval", lambda self: 600.0)
    here, other = SqliteStore(str(tmp_path / "one.db")), SqliteStore(str(tmp_path / "one.db"))
    await here.open()
    await other.open()
    waiting = asyncio.create_task(here.wait(600))
    await asyncio.sleep(0)
    await here.due(Agenda.SCHEDULES, 10, ahead=ahead)
    assert not waiting.done()
    ids = Ids()
    await other.apply([enqueue_change(ids, make_run(ids))])
    await here.due(Agenda.SCHEDULES, 10, ahead=ahead)
    for _ in range(3):
        await asyncio.sleep(0)
    assert waiting.done() == (ahead > 0)  # without planning ahead, only the timer polls
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await here.due(Agenda.SCHEDULES, 10, ahead=ahead)  # no call of `wait` is pending any more
    await here.close()
    await other.close()
