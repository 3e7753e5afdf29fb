"""The choice of contract tests for transports: names that exist, and a part of the contract that is not too small."""

from __future__ import annotations

from mainspring.testing.contract import StoreContract
from tests.backends.transports import TRANSPORT_TESTS


def test_every_chosen_test_is_in_the_contract() -> None:
    contract = {name for name in dir(StoreContract) if name.startswith("test_")}
    assert contract >= TRANSPORT_TESTS
    assert len(TRANSPORT_TESTS) >= len(contract) // 4
