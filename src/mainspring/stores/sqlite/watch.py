"""Whether another process has committed, asked often and cheaply."""

from __future__ import annotations

import os

from mainspring.model.errors import StoreError
from mainspring.stores.sqlite.database import Database

#: How often to look, in seconds: often for a while after another process wrote, seldom when none does.
EAGER, LAZY, LIVELY = 0.025, 0.15, 1.0
#: An instance that plans ahead looks whenever it does that, which is sooner than this.
ALONG = 0.45
#: Under a virtual clock there is seldom another process.
VIRTUAL = 1.0


class Watch:
    """Looks at the log file's time first; only when that has moved is SQLite itself asked, twice."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._version = 0
        self._seen: tuple[int, int] = (0, 0)
        self._ask_again = False
        self._foreign_at = -LIVELY

    def interval(self) -> float:
        """Seconds until the next look."""
        if not self._db.on_system_clock:
            return VIRTUAL
        return EAGER if self._db.clock.monotonic() - self._foreign_at < LIVELY else LAZY

    def changed(self) -> bool:
        """True once after another connection has changed the file, or when the file can no longer be asked."""
        self._db.look_for_file()
        try:
            stat = os.stat(self._db.path + "-wal")
            seen = (stat.st_mtime_ns, stat.st_size)
        except OSError:
            seen = (0, 0)
        now = self._db.clock.monotonic()
        if seen != self._seen:
            self._seen, self._ask_again = seen, True
        elif self._ask_again:
            self._ask_again = False  # two commits may carry one time of change: the second look is for the second
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
