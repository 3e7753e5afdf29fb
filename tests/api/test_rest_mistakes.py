"""Mistakes of a person with curl: each is refused with the right status, names every wrong field and the fix in terms
of JSON, and stores nothing."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from mainspring import Mainspring
from mainspring.api.wording import DURATION_FIX, INSTANT_FIX, word_type_error
from mainspring.app.internals import queries_of

WHAT = {"agentUrl": "http://127.0.0.1:5678/"}
GOOD: dict[str, Any] = {"name": "n", "cronExpression": "0 9 * * *", **WHAT}
#: Words of Python that no client of the API knows.
PYTHON = re.compile(
    r"@ms|\bms\.|tzinfo|ZoneInfo|datetime|timedelta|\bNone\b|\bTrue\b|\bFalse\b|'(int|str|bool|float|null|object|array)'"
    r"|\b(dict|tuple|Retry|Window|Cron|Every|Http)\b\(?|hash_id|regex|`|\bargs=|\bkwargs="
)

#: Body → every pointer in `errors`, in any order; words of the answer.
BODIES: list[tuple[str, dict[str, Any], set[str], str]] = [
    ("nothing", {}, {"#/name", "#"}, "Give one of cronExpression, intervalMs, at, delayMs"),
    (
        "everything wrong",
        {
            "name": "a/b",
            "cronExpression": "61 * * * *",
            "timezone": "Mars",
            "agentUrl": "ftp://x",
            "retryPolicy": {"maxAttempts": 0},
        },
        {"#/name", "#/cronExpression", "#/timezone", "#/agentUrl", "#/retryPolicy/maxAttempts"},
        "(and 4 more)",
    ),
    (
        "agent and policies",
        {"name": "n", **WHAT, "intervalMs": "soon", "httpMethod": "PSOT", "headers": {"Host": "x"}, "startAt": "soon"},
        {"#/intervalMs", "#/httpMethod", "#/headers/Host", "#/startAt"},
        "(and 3 more)",
    ),
    (
        "window and queue",
        GOOD | {"window": {"segments": ["9"]}, "queue": "a\tb", "endAt": "2030-01-01"},
        {"#/window/segments", "#/queue", "#/endAt"},
        "(and 2 more)",
    ),
    ("no agent", {"name": "n", "intervalMs": 5_000}, {"#"}, "neither agentUrl nor task"),
    ("cron", {"name": "n", "cron": "0 9 * * *", **WHAT}, {"#/cron", "#"}, "Did you mean 'cronExpression'?"),
    ("url", {"name": "n", "intervalMs": 5_000, "url": "http://x"}, {"#/url", "#"}, "Did you mean 'agentUrl'?"),
    ("tz", GOOD | {"tz": "Europe/Berlin"}, {"#/tz"}, "Did you mean 'timezone'?"),
    ("no zone", GOOD | {"startAt": "2030-01-01T00:00:00"}, {"#/startAt"}, INSTANT_FIX),
    ("a day", {"name": "n", "at": "2030-01-01", **WHAT}, {"#/at/0"}, INSTANT_FIX),
    ("text interval", {"name": "n", "intervalMs": "every minute", **WHAT}, {"#/intervalMs"}, DURATION_FIX),
    ("zero interval", {"name": "n", "intervalMs": 0, **WHAT}, {"#/intervalMs"}, "too short"),
    ("an unknown task", {"name": "n", "intervalMs": 5_000, "task": "import_rows"}, {"#/task"}, "--app MODULE:NAME"),
    ("task http", {"name": "n", "intervalMs": 5_000, "task": "http"}, {"#/task"}, "Give agentUrl"),
    ("a wrong type", GOOD | {"maxRuns": "3"}, {"#/maxRuns"}, "a whole number or null, not a string"),
    ("a fraction", GOOD | {"maxRuns": 1.5}, {"#/maxRuns"}, "not a number with a fraction"),
    ("null", GOOD | {"enabled": None}, {"#/enabled"}, "must be a boolean, not null"),
    ("yes", GOOD | {"enabled": "yes"}, {"#/enabled"}, "must be a boolean, not a string"),
    ("a word", GOOD | {"overlap": "no"}, {"#/overlap"}, '"no" is not one of forbid'),
    ("two triggers", GOOD | {"intervalMs": 5_000}, {"#/intervalMs"}, "Give one of them"),
    ("jitter", GOOD | {"retryPolicy": {"jitter": 5}}, {"#/retryPolicy/jitter"}, "a number of at most 1"),
    ("backoff", GOOD | {"retryPolicy": {"backoff": "expo"}}, {"#/retryPolicy/backoff"}, "exponential"),
    ("end first", GOOD | {"startAt": "2031-01-01T00:00Z", "endAt": "2030-01-01T00:00Z"}, {"#/endAt"}, "before start"),
    ("an unknown weekday", GOOD | {"window": {"weekdays": ["xyz"]}}, {"#/window/weekdays"}, "not one of mon"),
    ("an array as body of a header", GOOD | {"headers": {"A": []}}, {"#/headers"}, "a string, not an array"),
]


def said(answer: httpx.Response) -> str:
    problem = answer.json()
    texts = [problem["detail"], *(f"{one['detail']} {one.get('suggestion', '')}" for one in problem["errors"])]
    return " | ".join(texts)


@pytest.mark.parametrize(("body", "pointers", "words"), [row[1:] for row in BODIES], ids=[row[0] for row in BODIES])
async def test_a_schedule_is_refused_with_every_mistake(
    api: httpx.AsyncClient, ms: Mainspring, body: dict[str, Any], pointers: set[str], words: str
) -> None:
    answer = await api.post("/api/schedules", json=body)
    assert answer.status_code == 422, answer.text
    assert {fault["pointer"] for fault in answer.json()["errors"]} == pointers
    assert words in said(answer)
    assert not PYTHON.search(said(answer)), said(answer)
    assert await queries_of(ms).find_schedules() == []


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
@pytest.mark.parametrize(("body", "pointers", "words"), [row[1:] for row in BODIES], ids=[row[0] for row in BODIES])
async def test_an_edit_is_refused_with_every_mistake(
    api: httpx.AsyncClient, ms: Mainspring, method: str, body: dict[str, Any], pointers: set[str], words: str
) -> None:
    made = (await api.post("/api/schedules", json=GOOD | {"name": "made"})).json()
    before = await queries_of(ms).find_schedule("made")
    edit = {name: value for name, value in body.items() if GOOD.get(name) != value and name != "name"}
    answer = await api.request(method, f"/api/schedules/{made['id']}", json=edit | {"priority": "hihg"})
    assert answer.status_code == 422, answer.text
    assert "#/priority" in {fault["pointer"] for fault in answer.json()["errors"]}
    assert not PYTHON.search(said(answer)), said(answer)
    assert await queries_of(ms).find_schedule("made") == before


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "words"),
    [
        ("POST", "/api/schedules", "", 400, "The body is empty; send a JSON object"),
        ("POST", "/api/schedules", "  ", 400, "The body is empty"),
        ("POST", "/api/schedules", "{'name': 1}", 400, "line 1 column"),
        ("POST", "/api/schedules", "[]", 422, "an array, not an object"),
        ("POST", "/api/schedules", "null", 422, "null, not an object"),
        ("POST", "/api/nope", "{}", 404, "No route POST /api/nope; /api/docs lists the routes"),
        ("PUT", "/api/schedules", "{}", 405, "PUT is not allowed here; use GET or POST"),
        ("GET", "/api/schedules?sort=name", "", 422, "is not a parameter here"),
        ("GET", "/api/schedules?limit=ten", "", 422, "limit: must be a whole number"),
        ("GET", "/api/executions?status=faild", "", 422, "Did you mean 'failed'?"),
        ("GET", "/api/executions?scheduleId=nope", "", 404, "no schedule is called"),
        ("POST", "/api/schedules/nope/trigger", "", 404, "no schedule is called"),
        ("POST", "/api/executions/nope/retry", "", 404, "no run has the id"),
        ("POST", "/api/schedules/n/pause", '{"until": "tomorrow"}', 422, INSTANT_FIX),
        ("POST", "/api/schedules/n/pause", '{"until": "2020-01-01T00:00:00"}', 422, INSTANT_FIX),
        ("POST", "/api/schedules/n/pause", '{"until": "2020-01-01T00:00:00Z"}', 422, "lies in the past"),
        ("POST", "/api/schedules/n/resume", '{"why": 1}', 422, "is not a field here"),
        ("POST", "/api/schedules/n/trigger", '{"args": [1]}', 422, "Did you mean 'payload'?"),
        ("PATCH", "/api/schedules/n", "", 400, "The body is empty"),
        ("PATCH", "/api/schedules/nope", "{}", 404, "no schedule is called"),
    ],
)
async def test_a_wrong_request(
    api: httpx.AsyncClient, ms: Mainspring, method: str, path: str, content: str, status: int, words: str
) -> None:
    await api.post("/api/schedules", json=GOOD)
    before = await queries_of(ms).find_schedule("n")
    answer = await api.request(method, path, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    assert words in said(answer)
    assert not PYTHON.search(said(answer)), said(answer)
    assert await queries_of(ms).find_schedule("n") == before
    assert await queries_of(ms).find_runs() == []


async def test_patch_changes_what_it_names_like_put(api: httpx.AsyncClient) -> None:
    made = await api.post("/api/schedules", json=GOOD | {"maxRuns": 5})
    path = f"/api/schedules/{made.json()['id']}"
    answer = await api.patch(path, json={"timezone": "Europe/Berlin", "maxRuns": None})
    assert answer.status_code == 200, answer.text
    edited = answer.json()
    assert (edited["timezone"], edited["maxRuns"], edited["cronExpression"]) == ("Europe/Berlin", None, "0 9 * * *")
    stale = await api.patch(path, json={"maxRuns": 1}, headers={"If-Match": made.headers["etag"]})
    assert stale.status_code == 412
    merge = {"Content-Type": "application/merge-patch+json"}
    assert (await api.patch(path, content='{"maxRuns": 2}', headers=merge)).json()["maxRuns"] == 2


async def test_a_slash_at_the_end_is_served(api: httpx.AsyncClient) -> None:
    answer = await api.post("/api/schedules/", json=GOOD)
    assert answer.status_code == 201
    assert (await api.get("/api/schedules/n/")).json()["id"] == answer.json()["id"]
    assert len((await api.get("/api/schedules/?limit=5")).json()) == 1
    assert (await api.get("/api/schedules/n%2F")).status_code == 404, "a slash that belongs to a name stays"
    assert (await api.delete("/api/schedules/n%2F/")).status_code == 404
    assert (await api.get("//")).status_code == (await api.get("/")).status_code == 200


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Expected `int` >= 1", "must be a whole number of at least 1"),
        ("Expected `int | null`, got `str`", "must be a whole number or null, not a string"),
        ("Expected `float` <= 1.0", "must be a number of at most 1"),
        ("Expected `array` of length <= 7", "must be an array of at most 7 items"),
        ("Expected `str` of length >= 1", "must be a string of at least 1 character"),
        ("Expected `bool`, got `int`", "must be a boolean, not a number"),
        ("Something `new`", "something 'new'"),
    ],
)
def test_the_words_of_a_wrong_type(text: str, words: str) -> None:
    assert word_type_error(text) == words


def test_the_pattern_of_this_file_finds_python() -> None:
    for text in ("Register it with @ms.task.", 'tzinfo=ZoneInfo("x")', "expected 'int' >= 1", "or a timedelta", "None"):
        assert PYTHON.search(text)
    assert json.dumps(None) == "null"
