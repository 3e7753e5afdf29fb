"""A real agent in a process of its own, which writes down every call it gets; and what tests need to talk about it.

python agent_process.py LOG [--port N]          prints its port and answers until its input ends
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import gzip
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

MEGABYTE = 1024 * 1024


class Agent:
    """Paths say how to behave: see `routes`."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("ab", buffering=0)
        self._calls: collections.Counter[tuple[str, str]] = collections.Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.route("*", "/ok{tail:.*}", self.ok),
            web.route("*", "/status/{code}", self.status),
            web.route("*", "/slow/{seconds}", self.slow),
            web.route("*", "/big", self.big),
            web.route("*", "/drip", self.drip),
            web.route("*", "/bomb", self.bomb),
            web.route("*", "/echo", self.echo),
            web.route("*", "/accept/{then}", self.accept),
        ]

    async def note(self, request: web.Request) -> int:
        """Write the call down; how often this key came to this path."""
        body = await request.read()
        key = request.headers.get("Idempotency-Key", "")
        self._calls[request.path, key] += 1
        said = {
            "at": time.time(),
            "path": request.path,
            "query": request.query_string,
            "method": request.method,
            "key": key,
            "count": self._calls[request.path, key],
            "headers": dict(request.headers),
            "body": body.decode(),
        }
        self._log.write(json.dumps(said).encode() + b"\n")
        return self._calls[request.path, key]

    async def ok(self, request: web.Request) -> web.Response:
        await self.note(request)
        return web.json_response({"ok": True})

    async def status(self, request: web.Request) -> web.Response:
        """The code, at first `times` times for each key, then 200; with the headers of the query."""
        count = await self.note(request)
        times = int(request.query.get("times", "1000000"))
        if count > times:
            return web.json_response({"ok": True})
        headers = {name: value for name, value in request.query.items() if name in ("Retry-After", "Location")}
        return web.Response(status=int(request.match_info["code"]), text="no", headers=headers)

    async def slow(self, request: web.Request) -> web.Response:
        count = await self.note(request)
        if count <= int(request.query.get("times", "1000000")):
            await asyncio.sleep(float(request.match_info["seconds"]))
        return web.json_response({"ok": True})

    async def big(self, request: web.Request) -> web.StreamResponse:
        await self.note(request)
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            for _ in range(10):
                await response.write(b"x" * MEGABYTE)
        return response

    async def drip(self, request: web.Request) -> web.StreamResponse:
        """A body that never ends, a byte at a time."""
        await self.note(request)
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b".")
                await asyncio.sleep(0.05)
        return response

    async def bomb(self, request: web.Request) -> web.Response:
        await self.note(request)
        data = gzip.compress(bytes(50 * MEGABYTE), 9)
        return web.Response(body=data, headers={"Content-Encoding": "gzip", "Content-Type": "text/plain"})

    async def echo(self, request: web.Request) -> web.Response:
        """An agent that repeats what it was told, secrets too."""
        await self.note(request)
        said = dict(request.headers) | ({"said": request.query["token"]} if "token" in request.query else {})
        return web.json_response(said, status=int(request.query.get("status", "200")))

    async def accept(self, request: web.Request) -> web.Response:
        """202; then what the path says, at the callback URL."""
        count = await self.note(request)
        then, times = request.match_info["then"], int(request.query.get("times", "1000000"))
        if count > times:
            then = "complete"
        task = asyncio.create_task(self._then(then, request.headers["X-Callback-Url"], _bearer(request)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return web.Response(status=202)

    async def _then(self, then: str, url: str, headers: dict[str, str]) -> None:
        async with aiohttp.ClientSession(headers=headers) as session:
            for verb in then.split("-"):
                if verb == "silence":
                    return
                if verb.isdigit():  # milliseconds
                    await asyncio.sleep(int(verb) / 1000)
                    continue
                async with session.post(f"{url}/{verb}", json=_SAID[verb]) as answer:
                    text = await answer.text()
                said = {"at": time.time(), "path": f"callback/{verb}", "status": answer.status, "answer": text}
                self._log.write(json.dumps(said).encode() + b"\n")


_SAID: dict[str, Any] = {
    "heartbeat": None,
    "progress": {"fraction": 0.5, "message": "half"},
    "complete": {"rows": 3},
    "fail": {"error": "no paper left", "retry": False},
}


def _bearer(request: web.Request) -> dict[str, str]:
    return {"Authorization": f"Bearer {request.headers['X-Callback-Token']}"}


async def serve(log: Path, port: int) -> None:
    app = web.Application(client_max_size=64 * MEGABYTE)
    app.add_routes(Agent(log).routes())
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, reuse_address=True)
    await site.start()
    assert runner.addresses
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


# ── what tests use ─────────────────────────────────────────────────────────


class AgentProcess:
    """The agent, seen from a test."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.log = folder / "agent.log"
        self.log.touch()
        command = [sys.executable, __file__, str(self.log), "--port", str(port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self._read = 0

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def calls(self, path: str | None = None, key: str | None = None) -> list[dict[str, Any]]:
        """What the agent wrote down."""
        whole = self.log.read_text().rpartition("\n")[0]  # it may be writing a line right now
        lines = [json.loads(line) for line in whole.splitlines()]
        return [
            one for one in lines if (path is None or one["path"] == path) and (key is None or one.get("key") == key)
        ]

    async def until(self, count: int, path: str | None = None, key: str | None = None) -> list[dict[str, Any]]:
        """Wait until this number of calls is written down."""
        async with asyncio.timeout(20):
            while len(found := self.calls(path, key)) < count:  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.02)
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextlib.contextmanager
def agent(folder: Path) -> Iterator[AgentProcess]:
    """A running agent."""
    process = AgentProcess(folder)
    try:
        yield process
    finally:
        process.close()


@contextlib.asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """An ASGI application behind a real port of this process; its address."""
    import uvicorn

    config = uvicorn.Config(app, port=0, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - it has no event for it
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("log", type=Path)
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    asyncio.run(serve(given.log, given.port))
