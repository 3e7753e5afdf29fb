"""Bad requests: the right 4xx, a problem document that names the place and the fix, and nothing changed."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from mainspring import Mainspring
from mainspring.app.internals import host_of

GOOD: dict[str, Any] = {"name": "n", "cronExpression": "0 9 * * *", "agentUrl": "http://127.0.0.1:5678/"}

#: What is sent over GOOD → status, pointer, and words of the answer.
FIELDS: list[tuple[dict[str, Any], int, str, str]] = [
    ({"cronExpresion": "x"}, 422, "#/cronExpresion", "Did you mean 'cronExpression'?"),
    ({"cron_expression": "x"}, 422, "#/cron_expression", "Did you mean 'cronExpression'?"),
    ({"retryPolicy": {"maxAttemps": 3}}, 422, "#/retryPolicy/maxAttemps", "Did you mean 'maxAttempts'?"),
    ({"retryPolicy": {"maxAttempts": 0}}, 422, "#/retryPolicy/maxAttempts", "at least 1"),
    ({"retryPolicy": {"maxAttempts": "3"}}, 422, "#/retryPolicy/maxAttempts", "a whole number, not a string"),
    ({"retryPolicy": {"initialDelayMs": "soon"}}, 422, "#/retryPolicy/initialDelayMs", "is not a duration"),
    ({"cronExpression": "0 25 * * *"}, 422, "#/cronExpression", "field 'hour': 25 is out of range"),
    ({"cronExpression": "0 25 * * *"}, 422, "#/cronExpression", "Allowed: 0-23"),
    ({"cronExpression": "* * *"}, 422, "#/cronExpression", "5 fields"),
    ({"cronExpression": 5}, 422, "#/cronExpression", "a string, not a number"),
    ({"timezone": "Europe/Berlim"}, 422, "#/timezone", "Did you mean 'Europe/Berlin'?"),
    ({"agentUrl": "ftp://x"}, 422, "#/agentUrl", "http:// or https://"),
    ({"agentUrl": "not a url"}, 422, "#/agentUrl", "Percent-encode"),
    ({"agentUrl": "http://u:p@x/"}, 422, "#/agentUrl", "user or a password"),
    ({"agentUrl": "http://169.254.169.254/"}, 422, "#/agentUrl", "never called"),
    ({"agentUrl": "http://x/\r\nHost: y"}, 422, "#/agentUrl", "line break"),
    ({"httpMethod": "PSOT"}, 422, "#/httpMethod", "Did you mean 'POST'?"),
    ({"headers": {"X-A": "a\r\nX-B: b"}}, 422, "#/headers/X-A", "line break"),
    ({"headers": {"X-A\r\nX-B": "b"}}, 422, "#/headers", "no line breaks"),
    ({"headers": {"Idempotency-Key": "b"}}, 422, "#/headers/Idempotency-Key", "set by Mainspring"),
    ({"headers": {"webhook-signature": "b"}}, 422, "#/headers/webhook-signature", "set by Mainspring"),
    ({"headers": {"Host": "b"}}, 422, "#/headers/Host", "connection"),
    ({"headers": {"X-A": "***"}}, 422, "#/headers/X-A", "stands for a stored value"),
    ({"headers": {"X-A": 5}}, 422, "#/headers", "a string, not a number"),
    ({"intervalMs": 1000}, 422, "#/intervalMs", "cronExpression and intervalMs are given"),
    ({"fixedDelay": True}, 422, "#/fixedDelay", "belongs to intervalMs"),
    ({"task": "send"}, 422, "#/task", "agentUrl and task are both given"),
    ({"overlap": "forbit"}, 422, "#/overlap", "Did you mean 'forbid'?"),
    ({"missed": "never"}, 422, "#/missed", "is not one of skip"),
    ({"priority": "hihg"}, 422, "#/priority", "Did you mean 'high'?"),
    ({"startAt": "2026-01-01"}, 422, "#/startAt", "no time zone"),
    ({"startAt": "soon"}, 422, "#/startAt", "RFC 3339"),
    ({"startAt": "0001-01-01T00:00:00+14:00"}, 422, "#/startAt", "out of range"),
    ({"endAt": "9999-12-31T23:59:59-14:00"}, 422, "#/endAt", "years 1 to 9999"),
    ({"timeoutMs": "99999999w"}, 422, "#/timeoutMs", "too long"),
    ({"timeoutMs": 10**15}, 422, "#/timeoutMs", "at most 315360000000"),
    ({"timeoutMs": "3650d1ms"}, 422, "#/timeoutMs", "The longest is 3650d"),
    ({"retryPolicy": {"maxDelayMs": "99999999w"}}, 422, "#/retryPolicy/maxDelayMs", "too long"),
    ({"startAt": "2027-01-01T00:00:00Z", "endAt": "2026-01-01T00:00:00Z"}, 422, "#/endAt", "before start"),
    ({"window": {"segments": ["9"]}}, 422, "#/window/segments", '"09:00-17:30"'),
    ({"window": {"weekdays": ["xxx"]}}, 422, "#/window/weekdays", "not one of mon"),
    ({"window": {"timezone": "Mars"}}, 422, "#/window/timezone", "is not a time zone"),
    ({"maxRuns": -1}, 422, "#/maxRuns", "at least 0"),
    ({"enabled": "yes"}, 422, "#/enabled", "a boolean, not a string"),
    ({"name": ""}, 422, "#/name", "at least 1 character"),
    ({"name": "x" * 256}, 422, "#/name", "at most 255 characters"),
    ({"name": "a\0b"}, 422, "#/name", "NUL"),
    ({"name": "a\nb"}, 422, "#/name", "control characters"),
    ({"id": "1"}, 422, "#/id", "is not a field"),
    ({"queue": "a\tb"}, 422, "#/queue", "control characters"),
    ({"payload": "x" * 70_000}, 413, "#/payload", "limit of 65536"),
]


@pytest.mark.parametrize(("over", "status", "pointer", "words"), FIELDS, ids=[f"{f[2]} {f[3][:20]}" for f in FIELDS])
async def test_a_wrong_field(
    api: httpx.AsyncClient, over: dict[str, Any], status: int, pointer: str, words: str
) -> None:
    answer = await api.post("/api/schedules", json=GOOD | over)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    (fault,) = [fault for fault in problem["errors"] if fault["pointer"] == pointer]
    assert words in fault["detail"] + " " + fault.get("suggestion", "")
    assert (await api.get("/api/schedules")).json() == []


@pytest.mark.parametrize(
    ("trigger", "pointer"),
    [
        ({"at": "9999-12-31T23:59:59-14:00"}, "#/at/0"),
        ({"intervalMs": 60_000, "anchor": "0001-01-01T00:00:00+14:00"}, "#/anchor"),
        ({"intervalMs": "99999999w"}, "#/intervalMs"),
        ({"delayMs": "99999999w"}, "#/delayMs"),
    ],
)
async def test_a_trigger_outside_the_range_of_times_is_refused(
    api: httpx.AsyncClient, trigger: dict[str, Any], pointer: str
) -> None:
    """Before, the answer was 500, or the schedule was created and its calls failed."""
    answer = await api.post("/api/schedules", json={"name": "n", "agentUrl": GOOD["agentUrl"]} | trigger)
    assert answer.status_code == 422, answer.text
    assert [fault["pointer"] for fault in answer.json()["errors"]] == [pointer]


@pytest.mark.parametrize(("over", "status", "pointer", "words"), FIELDS, ids=[f"{f[2]} {f[3][:20]}" for f in FIELDS])
async def test_a_wrong_edit_changes_nothing(
    api: httpx.AsyncClient, over: dict[str, Any], status: int, pointer: str, words: str
) -> None:
    made = (await api.post("/api/schedules", json=GOOD)).json()
    before = (await api.get(f"/api/schedules/{made['id']}")).json()
    both = {"cronExpression": GOOD["cronExpression"]} if "intervalMs" in over else {}
    answer = await api.put(f"/api/schedules/{made['id']}", json=both | over | {"graceMs": 5})
    assert answer.status_code in (413, 422), answer.text
    assert (await api.get(f"/api/schedules/{made['id']}")).json() == before


async def test_several_mistakes_are_reported_at_once(api: httpx.AsyncClient) -> None:
    answer = await api.post("/api/schedules", json={"nam": "x", "enabled": 1, "graceMs": []})
    pointers = [fault["pointer"] for fault in answer.json()["errors"]]
    assert pointers == ["#/nam", "#/enabled", "#/graceMs", "#/name", "#", "#"]


@pytest.mark.parametrize(
    ("body", "status", "kind", "words"),
    [
        (b'{"name": "x",}', 400, "malformed", "line 1 column 14"),
        (b'{\n "name" "x"}', 400, "malformed", "line 2"),
        (b"", 400, "malformed", "The body is empty"),
        (b'{"a": "\xff"}', 400, "malformed", "UTF-8"),
        (b"[1]", 422, "invalid", "an array"),
        (b"null", 422, "invalid", "null"),
        (b'{"payload": ' + b"[" * 40 + b"]" * 40 + b"}", 422, "invalid", "deeper than 32"),
        (b'{"payload": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", 400, "malformed", "deeper"),
        (b'{"payload": "' + b"x" * 200_000 + b'"}', 413, "too-large", "larger than"),
        (b'{"payload": NaN}', 400, "malformed", "invalid character"),
    ],
)
async def test_a_body_that_cannot_be_read(
    api: httpx.AsyncClient, body: bytes, status: int, kind: str, words: str
) -> None:
    answer = await api.post("/api/schedules", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.json()["type"] == f"/api/errors/{kind}"
    assert words in answer.json()["detail"]


async def test_a_body_without_a_length_is_cut_off_at_the_limit(api: httpx.AsyncClient) -> None:
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        while True:
            sent += 1
            yield b"x" * 10_000

    answer = await api.post("/api/schedules", content=endless(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert sent < 20


@pytest.mark.parametrize("action", ["trigger", "pause", "resume", "rewind", "rotate-secret"])
async def test_blanks_are_no_body_and_no_json_either(api: httpx.AsyncClient, action: str) -> None:
    made = (await api.post("/api/schedules", json=GOOD)).json()
    path, kind = f"/api/schedules/{made['id']}/{action}", {"Content-Type": "application/json"}
    refused = await api.post(path, content=b"\n\n", headers=kind)
    assert (refused.status_code, refused.headers["content-type"]) == (400, "application/problem+json")
    assert (await api.post(path, content=b"", headers=kind)).is_success


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_another_content_type(api: httpx.AsyncClient, kind: str) -> None:
    answer = await api.post("/api/schedules", content=b"{}", headers={"Content-Type": kind})
    assert answer.status_code == 415
    assert "application/json" in answer.json()["detail"]


@pytest.mark.parametrize(
    "kind", ["application/json; charset=utf-8", "application/merge-patch+json", "Application/JSON"]
)
async def test_every_kind_of_json_is_read(api: httpx.AsyncClient, kind: str) -> None:
    made = (await api.post("/api/schedules", json=GOOD)).json()
    answer = await api.put(f"/api/schedules/{made['id']}", content=b"{}", headers={"Content-Type": kind})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("path", "parameter", "words"),
    [
        ("/api/schedules?limit=0", "limit", "at least 1"),
        ("/api/schedules?limit=501", "limit", "at most 500"),
        ("/api/schedules?limit=ten", "limit", "a whole number"),
        ("/api/schedules?limit=%2010", "limit", "a whole number"),
        ("/api/schedules?limit=5&limit=6", "limit", "twice"),
        ("/api/schedules?lmit=5", "lmit", "Did you mean 'limit'?"),
        ("/api/schedules?enabled=null", "enabled", "not one of true, false"),
        ("/api/schedules?cursor=", "cursor", "at least 1 character"),
        ("/api/executions?status=done", "status", "not one of pending"),
        ("/api/executions?status=faild", "status", "Did you mean 'failed'?"),
        ("/api/executions?scheduleId=%00", "scheduleId", "NUL"),
        ("/api/events/stream?types=RunFaild", "types", "Did you mean 'RunFailed'?"),
        ("/api/events/stream?since=ever", "since", "not one of now, beginning"),
        ("/api/health?x=1", None, ""),
    ],
)
async def test_a_wrong_parameter(api: httpx.AsyncClient, path: str, parameter: str | None, words: str) -> None:
    answer = await api.get(path)
    if parameter is None:
        assert answer.status_code == 200, "a health check is never refused"
        return
    assert answer.status_code == 422, answer.text
    (fault,) = answer.json()["errors"]
    assert fault["parameter"] == parameter
    assert words in fault["detail"] + " " + fault.get("suggestion", "")


@pytest.mark.parametrize("place", ["x", "-1", "5;", "5;1-2", "5;a-b@c", "9" * 30, "1;" + "1-2@3," * 5_000])
async def test_a_wrong_last_event_id_is_refused(api: httpx.AsyncClient, place: str) -> None:
    answer = await api.get("/api/events/stream", headers={"Last-Event-ID": place})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["parameter"] == "Last-Event-ID"


async def test_unknown_things_are_404_and_the_nearest_is_named(api: httpx.AsyncClient) -> None:
    await api.post("/api/schedules", json=GOOD | {"name": "nightly"})
    answer = await api.get("/api/schedules/nightli")
    assert answer.status_code == 404
    assert "Did you mean 'nightly'?" in answer.json()["detail"]
    assert (await api.get("/api/schedules/nightly")).status_code == 200
    for path in ("/api/executions/x", "/api/executions/%00", "/api/schedules/%00", "/api/nothing", "/api/schedules/no"):
        answer = await api.get(path)
        assert answer.status_code == 404, path
        assert answer.headers["content-type"] == "application/problem+json"


async def test_another_method_is_405_and_names_those_there_are(api: httpx.AsyncClient) -> None:
    answer = await api.patch("/api/schedules")
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


async def test_a_name_that_is_taken(api: httpx.AsyncClient) -> None:
    made = (await api.post("/api/schedules", json=GOOD)).json()
    for body in (GOOD, GOOD | {"cronExpression": "0 8 * * *"}):
        answer = await api.post("/api/schedules", json=body)
        assert answer.status_code == 409
        assert made["id"] in answer.json()["detail"]
    assert len((await api.get("/api/schedules")).json()) == 1


async def test_an_error_inside_says_nothing_about_the_inside(
    api: httpx.AsyncClient, ms: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any) -> Any:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr(host_of(ms), "call", broken)
    answer = await api.get("/api/schedules")
    assert answer.status_code == 500
    assert "hunter2" not in answer.text  # no hexadecimal request id holds it
    assert answer.json()["requestId"].startswith("req_")


async def test_a_request_id_is_given_back(api: httpx.AsyncClient) -> None:
    assert (await api.get("/api/x", headers={"X-Request-Id": "abc-1"})).json()["requestId"] == "abc-1"
    assert (await api.get("/api/x", headers={"X-Request-Id": "a b<c>"})).json()["requestId"].startswith("req_")
