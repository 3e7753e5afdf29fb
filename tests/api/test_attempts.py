"""Attempts of an execution over REST: each has its own times, its answer, its error and the traceback of the error."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from mainspring import AgentSettings, Http, Mainspring, Retry
from tests.server.serving import served


async def details(ms: Mainspring, run_id: str) -> dict[str, Any]:
    with served(ms) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
            found: dict[str, Any] = (await client.get(f"/api/executions/{run_id}")).json()
            return found


async def test_every_attempt_has_its_answer_also_those_that_failed() -> None:
    answers = iter([b"503 Busy", b"409 Conflict"])

    async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        status = next(answers)
        body = b"body of " + status
        writer.write(b"HTTP/1.1 %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % (status, len(body)))
        writer.write(body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(agent, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        ms = Mainspring("memory://", agents=AgentSettings(allow_private=True))
        async with ms.running():
            retry = Retry(max_attempts=3, initial="1ms", jitter=0)
            await ms.schedule("call", Http(url), every="1h", retry=retry)
            run = await ms.trigger("call")
            async with asyncio.timeout(20):
                while await run.state() != "failed":  # noqa: ASYNC110 - `result` would raise
                    await asyncio.sleep(0.01)
            found = await details(ms, run.id)
        await ms.close()
    first, second = found["attemptDetails"]
    assert (first["status"], first["response"]["status"]) == ("retrying", 503)
    assert first["response"]["body"] == "body of 503 Busy"
    assert (second["status"], second["response"]["status"]) == ("failed", 409)
    assert second["response"]["body"] == "body of 409 Conflict"
    assert found["response"] == second["response"]
    assert first["startedAt"] <= first["endedAt"] <= second["startedAt"] <= second["endedAt"]


async def test_a_traceback_is_shown_for_each_failure_and_the_result_of_a_task_for_its_success() -> None:
    ms = Mainspring("memory://")
    tries = iter("ab")

    @ms.task(retry=Retry(max_attempts=2, initial="1ms", jitter=0))
    async def work() -> dict[str, int]:
        if next(tries) == "a":
            raise ValueError("no paper left")
        return {"pages": 3}

    async with ms.running():
        run = await work.enqueue()
        await run.result(timeout="20s")
        found = await details(ms, run.id)
    await ms.close()
    failed, succeeded = found["attemptDetails"]
    assert 'raise ValueError("no paper left")' in failed["trace"]
    assert (failed["error"], failed["response"]) == ("ValueError: no paper left", None)
    assert (succeeded["trace"], succeeded["response"]) == (None, {"pages": 3})
    assert failed["endedAt"] <= succeeded["startedAt"]
