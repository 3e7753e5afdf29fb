"""What a store can offer when a write is so short that a caller's own thread may make it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from mainspring.ports.store import Store


@runtime_checkable
class Inlines(Protocol):
    """A store whose verbs end on the thread that calls them, without waiting for anything but the disk."""

    def beside(self) -> Store:
        """Another way to the same place, not yet open; it fails with `StoreUnavailable` rather than wait for a writer.

        What has failed so was not written.
        """
        ...
