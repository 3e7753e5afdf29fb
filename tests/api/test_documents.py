"""The OpenAPI document, the pages for people and the table of routes."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

import httpx
import jsonschema_rs
import pytest

from mainspring import Mainspring
from mainspring.api.app import build, route_table
from mainspring.api.descriptions import ANSWERS, FIELDS, PARAMETERS
from mainspring.api.openapi import EXAMPLES, document
from mainspring.app.internals import host_of

PAGES = ("/", "/api/docs")
XSS = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


async def test_the_document_is_openapi_3_1_and_names_every_route(api: httpx.AsyncClient, ms: Mainspring) -> None:
    found = (await api.get("/api/openapi.json")).json()
    assert found == document()
    assert found["openapi"] == "3.1.0"
    documented = {(method.upper(), path) for path, methods in found["paths"].items() for method in methods}
    served = {(method, path) for method, path, _ in route_table(build(ms)) if path.startswith("/api/")}
    left_out = {path for _, path in served - documented}
    assert documented <= served
    assert {path for path in left_out if not path.startswith("/api/callbacks/")} == {"/api/docs", "/api/openapi.json"}
    ids = [operation["operationId"] for methods in found["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))


def test_every_example_is_valid_by_its_own_schema() -> None:
    schemas = document()["components"]["schemas"]
    for name, examples in EXAMPLES.items():
        if name == "Any":
            continue  # the body of a finished callback: every JSON value is valid
        whole = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
        for example in examples.values():
            jsonschema_rs.validate(whole, example)


async def test_every_example_is_accepted(api: httpx.AsyncClient) -> None:
    for example in EXAMPLES["ScheduleCreate"].values():
        assert (await api.post("/api/schedules", json=example)).status_code == 201
    for example in EXAMPLES["ScheduleUpdate"].values():
        assert (await api.put("/api/schedules/Poll", json=example)).status_code == 200
    for action, name in {"pause": "PauseBody", "trigger": "TriggerBody", "resume": "EmptyBody"}.items():
        for example in EXAMPLES[name].values():
            assert (await api.post(f"/api/schedules/Poll/{action}", json=example)).status_code in (200, 201)


def test_every_field_parameter_body_and_answer_is_described() -> None:
    found = document()
    missing = [
        f"{name}.{field}"
        for name, schema in found["components"]["schemas"].items()
        for field, described in schema.get("properties", {}).items()
        if not described.get("description")
    ]
    missing += [name for name, schema in found["components"]["schemas"].items() if not schema.get("description")]
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            place = f"{method} {path}"
            parts = {"the operation": operation, "its body": operation.get("requestBody", operation)}
            parts |= {f"parameter {one['name']}": one for one in operation["parameters"]}
            for status, answer in operation["responses"].items():
                parts[f"answer {status}"] = answer
                parts |= {f"header {name} of {status}": one for name, one in answer.get("headers", {}).items()}
            missing += [f"{place}: {name}" for name, part in parts.items() if not part.get("description")]
            assert operation["responses"][min(operation["responses"])]["description"] != operation["summary"]
    assert missing == []


def test_every_description_is_of_a_field_parameter_or_answer_that_exists() -> None:
    schemas = document()["components"]["schemas"]
    fields = {f"{name}.{field}" for name, schema in schemas.items() for field in schema.get("properties", {})}
    operations = [one for methods in document()["paths"].values() for one in methods.values()]
    assert set(FIELDS) <= fields | {field.partition(".")[2] for field in fields}
    assert set(PARAMETERS) == {
        one["name"] for operation in operations for one in operation["parameters"] if one["in"] != "header"
    }
    assert set(ANSWERS) == {operation["operationId"] for operation in operations}


@pytest.mark.parametrize("call", [{"agentUrl": "http://127.0.0.1:5678/"}, {"task": "report"}])
async def test_a_new_schedule_has_the_defaults_of_the_document(
    api: httpx.AsyncClient, ms: Mainspring, call: dict[str, str]
) -> None:
    @ms.task
    def report() -> None: ...

    made = (await api.post("/api/schedules", json={"name": "n", "cronExpression": "@daily", **call})).json()
    properties = document()["components"]["schemas"]["ScheduleCreate"]["properties"]
    defaults = {name: one["default"] for name, one in properties.items() if "default" in one}
    assert len(defaults) > 10
    assert "agentUrl" not in call or made["httpMethod"] == defaults["httpMethod"]
    assert {name: made[name] for name in defaults if name != "httpMethod"} == {
        name: value for name, value in defaults.items() if name != "httpMethod"
    }


def test_the_public_routes_are_these(ms: Mainspring) -> None:
    public = {path for _, path, public in route_table(build(ms)) if public}
    assert {path for path in public if not path.startswith("/api/callbacks/")} == {"/health", "/ready", "/api/health"}


class _Tags(HTMLParser):
    """What a page holds that a browser would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_needs_nothing_from_elsewhere_and_runs_nothing(api: httpx.AsyncClient, path: str) -> None:
    body = {
        "name": XSS.replace("/", ""),
        "intervalMs": 1000,
        "agentUrl": "http://127.0.0.1:1/'<b>".replace("<b>", ""),
        "agentId": XSS,
    }
    assert (await api.post("/api/schedules", json=body)).status_code == 201
    made = (await api.get("/api/schedules")).json()[0]
    run = (await api.post(f"/api/schedules/{made['id']}/trigger")).json()
    await api.post(f"/api/executions/{run['id']}/cancel", json={"reason": XSS})
    answer = await api.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    parser = _Tags()
    parser.feed(answer.text)
    tags = [tag for tag, _ in parser.found]
    assert not {"script", "img", "link", "iframe", "b"} & set(tags)
    assert tags.count("style") == 1
    for _, attributes in parser.found:
        assert not [name for name in attributes if name.startswith("on") or name in ("style", "src")]
        assert (attributes.get("href") or "/").startswith(("/", "#"))
    assert 'name="viewport"' in answer.text
    assert "prefers-color-scheme:dark" in answer.text
    assert "http" not in re.sub(r"<main>.*</main>", "", answer.text, flags=re.DOTALL).replace("https", "")


async def test_the_status_page_of_an_empty_service_says_what_to_do(api: httpx.AsyncClient) -> None:
    answer = await api.get("/")
    assert "POST /api/schedules" in answer.text


async def test_the_page_of_the_api_shows_the_descriptions(api: httpx.AsyncClient) -> None:
    page = unescape((await api.get("/api/docs")).text)
    for text in (FIELDS["dstGap"], PARAMETERS["types"], ANSWERS["rotateSecret"]):
        assert text in page


async def test_health_and_readiness(api: httpx.AsyncClient, ms: Mainspring) -> None:
    for path, word in (("/health", "healthy"), ("/ready", "ready"), ("/api/health", "healthy")):
        answer = await api.get(path)
        assert (answer.status_code, answer.json()["status"]) == (200, word)


async def test_readiness_of_an_embedded_api_is_503_when_planning_lags(api: httpx.AsyncClient, ms: Mainspring) -> None:
    body = {"name": "n", "intervalMs": 1, "agentUrl": "http://127.0.0.1:1/"}
    await api.post("/api/schedules", json=body)

    async def much_later(runtime: Any) -> None:
        runtime.time.now = lambda: 4_102_444_800_000  # no instance plans here

    await host_of(ms).call(much_later)
    answer = await api.get("/ready")
    assert (answer.status_code, answer.json()["status"]) == (503, "not ready")
    assert answer.json()["components"]["planner"]["status"] == "unhealthy"
    assert (await api.get("/health")).status_code == 200


async def test_a_store_that_is_away(api: httpx.AsyncClient, ms: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    from mainspring.model.errors import StoreUnavailable

    async def away(*_: object) -> object:
        raise StoreUnavailable("the password is hunter2")

    monkeypatch.setattr(host_of(ms), "call", away)
    for path, word in (("/ready", "not ready"), ("/api/health", "unhealthy")):
        answer = await api.get(path)
        assert (answer.status_code, answer.json()["status"]) == (503, word)
    answer = await api.get("/api/schedules")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert "hunter2" not in answer.text
