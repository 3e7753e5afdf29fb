"""Schedules over REST: every trigger and policy, partial edits, revisions, pause, delete, secrets, keys that repeat."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from mainspring import Mainspring, State
from mainspring.api.app import build
from mainspring.api.idempotency import SHOWN_ONCE
from mainspring.app.internals import host_of, http_agents_of
from mainspring.model.change import Body
from mainspring.model.errors import OutcomeUnknown, StoreUnavailable
from mainspring.model.keyvalue import HEADERS_KIND
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule
from mainspring.ports.store import KeyValues
from mainspring.service.commands import Commands

GOOD: dict[str, Any] = {"name": "n", "cronExpression": "0 9 * * *", "agentUrl": "http://127.0.0.1:5678/"}
CANARY = "canary-7c1f"


async def created(api: httpx.AsyncClient, **over: Any) -> dict[str, Any]:
    answer = await api.post("/api/schedules", json=GOOD | over)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def put(api: httpx.AsyncClient, key: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    return await api.put(f"/api/schedules/{key}", json=body, headers=headers)


async def runs(api: httpx.AsyncClient, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await api.get(f"/api/executions{query}")).json()
    return found


#: Every trigger kind and policy: what is sent, and what is shown (as it was sent where nothing is named).
SHOWN: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"cronExpression": "0 0 9 L * ?", "timezone": "Europe/Berlin", "dstGap": "skip", "dstOverlap": "both"}, {}),
    ({"intervalMs": 30_000}, {"fixedDelay": False, "anchor": None, "description": "Every 30 seconds"}),
    ({"intervalMs": "1h30m", "fixedDelay": True}, {"intervalMs": 5_400_000}),
    ({"intervalMs": 1_000, "anchor": "2026-01-01T01:00:00+01:00"}, {"anchor": "2026-01-01T00:00:00Z"}),
    ({"at": "2030-01-01T00:00:00Z"}, {"at": ["2030-01-01T00:00:00Z"]}),
    ({"at": ["2030-01-01T00:00:00Z", "2031-01-01T00:00:00.5Z"]},
     {"at": ["2030-01-01T00:00:00Z", "2031-01-01T00:00:00.500Z"]}),
    ({"missed": "replay_all", "graceMs": "5s", "replayMax": 7, "replayAgeMs": "2h"},
     {"graceMs": 5_000, "replayAgeMs": 7_200_000}),
    ({"overlap": "cancel_running", "jitterMs": 10, "spreadMs": "1s"}, {"spreadMs": 1_000}),
    ({"startAt": "2030-01-01T00:00:00Z", "endAt": "2031-01-01T00:00:00Z", "maxRuns": 4}, {}),
    ({"window": {"timezone": "Asia/Tokyo", "weekdays": ["mon-wed"], "segments": ["09:00-12:00"]}},
     {"window": {"timezone": "Asia/Tokyo", "weekdays": ["mon", "tue", "wed"], "segments": ["09:00-12:00"]}}),
    ({"startDeadlineMs": "10m", "onExhausted": "pause", "terminal": "delete"}, {"startDeadlineMs": 600_000}),
    ({"priority": "critical", "queue": "reports", "timeoutMs": "20s", "recovery": "fail"}, {"timeoutMs": 20_000}),
    ({"httpMethod": "GET", "agentId": "a-1", "payload": [1, {"a": None}]}, {}),
    ({"enabled": False}, {"enabled": False, "state": "paused", "pauseReason": "disabled", "nextRun": None}),
    ({"retryPolicy": {"backoff": "linear", "backoffMultiplier": 3, "maxAttempts": 9, "jitter": 0.25}},
     {"retryPolicy": {"backoff": "linear", "backoffMultiplier": 3.0, "maxAttempts": 9, "jitter": 0.25,
                      "initialDelayMs": 1_000, "maxDelayMs": 30_000}}),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "shown"), SHOWN, ids=[next(iter(sent)) for sent, _ in SHOWN])
async def test_every_trigger_and_policy_goes_in_and_out(
    api: httpx.AsyncClient, sent: dict[str, Any], shown: dict[str, Any]
) -> None:
    body = {"name": "n", "agentUrl": GOOD["agentUrl"], "cronExpression": "0 9 * * *", **sent}
    if "intervalMs" in sent or "at" in sent:
        del body["cronExpression"]
    made = (await api.post("/api/schedules", json=body)).json()
    expected = sent | shown
    assert {name: made[name] for name in expected} == expected
    # What was answered can be sent back as it is: nothing changes.
    again = await put(api, made["id"], made)
    assert again.status_code == 200, again.text
    assert again.json()["revision"] == 1
    # And the same can be said in an edit of a plain one.
    plain = await created(api, name="plain")
    edit = {name: value for name, value in sent.items() if name != "terminal"}
    edited = (await put(api, plain["id"], edit)).json()
    assert {name: edited[name] for name in expected if name != "terminal"} == {
        name: value for name, value in expected.items() if name != "terminal"
    }


async def test_a_delay_is_one_fire_from_now(api: httpx.AsyncClient) -> None:
    body = {"name": "n", "agentUrl": GOOD["agentUrl"], "delayMs": "10m"}
    made = (await api.post("/api/schedules", json=body)).json()
    assert made["at"] == [made["nextRun"]]


async def test_a_schedule_of_a_python_task(api: httpx.AsyncClient) -> None:
    body = {"name": "mail", "cronExpression": "0 9 * * *", "task": "send"}
    made = (await api.post("/api/schedules", json=body | {"payload": {"customer": "acme"}})).json()
    assert made["task"] == "send"
    assert made["overlap"] == "forbid"
    assert "agentUrl" not in made
    edited = await put(api, "mail", {"payload": ["globex", 3]})
    assert edited.json()["payload"] == {"customer": "globex", "copies": 3}
    wrong = await put(api, "mail", {"payload": {"costumer": "x"}})
    assert wrong.status_code == 422
    assert wrong.json()["errors"][0]["pointer"] == "#/payload"
    unknown = await api.post("/api/schedules", json=body | {"name": "x", "task": "sent"})
    assert unknown.status_code == 422
    assert "Did you mean 'send'?" in unknown.text


async def test_read_only_fields_may_be_sent_back_as_they_are(api: httpx.AsyncClient) -> None:
    made = await created(api)
    assert (await put(api, made["id"], {"id": made["id"], "createdAt": made["createdAt"]})).status_code == 200
    older = {"nextRun": "2020-01-01T00:00:00Z", "updatedAt": "2020-01-01T00:00:00Z", "fired": 0, "revision": 1}
    assert (await put(api, made["id"], older)).status_code == 200
    for name, value in {
        "id": "other",
        "createdAt": "2020-01-01T00:00:00Z",
        "nextRun": "2099-01-01T00:00:00Z",
        "revision": 9,
        "state": "finished",
        "signingSecret": "whsec_x",
        "fired": True,
    }.items():
        answer = await put(api, made["id"], {name: value})
        assert answer.status_code == 422, name
        assert answer.json()["errors"][0]["pointer"] == f"#/{name}"


async def test_edits_at_once_all_take_effect(api: httpx.AsyncClient) -> None:
    made = await created(api)
    edits = [{"graceMs": 7}, {"jitterMs": 8}, {"queue": "q"}, {"timezone": "Europe/Berlin"}, {"maxRuns": 9}]
    answers = await asyncio.gather(*[put(api, made["id"], edit) for edit in edits])
    assert [answer.status_code for answer in answers] == [200] * 5
    found = (await api.get(f"/api/schedules/{made['id']}")).json()
    for edit in edits:
        assert edit.items() <= found.items()


async def test_pause_and_resume(api: httpx.AsyncClient) -> None:
    made = await created(api)
    at = f"/api/schedules/{made['id']}"
    paused = (await api.post(f"{at}/pause", json={"reason": "migration", "until": "2099-01-01T00:00:00Z"})).json()
    assert (paused["enabled"], paused["pauseReason"], paused["pausedUntil"]) == (
        False,
        "migration",
        "2099-01-01T00:00:00Z",
    )
    resumed = (await api.post(f"{at}/resume")).json()
    assert (resumed["enabled"], resumed["pauseReason"], resumed["pausedUntil"]) == (True, None, None)
    assert (await api.post(f"{at}/pause")).json()["pauseReason"] == "paused"
    assert (await put(api, made["id"], {"enabled": True})).json()["enabled"] is True
    past = await api.post(f"{at}/pause", json={"until": "2020-01-01T00:00:00Z"})
    assert past.status_code == 422
    assert past.json()["errors"][0]["pointer"] == "#/until"
    assert (await api.post(f"{at}/pause", json={"resaon": "x"})).status_code == 422


async def test_delete_is_at_once_and_history_stays(api: httpx.AsyncClient, ms: Mainspring) -> None:
    made = await created(api)
    at = f"/api/schedules/{made['id']}"
    run = (await api.post(f"{at}/trigger", json={"payload": {"a": 1}})).json()
    assert (await api.delete(at)).status_code == 204
    for method, path in (("GET", ""), ("PUT", ""), ("DELETE", ""), ("GET", "/executions"), ("POST", "/trigger")):
        assert (await api.request(method, at + path, json={})).status_code == 404, path
    (kept,) = await runs(api, f"?scheduleId={made['id']}")
    assert (kept["id"], kept["status"], kept["reason"]) == (run["id"], "cancelled", "the schedule was deleted")
    again = await created(api)
    assert again["id"] != made["id"]


async def test_executions_are_listed_by_name_or_id_and_an_unknown_one_is_404(api: httpx.AsyncClient) -> None:
    """Before, a name or a mistyped id gave an empty list, which looked as if the schedule had never run."""
    made = await created(api, name="nightly")
    run = (await api.post(f"/api/schedules/{made['id']}/trigger")).json()
    for key in (made["id"], made["name"]):
        assert [one["id"] for one in await runs(api, f"?scheduleId={key}")] == [run["id"]]
    wrong = await api.get("/api/executions", params={"scheduleId": made["name"] + "x"})
    assert wrong.status_code == 404
    assert f"Did you mean '{made['name']}'?" in wrong.json()["detail"]


async def test_executions_trigger_cancel_retry(api: httpx.AsyncClient, ms: Mainspring) -> None:
    made = await created(api, payload={"a": 1})
    at = f"/api/schedules/{made['id']}/trigger"
    plain = await api.post(at)
    assert plain.status_code == 201
    assert plain.headers["location"] == f"/api/executions/{plain.json()['id']}"
    over = (await api.post(at, content=b'{"payload": 1.50}', headers={"Content-Type": "application/json"})).json()
    whole = await api.get(f"/api/executions/{over['id']}")
    assert '"payload":1.50' in whole.text, "as it was written"
    assert whole.json()["attemptDetails"] == []
    assert (await api.get(f"/api/executions/{plain.json()['id']}")).json()["payload"] == {"a": 1}
    assert [run["status"] for run in await runs(api)] == ["pending", "pending"]
    ended = await api.post(f"/api/executions/{over['id']}/cancel", json={"reason": "a mistake"})
    assert (ended.json()["status"], ended.json()["reason"]) == ("cancelled", "a mistake")
    assert (await api.post(f"/api/executions/{over['id']}/cancel")).status_code == 409
    reopened = await api.post(f"/api/executions/{over['id']}/retry")
    assert reopened.json()["status"] == "pending"
    assert (await api.post(f"/api/executions/{over['id']}/retry")).status_code == 409
    assert [run["id"] for run in await runs(api, "?status=pending")] == [over["id"], plain.json()["id"]]
    assert await runs(api, "?status=failed") == []


async def test_a_disabled_schedule_is_created_paused_in_one_commit(api: httpx.AsyncClient, ms: Mainspring) -> None:
    made = await created(api, enabled=False)
    events = await ms.events(schedule=made["id"])
    assert [type(event).__name__ for event in events] == ["ScheduleCreated", "SchedulePaused"]
    assert events[0].change == events[1].change


async def test_a_finished_schedule_continues_when_it_is_edited(api: httpx.AsyncClient) -> None:
    body = {"name": "n", "agentUrl": GOOD["agentUrl"], "at": "2098-01-01T00:00:00Z", "maxRuns": 0}
    made = (await api.post("/api/schedules", json=body)).json()
    assert (made["state"], made["enabled"], made["finishReason"]) == ("finished", False, "max_runs")
    assert (await put(api, made["id"], {"enabled": True})).status_code == 409
    assert (await put(api, made["id"], {"at": "2099-01-01T00:00:00Z", "maxRuns": 1})).json()["enabled"] is True


async def test_pages_are_linked_and_hold_every_row(api: httpx.AsyncClient) -> None:
    for number in range(7):
        await created(api, name=f"s{number}", enabled=number % 2 == 0)
    schedules = [one["name"] for one in await _pages(api, "/api/schedules?limit=3", [3, 3, 1])]
    assert schedules == [f"s{number}" for number in range(7)]
    off = [one["name"] for one in await _pages(api, "/api/schedules?limit=3&enabled=false", [3])]
    assert off == ["s1", "s3", "s5"]
    for _ in range(5):
        await api.post("/api/schedules/s0/trigger")
    every = await _pages(api, "/api/executions?limit=2", [2, 2, 1])
    assert [one["id"] for one in every] == sorted((one["id"] for one in every), reverse=True)
    assert await _pages(api, "/api/schedules/s0/executions?limit=4", [4, 1]) == every
    assert "link" not in (await api.get("/api/schedules?limit=7")).headers


async def _pages(api: httpx.AsyncClient, path: str, sizes: list[int]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    seen: list[int] = []
    following: str | None = path
    while following is not None:
        answer = await api.get(following)
        found += answer.json()
        seen.append(len(answer.json()))
        following = answer.links.get("next", {}).get("url")
    assert seen == sizes
    return found


# ── secrets ─────────────────────────────────────────────────────────────────


async def _stored_headers(ms: Mainspring) -> list[dict[str, str]]:
    found = await host_of(ms).call(lambda runtime: runtime.store.find(KeyValues(kind=HEADERS_KIND, limit=100)))
    return [msgspec.json.decode(one.data) for one in found if one.expires_at is None]


async def test_header_values_are_kept_apart_and_replaced_by_name(api: httpx.AsyncClient, ms: Mainspring) -> None:
    made = await created(api, headers={"Authorization": "one", "X-Other": "two"})
    assert made["headers"] == {"Authorization": "***", "X-Other": "***"}
    edited = await put(api, made["id"], {"headers": {"authorization": "***", "X-New": "three"}})
    assert edited.json()["headers"] == {"authorization": "***", "X-New": "***"}
    assert await _stored_headers(ms) == [{"X-New": "three", "authorization": "one"}]
    assert (await put(api, made["id"], edited.json() | {"graceMs": 5})).json()["revision"] == 3
    assert await _stored_headers(ms) == [{"X-New": "three", "authorization": "one"}]
    assert (await put(api, made["id"], {"headers": None})).json()["headers"] == {}
    assert await _stored_headers(ms) == []


async def test_headers_for_one_host_are_not_sent_to_another(api: httpx.AsyncClient, ms: Mainspring) -> None:
    made = await created(api, headers={"Authorization": "one"})
    same = await put(api, made["id"], {"agentUrl": "http://127.0.0.1:5678/other"})
    assert same.json()["headers"] == {"Authorization": "***"}
    kept = await put(api, made["id"], {"agentUrl": "http://127.0.0.1:9/", "headers": {"Authorization": "***"}})
    assert kept.status_code == 200, "as it is shown is as if it were not given"
    assert kept.json()["headers"] == {}
    assert await _stored_headers(ms) == []


async def test_a_mask_beside_a_new_value_needs_the_same_host(api: httpx.AsyncClient) -> None:
    made = await created(api, headers={"Authorization": "one"})
    body = {"agentUrl": "http://127.0.0.1:9/", "headers": {"Authorization": "***", "X-New": "x"}}
    answer = await put(api, made["id"], body)
    assert answer.status_code == 422
    assert "not sent to a new host" in answer.text


async def test_a_secret_header_value_appears_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    ms = Mainspring(f"sqlite:///{tmp_path}/m.db")
    said: list[str] = []
    app = build(ms)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as api:
        secret = {"Authorization": f"Bearer {CANARY}"}
        made = await created(api, headers=secret)
        at = f"/api/schedules/{made['id']}"
        said.append(str(made))
        for answer in [
            await api.post("/api/schedules", json=GOOD | {"headers": secret}),
            await api.post("/api/schedules", json=GOOD | {"name": "x", "headers": secret | {"Bad\r\n": CANARY}}),
            await api.post("/api/schedules", json=GOOD | {"name": "x", "headers": {"X": f"{CANARY}\r\n"}}),
            await api.post("/api/schedules", json=GOOD | {"name": "x", "headers": {"X": [CANARY]}}),
            await api.put(at, json={"headers": {"X-New": CANARY}}),
            await api.post(f"{at}/trigger"),
            await api.get(at),
            await api.get("/api/schedules"),
            await api.get("/api/executions"),
            await api.get("/"),
            await api.delete(at),
        ]:
            said.append(answer.text)
        app.state.api.closing.set()
        said.append((await api.get("/api/events/stream?since=beginning")).text)
    said += [str(event) for event in await ms.events(limit=1_000)]
    await ms.close()
    said += [caplog.text, *capsys.readouterr()]
    assert len(said) > 20
    assert [text for text in said if CANARY in text] == []


async def test_the_signing_secret_is_shown_once_and_rotated(api: httpx.AsyncClient, ms: Mainspring) -> None:
    made = await created(api)
    assert made["signingSecret"].startswith("whsec_")
    for path in (f"/api/schedules/{made['id']}", "/api/schedules"):
        assert "whsec_" not in (await api.get(path)).text
    fresh = (await api.post(f"/api/schedules/{made['id']}/rotate-secret")).json()["signingSecret"]
    assert fresh.startswith("whsec_")
    assert fresh != made["signingSecret"]
    in_force = await host_of(ms).call(lambda runtime: runtime.vault.secrets(made["id"]))
    assert in_force == (fresh, made["signingSecret"])
    body = {"name": "mail", "cronExpression": "0 9 * * *", "task": "send", "payload": ["a"]}
    task = (await api.post("/api/schedules", json=body)).json()
    assert "signingSecret" not in task
    assert (await api.post(f"/api/schedules/{task['id']}/rotate-secret")).status_code == 409


# ── the same request again ──────────────────────────────────────────────────


async def test_an_idempotency_key_gives_the_same_answer(api: httpx.AsyncClient, ms: Mainspring) -> None:
    key = {"Idempotency-Key": "k-1"}
    first = await api.post("/api/schedules", json=GOOD, headers=key)
    again = await api.post("/api/schedules", json=GOOD, headers=key)
    assert again.status_code == 201
    assert again.json() | {"signingSecret": ""} == first.json() | {"signingSecret": "", "warnings": [SHOWN_ONCE]}
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["etag"] == first.headers["etag"]
    assert again.headers["idempotency-replayed"] == "true"
    other = await api.post("/api/schedules", json=GOOD | {"name": "other"}, headers=key)
    assert other.status_code == 422
    assert other.json()["type"] == "/api/errors/idempotency-mismatch"
    elsewhere = await api.post(f"/api/schedules/{first.json()['id']}/pause", headers=key)
    assert elsewhere.status_code == 422
    assert len((await api.get("/api/schedules")).json()) == 1


async def test_a_trigger_with_a_key_runs_once_on_every_instance(tmp_path: Path) -> None:
    apps = [Mainspring(f"sqlite:///{tmp_path}/m.db") for _ in range(2)]
    clients = [httpx.AsyncClient(transport=httpx.ASGITransport(build(ms)), base_url="http://127.0.0.1") for ms in apps]
    made = await created(clients[0])
    path = f"/api/schedules/{made['id']}/trigger"
    asked = [clients[number % 2].post(path, headers={"Idempotency-Key": '"k"'}) for number in range(10)]
    answers = await asyncio.gather(*asked)
    assert {answer.status_code for answer in answers} <= {201, 409}
    made_runs = {answer.json()["id"] for answer in answers if answer.status_code == 201}
    assert len(made_runs) == 1
    assert len(await runs(clients[1])) == 1
    later = await clients[1].post(path, headers={"Idempotency-Key": '"k"'})
    assert {later.json()["id"]} == made_runs
    for client, ms in zip(clients, apps, strict=True):
        await client.aclose()
        await ms.close()


async def test_a_request_in_flight_is_409_and_a_refused_one_leaves_the_key_free(
    api: httpx.AsyncClient, ms: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = {"Idempotency-Key": "k"}
    entered, go = asyncio.Event(), asyncio.Event()
    check = http_agents_of(ms).check_url

    async def slow(url: str, *, field: str = "url") -> list[str]:
        entered.set()
        await go.wait()
        return await check(url, field=field)

    monkeypatch.setattr(http_agents_of(ms), "check_url", slow)
    first = asyncio.create_task(api.post("/api/schedules", json=GOOD, headers=key))
    await entered.wait()
    second = await api.post("/api/schedules", json=GOOD, headers=key)
    assert second.status_code == 409
    assert second.json()["type"] == "/api/errors/idempotency-in-flight"
    assert second.headers["retry-after"] == "1"
    go.set()
    assert (await first).status_code == 201
    refused = {"Idempotency-Key": "r"}
    bad = GOOD | {"name": "later", "cronExpression": "x"}
    assert (await api.post("/api/schedules", json=bad, headers=refused)).status_code == 422
    good = GOOD | {"name": "later"}
    assert (await api.post("/api/schedules", json=good, headers=refused)).status_code == 201


async def test_after_an_unknown_outcome_the_key_is_not_free(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, key = f"/api/schedules/{(await created(api))['id']}/trigger", {"Idempotency-Key": "k"}
    trigger = Commands.trigger

    async def lose_answer(self: Commands, schedule: Schedule, body: Body | None = None, *, by: str = "") -> Run:
        await trigger(self, schedule, body, by=by)
        raise OutcomeUnknown("the connection broke")

    with monkeypatch.context() as patch:
        patch.setattr(Commands, "trigger", lose_answer)
        lost = await api.post(path, headers=key)
    assert (lost.status_code, lost.json()["type"]) == (503, "/api/errors/unavailable")
    assert lost.json()["detail"] == (
        "It is not known whether the change was stored. Read the object before you repeat the request."
    )
    assert "retry-after" not in lost.headers
    again = await api.post(path, headers=key)
    assert (again.status_code, again.json()["type"]) == (409, "/api/errors/idempotency-in-flight")
    assert len(await runs(api)) == 1


async def test_after_a_store_that_changed_nothing_the_key_is_free(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, key = f"/api/schedules/{(await created(api))['id']}/trigger", {"Idempotency-Key": "k"}

    async def fail(self: Commands, schedule: Schedule, body: Body | None = None, *, by: str = "") -> Run:
        raise StoreUnavailable("the server is away")

    with monkeypatch.context() as patch:
        patch.setattr(Commands, "trigger", fail)
        refused = await api.post(path, headers=key)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "Nothing was changed" in refused.json()["detail"]
    assert (await api.post(path, headers=key)).status_code == 201
    assert len(await runs(api)) == 1


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "ü"])
async def test_a_malformed_idempotency_key_is_refused(api: httpx.AsyncClient, key: str) -> None:
    answer = await api.post("/api/schedules", json=GOOD, headers={"Idempotency-Key": key.encode("latin-1")})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["parameter"] == "Idempotency-Key"


async def test_statuses_are_the_words_of_source_002() -> None:
    from mainspring.api.schemas import STATUSES
    from mainspring.api.views import states_for

    assert {state for status in STATUSES for state in states_for(status)} == set(State)
    assert states_for("pending") == (State.BLOCKED, State.WAITING)
    assert states_for("failed") == (State.FAILED, State.LOST)
