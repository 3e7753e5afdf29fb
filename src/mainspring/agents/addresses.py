"""Verdicts on IP addresses: "public", "private", or "never", which no setting allows to be called.

The module has its own lists, because `ipaddress.is_global` is also True for unsafe addresses, such as a metadata
service of Azure.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Literal

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Verdict = Literal["public", "private", "never"]

#: Cloud metadata services, and link-local, multicast and reserved networks. No setting allows them.
_FORBIDDEN = (
    "0.0.0.0/8",
    "100.100.100.200/32",  # Alibaba's metadata
    "168.63.129.16/32",  # Azure's metadata
    "169.254.0.0/16",  # link-local, and the metadata of most other clouds
    "192.0.0.0/24",  # contains Oracle's metadata, 192.0.0.192
    "224.0.0.0/4",
    "240.0.0.0/4",
    "::/128",
    "::ffff:0:0:0/96",  # these five networks embed an IPv4 address, which would be called without a check
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "2002::/16",
    "2001::/32",
    "fd00:ec2::254/128",  # Amazon's metadata
    "fd20:ce::254/128",  # Google's metadata
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
)
#: Loopback, private and shared networks: the settings decide (`AgentSettings.allow_private` and `allow_hosts`).
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
FORBIDDEN_NETWORKS: tuple[Network, ...] = tuple(ip_network(text) for text in _FORBIDDEN)
PRIVATE_NETWORKS: tuple[Network, ...] = tuple(ip_network(text) for text in _PRIVATE)
#: Names of metadata services, in lower case: they are refused before they are resolved.
FORBIDDEN_NAMES = frozenset({"metadata.google.internal", "metadata", "instance-data", "metadata.azure.internal"})


def parse_address(text: str) -> Address | None:
    """Return the IP address that a text states; None for a host name.

    Brackets around an IPv6 address, and its zone ("%eth0"), are ignored.
    """
    try:
        return ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None


def embedded_ipv4(address: Address) -> Address:
    """Return the IPv4 address inside an IPv4-mapped or IPv4-compatible IPv6 address; any other address as it is."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if 1 < int(address) < 1 << 32:
            return IPv4Address(int(address))
    return address


def judge_address(address: Address) -> Verdict:
    """Return whether an address may be called: "never", only if the settings allow it ("private"), or "public".

    An IPv4-mapped or IPv4-compatible IPv6 address gets the verdict on its IPv4 address. Other IPv6 addresses that embed
    an IPv4 address (SIIT, NAT64, 6to4, Teredo) get "never".
    """
    real = embedded_ipv4(address)
    if any(real in network for network in FORBIDDEN_NETWORKS):
        return "never"
    return "private" if any(real in network for network in PRIVATE_NETWORKS) else "public"
