"""A schedule whose task the program does not know: edits that do not concern the task need no code of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainspring import InvalidInput, Mainspring, UnknownTask
from mainspring.api.app import build
from mainspring.ports.store import Bodies
from tests.stored_rows import stored

START = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)


@pytest.fixture
async def url(tmp_path: Path) -> str:
    """A store with a schedule that another program made."""
    found = f"sqlite:///{tmp_path}/m.db"
    owner = Mainspring(found)

    @owner.task(limit=3, priority="low", queue="mail")
    async def report(region: str) -> None: ...

    await owner.schedule("tick", report, every="1s", args=("eu",), timeout="9s")
    await owner.close()
    return found


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"every": "2s"}, "trigger"),
        ({"cron": "0 9 * * *", "tz": "Europe/Berlin"}, "trigger"),
        ({"missed": "skip"}, "missed"),
        ({"grace": "5m"}, "grace"),
        ({"priority": "high"}, "priority"),
        ({"queue": "fast"}, "queue"),
        ({"timeout": None}, "options"),
    ],
)
async def test_an_edit_by_a_program_that_does_not_know_the_task(url: str, changes: dict[str, Any], field: str) -> None:
    ms = Mainspring(url)
    before = await stored(ms, ms.get("tick"))
    after = await stored(ms, ms.update("tick", **changes))
    changed = {name for name in after.spec.__struct_fields__ if getattr(after.spec, name) != getattr(before.spec, name)}
    assert field in changed <= {field, "tz", "options"}
    assert (after.spec.task, after.spec.body, after.spec.gates) == ("report", before.spec.body, before.spec.gates)
    assert (await ms.get("tick")).kwargs == {"region": "eu"}
    await ms.close()


@pytest.mark.parametrize(
    "changes", [{"args": ("us",)}, {"kwargs": {}}, {"priority": None}, {"queue": None}, {"task": "other"}]
)
async def test_an_edit_that_concerns_the_task_needs_it_and_stores_nothing(url: str, changes: dict[str, Any]) -> None:
    ms = Mainspring(url)
    before = await stored(ms, ms.get("tick"))
    with pytest.raises(UnknownTask):
        await ms.update("tick", **changes)
    with pytest.raises(InvalidInput):
        await ms.update("tick", payload=1)
    assert await stored(ms, ms.get("tick")) == before
    await ms.close()


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ({"intervalMs": 2_000}, {"intervalMs": 2_000}),
        ({"enabled": False}, {"state": "paused"}),
        ({"priority": "high", "graceMs": "5m"}, {"priority": "high", "graceMs": 300_000}),
        ({"task": "report", "missed": "skip"}, {"missed": "skip"}),
        ({"payload": {"region": "eu"}, "maxRuns": 9}, {"maxRuns": 9}),
    ],
)
async def test_an_edit_over_rest_by_a_service_without_the_app(
    url: str, body: dict[str, Any], shown: dict[str, Any]
) -> None:
    ms = Mainspring(url)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build(ms)), base_url="http://localhost") as client:
        answer = await client.put("/api/schedules/tick", json=body)
        assert answer.status_code == 200, answer.text
        assert shown.items() <= answer.json().items()
        assert answer.json()["payload"] == {"region": "eu"}
        refused = await client.put("/api/schedules/tick", json={"payload": {"region": "us"}})
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "#/task")
    row = await stored(ms, ms.get("tick"))
    assert [body.data for body in await ms._host.runtime.store.find(Bodies(ids=(row.spec.body or "",)))] == [  # type: ignore[union-attr]  # the store is open
        '{"k":{"region":"eu"}}'
    ]
    await ms.close()
