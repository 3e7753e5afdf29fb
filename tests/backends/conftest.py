"""Collection: over a transport `make test` runs a choice of the store contract, `make chaos` all of it."""

from __future__ import annotations

import os

import pytest

from mainspring.testing.contract import StoreContract
from tests.backends.transports import TRANSPORT_TESTS, TRANSPORTS, WHOLE_CONTRACT


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get(WHOLE_CONTRACT):
        return
    deselected = [item for item in items if is_left_to_chaos(item)]
    if deselected:
        left_out = set(deselected)
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=deselected)


def is_left_to_chaos(item: pytest.Item) -> bool:
    """True for a contract test over a transport that is not among TRANSPORT_TESTS."""
    cls = getattr(item, "cls", None)
    if cls is None or cls.__name__ not in TRANSPORTS or not issubclass(cls, StoreContract):
        return False
    return getattr(item, "originalname", item.name) not in TRANSPORT_TESTS
