"""Address of the client that sent a request: that of its connection, or the one that a trusted proxy reports."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Addresses of one IPv6 network of this length count as one client for the rate limit: a client has at least as many.
IPV6_CLIENT_BITS = 64


def find_client(peer: str, headers: Iterable[tuple[bytes, bytes]], trusted: Sequence[str]) -> str:
    """Return the address of a request's client. `peer`: that of its connection. `trusted`: networks of proxies.

    If the peer is a trusted proxy, the client is the last address in `X-Forwarded-For` that is no trusted proxy: a
    client can write any address before it. If that header has none, the client is the peer.
    """
    networks = [ipaddress.ip_network(one) for one in trusted]
    client = read_address(peer)
    if client is None or not _is_in(client, networks):
        return peer
    chain = ",".join(value.decode("latin-1") for name, value in headers if name.lower() == b"x-forwarded-for")
    for part in reversed(chain.split(",")):
        found = read_address(part.strip())
        if found is None:
            break
        client = found
        if not _is_in(client, networks):
            break
    return str(client)


def rate_bucket(address: str) -> str:
    """Return the name under which the rate limit counts the requests of an address: itself, or its IPv6 network."""
    found = read_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, IPV6_CLIENT_BITS), strict=False))
    return address if found is None else str(found)


def read_address(text: str) -> IpAddress | None:
    """Return the address in a text, which may have a port: 192.0.2.1, 192.0.2.1:80, [2001:db8::1]:80. None: no address.

    An IPv4 address that is written as IPv6 (::ffff:192.0.2.1) is returned as IPv4.
    """
    host = text
    if text.startswith("["):
        host = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        host = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, ipaddress.IPv6Address) else found


def _is_in(address: IpAddress, networks: Sequence[IpNetwork]) -> bool:
    return any(address in network for network in networks)
