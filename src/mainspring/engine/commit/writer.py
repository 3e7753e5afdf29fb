"""The protocol of writers: ways by which a caller outside the engine loop gets a change committed."""

from __future__ import annotations

from typing import Protocol

from mainspring.model.change import Change, Result


class Writer(Protocol):
    """Commits changes for callers on any event loop or thread."""

    async def apply(self, change: Change) -> Result:
        """Commit a change and return its result. Raises: StoreError. Thread: any event loop."""
        ...

    def apply_blocking(self, change: Change) -> Result:
        """Commit a change and return its result. Block the calling thread, which runs no event loop, until then.

        Raises: StoreError.
        """
        ...

    async def close(self) -> None:
        """Close the connections that this writer opened; those of other event loops may close soon after the return.

        Changes accepted so far are committed first, or left to the engine loop to commit.
        """
        ...
