"""The contract suite of the store port: `from mainspring.testing.contract import StoreContract`."""

from mainspring.testing.contract.store import StoreContract

__all__ = ["StoreContract"]
