"""The log of an execution over REST: pages, one attempt, and a stream that ends with the execution."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from mainspring import Context, Mainspring, Retry
from tests.server.serving import served

LINES = 7


def program() -> Mainspring:
    ms = Mainspring("memory://")

    @ms.task(name="talk", retry=Retry(max_attempts=2, initial="1ms"))
    async def talk(ctx: Context) -> None:
        for number in range(LINES):
            ctx.log("line %d of attempt %d", number, ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("once more")

    return ms


async def test_a_log_is_read_in_pages_and_by_attempt() -> None:
    ms = program()
    async with ms.running():
        run = await ms.tasks["talk"].enqueue()
        await run.result(timeout="20s")
        with served(ms) as server:
            async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
                path: str | None = f"/api/executions/{run.id}/logs?limit=5"
                pages: list[list[dict[str, Any]]] = []
                while path is not None:
                    answer = await client.get(path)
                    assert answer.status_code == 200, answer.text
                    pages.append(answer.json())
                    path = answer.links.get("next", {}).get("url")
                assert [len(page) for page in pages] == [5, 5, 4]
                found = [line for page in pages for line in page]
                assert [line["text"] for line in found] == [
                    f"line {number} of attempt {attempt}" for attempt in (1, 2) for number in range(LINES)
                ]
                assert set(found[0]) == {"number", "attempt", "at", "level", "source", "text"}
                assert (found[0]["level"], found[0]["source"], found[0]["at"][-1]) == ("info", "log", "Z")
                second = (await client.get(f"/api/executions/{run.id}/logs?attempt=2")).json()
                assert second == found[LINES:]
                assert (await client.get("/api/executions/none/logs")).status_code == 404
                assert (await client.get(f"/api/executions/{run.id}/logs?attempt=0")).status_code == 422
                assert (await client.get(f"/api/executions/{run.id}/logs?atempt=1")).status_code == 422
    await ms.close()


async def test_a_stream_follows_the_log_until_the_execution_ends() -> None:
    ms = Mainspring("memory://")
    go_on = asyncio.Event()

    @ms.task
    async def talk(ctx: Context) -> None:
        ctx.log("begun")
        await go_on.wait()
        ctx.log("two\nlines")

    async with ms.running():
        run = await talk.enqueue()
        with served(ms) as server:
            async with httpx.AsyncClient(base_url=server.url, timeout=30) as client, asyncio.timeout(30):
                path = f"/api/executions/{run.id}/logs/stream"
                text = ""
                async with client.stream("GET", path) as response:
                    assert response.headers["content-type"].startswith("text/event-stream")
                    async for piece in response.aiter_text():
                        text += piece
                        if "begun" in text:
                            go_on.set()
                events = [
                    dict(field.split(": ", 1) for field in block.split("\n"))
                    for block in text.split("\n\n")
                    if "event" in block
                ]
                assert [event["event"] for event in events] == ["line", "line", "end"]
                assert [json.loads(event["data"])["text"] for event in events[:2]] == ["begun", "two\nlines"]
                assert json.loads(events[2]["data"]) == {"status": "success"}
                rest = await client.get(path, headers={"Last-Event-ID": events[0]["id"]})
                assert "begun" not in rest.text
                assert "two" in rest.text
                assert (await client.get(path, headers={"Last-Event-ID": "x"})).status_code == 422
                assert (await client.get("/api/executions/none/logs/stream")).status_code == 404
                server.app.state.api.stream_slots.max_total = 0
                assert (await client.get(path)).status_code == 503
    await ms.close()
