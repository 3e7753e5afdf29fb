"""What other processes wrote is seen by whoever waits, also without a turn of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mainspring.ports.store import Agenda
from mainspring.stores.sqlite.store import SqliteStore
from mainspring.stores.sqlite.watch import Watch
from mainspring.testing.factories import Ids, enqueue_change, make_run


@pytest.mark.parametrize("ahead", [0, 400])
async def test_a_look_ahead_is_a_look_for_what_others_wrote(
    ahead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watch, "interval", lambda self: 600.0)
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
    assert waiting.done() == (ahead > 0)  # who plans nothing ahead has a timer for it
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await here.due(Agenda.SCHEDULES, 10, ahead=ahead)  # nobody waits any more
    await here.close()
    await other.close()
