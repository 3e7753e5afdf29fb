"""Opening of stores and brokers by URL. A backend is imported only in these calls: a program loads none in vain."""

from __future__ import annotations

from mainspring.ports.broker import Broker
from mainspring.ports.clock import Clock
from mainspring.ports.store import Store


def open_store(url: str, clock: Clock) -> Store:
    """Make the store that `url` names; the caller opens it. Raises: InvalidInput; MissingExtra.

    Its backend is imported only in this call, so that a program loads no backend that it does not use.
    """
    from mainspring.runtime.store_url import open_store as named

    return named(url, clock)


def open_broker(url: str, clock: Clock) -> Broker:
    """Make the broker that `url` names; the caller opens it. Raises: InvalidInput; MissingExtra.

    Its backend is imported only in this call, so that a program loads no backend that it does not use.
    """
    from mainspring.runtime.broker_url import open_broker as named

    return named(url, clock)
