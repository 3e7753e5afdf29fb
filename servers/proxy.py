"""A TCP proxy with faults: it cuts connections, and loses requests, or the answers to requests that were executed."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """Forwards bytes between clients and the server at `url`, with the faults that a test orders.

    `tls`: the context with which the proxy accepts clients; None: without TLS. Thread: the test's loop.
    """

    def __init__(self, url: str, *, tls: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._parts = parts
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        #: True: close each new connection at once.
        self.refusing = False
        #: Number of requests and answers lost until now.
        self.lost = 0
        #: Given bytes from a client, return True if this is the request whose answer, or which itself, is to be lost.
        self._lose_answer: Callable[[bytes], bool] | None = None
        self._lose_request: Callable[[bytes], bool] | None = None

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._client, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        """The URL that leads to the server through this proxy."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        user = f"{self._parts.username}@" if self._parts.username else ""
        return urlunsplit(self._parts._replace(netloc=f"{user}127.0.0.1:{port}"))

    def lose_answer(self, of: Callable[[bytes], bool] = lambda data: True) -> None:
        """Forward the next request for which `of(bytes)` is true, and close the connection when its answer comes."""
        self._lose_answer = of

    def lose_request(self, of: Callable[[bytes], bool] = lambda data: True) -> None:
        """Close the connection at the next request for which `of(bytes)` is true, without forwarding the request."""
        self._lose_request = of

    def cut(self) -> None:
        """Reset every open connection."""
        for writer in list(self._writers):
            with contextlib.suppress(RuntimeError):
                writer.transport.abort()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            if self.refusing:
                return
            up_reader, up_writer = await asyncio.open_connection(*self._upstream)
            self._writers.add(up_writer)
            link = _Link(self, reader, writer, up_reader, up_writer)
            await link.carry()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(task)

    def _take(self, name: str, data: bytes) -> bool:
        """Return True, once, if the fault in the attribute `name` is ordered for the request `data`."""
        wanted: Callable[[bytes], bool] | None = getattr(self, name)
        if wanted is None or not wanted(data):
            return False
        setattr(self, name, None)
        self.lost += 1
        return True


class _Link:
    """One client's connection through the proxy, in both directions."""

    def __init__(
        self,
        proxy: Proxy,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._reader, self._writer = reader, writer
        self._up_reader, self._up_writer = up_reader, up_writer
        self._deaf = False

    async def carry(self) -> None:
        """Forward bytes in both directions until one side closes or a fault ends the connection."""
        ways = [asyncio.create_task(self._there()), asyncio.create_task(self._back())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._proxy._writers.discard(self._up_writer)
            self._up_writer.transport.abort()

    async def _there(self) -> None:
        while data := await self._reader.read(65_536):
            if self._proxy._take("_lose_request", data):
                return
            self._deaf = self._deaf or self._proxy._take("_lose_answer", data)
            self._up_writer.write(data)
            await self._up_writer.drain()

    async def _back(self) -> None:
        while data := await self._up_reader.read(65_536):
            if self._deaf:
                return
            self._writer.write(data)
            await self._writer.drain()
