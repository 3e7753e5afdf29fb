"""Whether another process has committed, asked often and cheaply."""

from __future__ import annotations

import os
import time

from mainspring.model.errors import StoreError
from mainspring.stores.sqlite.database import Database

#: A file's time of change is no finer than this; within it, two commits may carry the same one.
_GRAIN_NS = 50_000_000


class Watch:
    """Looks at the log file's time first; only when that has moved, or moved just now, SQLite itself is asked."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._version = 0
        self._seen: tuple[int, int] = (0, 0)

    def changed(self) -> bool:
        """True once after another connection has changed the file, or when the file can no longer be asked."""
        try:
            stat = os.stat(self._db.path + "-wal")
            seen = (stat.st_mtime_ns, stat.st_size)
        except OSError:
            seen = (0, 0)
        if seen == self._seen and time.time_ns() - seen[0] > _GRAIN_NS:
            return False
        self._seen = seen
        before = self._version
        try:
            with self._db.read():
                self._version = int(self._db.value("PRAGMA data_version"))
        except StoreError:
            return True
        return before != self._version
