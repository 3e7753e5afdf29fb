"""HTTP service of a process: the ASGI app with its middleware, and the uvicorn server that runs it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import socket
import sys
import termios
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

#: The most bytes of a request before its body: enough for 64 headers of one KiB.
MAX_HEAD_BYTES = 64 * 1024
#: The most headers of a request.
MAX_REQUEST_HEADERS = 100
#: The most bytes of the value of one header, and of the URL.
MAX_HEADER_BYTES = MAX_HEAD_BYTES // 4
#: Requests under way have this many seconds to end after `stop`; then their connections are closed.
STOP_GRACE_SECONDS = 4
#: The most open connections. A request on a further one is answered with 503.
MAX_CONNECTIONS = 1_000
#: The most connections that the system holds until the server accepts them.
_SOCKET_BACKLOG = 1_024


class HttpService:
    """The parts of a serving process that answer requests: the API, behind the access check and the access log.

    `app` is the ASGI app to serve. In the roles planner and worker it has only the probes `/health` and `/ready`.
    """

    def __init__(self, ms: Mainspring, settings: ServeSettings) -> None:
        self._inner = build(ms, settings)
        self._api: Api = self._inner.state.api

        def with_store(question: Callable[[Store], Awaitable[Any]]) -> Awaitable[Any]:
            """Return an awaitable that calls `question` with the store, on the engine's loop, and gives its result."""

            async def ask(runtime: Any) -> Any:
                return await question(runtime.store)

            return host_of(ms).call(ask)

        self.keys = KeyRing(ms.settings.namespace, with_store, host_of(ms).now)
        self._access = Access(self._inner, settings, self.keys, ms.clock.monotonic)
        self._log = AccessLog(self._access, ms.clock.monotonic, enabled=settings.server.access_log)
        #: The app to serve, with all middleware.
        self.app = self._log

    def adopt(self, settings: ServeSettings) -> None:
        """Use new settings for later requests. A request under way keeps the settings with which it began."""
        self._api.adopt(settings)
        self._access.settings = settings
        self._log.enabled = settings.server.access_log

    def close_streams(self) -> None:
        """Report "not ready" from now on, and end the event streams. Why: a server that stops would wait for them."""
        self._api.health.mark_stopping()
        self._api.closing.set()


class BoundedHttpProtocol(HttpToolsProtocol):
    """HTTP protocol of one connection that limits how long a request may take to arrive, and the size of its head.

    The head is the request line and the headers. A connection whose request arrives too slowly is closed, and so is one
    whose client does not read its answer. If the head is too large, the answer is 400.
    """

    #: Seconds in which a client must send a whole request, head and body, and read some part of an answer that waits.
    request_timeout = 10.0
    _deadline: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    #: Bytes received of the present request until its head was complete.
    _head = 0
    _in_head = True

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.logger = _LoggerOfClient(self.logger, self.client)  # type: ignore[assignment]  # uvicorn only logs with it
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._cancel_stall()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Called when the client reads more slowly than the answer is written: watch that it reads at all."""
        super().pause_writing()
        self._watch_stall(self._unread_bytes())

    def resume_writing(self) -> None:
        self._cancel_stall()
        super().resume_writing()

    def _watch_stall(self, waiting: int) -> None:
        """Abort the connection in `request_timeout` seconds if then still `waiting` bytes wait; else watch on."""

        def check() -> None:
            left = self._unread_bytes()
            if left >= waiting:
                self.transport.abort()
            else:
                self._watch_stall(left)

        self._cancel_stall()
        self._stall = self.loop.call_later(self.request_timeout, check)

    def _unread_bytes(self) -> int:
        """Return the number of bytes that the client has not received: in this process, and in the system's buffer."""
        with contextlib.suppress(OSError, AttributeError):  # a connection that is being closed
            in_system = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
            return self.transport.get_write_buffer_size() + int.from_bytes(in_system, sys.byteorder)
        return 0

    def _cancel_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def data_received(self, data: bytes) -> None:
        """Parse received bytes. If the head is still not complete after `MAX_HEAD_BYTES`, answer 400 and disconnect.

        Bytes of a body that arrive together with the end of the request's head do not count.
        """
        self._head += len(data)
        super().data_received(data)
        if not self._in_head:
            self._head = 0
        elif self._head > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._start_deadline()

    def on_url(self, url: bytes) -> None:
        """Append a received part of the URL. Raises: ValueError if the URL is too long; uvicorn then answers 400."""
        super().on_url(url)
        if len(self.url) > MAX_HEADER_BYTES:
            raise ValueError("the URL is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add one received header. Raises: ValueError if there are too many, or it is too long; uvicorn answers 400."""
        super().on_header(name, value)
        if len(self.headers) > MAX_REQUEST_HEADERS or len(value) > MAX_HEADER_BYTES:
            raise ValueError("too many headers, or one that is too long")

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._cancel_deadline()
        super().on_message_complete()
        self._in_head, self._head = True, 0  # the head of the next request in these bytes, if any, is not counted yet

    def _start_deadline(self) -> None:
        """Close the connection in `request_timeout` seconds, unless `_cancel_deadline` is called before."""
        self._cancel_deadline()
        self._deadline = self.loop.call_later(self.request_timeout, self.transport.close)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _LoggerOfClient(logging.LoggerAdapter[logging.Logger]):
    """Logger that ends each message of a connection with the address of its client."""

    def __init__(self, logger: logging.Logger, client: tuple[str, int] | None) -> None:
        super().__init__(logger)
        self._address = client[0] if client else "-"
        self.level = logger.level

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        return f"{msg} (from {self._address})", kwargs


class EmbeddedServer(uvicorn.Server):
    """uvicorn server without signal handlers of its own. The process that runs it handles signals and calls `stop`."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stop_requested = asyncio.Event()
        #: Set once the server accepts connections.
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections, then set `listening`."""
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers, unlike uvicorn."""
        yield

    async def main_loop(self) -> None:
        """Renew the value of the Date header once a second, until the server is stopped.

        Why: uvicorn's own method wakes ten times a second, which costs an idle service CPU time.
        """
        while not self.should_exit:
            await self.on_tick(0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._stop_requested.wait()

    def stop(self) -> None:
        """Let the server accept no more connections. Requests under way have `STOP_GRACE_SECONDS` to end."""
        self.should_exit = True
        self._stop_requested.set()


def make_server(app: Any, settings: ServeSettings) -> EmbeddedServer:
    """Return a server for the ASGI app `app`, not started. Its method `serve` takes the sockets that `bind` returns."""
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
        limit_concurrency=MAX_CONNECTIONS,
    )
    return EmbeddedServer(config)


def bind(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of a host, all on one port. `port` 0: a port that is free.

    Raises: InvalidInput if the host has no address; MainspringError, with the fix, if a socket cannot be bound.
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
    """Return the text of the error for a socket that could not be bound, with the fix."""
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use. Stop the program that uses it, or give another: --port {port + 1}"
    if error.errno == errno.EACCES:
        return f"this user may not listen on port {port}. Give one above 1023: --port 3000"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine. Give 127.0.0.1, or 0.0.0.0 for all addresses: --host 0.0.0.0"
    return f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}. Give another with --host or --port"
