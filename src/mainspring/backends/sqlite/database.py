"""One connection to one file: its opening and closing, its statements and transactions, and its clocks."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from mainspring.backends.sqlite.errors import (
    BUSY_CODES,
    STATEMENT_ERRORS,
    damage_refusal,
    primary_code,
    translate_error,
)
from mainspring.backends.sqlite.file_modes import check_private, create_private_file, list_files
from mainspring.backends.sqlite.filesystems import filesystem_of, is_network
from mainspring.backends.sqlite.rows import MAX_STATEMENT_ROWS, expand_rows, statement_size
from mainspring.backends.sqlite.schema import (
    end_leases_of_other_boots,
    load_migrations,
    migrate,
    read_boot_id,
    read_version,
    roll_back,
)
from mainspring.backends.sqlite.wal_checkpoints import ROWS_PER_MOVED_SCHEDULE, WalCheckpoints
from mainspring.model.errors import (
    InvalidInput,
    NetworkFilesystem,
    SchemaMismatch,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
)
from mainspring.model.instant import Ms
from mainspring.model.run import Run
from mainspring.ports.clock import Clock, SystemClock

#: How long a statement waits for another connection's write; `open` tries for twice that time.
BUSY_TIMEOUT_MS = 5_000
_MAX_MARK = (1 << 62) - 1


class Database:
    """The connection to the file, and the state that the methods of the store share.

    To be used by one thread at a time, in the process that opened it. `clock`: None means the system's clock.
    `synchronous`: SQLite's setting of that name, "FULL", "EXTRA" or "NORMAL". `force`: open the file even on a network
    file system. `shared`: open it even if other users may read or write it. `read_only`: write nothing. `failpoint`:
    called with the names of places in the code, for tests. `busy_timeout`: how long to wait for other writers, in ms.
    """

    def __init__(
        self,
        path: str,
        clock: Clock | None,
        synchronous: str,
        force: bool,
        failpoint: Callable[[str], None] | None,
        busy_timeout: Ms = BUSY_TIMEOUT_MS,
        *,
        shared: bool = False,
        read_only: bool = False,
    ) -> None:
        if synchronous.upper() not in ("FULL", "NORMAL", "EXTRA"):
            raise InvalidInput("synchronous", f"{synchronous!r} is not known", 'Use "full", "extra" or "normal"')
        self.path = path
        self.clock: Clock = clock or SystemClock()
        #: Id of a schedule or run that `due` returned → end of its hold (wall time).
        self.held_until: dict[str, Ms] = {}
        #: Run id → (row number, run as it was claimed), for the runs that this object claimed. The first change under a
        #: run's lease removes the entry. A row number is the fastest access to a row, and it never changes.
        self.claimed_runs: dict[str, tuple[int, Run]] = {}
        #: How many times the fast paths of `apply` advanced a schedule. Each time, more pages of the file are written,
        #: so checkpoints come earlier.
        self.moved_schedules = 0
        #: Schedule id → row number, for each schedule that the last `due` returned.
        self.schedule_row_ids: dict[str, int] = {}
        #: True if the last claim that tested runs one by one met a gate that refused a run or let in more than one, or
        #: a run that crashed before. The next claim then skips the statements that only work if all runs pass.
        self.gates_refused = False
        self._synchronous = synchronous.upper()
        self._force = force
        self._shared = shared
        self._read_only = read_only
        self._failpoint = failpoint
        self._busy_timeout = busy_timeout
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.RLock()
        self._checkpoints: WalCheckpoints | None = None
        self._fork_safe = False
        self._reopen = False
        self._inode = 0
        #: True once `check_file` found that the path no longer leads to the open file.
        self.is_file_lost = False
        self._pid = 0
        # A new mark only has to differ from the marks that rows still have: a random start is enough.
        self._mark = random.SystemRandom().getrandbits(62)

    def second_connection(self) -> Database:
        """Return a new `Database` on the file, not open yet.

        Its writes do not wait while another connection is writing: they fail at once.
        """
        return Database(
            self.path,
            self.clock,
            self._synchronous,
            self._force,
            self._failpoint,
            busy_timeout=0,
            shared=self._shared,
            read_only=self._read_only,
        )

    @property
    def uses_system_clock(self) -> bool:
        """True if time is the machine's, False under a virtual clock or a clock of a test."""
        return isinstance(self.clock, SystemClock)

    def clocks(self, now: Ms | None) -> tuple[Ms, Ms]:
        """Return (present time, present time by the clock of leases) in ms; `now` for both if a test gave it.

        The clock of leases counts from the start of the machine, so it does not jump when the machine's time is set.
        """
        return (self.clock.now(), self.clock.boot()) if now is None else (now, now)

    def lease_clocks(self, now: Ms | None) -> tuple[Ms, Ms]:
        """Return (present time, present time by the clock of leases) in ms; `now` for both if a test gave it.

        The second time, if it comes from the system's clock, is rounded up by 1 ms, because a lease that begins now
        must not be shorter than its `ttl`.
        """
        wall, lease_now = self.clocks(now)
        return wall, lease_now + (now is None and self.uses_system_clock)

    def reserve_marks(self, count: int) -> int:
        """Return the first of `count` consecutive numbers for the column `mark`.

        That a row has one of these numbers already is extremely unlikely: numbering begins at random. A change writes
        its number into its rows. A row that has the number afterwards was written by this change.
        """
        if self._mark + count > _MAX_MARK:
            self._mark = 1
        first = self._mark
        self._mark += count
        return first

    def reach(self, point: str) -> None:
        """Call the failpoint that a test gave, if any, with `point`, the name of this place in the code."""
        if self._failpoint is not None:
            self._failpoint(point)

    # ── statements ─────────────────────────────────────────────────────────

    @property
    def connection(self) -> sqlite3.Connection:
        """Return the connection, opened again if a fork closed it.

        Raises `StoreError` before `open`, after `close` and in a forked child, `StoreUnavailable` if the file is lost.
        """
        if self._reopen and self._pid != os.getpid():
            raise StoreError(
                f"{self.path}: the store was opened by process {self._pid}, before this process was forked. "
                "Make and open a new store in the child"
            )
        if self._connection is None and self._reopen:
            self.open()
        if self._connection is None:
            raise StoreError(f"{self.path} is not open. Call open() first")
        if self.is_file_lost:
            raise StoreUnavailable(
                f"{os.path.abspath(self.path)} was removed or replaced while it was open; reads and writes are "
                "refused. Put the file back and restart"
            )
        return self._connection

    def check_file(self) -> None:
        """Set `is_file_lost` if the path no longer leads to the open file: every later statement is then refused."""
        if self._connection is not None and not self.is_file_lost and _inode(self.path) != self._inode:
            self.is_file_lost = True

    def run(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        """Execute one statement. Use it inside `read()` or `write()`, which translate its errors."""
        assert self._connection is not None
        return self._connection.execute(sql, parameters)

    def run_rows(self, template: str, rows: Sequence[Sequence[Any]], *first: Any) -> int:
        """Execute the SQL `template`, which reads `BOUND_ROWS`, for `rows`; return how many rows of tables it changed.

        Long lists take several executions. `first`: the parameters before the rows, equal in all executions.
        """
        assert self._connection is not None
        before = self._connection.total_changes
        for start in range(0, len(rows), MAX_STATEMENT_ROWS):
            chunk = rows[start : start + MAX_STATEMENT_ROWS]
            width, size = len(chunk[0]), statement_size(len(chunk))
            parameters = [*first, *chain.from_iterable(chunk)]
            if size > len(chunk):
                parameters += [None] * (width * (size - len(chunk)))
            self._connection.execute(expand_rows(template, width, size), parameters)
        return self._connection.total_changes - before

    @property
    def rows_changed(self) -> int:
        """The number of rows that this connection has changed since it was opened."""
        assert self._connection is not None
        return self._connection.total_changes

    def value(self, sql: str, *parameters: Any) -> Any:
        """Execute a query; return the first column of the first row, or None without a row."""
        assert self._connection is not None
        row = self._connection.execute(sql, parameters).fetchone()
        return None if row is None else row[0]

    @contextlib.contextmanager
    def read(self) -> Iterator[None]:
        """Let a `with` block execute statements outside a transaction, under the lock of this connection.

        An error of SQLite is raised as a `StoreError`.
        """
        with self._lock:
            _ = self.connection
            try:
                yield
            except STATEMENT_ERRORS as error:
                raise translate_error(error, self.path) from error

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let a `with` block execute queries in one read transaction, so that they see one state of the file.

        An error of SQLite is raised as a `StoreError`.
        """
        with self.read():
            connection = self.connection
            connection.execute("BEGIN")
            try:
                yield
            finally:
                roll_back(connection)

    @contextlib.contextmanager
    def write(self, verb: str) -> Iterator[None]:
        """Let a `with` block execute statements in one write transaction: all of them or, after any exception, none.

        An error of SQLite is raised as a `StoreError`. `verb` begins the names of places that tests see, such as
        `apply:before_commit`.
        """
        self.check_file()
        with self._lock:
            connection = self.connection
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield
                self.reach(f"{verb}:before_commit")
                connection.execute("COMMIT")
            except BaseException as error:
                roll_back(connection)
                if isinstance(error, STATEMENT_ERRORS):
                    raise translate_error(error, self.path) from error
                raise
            if self._checkpoints is not None:
                self._checkpoints.committed(connection.total_changes + ROWS_PER_MOVED_SCHEDULE * self.moved_schedules)
        self.reach(f"{verb}:after_commit")

    # ── open, close ────────────────────────────────────────────────────────

    def open(self) -> None:
        """Open the file or create it: check its directory, permissions and content, and bring its schema up to date.

        A new file is for its owner alone, and a file that is not is refused, unless the store is `shared`. Leases from
        before the machine's last restart are ended. If this process has the file open already, nothing is done. Raises:
        `StoreError` with a remedy if the file cannot be used.
        """
        if self._connection is not None and self._pid == os.getpid():
            return
        self._check_place()
        if not self._shared and not self._read_only:
            create_private_file(os.path.realpath(self.path))
        self._survive_forks()
        stopwatch = SystemClock().monotonic
        deadline = stopwatch() + 2 * self._busy_timeout / 1000
        while True:
            try:
                self._connection = self._connect()
                self._reopen = True
                self._checkpoints = self._checkpoints or WalCheckpoints(os.path.abspath(self.path), self._lock)
                return
            except STATEMENT_ERRORS as error:
                # This happens when several processes create the file at once: SQLite ignores the busy time-out when the
                # journal mode changes.
                if primary_code(error) not in BUSY_CODES or stopwatch() > deadline:
                    raise self._open_error(error) from error
                time.sleep(0.005 + 0.02 * random.random())  # noqa: S311 - jitter

    def close(self) -> None:
        """Move the write-ahead log into the file, unless another connection is using it, and close the connection.

        A connection of `second_connection` leaves the log as it is. If the store is closed already, nothing is done.
        """
        with self._lock:
            connection, self._connection = self._connection, None
            self._reopen = False
            checkpoints, self._checkpoints = self._checkpoints, None
            if checkpoints is not None:
                checkpoints.end()
            if connection is not None:
                with contextlib.suppress(*STATEMENT_ERRORS):
                    # A connection of `second_connection` (the inline writer's) never waits. It leaves this to the
                    # engine's connection.
                    if self._busy_timeout:
                        connection.execute("PRAGMA busy_timeout = 0")
                        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                connection.close()

    def _survive_forks(self) -> None:
        """From now on, close the connection before each fork; the parent opens it again with its next statement.

        Why: SQLite counts its file locks in memory, so a connection in the child would rely on locks that it does not
        hold. The child must open a store of its own. A statement in progress ends before the fork.
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
                db._checkpoints = None  # its thread does not exist in the child

        os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)

    def _check_place(self) -> None:
        """Raise a `StoreError` with the reason if the file at this path could not be opened, written or relied on."""
        path = os.path.abspath(self.path)
        folder = os.path.realpath(os.path.dirname(path))
        if os.path.isdir(path):
            raise StoreUnavailable(
                f"{path} is a directory. Give the path of a file inside it, e.g. {path}/mainspring.db"
            )
        if not os.path.isdir(folder):
            raise StoreUnavailable(f"{path}: the directory {folder} does not exist. Create it: mkdir -p {folder}")
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
        is_writable = os.access(folder, os.W_OK) and (not os.path.exists(path) or os.access(path, os.W_OK))
        if not is_writable and not self._read_only:
            raise StoreReadOnly(f"{path} cannot be written. Make the file and its directory writable for this user")

    def _open_error(self, error: sqlite3.Error | UnicodeDecodeError) -> StoreError:
        """Return the store error to raise for an exception of SQLite in `open`."""
        path = os.path.abspath(self.path)
        if self._read_only and primary_code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            return StoreReadOnly(
                f"{path} cannot be read without the right to write in its directory, because no program has it open: "
                "SQLite has to create the file -shm beside it. Start the program, or copy the file to a directory of "
                "your own"
            )
        if primary_code(error) == sqlite3.SQLITE_ERROR:  # our statements are correct, so the schema is not
            return damage_refusal(path, error)
        return translate_error(error, path)

    def _connect(self) -> sqlite3.Connection:
        """Return a new connection with its settings, on a file whose schema is up to date.

        Leases from before the machine's last restart are ended. The process id and the file's inode are kept, because
        `connection` and `check_file` compare them later.
        """
        files = list_files(os.path.realpath(self.path))
        connection = sqlite3.connect(
            f"{Path(os.path.abspath(self.path)).as_uri()}?mode=ro" if self._read_only else self.path,
            uri=self._read_only,
            timeout=self._busy_timeout / 1000,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        try:
            connection.execute(f"PRAGMA busy_timeout = {self._busy_timeout}")
            scripts = load_migrations()
            version = read_version(connection, self.path, len(scripts))
            if not self._shared and not self._reopen:  # a file that was opened is not refused after a fork
                check_private(files)
            if self._read_only:
                if version < len(scripts):
                    raise SchemaMismatch(
                        f"{self.path} has schema {version} and must be migrated to {len(scripts)} first. Let a user "
                        "who may write it run `mainspring ledger` once"
                    )
                self._pid, self._inode = os.getpid(), _inode(self.path)
                return connection
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            if mode != "wal":
                raise StoreUnavailable(f"{self.path}: this file system does not allow SQLite's WAL mode ({mode})")
            for pragma in (
                f"synchronous = {self._synchronous}",
                "foreign_keys = OFF",
                "temp_store = MEMORY",
                "cache_size = -16384",
                "wal_autocheckpoint = 16000",  # pages; a bound for commits faster than `WalCheckpoints`
                "journal_size_limit = 67108864",
                "secure_delete = FAST",
            ):
                connection.execute(f"PRAGMA {pragma}")
            if version < len(scripts):
                migrate(connection, self.path, scripts)
            self.reach("open:after_migrate")
            end_leases_of_other_boots(connection, read_boot_id() if self.uses_system_clock else "virtual")
        except BaseException:
            connection.close()
            raise
        self._pid = os.getpid()
        self._inode = _inode(self.path)
        return connection


def _inode(path: str) -> int:
    """Return the file's inode number, 0 if there is no file."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0
