"""A TCP proxy that loses things: connections, whole requests, and answers of what was already done."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """Between a client and a server; told by a test when to be cruel. Lives on the test's loop."""

    def __init__(self, url: str, *, tls: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._parts = parts
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.refusing = False
        self.lost = 0
        #: Says of what a client sends whether the answer (or the request) is to be lost.
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
        """The server's URL, by way of the proxy."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        user = f"{self._parts.username}@" if self._parts.username else ""
        return urlunsplit(self._parts._replace(netloc=f"{user}127.0.0.1:{port}"))

    def lose_answer(self, of: Callable[[bytes], bool] = lambda data: True) -> None:
        """Once: let the next such request through, and close the connection instead of giving the answer."""
        self._lose_answer = of

    def lose_request(self, of: Callable[[bytes], bool] = lambda data: True) -> None:
        """Once: close the connection instead of passing the next such request on."""
        self._lose_request = of

    def cut(self) -> None:
        """Close every connection."""
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
        wanted: Callable[[bytes], bool] | None = getattr(self, name)
        if wanted is None or not wanted(data):
            return False
        setattr(self, name, None)
        self.lost += 1
        return True


class _Link:
    """One client's connection, both ways."""

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
