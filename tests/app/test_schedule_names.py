"""Names of schedules: a new one must fit into a URL, a stored one keeps working."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import InvalidInput, Mainspring
from mainspring.api.app import build
from mainspring.app.internals import create_with_any_name, queries_of
from mainspring.model.ids import check_schedule_name
from mainspring.testing import travel

BAD = [
    "a/b",
    "/",
    "what?",
    "issue#3",
    ".",
    "..",
    str(uuid.UUID(int=7)),
    str(uuid.UUID(int=2**127)).upper(),
    "a\nb",
    " ",
]
GOOD = ["nightly", "Daily Report Agent", "a.b", "...", "日本語", "100%", "a:b;c=d&e+f", "[x]", "a\\b", "é", "7" * 36]


def declared(name: str, url: str = "memory://") -> Mainspring:
    ms = Mainspring(url)

    @ms.every("1h", name=name)
    async def work() -> None: ...

    return ms


@pytest.mark.parametrize("name", BAD)
async def test_a_name_that_no_url_can_hold_is_refused(ms: Mainspring, name: str) -> None:
    @ms.task
    async def work() -> None: ...

    with pytest.raises(InvalidInput, match=r"^name: "):
        await ms.schedule(name, work, every="1h")
    with pytest.raises(InvalidInput, match="name"):
        await ms.schedule_many(work, [{"name": "fine", "every": "1h"}, {"name": name, "every": "1h"}])
    with pytest.raises(InvalidInput, match="name"):
        async with declared(name).running():
            pass
    assert await queries_of(ms).find_schedules() == []


@pytest.mark.parametrize("name", BAD[:8])
def test_the_message_says_what_to_write(name: str) -> None:
    with pytest.raises(InvalidInput) as told:
        check_schedule_name(name)
    assert told.value.fix


@pytest.mark.parametrize("name", GOOD)
async def test_any_other_name_is_found_by_its_url(name: str) -> None:
    ms = declared(name)
    client = httpx.AsyncClient(transport=httpx.ASGITransport(build(ms)), base_url="http://localhost")
    async with travel(ms, "2026-03-02T08:00Z"), client:
        quoted = "".join(f"%{byte:02X}" for byte in name.encode())
        assert (await client.get(f"/api/schedules/{quoted}")).json()["name"] == name


@pytest.mark.parametrize("name", BAD[:8])
async def test_a_stored_schedule_with_such_a_name_keeps_working(tmp_path: Path, name: str) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    for start in range(3):
        ms = declared(name, url)
        if start == 0:  # as an earlier version stored it
            await create_with_any_name(ms, name, "work", every="1h")
        async with ms.running():
            assert [one.name for one in await ms.schedules()] == [name]
            assert (await ms.schedule(name, "work", every="1h")).name == name
            assert await ms.schedule_many("work", [{"name": name, "every": "1h"}]) == 0
            assert (await ms.pause(name)).state == "paused"
            assert (await ms.resume(name)).state == "active"
        await ms.close()


@given(st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable() and text.strip()))
def test_a_name_is_refused_exactly_if_it_does_not_survive_a_url(name: str) -> None:
    try:
        uuid.UUID(name)
        is_id = len(name) == 36
    except ValueError:
        is_id = False
    fits = not is_id and name not in (".", "..") and not any(mark in name for mark in "/?#")
    try:
        assert check_schedule_name(name) == name
        accepted = True
    except InvalidInput:
        accepted = False
    assert accepted == fits


def test_the_doors_of_other_schedulers_take_their_names() -> None:
    from mainspring.compat import scheduler

    async def main() -> Any:
        ms = Mainspring("memory://")

        @ms.task
        async def work() -> None: ...

        made = await scheduler.Scheduler(ms).schedule_recurring(work, "*/5 * * * * ?")
        return await ms.get(made)

    assert asyncio.run(main()).name == "work */5 * * * * ?"
