"""One file on one machine: WAL, one fsync per batch, any number of processes."""

from mainspring.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
