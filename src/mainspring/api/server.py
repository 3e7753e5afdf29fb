"""The whole service as one ASGI app, and the server that runs it inside a loop of ours."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mainspring.api.access import Access
from mainspring.api.access_log import AccessLog
from mainspring.api.app import build
from mainspring.api.components import Components
from mainspring.api.ops import ops_routes
from mainspring.config.settings import ServeSettings
from mainspring.keys import KeyRing
from mainspring.model.errors import InvalidInput, MainspringError
from mainspring.ports.store import Store

if TYPE_CHECKING:
    from mainspring.app import Mainspring

#: Bytes of a request before its body: 64 headers of a kilobyte, or fewer longer ones.
MAX_HEAD = 64 * 1024
#: Seconds that requests under way have when it is told to stop.
GRACE = 4
_BACKLOG = 1_024


class Service:
    """What listens: the API, the routes for operators, and what stands before them."""

    def __init__(self, ms: Mainspring, settings: ServeSettings) -> None:
        self.components = Components(ms, settings)
        has_api = settings.role in ("all", "api")
        self._inner: Starlette = build(ms, settings) if has_api else Starlette()
        self._inner.router.routes[:0] = ops_routes(self.components)

        def ask(question: Callable[[Store], Awaitable[Any]]) -> Awaitable[Any]:
            async def asked(runtime: Any) -> Any:
                return await question(runtime.store)

            return ms.call(asked)

        self.keys = KeyRing(ask, ms.now)
        self._access = Access(self._inner, settings, self.keys, ms.clock.monotonic)
        self._log = AccessLog(self._access, ms.clock.monotonic, enabled=settings.server.access_log)
        self.app = self._log

    def adopt(self, settings: ServeSettings) -> None:
        """Go on with other settings; a request under way ends with those it began with."""
        self.components.settings = settings
        self._access.settings = settings
        self._log.enabled = settings.server.access_log
        api = getattr(self._inner.state, "api", None)
        if api is not None:
            api.adopt(settings)

    def close_streams(self) -> None:
        """End what would never end by itself."""
        self.components.stopping = True
        api = getattr(self._inner.state, "api", None)
        if api is not None:
            api.closing.set()


class Patient(HttpToolsProtocol):
    """A client that dawdles over a request, or sends a head without end, is cut off."""

    request_timeout = 10.0
    _deadline: asyncio.TimerHandle | None = None
    _head = 0
    _in_head = True

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._hurry()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head += len(data)
            if self._head > MAX_HEAD + 16 * 1024 and self.parser is not None:
                self.send_400_response("The head of the request is too large.")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._hurry()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_HEAD // 4:
            raise ValueError("the URL is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > 100 or len(value) > MAX_HEAD // 4:
            raise ValueError("too many headers, or one that is too long")

    def on_headers_complete(self) -> None:
        self._in_head, self._head = False, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._rest()
        super().on_message_complete()
        self._in_head, self._head = True, 0

    def _hurry(self) -> None:
        self._rest()
        self._deadline = self.loop.call_later(self.request_timeout, self.transport.close)

    def _rest(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class EmbeddedServer(uvicorn.Server):
    """uvicorn on a loop whose signals are somebody else's business."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = asyncio.Event()
        #: It listens.
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """Awake once a second, for the Date header, instead of ten times."""
        while not self.should_exit:
            await self.on_tick(0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._told.wait()

    def stop(self) -> None:
        """Accept nothing more and let requests under way end."""
        self.should_exit = True
        self._told.set()


def make_server(app: Any, settings: ServeSettings) -> EmbeddedServer:
    """A server for sockets that are bound already."""
    timeout = settings.server.request_timeout / 1000
    protocol = type("Patient", (Patient,), {"request_timeout": timeout})
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=max(5, round(timeout)),
        timeout_graceful_shutdown=GRACE,
        backlog=_BACKLOG,
    )
    return EmbeddedServer(config)


def bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on every address of a host; what is wrong is said with the fix."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror:
        raise InvalidInput("server.host", f"{host!r} is not known here", "Give 127.0.0.1, 0.0.0.0 or ::") from None
    sockets: list[socket.socket] = []
    try:
        for family, kind, number, _, address in dict.fromkeys(found):
            one = socket.socket(family, kind, number)
            sockets.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1 if len(found) > 1 else 0)
            place = address if port or len(sockets) == 1 else (address[0], sockets[0].getsockname()[1], *address[2:])
            one.bind(place)
            one.listen(_BACKLOG)
            one.setblocking(False)
    except OSError as error:
        for one in sockets:
            one.close()
        raise MainspringError(_bind_words(host, port, error)) from error
    return sockets


def _bind_words(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use. Stop the program that uses it, or give another: --port {port + 1}"
    if error.errno == errno.EACCES:
        return f"port {port} is not for this user. Give one above 1023: --port 3000"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine. Give 127.0.0.1, or 0.0.0.0 for all of them: --host 0.0.0.0"
    return f"{host}:{port} cannot be listened on: {os.strerror(error.errno or 0)}. Give others with --host and --port"
