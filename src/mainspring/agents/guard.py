"""Address guard: keeps the URLs of HTTP agents from reaching addresses that must not be called (SSRF).

A host name is resolved once for a call. All its addresses are checked, and the call connects to a checked address.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from ipaddress import ip_network

from mainspring.agents.addresses import FORBIDDEN_NAMES, Address, Network, embedded_ipv4, judge_address, parse_address
from mainspring.model.errors import InvalidInput, MainspringError
from mainspring.model.http import AgentSettings, host_and_port

#: A function of host and port that returns the addresses of the host, as text.
Resolve = Callable[[str, int], Awaitable[list[str]]]

#: A host name that is not resolved within this time counts as one without an address.
RESOLVE_SECONDS = 3.0


class Forbidden(MainspringError):
    """The guard does not allow a call, because of its port, its host name or an address of the host."""


class Unresolved(MainspringError):
    """The host name has no address, or its address could not be found in time."""


class AddressGuard:
    """Checks hosts, ports and addresses of HTTP agents against the settings of this instance.

    `on_loopback` is True if the instance listens on loopback only: private addresses are then allowed unless
    `allow_private` says otherwise. `resolve` returns the addresses of a host; None: use the system's resolver. Raises:
    InvalidInput if `allow_hosts` contains a network that is not valid.
    """

    def __init__(self, settings: AgentSettings, *, on_loopback: bool = True, resolve: Resolve | None = None) -> None:
        self._private = on_loopback if settings.allow_private is None else settings.allow_private
        self._ports = frozenset(settings.allow_ports) if settings.allow_ports else None
        self._names, self._networks = parse_allow_list(settings.allow_hosts)
        self._resolve = resolve or system_resolve

    def check_port(self, port: int) -> None:
        """Raise Forbidden unless the settings allow the port."""
        if self._ports is not None and port not in self._ports:
            known = ", ".join(str(one) for one in sorted(self._ports))
            raise Forbidden(f"port {port} is not allowed; allowed are {known}. agents.allow_ports may allow it")

    def check_name(self, host: str) -> None:
        """Raise Forbidden if the host name belongs to a cloud metadata service."""
        if host.lower().rstrip(".") in FORBIDDEN_NAMES:
            raise Forbidden(f"{host} is a metadata service, which is never called")

    def check_address(self, text: str, host: str = "") -> str:
        """Return `text` if it is an address that may be called. Raises: Forbidden if it is not.

        A private address is allowed if the settings allow private addresses, or if `allow_hosts` has a network with it
        or its host name `host` ("": not known).
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
        """Return the addresses of a host if all of them may be called at this port.

        Connect to the returned addresses: a second look-up may give others. Raises: Forbidden if the port, the host
        name or one of the addresses may not be called; Unresolved if the host has no address, or none is found in time.
        """
        self.check_port(port)
        self.check_name(host)
        literal = parse_address(host)
        found = [str(literal)] if literal is not None else await self._resolve(host, port)
        if not found:
            raise Unresolved(f"{host} has no address")
        return [self.check_address(text, host) for text in found]

    async def check_url(self, url: str, *, field: str = "url") -> list[str]:
        """Check that this instance may call `url`, a URL that `model.http.check_url` returned.

        Return a list of warnings: one if the host name has no address now, else none. Raises: InvalidInput, which names
        `field`, if this instance may not call it.
        """
        host, port = host_and_port(url)
        try:
            await self.addresses(host, port)
        except Unresolved as error:
            return [f"{field}: {error} now; it is looked up again at every call"]
        except Forbidden as error:
            raise InvalidInput(field, str(error), "Choose another address") from None
        return []


async def system_resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host as the system's resolver finds them. Raises: Unresolved if it finds none in time.

    The resolver turns odd spellings (0x7f000001, 127.1) into plain addresses, which the guard then checks.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError):
        raise Unresolved(f"{host} has no address") from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def parse_allow_list(
    given: tuple[str, ...], field: str = "agents.allow_hosts"
) -> tuple[frozenset[str], tuple[Network, ...]]:
    """Return the host names and the networks in `given`, the setting `allow_hosts`; an address is a network of one.

    Raises: InvalidInput, which names `field`, if a network is not valid.
    """
    names: set[str] = set()
    networks: list[Network] = []
    for one in given:
        if parse_address(one.partition("/")[0]) is None:
            names.add(one.lower().rstrip("."))
            continue
        try:
            networks.append(ip_network(one, strict=False))
        except ValueError as error:
            raise InvalidInput(field, f"{one!r} is not a network: {error}", "Write 10.1.0.0/16") from None
    return frozenset(names), tuple(networks)
