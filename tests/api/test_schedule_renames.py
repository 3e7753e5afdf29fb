"""Renames of schedules over REST: PUT and PATCH with another name, alone and with other fields."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from mainspring import Mainspring
from mainspring.api.app import build
from mainspring.model.events import SchedulePaused, ScheduleUpdated
from mainspring.testing.time_travel import travel

GOOD: dict[str, Any] = {"name": "old", "cronExpression": "H H * * *", "agentUrl": "http://127.0.0.1:5678/"}


async def created(api: httpx.AsyncClient, **over: Any) -> dict[str, Any]:
    answer = await api.post("/api/schedules", json=GOOD | over)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_another_name_renames_and_all_else_stays(api: httpx.AsyncClient, method: str) -> None:
    made = await created(api, headers={"X-Key": "secret"}, payload={"n": 1})
    run = (await api.post("/api/schedules/old/trigger")).json()
    answer = await api.request(method, "/api/schedules/old", json={"name": "new name"})
    assert answer.status_code == 200, answer.text
    before = {key: made[key] for key in made.keys() - {"signingSecret", "warnings"}}
    shown = answer.json()
    assert before | {"name": "new name", "revision": 2, "updatedAt": shown["updatedAt"]} == {
        key: shown[key] for key in shown if key != "warnings"
    }
    assert answer.headers["etag"] == '"r2"'
    assert (await api.get("/api/schedules/old")).status_code == 404
    assert (await api.get("/api/schedules/new%20name")).json()["id"] == made["id"]
    listed = (await api.get("/api/executions", params={"scheduleId": "new name"})).json()
    assert [one["id"] for one in listed] == [run["id"]]
    assert (await api.get("/api/executions", params={"scheduleId": "old"})).status_code == 404
    again = await api.request(method, "/api/schedules/new%20name", json=shown)
    assert (again.status_code, again.json()["revision"]) == (200, 2)
    assert (await created(api))["id"] != made["id"]  # the old name is free


async def test_a_name_and_other_fields_are_one_revision(api: httpx.AsyncClient, ms: Mainspring) -> None:
    made = await created(api)
    edit = {"name": "new", "intervalMs": "1h", "graceMs": "5s"}
    answer = await api.put(f"/api/schedules/{made['id']}", json=edit, headers={"If-Match": '"r1"'})
    assert (answer.status_code, answer.json()["revision"], answer.json()["intervalMs"]) == (200, 2, 3_600_000)
    (event,) = await ms.events(types=[ScheduleUpdated])
    assert isinstance(event, ScheduleUpdated)
    assert (event.name, event.changed, event.actor) == ("new", ("trigger", "grace"), "api")
    stale = await api.put("/api/schedules/new", json={"name": "newer"}, headers={"If-Match": '"r1"'})
    assert stale.status_code == 412


async def test_a_name_that_is_taken_is_409_and_nothing_is_written(api: httpx.AsyncClient, ms: Mainspring) -> None:
    made, holder = await created(api), await created(api, name="taken")
    answer = await api.put(f"/api/schedules/{made['id']}", json={"name": "taken", "enabled": False, "graceMs": 1})
    assert (answer.status_code, answer.json()["type"]) == (409, "/api/errors/exists")
    assert answer.json()["errors"][0]["pointer"] == "#/name"
    assert f"a schedule called 'taken' exists: {holder['id']}" in answer.json()["detail"]
    assert await ms.events(types=[ScheduleUpdated, SchedulePaused]) == []


@pytest.mark.parametrize(
    "name", ["", "a/b", "a?b", "a#b", "..", "a\nb", "0197a2b4-0000-7000-8000-000000000000", 7, None]
)
async def test_a_name_that_no_new_schedule_may_have_is_422(api: httpx.AsyncClient, name: Any) -> None:
    made = await created(api)
    answer = await api.patch(f"/api/schedules/{made['id']}", json={"name": name, "graceMs": "soon"})
    assert answer.status_code == 422
    assert {fault["pointer"] for fault in answer.json()["errors"]} == {"#/name", "#/graceMs"}


async def test_a_schedule_that_code_declares_is_409() -> None:
    app = Mainspring("memory://", name="shop")

    @app.every("1h")
    def tick() -> None: ...

    async with travel(app) as t:
        transport = httpx.ASGITransport(app=build(t.app))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as api:
            answer = await api.patch("/api/schedules/tick", json={"name": "tack"})
            assert (answer.status_code, answer.json()["type"]) == (409, "/api/errors/conflict")
            assert answer.json()["detail"] == (
                "the program 'shop' declares the schedule 'tick' and would create it again under this name. "
                "Change the name in its code"
            )
            assert (await api.patch("/api/schedules/tick", json={"name": "tick"})).status_code == 200
