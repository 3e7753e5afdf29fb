"""The client's address: only trusted proxies are believed; limits count it, and the access log has it."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import Http, Mainspring
from mainspring.agents.signing import callback_token
from mainspring.app.internals import host_of
from mainspring.backends.memory.store import MemoryStore
from mainspring.config.settings import LimitSettings, ServerSettings, ServeSettings
from mainspring.ports.store import KeyValues
from mainspring.server.client_address import find_client, rate_bucket
from mainspring.server.http import HttpService
from mainspring.service.api_keys import create_key
from tests.server.serving_support import bearer, serving

PROXY = ("10.0.0.0/8", "2001:db8:1::/48")


def forwarded(*values: str) -> list[tuple[bytes, bytes]]:
    return [(b"X-Forwarded-For", value.encode()) for value in values]


@pytest.mark.parametrize(
    ("peer", "chain", "client"),
    [
        ("203.0.113.9", ["198.51.100.1"], "203.0.113.9"),  # no proxy: the header is a lie
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["1.2.3.4, 198.51.100.1"], "198.51.100.1"),  # the client wrote the first address
        ("10.0.0.1", ["1.2.3.4", "198.51.100.1, 10.9.9.9"], "198.51.100.1"),
        ("10.0.0.1", ["10.0.0.7"], "10.0.0.7"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["unknown"], "10.0.0.1"),
        ("10.0.0.1", ["1.2.3.4, unknown, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["198.51.100.1:4711"], "198.51.100.1"),
        ("10.0.0.1", ["[2001:db8::5]:4711"], "2001:db8::5"),
        ("::ffff:10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("2001:db8:1::9", ["2001:db8::5"], "2001:db8::5"),
        ("", ["198.51.100.1"], ""),
    ],
)
def test_the_client_is_the_last_address_that_is_no_trusted_proxy(peer: str, chain: list[str], client: str) -> None:
    assert find_client(peer, forwarded(*chain), PROXY) == client


@given(st.lists(st.ip_addresses().map(str) | st.text(st.characters(codec="latin-1"), max_size=20), max_size=6))
def test_what_a_client_writes_never_changes_its_address(written: list[str]) -> None:
    headers = [(b"x-forwarded-for", ", ".join([*written, "198.51.100.1"]).encode("latin-1"))]
    assert find_client("10.0.0.1", headers, PROXY) == "198.51.100.1"
    assert find_client("203.0.113.9", headers, PROXY) == "203.0.113.9"


def test_one_network_of_ipv6_is_one_client_for_the_limit() -> None:
    assert rate_bucket("2001:db8::1") == rate_bucket("2001:db8::ffff:1") != rate_bucket("2001:db8:0:1::1")
    assert rate_bucket("192.0.2.1") == rate_bucket("::ffff:192.0.2.1") != rate_bucket("192.0.2.2")


class Service:
    """A service whose clients come from chosen addresses, and its store."""

    def __init__(self, **limits: Any) -> None:
        self.store = MemoryStore()
        self.ms = Mainspring("memory://", store=self.store)
        server = ServerSettings(require_key=True, trusted_proxies=("10.0.0.1/32",))
        self.http = HttpService(self.ms, ServeSettings(server=server, limits=LimitSettings(**limits)))

    async def ask(self, path: str, token: str = "", *, method: str = "GET", of: str = "", **more: Any) -> int:
        transport = httpx.ASGITransport(self.http.app, client=("10.0.0.1", 1))  # type: ignore[arg-type] # an ASGI app
        headers = bearer(token) | ({"X-Forwarded-For": of} if of else {})
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return (await client.request(method, path, headers=headers, **more)).status_code


async def test_clients_behind_a_trusted_proxy_have_buckets_of_their_own() -> None:
    """Before, all of them shared the proxy's: one stranger shut out everybody without a key."""
    one = Service(requests_per_second=0.001, burst=2)
    assert [await one.ask("/api/schedules", of="198.51.100.1") for _ in range(3)] == [401, 401, 429]
    assert await one.ask("/api/schedules", of="198.51.100.2") == 401
    assert await one.ask("/api/schedules", of="1.2.3.4, 198.51.100.1") == 429
    await one.ms.close()


async def test_a_stranger_cannot_starve_the_heartbeats_of_agents() -> None:
    """Before, 11,070 callbacks of a stranger took all of the bucket: the heartbeats got 429, and leases ended."""
    one = Service(requests_per_second=0.001, burst=5)
    await one.ms.schedule("call", Http("http://127.0.0.1:9/"), every="1h")
    run = await one.ms.trigger("call")
    (key, _) = await host_of(one.ms).call(lambda runtime: runtime.vault.callback_key())
    token = callback_token(key, run.id, 0, 4_000_000_000_000)
    path = f"/api/callbacks/{run.id}/heartbeat"
    strange = [await one.ask(path, f"0.4000000000000.{number:064x}", method="POST") for number in range(20)]
    assert (strange[0], strange[-1]) == (401, 429)
    unknown = [await one.ask(f"/api/callbacks/{number}/heartbeat", "x", method="POST") for number in range(5)]
    assert unknown == [429] * 5
    # The agent comes from the same address. Its run waits, so the callback is judged to be of an attempt that is over.
    assert [await one.ask(path, token, method="POST") for _ in range(6)] == [409] * 5 + [429]
    await one.ms.close()


async def test_keys_have_a_limit_by_default() -> None:
    one = Service()
    _, token = await create_key(one.store, "ci")
    statuses = [await one.ask("/api/schedules", token) for _ in range(200)]
    assert 100 <= statuses.count(200) < 200
    assert set(statuses) == {200, 429}
    await one.ms.close()


async def test_the_limit_is_judged_before_the_store_is_asked_for_a_key() -> None:
    """Before, each made-up key was a query of the store, whatever the limit."""
    one = Service(requests_per_second=0.001, burst=5)
    _, known = await create_key(one.store, "ci")
    asked: list[Any] = []
    find = one.store.find

    async def counting(query: Any) -> Any:
        asked.append(query)
        return await find(query)

    assert await one.ask("/api/schedules", known) == 200
    one.store.find = counting  # type: ignore[method-assign] # to count
    made_up = [f"msk_{number:012x}_{'x' * 43}" for number in range(50)]
    statuses = [await one.ask("/api/schedules", token) for token in made_up]
    assert set(statuses) == {401, 429}
    assert sum(isinstance(query, KeyValues) for query in asked) <= 5
    assert await one.ask("/api/schedules", known) == 200  # a key that is known has its own bucket
    await one.ms.close()


async def test_the_status_is_limited_for_strangers_and_the_probes_are_not() -> None:
    """Before, `/api/health` answered every request of a stranger."""
    one = Service(requests_per_second=0.001, burst=5)
    assert [await one.ask("/api/health") for _ in range(6)][-1] == 429
    for path in ("/health", "/ready"):
        assert 429 not in [await one.ask(path) for _ in range(20)]
    await one.ms.close()


async def test_the_access_log_has_the_address_of_the_client(caplog: pytest.LogCaptureFixture) -> None:
    one = Service()
    with caplog.at_level(logging.INFO, logger="mainspring.access"):
        await one.ask("/api/schedules", of="198.51.100.1")
        await one.ask("/api/schedules")
    assert [record.getMessage().split()[0] for record in caplog.records] == ["198.51.100.1", "10.0.0.1"]
    await one.ms.close()


def test_a_request_that_is_not_http_is_logged_with_its_address(tmp_path: Path) -> None:
    with serving(tmp_path) as one:
        host, _, port = one.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=20) as client:
            client.sendall(b"this is not HTTP\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 400")
        one.line(r"Invalid HTTP request received. \(from 127.0.0.1\)")


async def test_an_interval_under_a_second_needs_a_setting() -> None:
    """Before, an interval of 1 ms was accepted: a thousand calls a second from one request."""
    strict, free = Service(), Service(min_interval=None)
    tokens = [(await create_key(one.store, "ci"))[1] for one in (strict, free)]
    for interval, statuses in ((1, [422, 201]), (999, [422, 201]), (1_000, [201, 201])):
        body = {"name": f"every-{interval}", "intervalMs": interval, "agentUrl": "http://127.0.0.1:9/"}
        asked = [
            await one.ask("/api/schedules", token, method="POST", json=body)
            for one, token in zip((strict, free), tokens, strict=True)
        ]
        assert asked == statuses, interval
    for one in (strict, free):
        await one.ms.close()
