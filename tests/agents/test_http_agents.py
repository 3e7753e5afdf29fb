"""HTTP agents from Python: what is declared, edited, refused; where header values are, and where they are not."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import json as msgjson

from mainspring import (
    AgentSettings,
    Event,
    Http,
    HttpAgent,
    InvalidInput,
    Mainspring,
    Retry,
    RunNotSuccessful,
    State,
)
from mainspring.agents.vault import RETIRED_TTL_MS
from mainspring.app.internals import host_of
from mainspring.model.events import ScheduleUpdated
from mainspring.model.http import CONNECTION_HEADERS, MAINSPRING_HEADERS
from mainspring.model.keyvalue import HEADERS_KIND, SIGNING_KIND
from mainspring.model.schedule import Schedule
from mainspring.ports.store import KeyValues
from tests.agents.agent_process import AgentProcess, agent
from tests.stored_rows import stored

URL = "http://127.0.0.1:9/x"
CANARY = "c4n4ry"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    with agent(tmp_path_factory.mktemp("agent")) as process:
        yield process


@pytest.fixture
async def ms() -> AsyncIterator[Mainspring]:
    app = Mainspring("memory://")
    yield app
    await app.close()


async def headers_of(ms: Mainspring, schedule: Schedule) -> dict[str, str] | None:
    """The values that the schedule's reference names."""
    assert schedule.spec.options is not None
    assert schedule.spec.options.http is not None
    ref = schedule.spec.options.http.headers_ref
    return await host_of(ms).call(lambda runtime: runtime.vault.headers(ref))


# ── declaring and editing ──────────────────────────────────────────────────


async def test_a_declared_schedule_is_stored_at_the_start_and_again_changes_nothing(tmp_path: Path) -> None:
    def program() -> Mainspring:
        app = Mainspring(f"sqlite:///{tmp_path}/ms.db")
        agent = app.http(
            "report",
            "https://agents.example/report",
            cron="0 9 * * *",
            payload={"type": "daily"},
            headers={"Authorization": f"Bearer {CANARY}", "X-Team": "a"},
            agent_id="report-1",
        )
        assert isinstance(agent, HttpAgent)
        return app

    seen = []
    for _ in range(2):
        app = program()
        async with app.running():
            seen.append(await stored(app, app.get("report")))
    first, second = seen
    assert (first.revision, second.revision, first.digest) == (1, 1, second.digest)
    target = first.spec.options.http if first.spec.options is not None else None
    assert target is not None
    assert (first.spec.task, first.spec.overlap, first.origin) == ("http", "allow_parallel", "code")
    assert (target.url, target.method, target.agent_id) == ("https://agents.example/report", "POST", "report-1")
    assert target.header_names == ("Authorization", "X-Team")


async def test_other_header_values_are_another_revision_and_the_old_ones_end(ms: Mainspring) -> None:
    one = await stored(ms, ms.schedule("x", Http(URL, headers={"A": "1"}), every="1h", payload={"n": 1}))
    same = await stored(ms, ms.schedule("x", Http(URL, headers={"A": "1"}), every="1h", payload={"n": 1}))
    assert same.revision == 1
    two = await stored(ms, ms.update("x", task=Http(URL, headers={"A": "2"})))
    assert (two.revision, two.spec.body) == (2, one.spec.body)
    assert (await headers_of(ms, one), await headers_of(ms, two)) == ({"A": "1"}, {"A": "2"})
    kept = await host_of(ms).call(lambda runtime: runtime.store.find(KeyValues(kind=HEADERS_KIND)))
    assert sorted(one.expires_at is not None for one in kept) == [False, True]
    ends = max(one.expires_at or 0 for one in kept)
    assert abs(ends - host_of(ms).now() - RETIRED_TTL_MS) < 60_000  # runs that wait may still need them
    back = await stored(ms, ms.update("x", task=Http(URL, headers={"A": "1"})))
    assert back.spec.options == one.spec.options
    kept = await host_of(ms).call(lambda runtime: runtime.store.find(KeyValues(kind=HEADERS_KIND)))
    ref = back.spec.options.http.headers_ref if back.spec.options and back.spec.options.http else ""
    assert [one.expires_at for one in kept if one.id == ref] == [None]


async def test_an_edit_keeps_what_it_does_not_name(ms: Mainspring) -> None:
    one = await stored(ms, ms.schedule("x", Http(URL, headers={"A": "1"}, method="PUT"), every="1h", payload={"n": 1}))
    two = await stored(ms, ms.update("x", every="2h", timeout="5s"))
    assert two.spec.options is not None
    assert one.spec.options is not None
    assert (two.spec.options.http, two.spec.body, two.spec.options.timeout) == (
        one.spec.options.http,
        one.spec.body,
        5_000,
    )
    three = await stored(ms, ms.update("x", payload={"n": 2}))
    assert three.spec.body != two.spec.body
    assert three.spec.options == two.spec.options
    four = await stored(ms, ms.update("x", payload=None))
    assert four.spec.body is None
    (*_, update) = [event for event in await ms.events(schedule="x") if isinstance(event, ScheduleUpdated)]
    assert update.changed == ("body",)


async def test_a_deleted_schedule_leaves_no_secret_for_ever(ms: Mainspring) -> None:
    schedule = await ms.schedule("x", Http(URL, headers={"A": "1"}), every="1h")
    await ms.signing_secret("x")
    await ms.delete("x")
    for kind, ids in ((HEADERS_KIND, None), (SIGNING_KIND, (schedule.id,))):
        (kept,) = await host_of(ms).call(lambda runtime, k=kind, i=ids: runtime.store.find(KeyValues(kind=k, ids=i)))  # type: ignore[misc]
        assert kept.expires_at is not None


async def test_a_task_can_become_an_agent_and_back(ms: Mainspring) -> None:
    @ms.task
    async def local(n: int) -> None: ...

    await ms.schedule("x", local, args=(1,), every="1h")
    called = await stored(ms, ms.update("x", task=Http(URL), payload={"n": 2}))
    assert (called.spec.task, called.spec.options is not None and called.spec.options.http is not None) == (
        "http",
        True,
    )
    again = await stored(ms, ms.update("x", task=local, args=(3,)))
    assert (again.spec.task, again.spec.options) == ("local", None)


async def test_a_program_that_names_no_agent_calls_none(tmp_path: Path, there: AgentProcess) -> None:
    url = f"sqlite:///{tmp_path}/ms.db"
    writer, other = Mainspring(url), Mainspring(url, poll_interval="50ms")
    await writer.schedule("x", Http(there.url("/ok/others")), every="1h")
    handle = await writer.trigger("x")

    @other.task
    async def ping() -> None: ...

    async with other.running():
        await (await ping.enqueue()).result(timeout="10s")
        assert (await other.find_by_id(handle.id)).state is State.WAITING
        assert [run.id for run in await other.unresolved()] == [handle.id]
    async with writer.running():
        await handle.result(timeout="10s")
    await writer.close()


async def test_run_until_idle_waits_for_agents(tmp_path: Path, there: AgentProcess) -> None:
    app = Mainspring(f"sqlite:///{tmp_path}/ms.db")
    await app.schedule("x", Http(there.url("/slow/0.2?times=1")), every="1h")
    handle = await app.trigger("x")
    await app.run_async(until_idle=True, signals=False)
    assert (await app.find_by_id(handle.id)).state is State.SUCCEEDED
    await app.close()


async def test_header_values_that_are_gone_are_said_to_be(there: AgentProcess) -> None:
    app = Mainspring("memory://")
    async with app.running():
        schedule = await stored(app, app.schedule("x", Http(there.url("/ok/gone"), headers={"A": "1"}), every="1h"))
        assert schedule.spec.options is not None
        assert schedule.spec.options.http is not None
        ref = schedule.spec.options.http.headers_ref or ""
        await host_of(app).call(lambda runtime: runtime.store.remove(HEADERS_KIND, [ref]))
        handle = await app.trigger("x")
        with pytest.raises(RunNotSuccessful, match="header values of this schedule are gone"):
            await handle.result(timeout="10s")
    assert not there.calls("/ok/gone")


# ── what is refused ────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "name", [*MAINSPRING_HEADERS, *CONNECTION_HEADERS, "IDEMPOTENCY-KEY", "x-attempt", "Webhook-Signature"]
)
def test_a_header_that_is_ours_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=rf"headers\.{name}: .* is (set by Mainspring|a matter of the connection)"):
        Http(URL, headers={name: "x"})


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({"A": f"{CANARY}\r\nX-Injected: 1"}, "headers.A"),
        ({"A": f"{CANARY}\n"}, "headers.A"),
        ({"A": f"{CANARY}\0"}, "headers.A"),
        ({"A\r\nB": "1"}, "headers"),
        ({"A B": "1"}, "headers"),
        ({"": "1"}, "headers"),
        ({"A:": "1"}, "headers"),
        ({"A": 5}, "headers.A"),
        ({"A": "x" * 10_000}, "headers.A"),
        ({"A": "☃" + CANARY}, "headers.A"),
        ({"A": "1", "a": "2"}, "headers.a"),
        ({f"H{n}": "1" for n in range(65)}, "headers"),
        ([("A", "1")], "headers"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused_without_saying_its_value(headers: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Http(URL, headers=headers)
    assert refused.value.field == field
    assert refused.value.fix
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"url": 5}, "url"),
        ({"url": ""}, "url"),
        ({"url": "example.com"}, "url"),
        ({"url": "http://" + "x" * 3_000}, "url"),
        ({"url": "http://exämple.com/ü"}, "url"),
        ({"url": URL, "method": "post"}, "method"),
        ({"url": URL, "method": "TRACE"}, "method"),
        ({"url": URL, "method": None}, "method"),
        ({"url": URL, "agent_id": "x" * 300}, "agent_id"),
        ({"url": URL, "silence": "1ms"}, "silence"),
        ({"url": URL, "within": 0}, "within"),
    ],
)
def test_a_target_that_cannot_be_called_is_refused(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Http(**given)
    assert refused.value.field == field


async def test_arguments_are_for_tasks_and_payloads_for_agents(ms: Mainspring) -> None:
    @ms.task
    async def local(n: int = 1) -> None: ...

    with pytest.raises(InvalidInput, match="args: an HTTP agent takes no arguments"):
        await ms.schedule("x", Http(URL), args=(1,), every="1h")
    with pytest.raises(InvalidInput, match="payload: a task takes arguments"):
        await ms.schedule("x", local, payload={"n": 1}, every="1h")
    with pytest.raises(InvalidInput, match="task: the built-in task 'http' needs an agent"):
        await ms.schedule("x", "http", every="1h")
    with pytest.raises(InvalidInput, match="payload: 70002 bytes are more than the limit"):
        await ms.schedule("x", Http(URL), payload="x" * 70_000, every="1h")
    with pytest.raises(InvalidInput, match="payload: cannot be stored as JSON"):
        await ms.schedule("x", Http(URL), payload=object(), every="1h")
    with pytest.raises(InvalidInput, match="'http' is the built-in task"):
        ms.task(name="http")(local.function)
    with pytest.raises(InvalidInput, match="minute: 61 is out of range"):
        ms.http("x", URL, cron="61 * * * *")
    with pytest.raises(InvalidInput, match="Write tz="):
        ms.http("x", URL, cron="* * * * *", timezone="UTC")  # type: ignore[call-arg]
    assert (await ms.schedules(), ms.declared) == ([], ())
    await ms.schedule("task", local, every="1h")
    await ms.schedule("agent", Http(URL), every="1h")
    with pytest.raises(InvalidInput, match="payload"):
        await ms.trigger("task", payload={})
    with pytest.raises(InvalidInput, match="args"):
        await ms.trigger("agent", args=(1,))
    with pytest.raises(InvalidInput, match="calls no HTTP agent"):
        await ms.signing_secret("task")


# ── secrets ────────────────────────────────────────────────────────────────


async def test_a_secret_canary_is_nowhere_but_where_it_is_kept(
    tmp_path: Path, there: AgentProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """Header values and the signing secret: not in events, rows, logs, texts of errors, the command line or repr."""
    caplog.set_level(logging.DEBUG)
    db = tmp_path / "ms.db"
    said = io.StringIO()
    app = Mainspring(f"sqlite:///{db}", agents=AgentSettings(public_url="http://127.0.0.1:9"))
    app.on_event(Event, lambda event: said.write(f"{event!r} {msgjson.encode(event)!r}\n"))
    headers = {"Authorization": f"Bearer {CANARY}-1", "X-Api-Key": f"{CANARY}-2", "X-Short": "s3c"}
    async with app.running():
        for name, path in (
            ("good", "/echo"),
            ("bad", "/echo?status=500"),
            ("wrong", "/echo?status=400"),
            ("gone", "/echo?status=410"),
            ("away", None),
        ):
            url = "http://127.0.0.1:9/x" if path is None else there.url(path)
            schedule = await app.schedule(
                name, Http(url, headers=headers), every="1h", retry=Retry(max_attempts=2, initial="10ms")
            )
            handle = await app.trigger(name)
            try:
                said.write(repr(await handle.result(timeout="20s")))
            except RunNotSuccessful as error:
                said.write(str(error))
            said.write(repr(schedule) + repr(await app.find_by_id(handle.id)))
        secret = await app.signing_secret("good")
        assert CANARY in json.dumps(there.calls("/echo")[0]["headers"])  # it was sent
        with pytest.raises(InvalidInput) as refused:
            await app.schedule("good", Http(URL, headers={"Authorization": f"{CANARY}-3"}), every="1h")
        said.write(str(refused.value))
        said.write(repr(Http(URL, headers=headers)))
        said.write(repr(await app.events(limit=10_000)))
        kept = await host_of(app).call(lambda runtime: runtime.store.find(KeyValues(kind=HEADERS_KIND)))
        said.write(repr(kept))
    for words in (
        ["events", "list", "--limit", "1000"],
        ["events", "list", "--json"],
        ["events", "verify"],
        ["ledger"],
        ["workers"],
    ):
        answer = await asyncio.to_thread(_cli, words, db)
        said.write(answer)
    rows, hidden = _rows(db)
    everything = said.getvalue() + caplog.text + rows
    assert len(everything) > 10_000
    token = there.calls("/echo")[0]["headers"]["X-Callback-Token"]
    for word in (CANARY, secret, secret.removeprefix("whsec_"), token):
        assert word not in everything, everything[everything.index(word) - 300 : everything.index(word) + 50]
    assert CANARY in hidden
    assert secret in hidden


def _cli(words: list[str], db: Path) -> str:
    command = [sys.executable, "-m", "mainspring.cli.main", *words, "--store", f"sqlite:///{db}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def _rows(db: Path) -> tuple[str, str]:
    """All rows of all tables, and those of the one table where secrets may be."""
    with sqlite3.connect(db) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        dumped = {name: str(connection.execute(f"SELECT * FROM {name}").fetchall()) for name in tables}
    connection.close()
    return "".join(text for name, text in dumped.items() if name != "kept"), dumped["kept"]
