"""The SQLite store: one file in WAL mode, for any number of processes of one machine, with one fsync per batch."""

from mainspring.backends.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
