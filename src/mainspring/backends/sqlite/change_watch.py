"""Detection of commits by other processes, cheap enough to poll 40 times per second."""

from __future__ import annotations

import os

from mainspring.backends.sqlite.database import Database
from mainspring.model.errors import StoreError

#: Poll interval during `EAGER_FOR_SECONDS` after a commit of another process, and poll interval at other times.
EAGER_POLL_SECONDS, IDLE_POLL_SECONDS, EAGER_FOR_SECONDS = 0.025, 0.15, 1.0
#: Poll interval of an instance that plans ahead. Such an instance polls with each call of `due` as well, and these
#: calls come sooner: the timer is a fallback.
LOOKAHEAD_POLL_SECONDS = 0.45
#: Poll interval under a virtual clock, where another process is rare.
VIRTUAL_POLL_SECONDS = 1.0


class ChangeWatch:
    """Detects commits of other connections. SQLite is queried only after the write-ahead log's time or size changed.

    After each such change, two calls of `has_changed` query SQLite. Why: two commits may leave one modification time,
    and the first query can come between them.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._version = 0
        self._seen: tuple[int, int] = (0, 0)
        self._query_again = False
        self._foreign_at = -EAGER_FOR_SECONDS

    def interval(self) -> float:
        """Return the seconds until the next poll: fewer for a while after a commit of another connection."""
        if not self._db.uses_system_clock:
            return VIRTUAL_POLL_SECONDS
        is_eager = self._db.clock.monotonic() - self._foreign_at < EAGER_FOR_SECONDS
        return EAGER_POLL_SECONDS if is_eager else IDLE_POLL_SECONDS

    def has_changed(self) -> bool:
        """Return True if another connection committed since the last call, or if the query for that failed.

        Also set `is_file_lost` if the file was removed or replaced. After a commit of another connection, `interval` is
        short for a while.
        """
        self._db.check_file()
        try:
            stat = os.stat(self._db.path + "-wal")
            seen = (stat.st_mtime_ns, stat.st_size)
        except OSError:
            seen = (0, 0)
        now = self._db.clock.monotonic()
        if seen != self._seen:
            self._seen, self._query_again = seen, True
        elif self._query_again:
            self._query_again = False
        else:
            return False
        before = self._version
        try:
            with self._db.read():
                self._version = int(self._db.value("PRAGMA data_version"))
        except StoreError:
            return True
        if before == self._version:
            return False
        self._foreign_at = now
        return True
