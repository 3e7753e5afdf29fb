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
        """Commit or pass on the changes accepted so far, and close the connections that this writer opened."""
        ...
