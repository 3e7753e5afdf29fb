"""ETags of schedules and If-Match, and what the API says of a schedule that was deleted."""

from __future__ import annotations

from typing import Any

import httpx

GOOD: dict[str, Any] = {"name": "n", "cronExpression": "0 9 * * *", "agentUrl": "http://127.0.0.1:5678/"}


async def created(api: httpx.AsyncClient, **over: Any) -> dict[str, Any]:
    answer = await api.post("/api/schedules", json=GOOD | over)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def put(api: httpx.AsyncClient, key: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    return await api.put(f"/api/schedules/{key}", json=body, headers=headers)


async def test_etag_and_if_match(api: httpx.AsyncClient) -> None:
    made = await api.post("/api/schedules", json=GOOD)
    key = made.json()["id"]
    assert made.headers["etag"] == '"r1"'
    first = await put(api, key, {"graceMs": 1}, **{"If-Match": '"r1"'})
    assert first.status_code == 200
    assert first.headers["etag"] == '"r2"'
    stale = await put(api, key, {"graceMs": 2}, **{"If-Match": '"r1"'})
    assert stale.status_code == 412
    assert stale.headers["etag"] == '"r2"'
    assert (await api.get(f"/api/schedules/{key}")).json()["graceMs"] == 1
    assert (await api.delete(f"/api/schedules/{key}", headers={"If-Match": '"r1"'})).status_code == 412
    assert (await put(api, key, {"graceMs": 3}, **{"If-Match": '"r7", "r2"'})).status_code == 200
    assert (await put(api, key, {"graceMs": 4}, **{"If-Match": "*"})).status_code == 200
    assert (await api.delete(f"/api/schedules/{key}", headers={"If-Match": '"r4"'})).status_code == 204


async def test_pausing_changes_the_etag_and_resuming_restores_it(api: httpx.AsyncClient) -> None:
    key = (await created(api))["id"]
    paused = await put(api, key, {"enabled": False})
    assert paused.headers["etag"] == '"r1-paused"'
    assert (await put(api, key, {"graceMs": 1}, **{"If-Match": '"r1"'})).status_code == 412
    edited = await put(api, key, {"graceMs": 1}, **{"If-Match": '"r1-paused"'})
    assert edited.headers["etag"] == '"r2-paused"'
    assert (await put(api, key, {"enabled": True})).headers["etag"] == '"r2"'


async def test_a_deleted_schedule_is_named_as_deleted_and_no_other_name_is_suggested(api: httpx.AsyncClient) -> None:
    await created(api, name="05-once")
    await created(api, name="10-gone")
    assert (await api.delete("/api/schedules/05-once")).status_code == 204
    answer = await api.get("/api/schedules/05-once")
    assert answer.status_code == 404
    assert "the schedule '05-once' was deleted at 20" in answer.json()["detail"]
    assert "10-gone" not in answer.text
