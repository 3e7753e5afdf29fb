"""Query values of agents' URLs: kept beside the header values, sent with every call, shown nowhere."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json as msgjson
from msgspec.structs import replace

from mainspring import AgentSettings, Event, Http, InvalidInput, Mainspring, Retry, RunNotSuccessful
from mainspring.agents.vault import RETIRED_TTL_MS
from mainspring.api.app import build
from mainspring.api.routes.events import _encode as send_event
from mainspring.app.internals import host_of, registry_of
from mainspring.model.http import HttpTarget
from mainspring.model.keyvalue import HEADERS_KIND, KeyValue
from mainspring.model.query_values import fill_query_values, hide_query_values, query_of, secret_values, with_query
from mainspring.model.schedule import Schedule
from mainspring.ports.store import Events, KeyValues
from mainspring.runtime.runtime import Runtime
from tests.agents.agent_process import AgentProcess, agent
from tests.agents.test_http_agents import _cli, _rows
from tests.stored_rows import stored

CANARY = "c4n4ry-query"
PLAIN = "http://127.0.0.1:9/x?token=" + CANARY
SHOWN = "http://127.0.0.1:9/x?token=***"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    with agent(tmp_path_factory.mktemp("agent")) as process:
        yield process


def client(app: Mainspring) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(build(app), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:3000")


def target_of(schedule: Schedule) -> HttpTarget:
    assert schedule.spec.options is not None
    assert schedule.spec.options.http is not None
    return schedule.spec.options.http


async def kept_in(ms: Mainspring) -> list[KeyValue]:
    return await host_of(ms).call(lambda runtime: runtime.store.find(KeyValues(kind=HEADERS_KIND)))


# ── the attack: find the value ──────────────────────────────────────────────


async def test_query_values_are_in_no_event_row_answer_or_page(
    tmp_path: Path, there: AgentProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    db, said = tmp_path / "ms.db", io.StringIO()
    app = Mainspring(f"sqlite:///{db}")
    app.on_event(Event, lambda event: said.write(f"{event!r} {msgjson.encode(event)!r}\n"))
    app.http("declared", there.url(f"/echo?token={CANARY}&x=1"), every="1h")
    async with app.running(), client(app) as rest:
        for name, path in (("good", "/echo?"), ("bad", "/echo?status=500&"), ("wrong", "/echo?status=400&")):
            url = there.url(f"{path}token={CANARY}")
            body = {"name": name, "agentUrl": url, "intervalMs": "1h", "retryPolicy": {"maxAttempts": 1}}
            made = await rest.post("/api/schedules", json=body)
            assert made.status_code == 201, made.text
            assert made.json()["agentUrl"].endswith("token=***")
            said.write(made.text)
        away = await app.schedule("away", Http(PLAIN), every="1h", retry=Retry(max_attempts=1))
        assert away.url == SHOWN
        for name in ("declared", "good", "bad", "wrong", "away"):
            handle = await app.trigger(name)
            try:
                said.write(repr(await handle.result(timeout="20s")))
            except RunNotSuccessful as error:
                said.write(str(error))
            said.write(repr(await app.get(name)) + repr(await app.find_by_id(handle.id)))
            said.write((await rest.get(f"/api/executions/{handle.id}")).text)
        calls = there.calls("/echo")
        assert [CANARY in call["query"] for call in calls] == [True] * 4  # it was sent
        said.write(repr(Http(PLAIN)) + repr(await app.events(limit=10_000)))
        for path in ("/api/schedules", "/api/schedules/good", "/api/executions", "/", "/status"):
            said.write((await rest.get(path)).text)
        said.write(await stream_of(app))
    for words in (["events", "list", "--limit", "1000"], ["events", "list", "--json"], ["workers"], ["ledger"]):
        said.write(await asyncio.to_thread(_cli, words, db))
    rows, hidden = _rows(db)
    everything = said.getvalue() + caplog.text + rows
    assert len(everything) > 10_000
    assert CANARY not in everything, everything[everything.index(CANARY) - 300 : everything.index(CANARY) + 50]
    assert CANARY in hidden


async def stream_of(app: Mainspring) -> str:
    """What the event stream of the API sends of the whole log."""
    found = await host_of(app).call(lambda runtime: runtime.store.find(Events(limit=10_000)))
    return "".join(send_event(str(event.seq), event).decode() for event in found)


# ── editing ─────────────────────────────────────────────────────────────────


async def edit(rest: httpx.AsyncClient, name: str, **fields: Any) -> httpx.Response:
    return await rest.put(f"/api/schedules/{name}", json=fields)


async def called_url(app: Mainspring, name: str) -> str:
    """The URL that a run of the schedule calls now."""
    target = target_of(await stored(app, app.get(name)))
    found = await host_of(app).call(lambda runtime: runtime.vault.find_call(target.headers_ref))
    assert found is not None
    return with_query(target.url, found.query) if target.query_kept else target.url


@pytest.fixture
async def ms() -> AsyncIterator[Mainspring]:
    app = Mainspring("memory://")
    yield app
    await app.close()


async def test_three_stars_keep_the_stored_value(ms: Mainspring) -> None:
    async with client(ms) as rest:
        url = PLAIN + "&x=1&x=2#part"
        body = {"name": "a", "agentUrl": url, "intervalMs": "1h", "headers": {"Authorization": "Bearer one"}}
        made = (await rest.post("/api/schedules", json=body)).json()
        assert made["agentUrl"] == SHOWN + "&x=***&x=***#part"
        same = await rest.put("/api/schedules/a", json=made | {"warnings": [], "graceMs": 7})
        assert (same.status_code, await called_url(ms, "a")) == (200, url)
        for given, called in (
            (SHOWN + "&x=***&x=3", PLAIN + "&x=1&x=3"),
            (SHOWN.replace("/x", "/y") + "&x=***", PLAIN.replace("/x", "/y") + "&x=1"),
            (SHOWN + "&flag", PLAIN + "&flag"),
            (SHOWN + "&***", PLAIN + "&flag"),
            (PLAIN + "&empty=", PLAIN + "&empty="),
        ):
            edited = await edit(rest, "a", agentUrl=given)
            assert edited.status_code == 200, edited.text
            assert await called_url(ms, "a") == called
            assert CANARY not in edited.text
        target = target_of(await stored(ms, ms.get("a")))
        headers = await host_of(ms).call(lambda runtime: runtime.vault.headers(target.headers_ref))
        assert headers == {"Authorization": "Bearer one"}
        changed = await edit(rest, "a", headers={"Authorization": "***", "X-New": "two"})
        assert (changed.status_code, await called_url(ms, "a")) == (200, PLAIN + "&empty=")
        await edit(rest, "a", agentUrl="http://127.0.0.1:9/x")
        assert sum(one.expires_at is None for one in await kept_in(ms)) == 1
        assert not any(CANARY in one.data for one in await kept_in(ms) if one.expires_at is None)


async def test_a_stored_query_value_is_not_sent_to_another_host(ms: Mainspring) -> None:
    async with client(ms) as rest:
        body = {"name": "a", "agentUrl": PLAIN, "intervalMs": "1h"}
        assert (await rest.post("/api/schedules", json=body)).status_code == 201
        for url in (
            "http://127.0.0.2:9/x?token=***",
            "http://127.0.0.1:10/x?token=***",
            "https://127.0.0.1:9/?token=***",
        ):
            refused = await edit(rest, "a", agentUrl=url)
            assert refused.status_code == 422
            assert refused.json()["errors"][0]["pointer"] == "#/agentUrl"
    with pytest.raises(InvalidInput, match="not sent to a new host"):
        await ms.update("a", task=Http("http://127.0.0.2:9/x?token=***"))
    assert await called_url(ms, "a") == PLAIN


@pytest.mark.parametrize("query", ["token=***", "***", "a=1&token=***"])
async def test_three_stars_without_a_stored_value_are_refused(ms: Mainspring, query: str) -> None:
    async with client(ms) as rest:
        body = {"name": "a", "agentUrl": f"http://127.0.0.1:9/x?{query}", "intervalMs": "1h"}
        refused = await rest.post("/api/schedules", json=body)
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "#/agentUrl")
    with pytest.raises(InvalidInput, match="none is stored"):
        await ms.schedule("a", Http(f"http://127.0.0.1:9/x?{query}"), every="1h")
    assert await ms.schedules() == []


async def test_another_value_is_another_revision_and_the_old_one_ends(ms: Mainspring) -> None:
    one = await stored(ms, ms.schedule("a", Http(PLAIN, headers={"A": "1"}), every="1h"))
    same = await stored(ms, ms.schedule("a", Http(PLAIN, headers={"A": "1"}), every="1h"))
    assert (same.revision, same.digest, target_of(same).url) == (1, one.digest, SHOWN)
    two = await stored(ms, ms.update("a", task=Http(PLAIN + "2", headers={"A": "1"})))
    assert (two.revision, two.digest == one.digest) == (2, False)
    kept = {one.id: one.expires_at for one in await kept_in(ms)}
    assert kept[target_of(two).headers_ref or ""] is None
    assert abs((kept[target_of(one).headers_ref or ""] or 0) - host_of(ms).now() - RETIRED_TTL_MS) < 60_000
    three = await stored(ms, ms.update("a", task=Http(SHOWN, headers={"A": "1"}), every="2h"))
    assert (target_of(three), await called_url(ms, "a")) == (target_of(two), PLAIN + "2")
    await ms.delete("a")
    assert all(one.expires_at is not None for one in await kept_in(ms))


async def test_a_declared_value_is_stored_once_and_a_new_one_is_noticed(tmp_path: Path) -> None:
    seen = []
    for token in ("one", "one", "two"):
        app = Mainspring(f"sqlite:///{tmp_path}/ms.db")
        app.http("a", f"https://agents.example/x?token={token}-{CANARY}", cron="0 9 * * *")
        async with app.running():
            seen.append(await stored(app, app.get("a")))
    assert [one.revision for one in seen] == [1, 1, 2]
    assert {target_of(one).url for one in seen} == {"https://agents.example/x?token=***"}


# ── what earlier versions stored ────────────────────────────────────────────


async def store_as_before(app: Mainspring, name: str, url: str) -> Schedule:
    """Store a schedule as earlier versions did: with the query in the definition."""
    request = registry_of(app).make_request(name, task=Http(url), every="1h")

    async def write(runtime: Runtime) -> Schedule:
        draft = runtime.commands._new_schedule(replace(request, agent=None), host_of(app).now())
        assert (await runtime.commands._write(draft, (), ())).ok
        return draft.schedule

    return await host_of(app).call(write)


async def test_a_url_stored_by_an_earlier_version_is_called_as_it_is_and_shown_without_values(
    tmp_path: Path, there: AgentProcess
) -> None:
    db = tmp_path / "ms.db"
    app = Mainspring(f"sqlite:///{db}", agents=AgentSettings())
    url = there.url(f"/echo?token={CANARY}-old")
    async with app.running(), client(app) as rest:
        row = await store_as_before(app, "old", url)
        assert target_of(row).url == url
        handle = await app.trigger("old")
        result = await handle.result(timeout="20s")
        assert there.calls("/echo")[-1]["query"] == f"token={CANARY}-old"
        shown = repr(result) + repr(await app.get("old")) + repr(await app.events(limit=100)) + await stream_of(app)
        for path in ("/api/schedules/old", "/api/schedules", f"/api/executions/{handle.id}", "/status"):
            shown += (await rest.get(path)).text
        shown += await asyncio.to_thread(_cli, ["events", "list", "--json"], db)
        assert CANARY not in shown
        again = await app.schedule("old", Http(url), every="1h")  # the program says the same again
        assert (again.revision, await called_url(app, "old")) == (1, url)
        assert (await edit(rest, "old", agentUrl=there.url("/echo?token=***&n=1"))).status_code == 200
        assert await called_url(app, "old") == url + "&n=1"
        assert target_of(await stored(app, app.get("old"))).query_kept


# ── rules ───────────────────────────────────────────────────────────────────

_NAMES = st.sampled_from(["a", "b", "token", "", "%61"])
_VALUES = st.text("abc123%=+.~!'()*,;:@/?-", max_size=8).filter(lambda text: text != "***")
_PARTS = st.one_of(st.tuples(_NAMES, _VALUES).map("=".join), _VALUES.filter(lambda text: "=" not in text))
_QUERIES = st.lists(_PARTS, max_size=6).map("&".join)


@given(_QUERIES, st.sampled_from(["", "#", "#f?x=1&y"]))
def test_a_hidden_url_is_filled_to_what_it_was(query: str, end: str) -> None:
    url = f"https://h/p?{query}{end}"
    hidden = hide_query_values(url)
    assert fill_query_values(hidden, query) == url
    assert hide_query_values(hidden) == hidden
    for part in query_of(hidden).split("&"):
        name, mark, value = part.partition("=")
        assert (value if mark else name) in ("", "***")


@given(_QUERIES)
def test_every_value_is_among_those_that_are_redacted(query: str) -> None:
    values = {part.partition("=")[2] if "=" in part else part for part in query.split("&")} - {""}
    assert values <= set(secret_values(query))


def test_values_are_redacted_as_an_agent_decodes_them() -> None:
    assert set(secret_values("a=x%20y%2Bz+w")) == {"x%20y%2Bz+w", "x y+z+w", "x y+z w"}
