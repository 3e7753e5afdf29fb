"""Address guard: keeps the URLs of HTTP agents from reaching addresses that must not be called (SSRF).

A host is resolved once, every address is checked, and only checked addresses are connected to.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from ipaddress import ip_network

from mainspring.agents.addresses import NEVER_NAMES, Address, Network, embedded_ipv4, judge_address, parse_address
from mainspring.model.errors import InvalidInput, MainspringError
from mainspring.model.http import AgentSettings, host_and_port

#: (host, port) → the addresses, as text.
Resolve = Callable[[str, int], Awaitable[list[str]]]

#: Time-out of resolving a host name.
RESOLVE_SECONDS = 3.0


class Forbidden(MainspringError):
    """The guard does not allow the call, because of its port, its host name or an address of the host."""


class Unresolved(MainspringError):
    """The host name has no address, or it could not be found in time."""


class AddressGuard:
    """Checks hosts, ports and addresses of HTTP agents against the settings of this instance.

    `on_loopback` is True if the instance listens on loopback only: private addresses are then allowed by default.
    `resolve` returns the addresses of a host; None: the system's resolver. Raises: InvalidInput for `allow_hosts`.
    """

    def __init__(self, settings: AgentSettings, *, on_loopback: bool = True, resolve: Resolve | None = None) -> None:
        self._private = on_loopback if settings.allow_private is None else settings.allow_private
        self._ports = None if settings.allow_ports is None else frozenset(settings.allow_ports)
        self._names, self._networks = _allow_list(settings.allow_hosts)
        self._resolve = resolve or system_resolve

    def check_port(self, port: int) -> None:
        """Raise Forbidden unless the settings allow the port."""
        if self._ports is not None and port not in self._ports:
            known = ", ".join(str(one) for one in sorted(self._ports))
            raise Forbidden(f"port {port} is not among agents.allow_ports ({known})")

    def check_name(self, host: str) -> None:
        """Raise Forbidden if the host name is that of a metadata service."""
        if host.lower().rstrip(".") in NEVER_NAMES:
            raise Forbidden(f"{host} is a metadata service, which is never called")

    def check_address(self, text: str, host: str = "") -> str:
        """Return the address in `text` if it may be called. Raises: Forbidden.

        `host` is the name that was resolved to it: a name in `allow_hosts` allows its private addresses, too.
        """
        address = parse_address(text)
        if address is None:
            raise Forbidden(f"{text!r} is not an address")
        verdict = judge_address(address)
        shown = text if host in ("", text) else f"{host} ({text})"
        if verdict == "never":
            raise Forbidden(f"{shown} is a link-local, metadata or otherwise special address, which is never called")
        if verdict == "private" and not (self._private or self._listed(host, address)):
            raise Forbidden(
                f"{shown} is a loopback or private address; agents.allow_private or agents.allow_hosts may allow it"
            )
        return text

    def _listed(self, host: str, address: Address) -> bool:
        """Return True if `allow_hosts` has the host name, or a network with the address."""
        real = embedded_ipv4(address)
        return host.lower().rstrip(".") in self._names or any(real in network for network in self._networks)

    async def addresses(self, host: str, port: int) -> list[str]:
        """Resolve a host once and return its addresses, if port, name and all addresses may be called.

        Raises: Forbidden, Unresolved.
        """
        self.check_port(port)
        self.check_name(host)
        literal = parse_address(host)
        found = [str(literal)] if literal is not None else await self._resolve(host, port)
        if not found:
            raise Unresolved(f"{host} has no address")
        return [self.check_address(text, host) for text in found]

    async def check_url(self, url: str, *, field: str = "url") -> list[str]:
        """Return warnings about a URL that may be called: one if its host name has no address yet, else none.

        Raises: InvalidInput, which names `field`, for a URL that this instance may not call.
        """
        host, port = host_and_port(url)
        try:
            await self.addresses(host, port)
        except Unresolved as error:
            return [f"{field}: {error} now; it is looked up again at every call"]
        except Forbidden as error:
            raise InvalidInput(field, str(error), "Choose another address, or have the operator allow it") from None
        return []


async def system_resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host by the system's resolver. Raises: Unresolved.

    The resolver turns odd spellings (0x7f000001, 127.1) into plain addresses, which the guard then checks.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError):
        raise Unresolved(f"{host} has no address") from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _allow_list(given: tuple[str, ...]) -> tuple[frozenset[str], tuple[Network, ...]]:
    """Return the names and the networks in `allow_hosts`; one address counts as a network. Raises: InvalidInput."""
    names: set[str] = set()
    networks: list[Network] = []
    for one in given:
        if parse_address(one.partition("/")[0]) is None:
            names.add(one.lower().rstrip("."))
            continue
        try:
            networks.append(ip_network(one, strict=False))
        except ValueError as error:
            raise InvalidInput(
                "agents.allow_hosts", f"{one!r} is not a network: {error}", "Write 10.1.0.0/16"
            ) from None
    return frozenset(names), tuple(networks)
