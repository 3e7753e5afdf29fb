"""Which requests may pass: hosts, keys, cross-site requests, the rate limit; on every route."""

from __future__ import annotations

import ast
import contextlib
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

import mainspring
from mainspring import Mainspring
from mainspring.api.app import build, route_table
from mainspring.backends.memory.store import MemoryStore
from mainspring.cli.main import mainspring as main
from mainspring.config.settings import LimitSettings, ServerSettings, ServeSettings
from mainspring.model.errors import InvalidInput, StoreUnavailable
from mainspring.model.keyvalue import API_KEY_KIND
from mainspring.ports.store import KeyValues
from mainspring.server.access import OWN_TOKEN, PUBLIC
from mainspring.server.http import HttpService
from mainspring.service.api_keys import KEY_CACHE_MS, KEY_USE_KIND, KeyRing, create_key, list_keys, revoke_key
from servers.for_tests import fresh_url
from tests.server.serving_support import Served, bearer, cli, make_key, serving, wait_for


def on(host: str = "127.0.0.1", **more: Any) -> ServeSettings:
    limits = more.pop("limits", LimitSettings())
    return ServeSettings(server=ServerSettings(host=host, **more), limits=limits)


class Bench:
    """A service without a socket, and requests to it from outside."""

    def __init__(self, settings: ServeSettings) -> None:
        self.store = MemoryStore()
        self.ms = Mainspring("memory://", store=self.store)
        self.service = HttpService(self.ms, settings)

    async def ask(self, method: str, path: str, host: str = "127.0.0.1:3000", **headers: str) -> httpx.Response:
        transport = httpx.ASGITransport(self.service.app, raise_app_exceptions=False)  # type: ignore[arg-type] # an ASGI app
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, headers={"Host": host, **named})


@contextlib.asynccontextmanager
async def bench(settings: ServeSettings) -> AsyncIterator[Bench]:
    one = Bench(settings)
    try:
        yield one
    finally:
        await one.ms.close()


# ── hosts (S03) ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:3000", 200),
        ("localhost:3000", 200),
        ("LOCALHOST", 200),
        ("localhost.", 200),
        ("[::1]:3000", 200),
        ("127.8.8.8", 200),
        ("evil.example", 421),
        ("evil.example:3000", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("169.254.169.254", 421),
        ("0.0.0.0", 421),
        ("2130706433", 421),
        ("", 400),
        ("a b", 400),
        ("127.0.0.1@evil.example", 400),
        ("127.0.0.1:x", 400),
    ],
)
async def test_on_loopback_it_answers_to_its_own_names_only(host: str, status: int) -> None:
    async with bench(on()) as b:
        answer = await b.ask("GET", "/api/schedules", host)
        assert answer.status_code == status, answer.text
        if status != 200:
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["status"] == status


async def test_health_is_answered_under_its_own_names_only() -> None:
    async with bench(on()) as b:
        assert (await b.ask("GET", "/health", "evil.example")).status_code == 421


async def test_two_host_headers_are_refused() -> None:
    async with bench(on()) as b:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/schedules",
            "raw_path": b"/api/schedules",
            "query_string": b"",
            "headers": [(b"host", b"127.0.0.1"), (b"host", b"evil.example")],
            "client": ("127.0.0.1", 1),
        }
        await b.service.app(scope, receive, send)
        assert sent[0]["status"] == 400


async def test_more_names_are_allowed_by_the_configuration_and_need_a_key() -> None:
    settings = on(public_url="https://cron.example", allow_hosts=("proxy.example", ".inside.example"))
    async with bench(settings) as b:
        _, token = await create_key(b.store, "ci")
        for host in ("cron.example", "proxy.example", "a.inside.example"):
            assert (await b.ask("GET", "/api/schedules", host)).status_code == 401
            assert (await b.ask("GET", "/api/schedules", host, Authorization=f"Bearer {token}")).status_code == 200
            assert (await b.ask("GET", "/ready", host)).json() == {"status": "not ready"}
        assert (await b.ask("GET", "/api/schedules", "xinside.example")).status_code == 421


@pytest.mark.parametrize(
    "header",
    [
        *("X-Forwarded-For", "Forwarded", "X-Real-IP", "Via", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded"),
        *("CF-Connecting-IP", "CF-Ray", "CDN-Loop", "True-Client-IP", "Fastly-Client-IP", "Fly-Client-IP", "Client-IP"),
        *("X-Client-IP", "X-Cluster-Client-IP", "X-Original-URL", "X-Envoy-External-Address", "X-Amzn-Trace-Id"),
        *("X-Appengine-User-IP", "X-Azure-ClientIP", "X-ARR-SSL", "X-Vercel-Id", "X-Cloud-Trace-Context"),
        *("X-ProxyUser-Ip", "X-Remote-Addr", "X-Scheme", "Front-End-Https"),
    ],
)
async def test_a_request_by_a_proxy_is_not_local(header: str) -> None:
    async with bench(on()) as b:
        assert (await b.ask("GET", "/api/schedules", **{header: "203.0.113.9"})).status_code == 401


async def test_a_key_can_be_required_on_loopback() -> None:
    async with bench(on(require_key=True)) as b:
        _, token = await create_key(b.store, "ci")
        assert (await b.ask("GET", "/api/schedules")).status_code == 401
        assert (await b.ask("GET", "/api/schedules", Authorization=f"Bearer {token}")).status_code == 200


# ── other sites (a page that a browser on this machine shows) ──────────────


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 404),
        ({"Origin": "http://127.0.0.1:3000"}, 404),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:9999"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 403),  # a form
        ({"Sec-Fetch-Site": "same-origin"}, 404),
    ],
)
async def test_a_page_of_another_site_changes_nothing(headers: dict[str, str], status: int) -> None:
    async with bench(on()) as b:
        answer = await b.ask("POST", "/api/schedules/none/pause", **headers)
        assert answer.status_code == status, answer.text
        assert "access-control-allow-origin" not in answer.headers
        asked = await b.ask("OPTIONS", "/api/schedules", Origin="http://evil.example")
        assert not any(name.startswith("access-control") for name in asked.headers)


PAGE = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 404),
        ({"Sec-Fetch-Site": "same-origin"}, 404),
        ({"Sec-Fetch-Site": "none"}, 404),
        (PAGE, 404),  # a link on another page
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "object"}, 403),
        (PAGE | {"Sec-Fetch-Dest": "iframe"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://evil.example"}, 403),
    ],
)
async def test_a_page_of_another_site_does_not_learn_which_names_exist(headers: dict[str, str], status: int) -> None:
    async with bench(on()) as b:
        for method in ("GET", "HEAD"):
            answer = await b.ask(method, "/api/schedules/none", **headers)
            assert answer.status_code == status, answer.text
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"


# ── keys (S06) ──────────────────────────────────────────────────────────────


def _tokens(token: str) -> dict[str, str]:
    head, key_id, secret = token.split("_", 2)
    other = "A" if secret[-2] != "A" else "B"
    return {
        "none": "",
        "empty": "Bearer ",
        "not bearer": f"Basic {token}",
        "half": f"Bearer {token[:-1]}",
        "longer": f"Bearer {token}x",
        "other secret": f"Bearer {head}_{key_id}_{secret[:-2]}{other}{secret[-1]}",
        "other id": f"Bearer {head}_{'0' * 12}_{secret}",
        "hash": "Bearer msk_000000000000_" + "0" * 43,
        "like": "Bearer %",
        "long": "Bearer " + "x" * 5_000,
    }


async def test_every_wrong_token_gets_the_same_answer() -> None:
    async with bench(on("0.0.0.0")) as b:
        key, token = await create_key(b.store, "ci")
        assert (
            await b.ask("GET", "/api/schedules", "cron.example", Authorization=f"Bearer {token}")
        ).status_code == 200
        bodies = set()
        for name, value in _tokens(token).items():
            headers = {} if name == "none" else {"Authorization": value}
            answer = await b.ask("GET", "/api/schedules", "cron.example", X_Request_Id="r", **headers)
            assert answer.status_code == 401, name
            assert answer.headers["www-authenticate"].startswith("Bearer")
            bodies.add(answer.text)
        assert len(bodies) == 1
        await revoke_key(b.store, key.id)
        b.service.keys._seen.clear()
        gone = await b.ask("GET", "/api/schedules", "x.example", X_Request_Id="r", Authorization=f"Bearer {token}")
        assert bodies == {gone.text}


async def test_every_route_is_closed_without_a_key_but_the_public_ones() -> None:
    """Made from the table of routes: a new route is closed unless it says otherwise."""
    async with bench(on("0.0.0.0")) as b:
        _, good = await create_key(b.store, "ci")
        old, revoked = await create_key(b.store, "old")
        await revoke_key(b.store, old.id)
        table = route_table(build(b.ms))
        assert {path for _, path, public in table if public and not path.startswith(OWN_TOKEN)} == PUBLIC
        assert len(table) >= 18
        for method, route, public in table:
            path = route.replace("{id}", "x").replace("{run_id}", "x")
            if path == "/api/events/stream":
                path += "?types=nothing"  # refused, so that it ends
            shut = [
                (await b.ask(method, path, "cron.example")).status_code,
                (await b.ask(method, path, "cron.example", Authorization=f"Bearer {revoked}")).status_code,
            ]
            opened = (await b.ask(method, path, "cron.example", Authorization=f"Bearer {good}")).status_code
            if route.startswith(OWN_TOKEN):
                assert {*shut, opened} <= {401, 404, 422}, route  # an API key is not the token of a run
            elif public:
                assert {*shut, opened} <= {200, 503}, route
            else:
                assert shut == [401, 401], route
                assert opened not in (401, 403, 421), (method, route, opened)


async def test_callers_without_a_key_get_no_details_of_the_status() -> None:
    async with bench(on("0.0.0.0")) as b:
        _, token = await create_key(b.store, "ci")
        for path in sorted(PUBLIC - {"/health"}):
            assert set((await b.ask("GET", path, "x.example")).json()) == {"status"}
            assert set((await b.ask("GET", path, "x.example", Authorization="Bearer wrong")).json()) == {"status"}
        alive = (await b.ask("GET", "/health", "x.example")).json()
        assert set(alive["components"]) == {"engine"}, "nothing about the store, the broker or the loops"
        known = (await b.ask("GET", "/ready", "x.example", Authorization=f"Bearer {token}")).json()
        assert known["components"]["store"]["status"] == "healthy"
        assert known["components"]["store"]["last_updated"] <= known["last_updated"]


async def test_a_key_is_kept_as_a_hash_and_only_as_one() -> None:
    store = MemoryStore()
    key, token = await create_key(store, "ci")
    secret = token.split("_", 2)[2]
    assert len(secret) == 43  # 256 bits
    rows = await store.find(KeyValues(kind=API_KEY_KIND))
    assert secret not in repr([(row.id, row.data) for row in rows])
    assert key.digest in rows[0].data
    assert token.split("_")[1] == key.id
    assert len({(await create_key(store, f"k{n}"))[1] for n in range(20)}) == 20


async def test_a_key_expires_on_time_even_if_it_is_cached() -> None:
    store = MemoryStore()
    now = [store._clock.now()]
    asked = 0

    async def ask(question: Any) -> Any:
        nonlocal asked
        asked += 1
        return await question(store)

    ring = KeyRing("default", ask, lambda: now[0])
    _, token = await create_key(store, "short", now[0] + KEY_CACHE_MS // 2)
    assert await ring.check_token(token) is not None
    before = asked
    now[0] += KEY_CACHE_MS // 2 - 1
    assert await ring.check_token(token) is not None
    assert asked == before  # remembered
    now[0] += 1
    assert await ring.check_token(token) is None
    assert asked == before


async def test_a_revoked_key_is_refused_in_time_and_its_use_does_not_restore_it() -> None:
    store = MemoryStore()
    now = [store._clock.now()]

    async def ask(question: Any) -> Any:
        return await question(store)

    ring = KeyRing("default", ask, lambda: now[0])
    key, token = await create_key(store, "ci")
    assert await ring.check_token(token) is not None
    (shown,) = await list_keys(store)
    assert shown.last_used == now[0]
    await revoke_key(store, "ci")
    now[0] += 60_000
    assert await ring.check_token(token) is None
    assert await store.find(KeyValues(kind=API_KEY_KIND)) == []
    assert await store.find(KeyValues(kind=KEY_USE_KIND)) == []
    assert KEY_CACHE_MS <= 5_000
    with pytest.raises(InvalidInput, match="there is no key"):
        await revoke_key(store, key.id)


async def test_a_store_that_is_away_is_not_reported_as_a_wrong_key() -> None:
    async with bench(on("0.0.0.0")) as b:
        _, token = await create_key(b.store, "ci")

        async def away(question: Any) -> Any:
            raise StoreUnavailable

        b.service.keys._ask = away
        answer = await b.ask("GET", "/api/schedules", "x.example", Authorization=f"Bearer {token}")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


# ── limits (S27) ────────────────────────────────────────────────────────────


async def test_each_caller_has_a_rate_limit_of_its_own_and_there_may_be_none() -> None:
    async with bench(on(limits=LimitSettings(requests_per_second=None))) as b:
        assert {(await b.ask("GET", "/api/schedules")).status_code for _ in range(200)} == {200}
    limits = LimitSettings(requests_per_second=0.01, burst=3)
    async with bench(on("0.0.0.0", limits=limits)) as b:
        _, one = await create_key(b.store, "one")
        _, two = await create_key(b.store, "two")
        ask = [(await b.ask("GET", "/api/schedules", "x", Authorization=f"Bearer {one}")) for _ in range(5)]
        assert [answer.status_code for answer in ask] == [200, 200, 200, 429, 429]
        assert int(ask[-1].headers["retry-after"]) >= 1
        assert (await b.ask("GET", "/api/schedules", "x", Authorization=f"Bearer {two}")).status_code == 200
        guesses = [(await b.ask("GET", "/api/schedules", "x", Authorization="Bearer x")).status_code for _ in range(5)]
        assert guesses == [401, 401, 401, 429, 429]
        assert {(await b.ask("GET", "/health", "x")).status_code for _ in range(9)} == {200}


async def test_limits_follow_the_settings_in_force() -> None:
    async with bench(on()) as b:
        assert (await b.ask("GET", "/api/schedules")).status_code == 200
        settings = on(limits=LimitSettings(requests_per_second=0.01, burst=1))
        b.service.adopt(settings)
        assert [(await b.ask("GET", "/api/schedules")).status_code for _ in range(2)] == [200, 429]
        b.service.adopt(replace(settings, limits=LimitSettings(requests_per_second=None)))
        assert (await b.ask("GET", "/api/schedules")).status_code == 200


# ── with real processes (S01, S02) ──────────────────────────────────────────


def test_it_does_not_serve_other_machines_while_there_is_no_key(tmp_path: Path) -> None:
    one = Served(tmp_path, "--host", "0.0.0.0", "--port", "0")
    try:
        assert "no API key" in one.line("serves at|no API key").string
        assert one.end() == 2
    finally:
        one.kill()
    (line,) = one.lines
    assert "0.0.0.0 can be reached by others, and there is no API key. Make one: mainspring key create NAME" in line
    assert "--insecure-no-auth" in line


def test_insecure_no_auth_serves_every_caller_and_warns(tmp_path: Path) -> None:
    with serving(tmp_path, "--host", "0.0.0.0", "--insecure-no-auth") as one:
        one.line("INSECURE: any caller that reaches")
        assert one.get("/api/schedules").status_code == 200
        assert "runs without keys" in one.get("/").text


def test_a_revoked_key_is_refused_by_two_instances_within_five_seconds(tmp_path: Path) -> None:
    url = fresh_url()
    key = make_key(tmp_path, "ci", "--store", url)
    args = ("--host", "0.0.0.0", "--store", url)
    with serving(tmp_path, *args) as one, serving(tmp_path, *args) as two:
        for each in (one, two):
            assert each.get("/api/schedules").status_code == 401
            assert each.get("/api/schedules", headers=bearer(key)).status_code == 200
            assert each.get("/api/health").json() == {"status": "healthy"}
        listed = cli(tmp_path, "key", "list", "--store", url)
        assert "ci" in listed.stdout
        assert key not in listed.stdout
        begun = [threading.Event(), threading.Event()]
        pairs = zip((one, two), begun, strict=True)
        streams = [threading.Thread(target=_follow, args=(each.url, key, event)) for each, event in pairs]
        for stream, event in zip(streams, begun, strict=True):
            stream.start()
            assert event.wait(30)
        done = cli(tmp_path, "key", "revoke", "ci", "--store", url)
        assert done.returncode == 0, done.stderr
        began = time.monotonic()
        for each in (one, two):
            wait_for(lambda each=each: each.get("/api/schedules", headers=bearer(key)).status_code == 401, "401")
        assert time.monotonic() - began < 5
        for stream in streams:
            stream.join(30)
            assert not stream.is_alive()
        for each in (one, two):
            assert "ERROR" not in each.text, each.text
        assert "there is no key" in cli(tmp_path, "key", "revoke", "ci", "--store", url).stderr


def _follow(url: str, key: str, begun: threading.Event) -> None:
    """Until the service ends the stream, in order."""
    with httpx.stream("GET", f"{url}/api/events/stream", headers=bearer(key), timeout=60) as response:
        assert response.status_code == 200
        begun.set()
        for _ in response.iter_lines():
            pass


def test_keys_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()

    def run(*words: str) -> Any:
        return runner.invoke(main, ["key", *words])

    assert "mainspring.db does not exist" in run("list").stderr
    assert list(tmp_path.iterdir()) == []
    made = run("create", "ci", "--expires", "90d")
    token = made.stdout.strip()
    assert token.startswith("msk_")
    assert "not shown again" in made.stderr
    assert token not in made.stderr
    again = run("create", "ci")
    assert (again.exit_code, again.stdout) == (2, "")
    assert "there is a key called 'ci' already" in again.stderr
    assert run("create", "x", "--expires", "soon").exit_code == 2
    assert "--store: a key in memory" in run("create", "x", "--store", "memory://").stderr
    assert token.split("_", 2)[2] not in run("list", "--json").stdout
    assert "Did you mean 'ci'?" in run("revoke", "ci2").stderr
    with contextlib.closing(sqlite3.connect(tmp_path / "mainspring.db")) as connection:
        dump = "\n".join(connection.iterdump())
    assert token.split("_", 2)[2] not in dump
    assert "revoked" in run("revoke", "ci").stdout
    assert "no keys" in run("list").stdout


# ── what the source may not hold (S04, S05) ─────────────────────────────────


def test_no_data_is_ever_code() -> None:
    source = Path(mainspring.__file__).parent
    for path in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(node.module or "").partition(".")[0]]
            elif isinstance(node, ast.Call):
                names = [ast.unparse(node.func)]
            wrong = {"pickle", "marshal", "shelve", "jsonpickle", "eval", "exec", "yaml.load", "yaml.unsafe_load"}
            found = wrong.intersection(names)
            if path.name == "process_child.py":
                found -= {"exec"}  # runs the program's own file, which its parent names: what `python file.py` does
            assert not found, (path, names)
