"""HTTP service of a process: the ASGI app with its middlewares, and the uvicorn server that runs it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mainspring.api.app import build
from mainspring.api.context import Api
from mainspring.app.internals import host_of
from mainspring.config.settings import ServeSettings
from mainspring.model.errors import InvalidInput, MainspringError
from mainspring.ports.store import Store
from mainspring.server.access import Access
from mainspring.server.access_log import AccessLog
from mainspring.service.api_keys import KeyRing

if TYPE_CHECKING:
    from mainspring.app.mainspring import Mainspring

#: Most bytes of a request before its body: 64 headers of one KiB, or fewer longer ones.
MAX_HEAD_BYTES = 64 * 1024
#: Most headers of a request.
MAX_HEADERS = 100
#: Most bytes of one header's value, and of the URL.
MAX_HEADER_BYTES = MAX_HEAD_BYTES // 4
#: Requests under way have this long to end after `stop`; then their connections are closed.
STOP_GRACE_SECONDS = 4
#: Connections that the system holds until the server accepts them.
_SOCKET_BACKLOG = 1_024


class HttpService:
    """ASGI app of a serving process: the API, behind the access check and the access log.

    For the roles planner and worker it has only the probes, `/health` and `/ready`, in place of the API.
    """

    def __init__(self, ms: Mainspring, settings: ServeSettings) -> None:
        self._inner = build(ms, settings)
        self._api: Api = self._inner.state.api

        def with_store(question: Callable[[Store], Awaitable[Any]]) -> Awaitable[Any]:
            """Return what `question(store)` returns; it is called on the engine's loop."""

            async def ask(runtime: Any) -> Any:
                return await question(runtime.store)

            return host_of(ms).call(ask)

        self.keys = KeyRing(with_store, host_of(ms).now)
        self._access = Access(self._inner, settings, self.keys, ms.clock.monotonic)
        self._log = AccessLog(self._access, ms.clock.monotonic, enabled=settings.server.access_log)
        #: The app to serve, with all middleware.
        self.app = self._log

    def adopt(self, settings: ServeSettings) -> None:
        """Use new settings for the requests that follow; a request under way keeps those it began with."""
        self._api.adopt(settings)
        self._access.settings = settings
        self._log.enabled = settings.server.access_log

    def close_streams(self) -> None:
        """Report "not ready" from now on, and end the event streams: the server would wait for them when it stops."""
        self._api.health.mark_stopping()
        self._api.closing.set()


class BoundedHttpProtocol(HttpToolsProtocol):
    """HTTP protocol of one connection, with limits on the time in which a request arrives and the size of its head.

    A connection whose request arrives too slowly is closed. A head (request line and headers) that is too large is
    answered with 400.
    """

    #: Seconds that a client has to send a request, head and body.
    request_timeout = 10.0
    _deadline: asyncio.TimerHandle | None = None
    #: Bytes received of the present request while its head was not complete.
    _head = 0
    _in_head = True

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; answer 400 if too many have arrived and the head is not parsed yet.

        Bytes of a body that arrive in one read with the head are counted, too.
        """
        if self._in_head:
            self._head += len(data)
            if self._head > MAX_HEAD_BYTES + 16 * 1024 and self.parser is not None:
                self.send_400_response("The head of the request is too large.")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._start_deadline()

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL. Raises: ValueError, which uvicorn answers with 400, if the URL is too long."""
        super().on_url(url)
        if len(self.url) > MAX_HEADER_BYTES:
            raise ValueError("the URL is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header. Raises: ValueError, which uvicorn answers with 400, for too many or too long a header."""
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS or len(value) > MAX_HEADER_BYTES:
            raise ValueError("too many headers, or one that is too long")

    def on_headers_complete(self) -> None:
        self._in_head, self._head = False, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._cancel_deadline()
        super().on_message_complete()
        self._in_head, self._head = True, 0

    def _start_deadline(self) -> None:
        """Close the connection in `request_timeout` seconds, unless `_cancel_deadline` is called before."""
        self._cancel_deadline()
        self._deadline = self.loop.call_later(self.request_timeout, self.transport.close)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class EmbeddedServer(uvicorn.Server):
    """uvicorn server that installs no signal handlers: the process that runs it does, and calls `stop`."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stop_requested = asyncio.Event()
        #: Set once the server accepts connections.
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, then set `listening`."""
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers, unlike uvicorn."""
        yield

    async def main_loop(self) -> None:
        """Renew the Date header once a second until the server is stopped.

        Why: the method of uvicorn wakes ten times a second, which costs an idle service CPU.
        """
        while not self.should_exit:
            await self.on_tick(0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._stop_requested.wait()

    def stop(self) -> None:
        """Accept no more connections; requests under way have `STOP_GRACE_SECONDS` to end."""
        self.should_exit = True
        self._stop_requested.set()


def make_server(app: Any, settings: ServeSettings) -> EmbeddedServer:
    """Return a server for `app`, not started; its `serve` takes sockets that are bound already, see `bind`."""
    timeout = settings.server.request_timeout / 1000
    protocol = type("ConfiguredHttpProtocol", (BoundedHttpProtocol,), {"request_timeout": timeout})
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
        timeout_graceful_shutdown=STOP_GRACE_SECONDS,
        backlog=_SOCKET_BACKLOG,
    )
    return EmbeddedServer(config)


def bind(host: str, port: int) -> list[socket.socket]:
    """Return one listening socket for each address of a host; port 0 stands for any free port, one for all of them.

    Raises: InvalidInput for an unknown host, MainspringError with the fix if an address or port cannot be had.
    """
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror:
        raise InvalidInput("server.host", f"{host!r} has no address", "Give 127.0.0.1, 0.0.0.0 or ::") from None
    sockets: list[socket.socket] = []
    try:
        for family, kind, number, _, address in dict.fromkeys(found):
            listener = socket.socket(family, kind, number)
            sockets.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1 if len(found) > 1 else 0)
            bound = address if port or len(sockets) == 1 else (address[0], sockets[0].getsockname()[1], *address[2:])
            listener.bind(bound)
            listener.listen(_SOCKET_BACKLOG)
            listener.setblocking(False)
    except OSError as error:
        for opened in sockets:
            opened.close()
        raise MainspringError(_bind_problem(host, port, error)) from error
    return sockets


def _bind_problem(host: str, port: int, error: OSError) -> str:
    """Return the error text for a socket that could not be bound, with the fix."""
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use. Stop the program that uses it, or give another: --port {port + 1}"
    if error.errno == errno.EACCES:
        return f"this user may not listen on port {port}. Give one above 1023: --port 3000"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine. Give 127.0.0.1, or 0.0.0.0 for all addresses: --host 0.0.0.0"
    return f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}. Give another with --host or --port"
