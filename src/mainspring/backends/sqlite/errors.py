"""Translation of sqlite3's exceptions into Mainspring's store errors."""

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

BUSY_CODES = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_READ_ONLY_CODES = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH})
_CORRUPT_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
#: All exceptions that a statement raises because of the file. sqlite3 decodes SQLite's error text as UTF-8, and SQLite
#: quotes a damaged schema in that text byte for byte: a UnicodeDecodeError is then raised instead of a sqlite3.Error.
STATEMENT_ERRORS = (sqlite3.Error, UnicodeDecodeError)
#: If SQLite reports only an I/O error, less free space than this means that the disk is full.
_FULL_DISK_BYTES = 65_536


def primary_code(error: Exception) -> int:
    """Return SQLite's primary result code, without the extended bits; 0 if the exception carries none."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def translate_error(error: sqlite3.Error | UnicodeDecodeError, path: str) -> StoreError:
    """Return the store error for an exception of `STATEMENT_ERRORS`. The text names the file, the cause and a remedy.

    For a result code that this function does not know, it names no remedy.
    """
    code = primary_code(error)
    if isinstance(error, UnicodeDecodeError):
        return damage_refusal(path, error.object.decode("utf-8", "replace"))
    # sqlite3 itself raises this, without a code. Its message goes on with the whole undecodable text.
    if not code and str(error).startswith("Could not decode"):
        return damage_refusal(path, "text that is not UTF-8")
    if code in _CORRUPT_CODES:
        return damage_refusal(path, error)
    if code in BUSY_CODES:
        return StoreUnavailable(f"{path} is locked by another process ({error}); nothing was changed. Try again")
    if code in _READ_ONLY_CODES:
        return StoreReadOnly(
            f"{path} cannot be written ({error}); nothing was changed. "
            "Make the file and its directory writable for this user"
        )
    if code == sqlite3.SQLITE_CANTOPEN:
        return StoreUnavailable(f"{path} cannot be opened ({error}). Check that its directory exists and is writable")
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return _write_failure(error, code, path)
    return StoreError(f"{path}: {error}")


def damage_refusal(path: str, reason: object) -> StoreCorrupt:
    """Return the error to raise for a file whose content cannot be trusted. Its text quotes `reason`."""
    return StoreCorrupt(
        f"{path} is damaged or is not a SQLite database ({reason}); it was left as it is. "
        "Restore it from a backup, or give another path"
    )


def _write_failure(error: sqlite3.Error, code: int, path: str) -> StoreError:
    """Return `StoreFull` if the disk is full, else `StoreUnavailable`, for SQLite's result `code`.

    Some file systems report a full disk as an I/O error, so the free space is read as well.
    """
    if code == sqlite3.SQLITE_FULL or _is_disk_full(path):
        return StoreFull(f"the disk under {path} is full ({error}); nothing was changed. Free some space")
    return StoreUnavailable(f"{path} cannot be read or written ({error}); nothing was changed. Check the disk")


def _is_disk_full(path: str) -> bool:
    """Return True if the file system of the path has less than `_FULL_DISK_BYTES` left; False if that is unknown."""
    try:
        stat = os.statvfs(os.path.dirname(os.path.abspath(path)))
    except OSError:
        return False
    return stat.f_bavail * stat.f_frsize < _FULL_DISK_BYTES
