"""Agents that attack the service with their answers: the call fails, and the event loop of the calls goes on."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from mainspring import AgentSettings, Http, Mainspring, Retry, RunNotSuccessful
from mainspring.executors.bounded_connector import MAX_INFORMATIONAL

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class RawAgent:
    """Server that reads the head of a request, then sends `interim` informational responses and perhaps an answer."""

    def __init__(self, interim: int | None) -> None:
        self._interim = interim
        self.sent = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            if self._interim is not None:
                writer.write(INTERIM * self._interim + ANSWER)
                await writer.drain()
                await reader.read()
            while self._interim is None:
                writer.write(INTERIM * 1_000)
                self.sent += 1_000
                await writer.drain()
        writer.close()


async def call(agent: RawAgent) -> str:
    """Call the agent once; return the error of the run, or its body if it succeeded."""
    server = await asyncio.start_server(agent.answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    ms = Mainspring("memory://", agents=AgentSettings(allow_private=True))
    async with ms.running():
        await ms.schedule("x", Http(f"http://127.0.0.1:{port}/"), every="1h", retry=Retry(max_attempts=1))
        try:
            result = await (await ms.trigger("x")).result("30s")
        except RunNotSuccessful as failed:
            return str(failed)
        finally:
            server.close()
    return str(result.body)


async def test_an_agent_that_never_stops_to_say_continue_fails_and_the_loop_goes_on() -> None:
    agent = RawAgent(None)
    error = await call(agent)
    assert f"more than {MAX_INFORMATIONAL} informational responses" in error
    assert agent.sent < 200_000


@pytest.mark.parametrize("count", [0, 1, MAX_INFORMATIONAL])
async def test_some_informational_responses_before_the_answer_are_skipped(count: int) -> None:
    assert await call(RawAgent(count)) == "ok"
