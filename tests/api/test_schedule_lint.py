"""Windows, schedules that can never fire, and warnings of probable mistakes, over REST."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from mainspring import Mainspring
from mainspring.model.instant import isoformat
from tests.api.test_schedule_routes import GOOD, created, put


async def test_a_window_without_a_zone_is_in_the_schedules_zone(api: httpx.AsyncClient) -> None:
    window = {"segments": ["08:00-18:00"]}
    made = await created(api, name="w", timezone="Europe/Berlin", window=window)
    assert made["window"]["timezone"] == "Europe/Berlin"
    # What is sent again without the zone changes nothing.
    assert (await put(api, made["id"], {"window": window})).json()["revision"] == 1
    moved = (await put(api, made["id"], {"timezone": "Asia/Tokyo"})).json()
    assert moved["window"]["timezone"] == "Asia/Tokyo"
    # A window that names its zone keeps it, also when the same request moves the schedule.
    moved["timezone"] = "Europe/Berlin"
    assert (await put(api, made["id"], moved)).json()["window"]["timezone"] == "Asia/Tokyo"
    moved = (await put(api, made["id"], {"window": window, "timezone": "Asia/Seoul"})).json()
    assert moved["window"]["timezone"] == "Asia/Seoul"


async def test_the_next_run_lies_inside_the_window(api: httpx.AsyncClient) -> None:
    window = {"segments": ["18:00-18:30"]}
    made = await created(api, name="w", cronExpression="* * * * *", window=window)
    assert "18:00" <= made["nextRun"][11:16] < "18:30"


@pytest.mark.parametrize(
    ("when", "field"),
    [
        ({"at": "2020-01-01T00:00:00Z"}, "at"),
        ({"at": []}, "at"),
        ({"cronExpression": "0 0 30 2 *"}, "cronExpression"),
        ({"intervalMs": 3_600_000, "endAt": "2020-01-01T00:00:00Z"}, "endAt"),
    ],
)
async def test_what_can_never_fire_is_refused(api: httpx.AsyncClient, when: dict[str, Any], field: str) -> None:
    body = {"name": "n", "agentUrl": GOOD["agentUrl"], **when}
    answer = await api.post("/api/schedules", json=body)
    assert answer.status_code == 422, answer.text
    (fault,) = answer.json()["errors"]
    assert fault["pointer"] == f"#/{field}"
    assert "never fires" in fault["detail"]
    assert (await api.get("/api/schedules/n")).status_code == 404
    made = await created(api, name="n")
    assert (await put(api, "n", when)).status_code == 422
    assert (await api.get("/api/schedules/n")).json()["revision"] == made["revision"]


async def test_an_instant_that_has_just_passed_fires(api: httpx.AsyncClient, ms: Mainspring) -> None:
    at = isoformat(ms.clock.now() - 5_000)
    body = {"name": "n", "agentUrl": GOOD["agentUrl"], "at": at}
    answer = await api.post("/api/schedules", json=body)
    assert answer.status_code == 201, answer.text
    assert at < answer.json()["nextRun"] <= isoformat(ms.clock.now() + 1)


async def test_answers_warn_of_probable_mistakes(api: httpx.AsyncClient) -> None:
    window = {"segments": ["10:00-18:00"]}
    made = await created(api, name="w", cronExpression="0 9 * * *", timezone="Europe/Berlin", window=window)
    (warning,) = made["warnings"]
    assert warning.startswith("L010: the window (in Europe/Berlin) shuts out all fires of the next year")
    assert (await api.get("/api/schedules/w")).json()["warnings"] == made["warnings"]
    fixed = (await put(api, "w", {"window": {"segments": ["08:00-18:00"]}})).json()
    assert "warnings" not in fixed
    uneven = (await put(api, "w", {"cronExpression": "*/7 8 * * *"})).json()
    assert [text[:5] for text in uneven["warnings"]] == ["L003:"]
    assert uneven["description"].startswith("Every 7 minutes, between 08:00 and 08:59, starting again each hour")
