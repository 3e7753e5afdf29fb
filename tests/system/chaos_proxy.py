"""A TCP proxy before PostgreSQL with faults on request: cut, swallow, delay, and "COMMIT sent, answer lost".

It understands enough of the frontend protocol to see a commit: the simple query COMMIT, or the Sync after a statement
that writes and is a transaction of its own. In the proof it is a separate process with one port for each instance
(`serve`), controlled by lines on a control port (`Remote`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Any

_SSL_REQUEST = 80_877_103
_WRITES = re.compile(rb"\b(INSERT INTO|UPDATE|DELETE FROM)\b")
_AT_ONCE = struct.pack("ii", 1, 0)


class Frontend:
    """Parser of a client's bytes: splits them into messages and recognises the messages that commit."""

    def __init__(self) -> None:
        self._rest = b""
        self._started = False
        self._statements: dict[bytes, bool] = {}
        self._bound = False
        #: The next byte of the server stands alone: its answer to the question for TLS.
        self.asked_for_tls = False
        #: Transaction state as last reported by the server: I (none), T (open) or E (failed).
        self.transaction = b"I"

    def messages(self, data: bytes) -> Iterable[tuple[bytes, bool]]:
        """Yield complete messages, each with True if it commits."""
        self._rest += data
        head = 5 if self._started else 4
        while len(self._rest) >= head:
            length = int.from_bytes(self._rest[head - 4 : head], "big") + head - 4
            if len(self._rest) < length:
                return
            message, self._rest = self._rest[:length], self._rest[length:]
            yield message, self._started and self._commits(message)
            if not self._started:
                self.asked_for_tls = int.from_bytes(message[4:8], "big") == _SSL_REQUEST
                self._started = not self.asked_for_tls
            head = 5 if self._started else 4

    def _commits(self, message: bytes) -> bool:
        kind, body = message[:1], message[5:]
        if kind == b"Q":
            return body.lstrip()[:6].upper() == b"COMMIT"
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self._statements[name] = _WRITES.search(text) is not None
        elif kind == b"B":
            name = body.split(b"\0", 2)[1]
            self._bound = self._bound or self._statements.get(name, False)
        elif kind == b"S":
            commits, self._bound = self._bound and self.transaction == b"I", False
            return commits
        return False


class Link:
    """One client connection and its connection to the server."""

    def __init__(self, proxy: ChaosProxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.proxy = proxy
        self.client = client
        self.server = server
        self.frontend = Frontend()
        #: True after bytes were swallowed: the connection cannot be used any more.
        self.lost_bytes = False
        #: True while a commit is at the server whose answer must not reach the client.
        self.losing = False
        self._from_server = b""

    async def upstream(self, reader: asyncio.StreamReader) -> None:
        """Pass data from the client to the server."""
        while data := await reader.read(65_536):
            for message, commits in self.frontend.messages(data):
                if not await self.proxy.passes(self):
                    continue
                if commits and self.proxy.lose_commits > 0:
                    self.proxy.lose_commits -= 1
                    self.losing = True
                self.server.write(message)
                await self.server.drain()

    async def downstream(self, reader: asyncio.StreamReader) -> None:
        """Pass data from the server to the client; if the answer to a commit must be lost, stop when it arrives."""
        while data := await reader.read(65_536):
            done = self._watch(data)
            if self.losing:
                if done:
                    self.proxy.lost += 1
                    self.cut()
                    return
            elif await self.proxy.passes(self):
                self.client.write(data)
                await self.client.drain()

    def _watch(self, data: bytes) -> bool:
        """Return True if the server reported that it is ready for the next query; record the transaction state."""
        self._from_server += data
        ready = False
        if self.frontend.asked_for_tls:
            self.frontend.asked_for_tls = False
            self._from_server = self._from_server[1:]
        while len(self._from_server) >= 5:
            length = int.from_bytes(self._from_server[1:5], "big") + 1
            if len(self._from_server) < length:
                break
            if self._from_server[:1] == b"Z":
                self.frontend.transaction, ready = self._from_server[5:6], True
            self._from_server = self._from_server[length:]
        return ready

    def cut(self) -> None:
        """Close both directions with a reset."""
        for writer in (self.client, self.server):
            sock = writer.get_extra_info("socket")
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            writer.transport.abort()


class ChaosProxy:
    """One listening port before one server, with its faults."""

    def __init__(self, server_port: int, host: str = "127.0.0.1", link: type[Link] = Link) -> None:
        self._host = host
        self._link = link
        self._server_port = server_port
        self._listener: asyncio.Server | None = None
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        #: Delay of each piece of data, in seconds.
        self.delay = 0.0
        #: True: connections are accepted and their data is discarded.
        self.swallowing = False
        #: True: new connections are refused at once.
        self.refusing = False
        #: Number of next commits whose answers will be lost, and number of answers lost until now.
        self.lose_commits = 0
        self.lost = 0

    async def start(self) -> int:
        """Listen and return the port."""
        self._listener = await asyncio.start_server(self._accept, self._host, 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self.port

    async def close(self) -> None:
        """Stop listening and reset every connection."""
        if self._listener is not None:
            self._listener.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> int:
        """Reset every connection and return their number."""
        links = list(self._links)
        for link in links:
            link.cut()
        return len(links)

    def swallow(self) -> None:
        """Discard all data from now on."""
        self.swallowing = True

    def heal(self) -> None:
        """End all faults. Connections that lost bytes are reset, as by a peer that does not know them any more."""
        self.swallowing = self.refusing = False
        self.delay = 0.0
        self.lose_commits = 0
        for link in list(self._links):
            if link.lost_bytes:
                link.cut()

    async def passes(self, link: Link) -> bool:
        """Wait for the delay, then return True if the data may be passed on."""
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.swallowing:
            link.lost_bytes = True
        return not link.lost_bytes

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            if self.refusing:
                raise ConnectionRefusedError
            from_server, to_server = await asyncio.open_connection(self._host, self._server_port)
        except OSError:
            writer.transport.abort()
            return
        link = self._link(self, writer, to_server)
        self._links.add(link)
        pumps = [asyncio.ensure_future(link.upstream(reader)), asyncio.ensure_future(link.downstream(from_server))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._links.discard(link)
            for end in (writer, to_server):
                end.transport.abort()


# ── a process of its own ────────────────────────────────────────────────────


async def serve(server_port: int, ports: int, tell: Callable[[dict[str, Any]], None], link: type[Link] = Link) -> None:
    """Run proxies with one port each until cancelled; call `tell` with the control port and their ports."""
    proxies = [ChaosProxy(server_port, link=link) for _ in range(ports)]
    for proxy in proxies:
        await proxy.start()

    async def obey(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                writer.write(json.dumps(_obey(proxies, **json.loads(line))).encode() + b"\n")
                await writer.drain()
        writer.close()

    control = await asyncio.start_server(obey, "127.0.0.1", 0)
    tell({"control": control.sockets[0].getsockname()[1], "ports": [proxy.port for proxy in proxies]})
    await control.serve_forever()


def _obey(proxies: list[ChaosProxy], word: str, which: list[int] | None, value: float) -> int:
    """Carry out one command on some of the proxies and return the sum of their answers."""
    total = 0
    for proxy in proxies if which is None else [proxies[index] for index in which]:
        if word == "cut":
            total += proxy.cut()
        elif word == "swallow":
            proxy.swallow()
        elif word == "delay":
            proxy.delay = value
        elif word == "lose":
            proxy.lose_commits = int(value)
        elif word == "heal":
            proxy.heal()
        elif word == "lost":
            total += proxy.lost
        else:
            raise ValueError(word)
    return total


class Remote:
    """Blocking client of the control port."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.ports: list[int] = told["ports"]
        self._control = told["control"]

    def tell(self, word: str, which: list[int] | None = None, value: float = 0.0) -> int:
        """Send a command for some of the proxies, or all, and return the answer."""
        with socket.create_connection(("127.0.0.1", self._control), timeout=10) as sock:
            sock.sendall(json.dumps({"word": word, "which": which, "value": value}).encode() + b"\n")
            return int(json.loads(sock.makefile().readline()))
