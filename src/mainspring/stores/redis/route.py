"""Where the primary is: at the address given, where a Sentinel says, or at the node that has our slot."""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Callable
from typing import Any

from redis import exceptions
from redis.asyncio import Connection, SSLConnection

from mainspring.model.errors import StoreDenied, StoreError, StoreUnavailable
from mainspring.stores.redis.errors import DRIVER, translate
from mainspring.stores.redis.settings import RedisSettings

_SLOTS = 16_384
_CONNECT_SECONDS = 5.0
#: One that is under way when nobody wants it any more gets so many seconds to end.
_LOGIN_SECONDS = 1.0

Address = tuple[str, int]


def slot_of(tag: str) -> int:
    """The cluster's slot of every key with this hash tag."""
    return binascii.crc_hqx(tag.encode(), 0) % _SLOTS


class Route:
    """Knows how to find the primary, and how to get a connection to any of the servers."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._known: tuple[Address, ...] = settings.hosts

    async def primary(self) -> Address:
        """The server to write to, as it is now."""
        settings = self._settings
        if settings.mode == "server":
            return settings.hosts[0]
        return await self._ask(self._of_sentinel if settings.mode == "sentinel" else self._of_cluster)

    def connection(self, address: Address, *, sentinel: bool = False) -> Connection:
        """A connection, not yet connected."""
        settings = self._settings
        extra: dict[str, Any] = {}
        if settings.tls:
            extra = {
                "ssl_ca_certs": settings.tls_ca,
                "ssl_certfile": settings.tls_cert,
                "ssl_keyfile": settings.tls_key,
                "ssl_cert_reqs": "required" if settings.tls_verify else "none",
                "ssl_check_hostname": settings.tls_verify,
            }
        cls = SSLConnection if settings.tls else Connection
        return cls(
            host=address[0],
            port=address[1],
            db=0 if sentinel else settings.db,
            username=settings.sentinel_user if sentinel else settings.user,
            password=settings.sentinel_password if sentinel else settings.password,
            client_name=settings.client_name,
            protocol=2,
            socket_connect_timeout=_CONNECT_SECONDS,
            # Whoever uses it watches the time: the driver would do it by `wait_for`, which swallows a cancellation
            # that comes with the answer (before Python 3.12) and makes a task of every command.
            socket_timeout=None,
            socket_keepalive=True,
            health_check_interval=0,
            **extra,
        )

    async def _ask(self, ask: Callable[[Address], Any]) -> Address:
        """The first sensible answer of those that know."""
        problem: StoreError | None = None
        for address in self._known:
            try:
                found: Address = await ask(address)
                return found
            except StoreError as error:
                problem = error
            except exceptions.ResponseError as error:  # it is there, and does not know what we ask
                kind = "Sentinel" if self._settings.mode == "sentinel" else "cluster"
                problem = translate(error, f"{address[0]}:{address[1]}")
                if type(problem) is StoreError:
                    problem = StoreError(
                        f"{self._settings.where} is not a {kind} ({error}). Write redis://host:6379/0 for one server"
                    )
            except DRIVER as error:
                problem = translate(error, f"{address[0]}:{address[1]}, asked for {self._settings.where},")
                if isinstance(problem, StoreDenied):
                    raise problem from error
        self._known = self._settings.hosts  # those learned later may be gone for good
        assert problem is not None
        raise problem

    async def _of_sentinel(self, address: Address) -> Address:
        service = self._settings.service
        found = await self._said(address, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
        if found is None:
            known = [
                dict(zip(row[::2], row[1::2], strict=False)) for row in await self._said(address, "SENTINEL", "MASTERS")
            ]
            names = ", ".join(row[b"name"].decode() for row in known) or "none"
            raise StoreError(f"{self._settings.where}: it knows no service {service!r}, only {names}. Correct the URL")
        return found[0].decode(), int(found[1])

    async def _of_cluster(self, address: Address) -> Address:
        wanted = slot_of(self._settings.prefix)
        rows = await self._said(address, "CLUSTER", "SLOTS")
        nodes: list[Address] = []
        answer: Address | None = None
        for first, last, node, *_ in rows:
            place = (node[0].decode() or address[0], int(node[1]))
            nodes.append(place)
            if first <= wanted <= last:
                answer = place
        self._known = (*nodes, *(host for host in self._settings.hosts if host not in nodes))
        if answer is None:
            raise StoreUnavailable(
                f"{self._settings.where}: no node has slot {wanted}, where every key of prefix "
                f"{self._settings.prefix!r} lies. Give it to one: CLUSTER ADDSLOTS {wanted}"
            )
        return answer

    async def _said(self, address: Address, *words: str) -> Any:
        connection = self.connection(address, sentinel=self._settings.mode == "sentinel")
        try:
            await connect(connection)
            async with asyncio.timeout(_CONNECT_SECONDS):
                await connection.send_command(*words)
                return await connection.read_response(disable_decoding=True)
        finally:
            await connection.disconnect()


async def connect(connection: Connection) -> None:
    """Connect, log in, choose the database."""
    # Given up on the way, driver and asyncio leave a socket that speaks TLS to the garbage collector: so it is waited
    # for, and whoever gave up disconnects.
    doing = asyncio.ensure_future(_connect(connection))
    try:
        await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait({doing}, timeout=_LOGIN_SECONDS)
        if doing.done() and not doing.cancelled():
            doing.exception()  # nobody asks for it any more
        raise
    finally:
        doing.cancel()


async def _connect(connection: Connection) -> None:
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            await connection.connect()  # type: ignore[no-untyped-call]  # the driver leaves it untyped
    except TimeoutError as error:
        doubt = ". Does it speak TLS?" if isinstance(connection, SSLConnection) else ""
        raise exceptions.TimeoutError(f"no answer within {_CONNECT_SECONDS:g} s{doubt}") from error
