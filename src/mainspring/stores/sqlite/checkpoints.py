"""Moving the write-ahead log into the file on a thread of its own, so that no commit has to wait for it."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import urllib.parse
from contextlib import AbstractContextManager

from mainspring.ports.threads import SystemThreads

#: After so many small commits (some 2,400 pages) there is something worth moving; a program that writes less never has
#: the thread. Commits wait for the disk while it moves, so sooner would cost more than it gains.
EVERY = 400
#: So many rows weigh as much as a commit: less where they are all over the file, more where they follow each other.
ROWS = 36
#: A schedule that moves on is so many rows more: a page of its own, and one of the index by schedule.
MOVED = 18
#: Commits go on meanwhile. What they added is moved by another round, which is shorter; before the last one the commits
#: of this process are held up, so that nothing is left and the log begins anew. In a log that only grows, every commit
#: waits for the file system to make it longer.
ROUNDS = 3


class Checkpoints:
    """A thread with a connection of its own, which does nothing but PASSIVE checkpoints: they wait for nobody."""

    def __init__(self, path: str, writing: AbstractContextManager[object]) -> None:
        self._uri = f"file:{urllib.parse.quote(path)}?mode=rw"  # never makes a file
        #: Held by whoever commits in this process; to be taken before the other lock.
        self._writing = writing
        self._due = threading.Event()
        #: Held by whoever uses the connection.
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._commits = 0.0
        self._rows = 0
        self._started = self._ended = False
        self.rounds = 0

    def committed(self, rows: int) -> None:
        """Count a commit; called by the one that made it, with the rows that its connection changed so far."""
        self._commits += 1 + max(0, rows - self._rows) / ROWS  # a connection made anew counts from 0
        self._rows = rows
        if self._commits >= EVERY:
            self._commits = 0.0
            self._due.set()
            if not self._started:
                self._started = True
                SystemThreads().start(self._run, "mainspring-checkpoints")

    def pause(self) -> None:
        """Before a fork: end what is under way and hold no file until `resume`."""
        self._lock.acquire()
        self._close()

    def resume(self) -> None:
        self._lock.release()

    def end(self) -> None:
        """Hold no file any more; the thread ends by itself."""
        self._ended = True
        with self._lock:
            self._close()
        self._due.set()

    def _run(self) -> None:
        while True:
            self._due.wait()
            self._due.clear()
            for _ in range(ROUNDS - 1):
                if not self._ended:
                    self._move()
            with self._writing:
                self._move()
            if self._ended:
                return

    def _move(self) -> None:
        with self._lock, contextlib.suppress(sqlite3.Error):  # a disk that is full is told by the next commit
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
