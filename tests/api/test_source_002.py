"""The curl lines of source 002, frozen: a real server, the fields and answers its document names."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from mainspring import Mainspring
from mainspring.app.internals import host_of
from tests.server.serving import served

#: The document's first create call, word for word.
CREATE = """{
  "name": "Daily Report Agent",
  "cronExpression": "0 9 * * *",
  "agentId": "report-agent-001",
  "agentUrl": "https://example.com/api/agent",
  "httpMethod": "POST",
  "headers": {
    "Authorization": "Bearer token123"
  },
  "payload": {
    "reportType": "daily"
  },
  "retryPolicy": {
    "maxAttempts": 3,
    "backoffMultiplier": 2,
    "initialDelayMs": 1000,
    "maxDelayMs": 30000
  },
  "enabled": true
}"""
#: Its second, shorter one.
SHORT = """{
    "name": "Test Schedule",
    "cronExpression": "*/2 * * * *",
    "agentId": "test-001",
    "agentUrl": "http://mock-agent:5678",
    "httpMethod": "POST",
    "enabled": true
  }"""
JSON = {"Content-Type": "application/json"}
UUID = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}")
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z")
#: What its two tables hold, as they are called on the wire.
SCHEDULE_FIELDS = {
    *("id", "name", "cronExpression", "agentId", "agentUrl", "httpMethod", "headers", "payload", "retryPolicy"),
    *("enabled", "createdAt", "updatedAt"),
}
EXECUTION_FIELDS = {
    *("id", "scheduleId", "fireTime", "status", "attempts", "startedAt", "completedAt", "error", "response"),
    "createdAt",
}


@pytest.fixture(params=["memory", "sqlite"])
def client(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[httpx.Client]:
    ms = Mainspring("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/mainspring.db")
    with served(ms) as server, httpx.Client(base_url=server.url) as client:
        yield client
    ms.sync.close()


def test_the_curl_lines_of_source_002_answer_as_documented(client: httpx.Client) -> None:
    made = client.post("/api/schedules", content=CREATE, headers=JSON)
    assert made.status_code == 201
    schedule = made.json()
    assert set(schedule) >= SCHEDULE_FIELDS
    assert UUID.fullmatch(schedule["id"])
    assert made.headers["location"] == f"/api/schedules/{schedule['id']}"
    for name in ("name", "cronExpression", "agentId", "agentUrl", "httpMethod", "payload", "enabled"):
        assert schedule[name] == httpx.Response(200, content=CREATE).json()[name]
    given = {"maxAttempts": 3, "backoffMultiplier": 2, "initialDelayMs": 1000, "maxDelayMs": 30000}
    assert schedule["retryPolicy"].items() >= given.items()
    assert INSTANT.fullmatch(schedule["createdAt"])
    assert INSTANT.fullmatch(schedule["updatedAt"])
    assert schedule["headers"] == {"Authorization": "***"}
    assert "token123" not in made.text

    listed = client.get("/api/schedules")
    assert listed.status_code == 200
    assert [one["id"] for one in listed.json()] == [schedule["id"]]

    one = client.get(f"/api/schedules/{schedule['id']}")
    assert one.status_code == 200
    assert one.json()["name"] == "Daily Report Agent"
    assert one.json()["enabled"] is True

    off = client.put(f"/api/schedules/{schedule['id']}", content='{\n  "enabled": false\n}', headers=JSON)
    assert off.status_code == 200
    assert off.json()["enabled"] is False
    unchanged = {name: value for name, value in one.json().items() if name not in MOVED}
    assert {name: value for name, value in off.json().items() if name not in MOVED} == unchanged

    history = client.get(f"/api/schedules/{schedule['id']}/executions?limit=50")
    assert history.status_code == 200
    assert history.json() == []

    gone = client.delete(f"/api/schedules/{schedule['id']}")
    assert gone.status_code == 204
    assert gone.content == b""
    assert client.get(f"/api/schedules/{schedule['id']}").status_code == 404
    assert client.delete(f"/api/schedules/{schedule['id']}").status_code == 404
    assert client.put(f"/api/schedules/{schedule['id']}", content="{}", headers=JSON).status_code == 404
    assert client.get("/api/schedules").json() == []


MOVED = ("enabled", "state", "pauseReason", "nextRun", "updatedAt")


def test_the_shorter_create_call(client: httpx.Client) -> None:
    made = client.post("/api/schedules", content=SHORT, headers=JSON)
    assert made.status_code == 201
    assert made.json()["payload"] is None
    assert made.json()["headers"] == {}
    # What the document's environment names as defaults.
    assert made.json()["retryPolicy"]["maxAttempts"] == 3
    assert made.json()["retryPolicy"]["initialDelayMs"] == 1000
    assert made.json()["timezone"] == "UTC"
    assert "mock-agent has no address now" in made.json()["warnings"][0]


def test_health(client: httpx.Client) -> None:
    answer = client.get("/api/health")
    assert answer.status_code == 200
    assert answer.json()["status"] == "healthy"


@pytest.mark.parametrize(
    "expression", ["*/5 * * * *", "0 * * * *", "0 9 * * *", "0 9 * * 1", "*/15 9-17 * * 1-5", "0 0 1 * *"]
)
def test_its_cron_examples(expression: str) -> None:
    ms = Mainspring("memory://")
    with served(ms) as server:
        body = httpx.Response(200, content=SHORT).json() | {"cronExpression": expression}
        made = httpx.post(f"{server.url}/api/schedules", json=body)
        assert made.status_code == 201
        assert made.json()["cronExpression"] == expression
    ms.sync.close()


@pytest.fixture
async def running() -> AsyncIterator[tuple[Mainspring, str]]:
    """A whole service: the engine plans and works, an agent answers on this machine."""
    from mainspring.model.http import AgentSettings

    ms = Mainspring("memory://", agents=AgentSettings())
    async with ms.running():
        with served(ms) as server:
            yield ms, server.url


async def test_an_execution_has_the_fields_of_its_table(running: tuple[Mainspring, str]) -> None:
    ms, url = running
    calls: list[bytes] = []

    async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        calls.append(head + (await reader.readexactly(int(found[1])) if found else b""))
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n{"a": 1}')
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(agent, "127.0.0.1", 0) as server, httpx.AsyncClient(base_url=url) as client:
        port = server.sockets[0].getsockname()[1]
        body = CREATE.replace("https://example.com/api/agent", f"http://127.0.0.1:{port}/run")
        schedule = (await client.post("/api/schedules", content=body, headers=JSON)).json()
        made = await client.post(f"/api/schedules/{schedule['id']}/trigger")
        assert made.status_code == 201
        run = made.json()["id"]
        async with asyncio.timeout(30):
            while (await client.get(f"/api/executions/{run}")).json()["status"] in ("pending", "running"):
                await host_of(ms).call(lambda runtime: runtime.wait_for_end(run, 1.0))
        (execution,) = (await client.get(f"/api/schedules/{schedule['id']}/executions?limit=50")).json()
        assert set(execution) >= EXECUTION_FIELDS
        assert execution["id"] == run
        assert execution["status"] == "success"
        assert execution["attempts"] == 1
        assert execution["scheduleId"] == schedule["id"]
        assert execution["response"]["status"] == 200
        assert execution["error"] is None
        assert INSTANT.fullmatch(execution["startedAt"])
        assert INSTANT.fullmatch(execution["completedAt"])
        details = (await client.get(f"/api/executions/{run}")).json()["attemptDetails"]
        assert [one["status"] for one in details] == ["success"]
    assert calls[0].endswith(b'{\n    "reportType": "daily"\n  }'), "the payload is sent as it was written"
    assert b"Bearer token123" in calls[0]
