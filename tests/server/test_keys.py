"""API keys: one belongs to one namespace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from mainspring import Mainspring
from mainspring.backends.memory.store import MemoryStore
from mainspring.config.settings import ServerSettings, ServeSettings
from mainspring.model.errors import InvalidInput
from mainspring.model.keyvalue import API_KEY_KIND, KeyValue
from mainspring.ports.store import Store
from mainspring.server.http import HttpService
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
