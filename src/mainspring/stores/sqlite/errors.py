"""SQLite's errors in Mainspring's words."""

from __future__ import annotations

import os
import sqlite3

from mainspring.model.errors import (
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})


def primary_code(error: sqlite3.Error) -> int:
    """The error's class, without the detail in the upper bits; 0 when SQLite did not say."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def translate(error: sqlite3.Error, path: str) -> StoreError:
    """What happened to the file, and what to do about it."""
    code = primary_code(error)
    if not code and str(error).startswith(
        "Could not decode"
    ):  # the driver's own words, with the whole text behind them
        return damaged(path, "text that is not UTF-8")
    if code in BUSY:
        return StoreUnavailable(f"{path} is locked by another process ({error}); nothing was changed. Try again")
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _disk_full(path)):
        return StoreFull(f"the disk under {path} is full ({error}); nothing was changed. Free some space")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreReadOnly(
            f"{path} cannot be written ({error}); nothing was changed. "
            "Make the file and its directory writable for this user"
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damaged(path, error)
    if code == sqlite3.SQLITE_CANTOPEN:
        return StoreUnavailable(f"{path} cannot be opened ({error}). Check that its directory exists and is writable")
    if code == sqlite3.SQLITE_IOERR:
        return StoreUnavailable(f"{path} cannot be read or written ({error}); nothing was changed. Check the disk")
    return StoreError(f"{path}: {error}")


def damaged(path: str, why: object) -> StoreCorrupt:
    """A file whose content cannot be trusted."""
    return StoreCorrupt(
        f"{path} is damaged or is not a SQLite database ({why}); it was left as it is. "
        "Restore it from a backup, or give another path"
    )


def _disk_full(path: str) -> bool:
    try:
        stat = os.statvfs(os.path.dirname(os.path.abspath(path)))
    except OSError:
        return False
    return stat.f_bavail * stat.f_frsize < 65_536
