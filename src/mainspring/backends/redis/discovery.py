"""Find the primary: the server in the URL, the server that a Sentinel names, or the node with the store's hash slot."""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Callable
from typing import Any

from redis import exceptions
from redis.asyncio import Connection, SSLConnection

from mainspring.backends.redis.errors import DRIVER_ERRORS, translate
from mainspring.backends.redis.settings import RedisSettings
from mainspring.model.errors import StoreDenied, StoreError, StoreUnavailable

#: The number of slots in every cluster.
_SLOTS = 16_384
_CONNECT_TIMEOUT_SECONDS = 5.0
#: How long a cancelled call waits for a connection attempt under way to end.
_ABANDONED_CONNECT_SECONDS = 1.0

Address = tuple[str, int]


def hash_slot(tag: str) -> int:
    """Return the number of the cluster's slot for every key with this hash tag, the part of a key in braces."""
    return binascii.crc_hqx(tag.encode(), 0) % _SLOTS


class Discovery:
    """Finds the primary's address, and creates connections to it and to the other servers of the URL."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        #: Servers to ask for the primary: the servers of the URL, and nodes that the cluster has named.
        self._addresses: tuple[Address, ...] = settings.hosts

    async def find_primary(self) -> Address:
        """Return the address of the server that takes writes now.

        With one server in the URL, it is the address of this server. Otherwise ask the Sentinels or the cluster.
        Raises: StoreError if none of the servers names a primary; StoreDenied if one refuses the user or the password.
        """
        settings = self._settings
        if settings.mode == "server":
            return settings.hosts[0]
        return await self._ask_known_servers(
            self._ask_sentinel if settings.mode == "sentinel" else self._ask_cluster_node
        )

    def create_connection(self, address: Address, *, sentinel: bool = False) -> Connection:
        """Return a driver's connection, not connected yet, to the server at an address.

        With `sentinel`, it will log in with the user and password for Sentinels.
        """
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
            socket_connect_timeout=_CONNECT_TIMEOUT_SECONDS,
            # Callers set their own time-outs. The driver makes its time-out with `wait_for`, which (before Python 3.12)
            # swallows a cancellation that arrives together with the answer, and which makes a task of every command.
            socket_timeout=None,
            socket_keepalive=True,
            health_check_interval=0,
            **extra,
        )

    async def _ask_known_servers(self, ask: Callable[[Address], Any]) -> Address:
        """Call `ask` with the address of each known server until one call returns the primary's address; return it.

        If all servers fail, only the servers of the URL are asked the next time. Raises: StoreError with the last
        failure if all servers fail; StoreDenied at once if a server refuses the user or the password.
        """
        problem: StoreError | None = None
        for address in self._addresses:
            try:
                found: Address = await ask(address)
                return found
            except StoreError as error:
                problem = error
            except exceptions.ResponseError as error:  # it answers, but it is no Sentinel or no cluster node
                kind = "Sentinel" if self._settings.mode == "sentinel" else "cluster"
                problem = translate(error, f"{address[0]}:{address[1]}")
                if type(problem) is StoreError:
                    problem = StoreError(
                        f"{self._settings.where} is not a {kind} ({error}). Write redis://host:6379/0 for one server"
                    )
            except DRIVER_ERRORS as error:
                problem = translate(error, f"{address[0]}:{address[1]}, asked for {self._settings.where},")
                if isinstance(problem, StoreDenied):
                    raise problem from error
        self._addresses = self._settings.hosts  # nodes that the cluster named may not exist any more
        assert problem is not None
        raise problem

    async def _ask_sentinel(self, address: Address) -> Address:
        """Ask a Sentinel for the primary's address, and return it.

        Raises: StoreError if the Sentinel does not know the service of the URL; the driver's errors.
        """
        service = self._settings.service
        found = await self._run_command(address, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
        if found is None:
            known = [
                dict(zip(row[::2], row[1::2], strict=False))
                for row in await self._run_command(address, "SENTINEL", "MASTERS")
            ]
            names = ", ".join(row[b"name"].decode() for row in known) or "none"
            raise StoreError(f"{self._settings.where}: it knows no service {service!r}, only {names}. Correct the URL")
        return found[0].decode(), int(found[1])

    async def _ask_cluster_node(self, address: Address) -> Address:
        """Ask a cluster node for the address of the node that has the store's hash slot, and return this address.

        The next time, the primaries that it reports are asked first, then the servers of the URL. Raises:
        StoreUnavailable if no node has the slot; the driver's errors.
        """
        wanted = hash_slot(self._settings.prefix)
        rows = await self._run_command(address, "CLUSTER", "SLOTS")
        nodes: list[Address] = []
        answer: Address | None = None
        for first, last, node, *_ in rows:
            node_address = (node[0].decode() or address[0], int(node[1]))
            nodes.append(node_address)
            if first <= wanted <= last:
                answer = node_address
        self._addresses = (*nodes, *(host for host in self._settings.hosts if host not in nodes))
        if answer is None:
            raise StoreUnavailable(
                f"{self._settings.where}: no node has slot {wanted}, where every key of prefix "
                f"{self._settings.prefix!r} lies. Give it to one: CLUSTER ADDSLOTS {wanted}"
            )
        return answer

    async def _run_command(self, address: Address, *words: str) -> Any:
        """Send one command on a connection of its own, and return the answer. Raises: the driver's errors."""
        connection = self.create_connection(address, sentinel=self._settings.mode == "sentinel")
        try:
            await connect(connection)
            async with asyncio.timeout(_CONNECT_TIMEOUT_SECONDS):
                await connection.send_command(*words)
                return await connection.read_response(disable_decoding=True)
        finally:
            await connection.disconnect()


async def connect(connection: Connection) -> None:
    """Connect, log in and select the database. Raises: the driver's errors, after which the caller must disconnect.

    A cancelled call waits up to `_ABANDONED_CONNECT_SECONDS` until the attempt under way has ended. Why: otherwise
    driver and asyncio would leave a half-open TLS socket to the garbage collector.
    """
    attempt = asyncio.ensure_future(_connect(connection))
    try:
        await asyncio.shield(attempt)
    except asyncio.CancelledError:
        await asyncio.wait({attempt}, timeout=_ABANDONED_CONNECT_SECONDS)
        if attempt.done() and not attempt.cancelled():
            attempt.exception()  # read the exception, or asyncio logs it as never retrieved
        raise
    finally:
        attempt.cancel()


async def _connect(connection: Connection) -> None:
    """Connect and log in. Raises: the driver's TimeoutError after `_CONNECT_TIMEOUT_SECONDS`, or its other errors."""
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_SECONDS):
            await connection.connect()  # type: ignore[no-untyped-call]  # the driver leaves it untyped
    except TimeoutError as error:
        doubt = ". Does it speak TLS?" if isinstance(connection, SSLConnection) else ""
        raise exceptions.TimeoutError(f"no answer within {_CONNECT_TIMEOUT_SECONDS:g} s{doubt}") from error
