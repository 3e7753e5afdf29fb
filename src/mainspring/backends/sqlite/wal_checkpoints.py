"""Checkpoints of the write-ahead log on a thread of their own, so that commits go on during the long ones.

Only a short last checkpoint makes the commits of the store's connection wait (`CHECKPOINT_ROUNDS`).
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import urllib.parse
from contextlib import AbstractContextManager

from mainspring.backends.sqlite.errors import STATEMENT_ERRORS
from mainspring.ports.threads import SystemThreads

#: Number of small commits (about 2,400 pages) between checkpoints. A program that makes fewer never starts the thread.
#: A checkpoint makes commits slower, because both wait for the disk: a smaller number would cost more than it gains.
CHECKPOINT_EVERY_COMMITS = 400
#: Number of changed rows that count as one more commit. It is a mean: rows spread over the file write more pages.
ROWS_PER_COMMIT = 36
#: Number of rows for which the advance of a schedule counts, in addition to its own row: it writes a page of its own,
#: and one of the index by schedule.
ROWS_PER_MOVED_SCHEDULE = 18
#: Number of checkpoints in a row. Commits go on meanwhile, and the next, shorter checkpoint moves what they added.
#: During the last checkpoint the store's connection makes no commit. If no other connection makes one, nothing is left
#: to move, and SQLite writes the log from its beginning again. In a log that only grows, every commit waits for the
#: file system to extend the file.
CHECKPOINT_ROUNDS = 3


class WalCheckpoints:
    """A thread with its own connection, which makes PASSIVE checkpoints: they never wait for readers or writers.

    `path`: the database file. `writing`: the lock of the store's commits. `committed` and `end` are called on the
    thread that uses the store, `pause` and `resume` on the thread that forks.
    """

    def __init__(self, path: str, writing: AbstractContextManager[object]) -> None:
        self._uri = f"file:{urllib.parse.quote(path)}?mode=rw"  # never creates a file
        #: If this lock and `_lock` are both needed, this lock is acquired first.
        self._writing = writing
        self._due = threading.Event()
        #: The lock of this object's connection.
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._commits = 0.0
        self._rows = 0
        self._started = self._ended = False
        #: Number of checkpoints made.
        self.rounds = 0

    def committed(self, rows: int) -> None:
        """Count a commit. After about `CHECKPOINT_EVERY_COMMITS` of them, let the thread make checkpoints.

        The first time, the thread is started. A commit of many rows counts as several. `rows`: the number of rows that
        the connection has changed since it was opened, with `ROWS_PER_MOVED_SCHEDULE` more for each advance of a
        schedule.
        """
        self._commits += 1 + max(0, rows - self._rows) / ROWS_PER_COMMIT  # a new connection counts from 0 again
        self._rows = rows
        if self._commits >= CHECKPOINT_EVERY_COMMITS:
            self._commits = 0.0
            self._due.set()
            if not self._started:
                self._started = True
                SystemThreads().start(self._run, "mainspring-checkpoints")

    def pause(self) -> None:
        """Wait for a checkpoint under way, and keep no file open until `resume`. Called before a fork."""
        self._lock.acquire()
        self._close()

    def resume(self) -> None:
        """Allow checkpoints again. Called in the parent after a fork."""
        self._lock.release()

    def end(self) -> None:
        """Close the connection for good, and let the thread end.

        Wait for a checkpoint under way, but not for the thread's end.
        """
        self._ended = True
        with self._lock:
            self._close()
        self._due.set()

    def _run(self) -> None:
        """Make `CHECKPOINT_ROUNDS` checkpoints whenever they are due, until `end` is called. The thread runs this."""
        while True:
            self._due.wait()
            self._due.clear()
            for _ in range(CHECKPOINT_ROUNDS - 1):
                if not self._ended:
                    self._checkpoint()
            with self._writing:
                self._checkpoint()
            if self._ended:
                return

    def _checkpoint(self) -> None:
        """Make one checkpoint, over a connection that is opened if there is none. Errors are not reported.

        After `end`, do nothing.
        """
        # Errors are suppressed: the next commit reports a full disk or a damaged file.
        with self._lock, contextlib.suppress(*STATEMENT_ERRORS):
            if self._ended:
                return
            if self._connection is None:
                self._connection = sqlite3.connect(self._uri, uri=True, check_same_thread=False, isolation_level=None)
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            self.rounds += 1

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
