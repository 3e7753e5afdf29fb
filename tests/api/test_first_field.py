"""The field `first` of a schedule with an interval."""

from __future__ import annotations

import httpx

BODY = {"name": "n", "agentUrl": "http://127.0.0.1:5678/", "intervalMs": 30_000, "first": "now"}


async def test_first_goes_in_and_out_and_can_be_removed(api: httpx.AsyncClient) -> None:
    made = (await api.post("/api/schedules", json=BODY)).json()
    assert (made["first"], made["description"]) == ("now", "Every 30 seconds, first at once")
    assert made["nextRun"] <= made["createdAt"]
    again = (await api.put(f"/api/schedules/{made['id']}", json=made)).json()
    assert again["revision"] == 1
    edited = (await api.put(f"/api/schedules/{made['id']}", json={"first": None})).json()
    assert (edited["revision"], edited["description"]) == (2, "Every 30 seconds")
    assert "first" not in edited


async def test_first_of_another_trigger_or_word_is_refused(api: httpx.AsyncClient) -> None:
    for wrong, words in (
        ({"intervalMs": None, "first": "soon"}, "first"),
        ({"first": "soon"}, "first"),
        ({"anchor": "2026-01-01T00:00:00Z"}, "the anchor already says"),
    ):
        answer = await api.post("/api/schedules", json=BODY | wrong)
        assert answer.status_code == 422, answer.text
        assert words in answer.text
    cron = {key: value for key, value in BODY.items() if key != "intervalMs"} | {"cronExpression": "0 9 * * *"}
    answer = await api.post("/api/schedules", json=cron)
    assert answer.status_code == 422
    assert "belongs to intervalMs" in answer.text
    assert (await api.get("/api/schedules")).json() == []
