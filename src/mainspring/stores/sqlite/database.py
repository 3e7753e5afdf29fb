"""One connection to one file: opening it, its schema, its transactions and its clocks."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from itertools import chain
from typing import Any

from mainspring.model.errors import (
    InvalidInput,
    NetworkFilesystem,
    SchemaMismatch,
    StoreCorrupt,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
)
from mainspring.model.instant import Ms
from mainspring.model.run import Run
from mainspring.ports.clock import Clock, SystemClock
from mainspring.stores.sqlite.checkpoints import MOVED, Checkpoints
from mainspring.stores.sqlite.errors import BUSY, damaged, primary_code, translate
from mainspring.stores.sqlite.mounts import filesystem_of, is_network
from mainspring.stores.sqlite.rows import MOST_ROWS, size_for, sized

#: "MSPR", in the file's header: this file is ours.
APPLICATION_ID = 0x4D535052
#: A statement waits so long for another's write, and whoever opens the file twice as long.
BUSY_TIMEOUT_MS = 5_000
_MARK_MASK = (1 << 62) - 1


class Database:
    """The connection and what the verbs share. Used on one thread at a time, in the process that opened it."""

    def __init__(
        self,
        path: str,
        clock: Clock | None,
        synchronous: str,
        force: bool,
        failpoint: Callable[[str], None] | None,
        patience: Ms = BUSY_TIMEOUT_MS,
    ) -> None:
        if synchronous.upper() not in ("FULL", "NORMAL", "EXTRA"):
            raise InvalidInput("synchronous", f"{synchronous!r} is not known", 'Use "full", "extra" or "normal"')
        self.path = path
        self.clock: Clock = clock or SystemClock()
        self.held: dict[str, Ms] = {}
        #: Runs claimed here with the numbers of their rows, which never change: the quickest way back to them.
        self.claimed: dict[str, tuple[int, Run]] = {}
        #: Schedules that moved on since the file was opened.
        self.moved = 0
        #: Where the rows of the schedules are that were due at the last look.
        self.sids: dict[str, int] = {}
        #: Whether the last claim met a gate that refused, or that several wanted, or a crash; the next one then does
        #: not try the way on which everybody passes.
        self.refused = False
        self._synchronous = synchronous.upper()
        self._force = force
        self._failpoint = failpoint
        self._patience = patience
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.RLock()
        self._checkpoints: Checkpoints | None = None
        self._fork_safe = False
        self._reopen = False
        self._inode = 0
        self.lost = False
        self._pid = 0
        # Marks only have to differ from every mark that a row can still carry.
        self._mark = random.SystemRandom().getrandbits(62)

    def beside(self) -> Database:
        """Another connection to the file, which does not wait for who is writing."""
        return Database(self.path, self.clock, self._synchronous, self._force, self._failpoint, patience=0)

    @property
    def on_system_clock(self) -> bool:
        """False under a test's or a virtual clock."""
        return isinstance(self.clock, SystemClock)

    def clocks(self, now: Ms | None) -> tuple[Ms, Ms]:
        """(wall time, lease time); a test's `now` stands for both."""
        return (self.clock.now(), self.clock.boot()) if now is None else (now, now)

    def granting(self, now: Ms | None) -> tuple[Ms, Ms]:
        """The same for giving leases: they count whole milliseconds, and none is to be shorter than it says."""
        wall, lease_now = self.clocks(now)
        return wall, lease_now + (now is None and self.on_system_clock)

    def marks(self, count: int) -> int:
        """The first of `count` numbers that no row carries."""
        if self._mark + count > _MARK_MASK:
            self._mark = 1
        first = self._mark
        self._mark += count
        return first

    def reach(self, point: str) -> None:
        """Call the test's failpoint, if there is one."""
        if self._failpoint is not None:
            self._failpoint(point)

    # ── statements ─────────────────────────────────────────────────────────

    @property
    def connection(self) -> sqlite3.Connection:
        """The open connection; refused after close and in a forked child."""
        if self._reopen and self._pid != os.getpid():
            raise StoreError(
                f"{self.path} was opened by process {self._pid}, this is its fork {os.getpid()}. Open a new store here"
            )
        if self._connection is None and self._reopen:
            self.open()
        if self._connection is None:
            raise StoreError(f"{self.path} is not open. Call open() first")
        if self.lost:
            raise StoreUnavailable(
                f"{os.path.abspath(self.path)} was removed or replaced while it was open: nothing written since would "
                "be kept, so nothing is. Put the file back and restart"
            )
        return self._connection

    def look_for_file(self) -> None:
        """Notice that the path no longer leads to the file that is open."""
        if self._connection is not None and not self.lost and _inode(self.path) != self._inode:
            self.lost = True

    def run(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        """One statement inside `read()` or `write()`."""
        assert self._connection is not None
        return self._connection.execute(sql, parameters)

    def run_rows(self, template: str, rows: Sequence[Sequence[Any]], *first: Any) -> int:
        """A statement with `BOUND` rows, after the parameters that come first; how many rows it changed."""
        assert self._connection is not None
        before = self._connection.total_changes
        for start in range(0, len(rows), MOST_ROWS):
            chunk = rows[start : start + MOST_ROWS]
            width, size = len(chunk[0]), size_for(len(chunk))
            parameters = [*first, *chain.from_iterable(chunk)]
            if size > len(chunk):
                parameters += [None] * (width * (size - len(chunk)))
            self._connection.execute(sized(template, width, size), parameters)
        return self._connection.total_changes - before

    @property
    def changed(self) -> int:
        """Rows changed since the file was opened."""
        assert self._connection is not None
        return self._connection.total_changes

    def value(self, sql: str, *parameters: Any) -> Any:
        """The first column of the first row, or None."""
        assert self._connection is not None
        row = self._connection.execute(sql, parameters).fetchone()
        return None if row is None else row[0]

    @contextlib.contextmanager
    def read(self) -> Iterator[None]:
        """Statements outside a transaction, with errors in our words."""
        with self._lock:
            _ = self.connection
            try:
                yield
            except sqlite3.Error as error:
                raise translate(error, self.path) from error

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Several reads that see one state of the file."""
        with self.read():
            connection = self.connection
            connection.execute("BEGIN")
            try:
                yield
            finally:
                self._rollback(connection)

    @contextlib.contextmanager
    def write(self, verb: str) -> Iterator[None]:
        """One write transaction: all of it or, on any exception, nothing."""
        self.look_for_file()
        with self._lock:
            connection = self.connection
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield
                self.reach(f"{verb}:before_commit")
                connection.execute("COMMIT")
            except BaseException as error:
                self._rollback(connection)
                if isinstance(error, sqlite3.Error):
                    raise translate(error, self.path) from error
                raise
            if self._checkpoints is not None:
                self._checkpoints.committed(connection.total_changes + MOVED * self.moved)
        self.reach(f"{verb}:after_commit")

    def _rollback(self, connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")

    # ── open, close ────────────────────────────────────────────────────────

    def open(self) -> None:
        """Check the place, then the file, then bring its schema up to date."""
        if self._connection is not None and self._pid == os.getpid():
            return
        self._check_place()
        self._survive_forks()
        stopwatch = SystemClock().monotonic
        deadline = stopwatch() + 2 * self._patience / 1000
        while True:
            try:
                self._connection = self._connect()
                self._reopen = True
                self._checkpoints = self._checkpoints or Checkpoints(os.path.abspath(self.path), self._lock)
                return
            except sqlite3.Error as error:
                # Two processes that create one file meet here; SQLite does not wait when the journal mode changes.
                if primary_code(error) not in BUSY or stopwatch() > deadline:
                    raise self._open_error(error) from error
                time.sleep(0.005 + 0.02 * random.random())  # noqa: S311 - spreads the tries, decides nothing

    def close(self) -> None:
        """Move the log into the file if nobody is in the way, and let go of it."""
        with self._lock:
            connection, self._connection = self._connection, None
            self._reopen = False
            checkpoints, self._checkpoints = self._checkpoints, None
            if checkpoints is not None:
                checkpoints.end()
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    if self._patience:  # who waits for nobody, is waited for by nobody
                        connection.execute("PRAGMA busy_timeout = 0")
                        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                connection.close()

    def _survive_forks(self) -> None:
        """No open file may cross a fork: SQLite counts its locks in memory, so the child's would hold nothing.

        Before a fork the statement in progress ends and the connection is closed; the parent opens it again
        at its next statement, the child must open a store of its own.
        """
        if self._fork_safe:
            return
        self._fork_safe = True
        this = weakref.ref(self)

        def before() -> None:
            if (db := this()) is not None:
                db._lock.acquire()
                if db._checkpoints is not None:
                    db._checkpoints.pause()
                connection, db._connection = db._connection, None
                if connection is not None:
                    connection.close()

        def in_parent() -> None:
            if (db := this()) is not None:
                if db._checkpoints is not None:
                    db._checkpoints.resume()
                db._lock.release()

        def in_child() -> None:
            if (db := this()) is not None:
                db._lock = threading.RLock()
                db._checkpoints = None  # its thread stayed behind

        os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)

    def _check_place(self) -> None:
        path = os.path.abspath(self.path)
        folder = os.path.realpath(os.path.dirname(path))
        if os.path.isdir(path):
            raise StoreUnavailable(
                f"{path} is a directory. Give the path of a file inside it, e.g. {path}/mainspring.db"
            )
        if not os.path.isdir(folder):
            raise StoreUnavailable(f"{path} has no directory to be in. Create it: mkdir -p {folder}")
        if not self._force:
            try:
                with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
                    fstype = filesystem_of(folder, file.read())
            except OSError:
                fstype = None
            if fstype is not None and is_network(fstype):
                raise NetworkFilesystem(
                    f"{path} is on a network file system ({fstype}), where SQLite cannot keep its promises. "
                    "Use a local disk, or force=True (?force=1) if only this machine ever opens the file"
                )
        if not os.access(folder, os.W_OK) or (os.path.exists(path) and not os.access(path, os.W_OK)):
            raise StoreReadOnly(f"{path} cannot be written. Make the file and its directory writable for this user")

    def _open_error(self, error: sqlite3.Error) -> StoreError:
        path = os.path.abspath(self.path)
        if primary_code(error) == sqlite3.SQLITE_ERROR:  # the statements are ours and right, so the file is not
            return damaged(path, error)
        return translate(error, path)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path,
            timeout=self._patience / 1000,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        try:
            connection.execute(f"PRAGMA busy_timeout = {self._patience}")
            newest = len(_migrations())
            version = self._version(connection, newest)
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            if mode != "wal":
                raise StoreUnavailable(f"{self.path}: this file system does not allow SQLite's WAL mode ({mode})")
            for pragma in (
                f"synchronous = {self._synchronous}",
                "foreign_keys = OFF",
                "temp_store = MEMORY",
                "cache_size = -16384",
                "wal_autocheckpoint = 16000",  # for what `Checkpoints` could not keep up with
                "journal_size_limit = 67108864",
                "secure_delete = FAST",
            ):
                connection.execute(f"PRAGMA {pragma}")
            if version < newest:
                self._migrate(connection, newest)
            self.reach("open:after_migrate")
            self._check_boot(connection)
        except BaseException:
            connection.close()
            raise
        self._pid = os.getpid()
        self._inode = _inode(self.path)
        return connection

    def _version(self, connection: sqlite3.Connection, newest: int) -> int:
        """The schema's number, 0 for a new file; what is not ours is refused before anything is written."""
        alone = not connection.in_transaction
        if alone:  # one look at all three: another process may be creating the schema right now
            connection.execute("BEGIN")
        try:
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        finally:
            if alone:
                self._rollback(connection)
        path = os.path.abspath(self.path)
        if application == APPLICATION_ID:
            if version > newest:
                raise SchemaMismatch(
                    f"{path} has schema {version}, this Mainspring knows up to {newest}. Upgrade Mainspring; "
                    "the file was left as it is"
                )
            if version < 1 and tables:
                raise damaged(path, f"it has {tables} tables and indexes and claims to have schema {version}")
            return version
        if application or version or tables:
            raise StoreCorrupt(
                f"{path} is a SQLite database of another application (id {application:#x}, {tables} tables and "
                "indexes); it was left as it is. Give another path"
            )
        return 0

    def _migrate(self, connection: sqlite3.Connection, newest: int) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = self._version(connection, newest)  # another process may have been faster
            for number, script in enumerate(_migrations()[version:], version + 1):
                for statement in _statements(script):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {number}")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("COMMIT")
        except BaseException:
            self._rollback(connection)
            raise

    def _check_boot(self, connection: sqlite3.Connection) -> None:
        """Leases count in boot time: after a restart of the machine none of them means anything."""
        boot_id = _boot_id() if self.on_system_clock else "virtual"
        known = "SELECT value FROM meta WHERE key = 'boot_id'"
        if connection.execute(known).fetchone() == (boot_id,):
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            stored = connection.execute(known).fetchone()
            if stored is not None and stored != (boot_id,):
                connection.execute("UPDATE run SET lease_until = 0 WHERE state = 'running'")
                connection.execute("UPDATE lease SET live = 0")
            connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('boot_id', ?)", (boot_id,))
            connection.execute("COMMIT")
        except BaseException:
            self._rollback(connection)
            raise


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


def _migrations() -> list[str]:
    """The numbered scripts, in order."""
    folder = resources.files("mainspring.stores.sqlite") / "sql"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return [file.read_text(encoding="utf-8") for file in files]


def _statements(script: str) -> Iterator[str]:
    text = ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            yield text
            text = ""
