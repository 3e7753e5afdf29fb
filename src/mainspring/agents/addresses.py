"""Which addresses may be called: an own table, because "global" means too much elsewhere."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Literal

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Verdict = Literal["public", "private", "never"]

#: Cloud metadata services, link-local and what is no host at all. Nothing allows these.
_NEVER = (
    "0.0.0.0/8",
    "100.100.100.200/32",  # Alibaba's metadata
    "168.63.129.16/32",  # Azure's
    "169.254.0.0/16",  # link-local, and everybody else's metadata
    "192.0.0.0/24",  # among them Oracle's metadata, 192.0.0.192
    "224.0.0.0/4",
    "240.0.0.0/4",
    "::/128",
    "64:ff9b::/96",  # these four carry an IPv4 address that nobody has judged
    "64:ff9b:1::/48",
    "2002::/16",
    "2001::/32",
    "fd00:ec2::254/128",  # Amazon's metadata
    "fd20:ce::254/128",  # Google's
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
)
#: Loopback and networks of one's own: a matter of settings.
_PRIVATE = (
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "::1/128",
    "fc00::/7",
)
NEVER: tuple[Network, ...] = tuple(ip_network(text) for text in _NEVER)
PRIVATE: tuple[Network, ...] = tuple(ip_network(text) for text in _PRIVATE)
#: Names of metadata services, whatever they resolve to.
NEVER_NAMES = frozenset({"metadata.google.internal", "metadata", "instance-data", "metadata.azure.internal"})


def parse(text: str) -> Address | None:
    """An address written as usual; None for a name. The zone of an IPv6 address is no part of it."""
    try:
        return ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None


def embedded(address: Address) -> Address:
    """The IPv4 address that an IPv4-mapped or IPv4-compatible one stands for."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if 1 < int(address) < 1 << 32:
            return IPv4Address(int(address))
    return address


def judge(address: Address) -> Verdict:
    """Whether an address is public, one of our own networks, or never to be called."""
    real = embedded(address)
    if any(real in network for network in NEVER):
        return "never"
    return "private" if any(real in network for network in PRIVATE) else "public"
