"""API keys: one belongs to one namespace, may only read or do everything, and is named as the actor of events."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from mainspring import Mainspring
from mainspring.api.idempotency import SHOWN_ONCE
from mainspring.backends.memory.store import MemoryStore
from mainspring.backends.sqlite import SqliteStore
from mainspring.config.settings import ServerSettings, ServeSettings
from mainspring.model.errors import InvalidInput
from mainspring.model.keyvalue import API_KEY_KIND, IDEMPOTENCY_KIND, KeyValue
from mainspring.ports.store import KeyValues, Store
from mainspring.server.http import HttpService
from mainspring.server.serve import has_keys_in_clear
from mainspring.service.api_keys import create_key, list_keys, revoke_key
from tests.server.serving_support import bearer, cli, make_key, serving


class Service:
    """A service of one namespace without a socket, and requests to it."""

    def __init__(self, store: Store, ns: str, settings: ServeSettings | None = None) -> None:
        self.ms = Mainspring("memory://", store=store, namespace=ns)
        self.http = HttpService(self.ms, settings or ServeSettings(server=ServerSettings(require_key=True)))

    async def ask(self, method: str, path: str, token: str = "", **more: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.http.app, raise_app_exceptions=False)  # type: ignore[arg-type] # an ASGI app
        headers = (bearer(token) if token else {}) | more.pop("headers", {})
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, headers=headers, **more)


async def test_a_key_is_valid_in_its_namespace_only() -> None:
    """Before, a key of one team opened the services of all teams on the store."""
    store = MemoryStore()
    a, b = Service(store, "team-a"), Service(store, "team-b")
    _, key_a = await create_key(store, "ci", ns="team-a")
    _, key_b = await create_key(store, "ci", ns="team-b")  # names are taken in one namespace only
    statuses = [(await one.ask("GET", "/api/schedules", key)).status_code for one in (a, b) for key in (key_a, key_b)]
    assert statuses == [200, 401, 401, 200]
    refused, unknown = (
        await b.ask("GET", "/api/schedules", key_a),
        await b.ask("GET", "/api/schedules", key_a[:-3] + "xxx"),
    )
    assert refused.json() | {"requestId": ""} == unknown.json() | {"requestId": ""}
    assert [key.ns for key in await list_keys(store, "team-a")] == ["team-a"]
    with pytest.raises(InvalidInput, match="there is no key"):
        await revoke_key(store, key_a.split("_")[1], "team-b")
    await revoke_key(store, "ci", "team-b")
    assert (await a.ask("GET", "/api/schedules", key_a)).status_code == 200
    for one in (a, b):
        await one.ms.close()


async def test_a_key_that_an_earlier_version_stored_belongs_to_the_default_namespace() -> None:
    store = MemoryStore()
    made, token = await create_key(store, "old")
    old = KeyValue(kind=API_KEY_KIND, id=made.id, data=f'{{"name":"old","digest":"{made.digest}","scope":"all"}}')
    await store.put([old], replace=True)
    first, other = Service(store, "default"), Service(store, "team-a")
    assert (await first.ask("GET", "/api/schedules", token)).status_code == 200
    assert (await other.ask("GET", "/api/schedules", token)).status_code == 401
    for one in (first, other):
        await one.ms.close()


def test_the_command_line_makes_keys_of_one_namespace(tmp_path: Path) -> None:
    make_key(tmp_path, "plain")
    config = tmp_path / "mainspring.yaml"
    config.write_text("scheduler: {namespace: team-a}\nserver: {require_key: true}\n")
    refused = cli(tmp_path, "serve", "--port", "0")
    assert "mainspring key create NAME --namespace team-a" in refused.stderr
    mine, other = make_key(tmp_path, "ci"), make_key(tmp_path, "ci", "--namespace", "team-b")
    with serving(tmp_path) as one:
        assert one.get("/api/schedules", headers=bearer(mine)).status_code == 200
        assert one.get("/api/schedules", headers=bearer(other)).status_code == 401
    assert "plain" not in cli(tmp_path, "key", "list").stdout
    assert "plain" in cli(tmp_path, "key", "list", "--namespace", "default").stdout


# ── what a key may do ───────────────────────────────────────────────────────

WRITES = (
    ("POST", "/api/schedules"),
    ("PUT", "/api/schedules/a"),
    ("DELETE", "/api/schedules/a"),
    ("POST", "/api/schedules/a/trigger"),
    ("POST", "/api/schedules/a/rotate-secret"),
    ("POST", "/api/executions/1/cancel"),
)
AGENT = {"name": "a", "cronExpression": "0 2 * * *", "agentUrl": "http://127.0.0.1:9/"}


async def test_a_key_of_scope_read_may_only_read() -> None:
    """Before, the scope of a key was stored and never judged."""
    store = MemoryStore()
    one = Service(store, "default")
    _, read = await create_key(store, "dashboard", scope="read")
    _, write = await create_key(store, "ci")
    assert (await one.ask("POST", "/api/schedules", write, json=AGENT)).status_code == 201
    for path in ("/api/schedules", "/api/schedules/a", "/api/executions", "/", "/api/health"):
        assert (await one.ask("GET", path, read)).status_code == 200, path
    assert (await one.ask("HEAD", "/api/schedules", read)).status_code == 200
    for method, path in WRITES:
        answer = await one.ask(method, path, read, json={})
        assert answer.status_code == 403, (method, path)
        problem = answer.json()
        assert problem["type"] == "/api/errors/read-only"
        assert problem["title"] == "The key may only read"
        assert "--scope write" in problem["detail"]
    assert (await one.ask("GET", "/api/schedules/a", write)).status_code == 200
    await one.ms.close()


async def test_a_key_of_an_unknown_scope_may_only_read() -> None:
    store = MemoryStore()
    made, token = await create_key(store, "later")
    data = f'{{"name":"later","digest":"{made.digest}","scope":"viewer"}}'
    await store.put([KeyValue(kind=API_KEY_KIND, id=made.id, data=data)], replace=True)
    one = Service(store, "default")
    assert (await one.ask("GET", "/api/schedules", token)).status_code == 200
    assert (await one.ask("POST", "/api/schedules", token, json=AGENT)).status_code == 403
    await one.ms.close()


def test_the_command_line_makes_keys_that_may_only_read(tmp_path: Path) -> None:
    token = make_key(tmp_path, "dashboard", "--scope", "read")
    with serving(tmp_path) as one:
        assert one.get("/api/schedules", headers=bearer(token)).status_code == 200
        assert one.post("/api/schedules", headers=bearer(token), json=AGENT).status_code == 403
    assert "  dashboard  read  " in cli(tmp_path, "key", "list").stdout


# ── idempotency keys ────────────────────────────────────────────────────────


async def test_an_idempotency_key_of_another_key_or_namespace_is_unknown() -> None:
    """Before, the answer was replayed to every key, also in other namespaces, with the signing secret."""
    store = MemoryStore()
    a, b = Service(store, "team-a"), Service(store, "team-b")
    tokens = [(await create_key(store, name, ns="team-a"))[1] for name in ("one", "two")]
    _, other = await create_key(store, "one", ns="team-b")
    more: dict[str, Any] = {"json": AGENT, "headers": {"Idempotency-Key": "k1"}}
    first = await a.ask("POST", "/api/schedules", tokens[0], **more)
    assert (first.status_code, "signingSecret" in first.json()) == (201, True)
    second = await a.ask("POST", "/api/schedules", tokens[1], **more)
    assert second.status_code == 409  # the name is taken: nothing was replayed
    assert first.json()["id"] not in (await b.ask("POST", "/api/schedules", other, **more)).text
    assert [one["name"] for one in (await b.ask("GET", "/api/schedules", other)).json()] == ["a"]
    for one in (a, b):
        await one.ms.close()


@pytest.mark.parametrize("path", ["/api/schedules", "/api/schedules/s/rotate-secret"])
async def test_a_replayed_answer_has_no_signing_secret(path: str) -> None:
    """Before, the secret that is shown once was stored for a day, and shown to each repetition."""
    store = MemoryStore()
    one = Service(store, "default", ServeSettings())
    await one.ask("POST", "/api/schedules", json=AGENT | {"name": "s"})
    more: dict[str, Any] = {"headers": {"Idempotency-Key": "k1"}}
    if path == "/api/schedules":
        more["json"] = AGENT
    first, again = [await one.ask("POST", path, **more) for _ in range(2)]
    secret = first.json()["signingSecret"]
    assert again.headers["idempotency-replayed"] == "true"
    assert again.status_code == first.status_code
    expected = first.json()
    del expected["signingSecret"]
    assert again.json() == expected | {"warnings": [SHOWN_ONCE]}
    kept = await store.find(KeyValues(kind=IDEMPOTENCY_KIND))
    assert kept
    for row in kept:
        assert secret.encode() not in base64.b64decode(msgspec.json.decode(row.data)["body"])
    await one.ms.close()


# ── actors ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_the_key_is_the_actor_of_every_event(tmp_path: Path, kind: str) -> None:
    """Before, the log named no key: of 31 events 8 had the actor "api", and the others none."""
    store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "x.db")
    await store.open()
    made, token = await create_key(store, "ci")
    one = Service(store, "default")
    await one.ask("POST", "/api/schedules", token, json=AGENT)
    await one.ask("POST", "/api/schedules", token, json=AGENT | {"name": "off", "enabled": False})
    await one.ask("PUT", "/api/schedules/a", token, json={"cronExpression": "0 3 * * *", "headers": {"X-A": "1"}})
    await one.ask("PUT", "/api/schedules/a", token, json={"enabled": False})
    await one.ask("PUT", "/api/schedules/a", token, json={"enabled": True})
    await one.ask("POST", "/api/schedules/a/pause", token)
    await one.ask("POST", "/api/schedules/a/resume", token)
    runs = [(await one.ask("POST", "/api/schedules/a/trigger", token)).json()["id"] for _ in range(2)]
    await one.ask("POST", f"/api/executions/{runs[0]}/cancel", token)
    assert (await one.ask("POST", f"/api/executions/{runs[0]}/retry", token)).status_code == 200
    assert (await one.ask("DELETE", "/api/schedules/a", token)).status_code == 204
    events = await one.ms.events()
    assert {type(event).__name__ for event in events} >= {
        *("ScheduleCreated", "ScheduleUpdated", "SchedulePaused", "ScheduleResumed", "ScheduleDeleted"),
        *("RunScheduled", "RunCancelled", "RunReopened"),
    }
    assert {event.actor for event in events} == {f"key:ci ({made.id})"}
    await one.ms.close()


async def test_a_request_without_a_key_has_the_actor_api() -> None:
    one = Service(MemoryStore(), "default", ServeSettings())
    await one.ask("POST", "/api/schedules", json=AGENT)
    await one.ask("POST", "/api/schedules/a/pause")
    assert {event.actor for event in await one.ms.events()} == {"api"}
    await one.ms.close()


# ── without keys, and keys in clear ─────────────────────────────────────────


async def test_every_answer_of_a_service_without_keys_has_a_header() -> None:
    """Before, nothing in an answer told that a service on loopback served strangers behind a proxy."""
    open_one = Service(MemoryStore(), "default", ServeSettings(server=ServerSettings(insecure_no_auth=True)))
    closed = Service(MemoryStore(), "default")
    for path in ("/api/schedules", "/health", "/api/schedules/none"):
        answer = await open_one.ask("GET", path, headers={"X-Forwarded-For": "203.0.113.1"})
        assert answer.headers["x-mainspring-auth"] == "none"
        assert "x-mainspring-auth" not in (await closed.ask("GET", path)).headers
    for one in (open_one, closed):
        await one.ms.close()


def test_a_service_without_keys_reminds_also_on_loopback(tmp_path: Path) -> None:
    with serving(tmp_path, "--insecure-no-auth") as one:
        one.line("INSECURE: any caller that reaches")


@pytest.mark.parametrize(
    ("server", "clear"),
    [
        ({"host": "0.0.0.0"}, True),
        ({"host": "0.0.0.0", "public_url": "http://cron.example"}, True),
        ({"host": "0.0.0.0", "public_url": "https://cron.example"}, False),
        ({"host": "0.0.0.0", "trusted_proxies": ("10.0.0.1/32",)}, False),
        ({"host": "127.0.0.1"}, False),
    ],
)
def test_keys_that_travel_in_clear_are_found(server: dict[str, Any], clear: bool) -> None:
    assert has_keys_in_clear(ServerSettings(**server)) is clear


def test_the_start_warns_of_keys_in_clear(tmp_path: Path) -> None:
    make_key(tmp_path)
    with serving(tmp_path, "--host", "0.0.0.0") as one:
        one.line("API keys and payloads travel unencrypted to http://localhost:")
