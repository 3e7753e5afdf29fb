"""Events as they happen: cut off again and again, none is lost and none comes twice."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainspring import Mainspring
from mainspring.api.routes import events as stream
from mainspring.api.stream_slots import StreamSlots
from mainspring.app.internals import host_of
from mainspring.backends.postgres import PostgresStore, apply_sql
from mainspring.model.events import InstanceJoined
from servers.for_tests import fresh_url
from tests.server.serving import served

EVENTS, CUTS = 2_000, 20


class Client:
    """What a browser's EventSource does: remembers the last id, sends it when it comes back."""

    def __init__(self, url: str, rng: random.Random) -> None:
        self._url = url
        self._rng = rng
        self.last: str | None = None
        self.seen: list[dict[str, Any]] = []
        self.kinds: list[str] = []
        self._news = asyncio.Event()

    async def connect(self, client: httpx.AsyncClient, *, until: int, query: str = "?since=beginning") -> None:
        """Read until this number of events was seen, then cut the connection in the middle of what follows."""
        headers = {} if self.last is None else {"Last-Event-ID": self.last}
        text = ""
        async with client.stream("GET", f"{self._url}/api/events/stream{query}", headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            assert response.headers["content-type"].startswith("text/event-stream")
            async for piece in response.aiter_text():
                # A cut may come in the middle of a block: what is not whole did not happen.
                cut = until < EVENTS and len(self.seen) >= until
                text += piece[: self._rng.randrange(len(piece) + 1)] if cut else piece
                *blocks, text = text.split("\n\n")
                for block in blocks:
                    self._take(block)
                if cut or (until >= EVENTS and len(self.seen) >= until):
                    return

    async def came(self) -> None:
        """Return when something came."""
        self._news.clear()
        await self._news.wait()

    def _take(self, block: str) -> None:
        fields = [line.partition(": ") for line in block.split("\n")]
        for name, _, value in fields:
            if name == "id":
                self.last = value
            elif name == "event":
                self.kinds.append(value)
            elif name == "data":
                self.seen.append(json.loads(value))
        self._news.set()


async def note(ms: Mainspring, name: str) -> None:
    await host_of(ms).call(lambda runtime: runtime.notes.append(InstanceJoined(instance=name)))


async def write(writers: list[Mainspring], names: list[str], reader: Client) -> None:
    """Twenty at a time, by all writers at once, never far ahead of the reader: they flow while it is cut off."""
    for first in range(0, len(names), 20):
        while len(reader.seen) < first - 200:
            await reader.came()
        together = names[first : first + 20]
        await asyncio.gather(*[note(writers[i % len(writers)], name) for i, name in enumerate(together)])


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def writers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[Mainspring]]:
    if request.param == "memory":
        found = [Mainspring("memory://")]
    else:
        url = fresh_url() if request.param == "postgres" else f"sqlite:///{tmp_path}/m.db"
        found = [Mainspring(url) for _ in range(3)]
    for ms in found:
        await host_of(ms).open_runtime()
    yield found
    for ms in found:
        await ms.close()


async def test_cut_twenty_times_while_events_flow(writers: list[Mainspring]) -> None:
    names = [f"e{number}" for number in range(EVENTS)]
    with served(writers[0]) as server:
        reader = Client(server.url, random.Random(7))
        async with httpx.AsyncClient(timeout=30) as client, asyncio.timeout(55):
            writing = asyncio.create_task(write(writers, names, reader))
            for cut in range(1, CUTS + 1):
                await reader.connect(client, until=cut * 60)
            await reader.connect(client, until=EVENTS)
            await writing
    instances = [event["data"]["instance"] for event in reader.seen]
    assert len(instances) == EVENTS, "none lost, none twice"
    assert set(instances) == set(names)
    assert set(reader.kinds) == {"InstanceJoined"}


@pytest.mark.tampers
async def test_an_event_committed_late_is_not_lost_by_a_cut() -> None:
    """A transaction took its number before others and commits after the client was cut off behind them."""
    url = fresh_url()
    ms, late = Mainspring(url), PostgresStore(url)
    await late.open()
    await note(ms, "first")
    with served(ms) as server:
        reader = Client(server.url, random.Random(1))

        async def read(count: int) -> list[str]:
            headers = {} if reader.last is None else {"Last-Event-ID": reader.last}
            async with client.stream("GET", f"{server.url}/api/events/stream?since=beginning", headers=headers) as got:
                text = ""
                async for piece in got.aiter_text():
                    *blocks, text = (text + piece).split("\n\n")
                    for block in blocks:
                        reader._take(block)
                    if len(reader.seen) >= count:
                        break
            return [event["data"]["instance"] for event in reader.seen]

        async with httpx.AsyncClient(timeout=30) as client, asyncio.timeout(55):
            async with late._db.transaction("test") as session:
                await session.row(apply_sql.BEGIN, None)
                await session.fetch(
                    "INSERT INTO §event (at, ns, type, v, data) VALUES (0, 'default', 'InstanceJoined', 1, $1)",
                    '{"instance":"late"}',
                )
                await note(ms, "quick")
                assert await read(2) == ["first", "quick"]
                assert ";" in (reader.last or ""), "the place names what is missing"
                await note(ms, "next")
                assert await read(3) == ["first", "quick", "next"]
            await note(ms, "last")
            assert sorted(await read(5)) == ["first", "last", "late", "next", "quick"]
    await late.close()
    await ms.close()


async def test_from_now_on_filtered_and_with_a_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PING_SECONDS", 0.05)
    ms = Mainspring("memory://")
    await note(ms, "before")
    with served(ms) as server:
        body = {"name": "n", "intervalMs": "1h", "agentUrl": "http://127.0.0.1:5678/"}
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client, asyncio.timeout(30):
            query = "?types=ScheduleCreated,Started&schedule=n"
            assert (await client.get("/api/events/stream?schedule=n")).status_code == 404
            made = (await client.post("/api/schedules", json=body)).json()
            text = ""
            async with client.stream("GET", f"/api/events/stream{query}", headers={"Last-Event-ID": "0"}) as response:
                async for piece in response.aiter_text():
                    text += piece
                    if ": ping" in text:
                        break
            assert "event: ScheduleCreated" in text
            assert '"agentUrl"' not in text
            assert "InstanceJoined" not in text
            data = json.loads(text.split("data: ")[1].split("\n")[0])
            assert data["scheduleId"] == made["id"]
            assert data["data"]["spec"]["options"]["http"]["url"] == "http://127.0.0.1:5678/"
            text = ""
            async with client.stream("GET", "/api/events/stream") as response:
                async for piece in response.aiter_text():
                    if not text:
                        await note(ms, "after")
                    text += piece
                    if "InstanceJoined" in text:
                        break
            assert "before" not in text
            assert "ScheduleCreated" not in text
            assert "after" in text
    await ms.close()


async def test_streams_are_bounded_and_end_when_the_service_does() -> None:
    ms = Mainspring("memory://")
    with served(ms) as server:
        server.app.state.api.stream_slots.max_total = 2
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client, asyncio.timeout(30):
            path = "/api/events/stream"
            async with client.stream("GET", path) as one, client.stream("GET", path) as two:
                parts = [one.aiter_bytes(), two.aiter_bytes()]
                for part in parts:
                    await anext(part)
                busy = await client.get(path)
                assert busy.status_code == 503
                assert busy.headers["retry-after"]
                await asyncio.to_thread(server.stop)
                for part in parts:
                    assert [piece async for piece in part] == []
    await ms.close()


async def test_requests_that_come_together_open_no_more_streams_than_the_limit() -> None:
    """Before, streams were counted when they began: 250 requests at once opened 250 streams."""
    ms = Mainspring("memory://")
    with served(ms) as server:
        slots = server.app.state.api.stream_slots
        slots.max_total = 3
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client, asyncio.timeout(30):
            path = "/api/events/stream"

            async def open_stream() -> tuple[int, httpx.Response]:
                response = await client.send(client.build_request("GET", path), stream=True)
                return response.status_code, response

            opened = await asyncio.gather(*(open_stream() for _ in range(20)))
            assert sorted(status for status, _ in opened) == [200] * 3 + [503] * 17
            for _, response in opened:
                await response.aclose()
            status = 503
            while status == 503:  # a slot is free once the server has seen that a client left
                status, response = await open_stream()
                await response.aclose()
            assert status == 200
            head = await client.head(path)
            assert (head.status_code, head.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    await ms.close()


def test_a_key_leaves_streams_to_others() -> None:
    slots = StreamSlots(max_total=4, max_of_key=2)
    assert [slots.take("key a") for _ in range(3)] == [
        "",
        "",
        "2 event streams of this key are open; that is the limit",
    ]
    assert [slots.take("local") for _ in range(3)] == ["", "", "4 event streams are open; that is the limit"]
    slots.give_back("key a")
    assert slots.take("key b") == ""
    assert slots.take("key a") == "4 event streams are open; that is the limit"
