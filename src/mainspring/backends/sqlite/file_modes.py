"""Permissions of the database file. It holds secrets and payloads, so only its owner may read or write it."""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
from collections.abc import Sequence
from urllib.parse import quote

from mainspring.model.errors import StoreDenied

#: Permissions of a new file. SQLite gives the same ones to the files that it creates beside it.
OWNER_ONLY = 0o600
#: Ends of the names of the files in which SQLite keeps the data of one database.
SUFFIXES = ("", "-wal", "-shm", "-journal")


def create_private_file(path: str) -> None:
    """Create an empty file that only its owner may read and write; do nothing if the file exists.

    `path` is no link, because SQLite would create the link's target. An error is ignored, because SQLite reports it
    better when it opens the file. Why mknod: closing a descriptor of the file would end the locks that another thread
    of this process holds on it.
    """
    with contextlib.suppress(OSError):
        try:
            os.mknod(path, OWNER_ONLY | stat.S_IFREG)
        except (AttributeError, PermissionError):  # not on this system, or only for root
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, OWNER_ONLY))


def list_files(path: str) -> list[str]:
    """Return `path` and the paths of the files that exist beside it for the data of the same database."""
    return [path + suffix for suffix in SUFFIXES if not suffix or os.path.exists(path + suffix)]


def check_private(files: Sequence[str]) -> None:
    """Raise `StoreDenied`, with the command that helps, if other users may read or write a file of the database.

    `files`: those of `list_files` before the database was opened. SQLite removes the files that it adds while the
    database is open, so the command must not name them.
    """
    if os.name != "posix":
        return  # permissions of other systems are not in the mode
    open_files = [file for file in files if _mode(file) & 0o077]
    if open_files:
        raise StoreDenied(
            f"{files[0]} holds secrets, and other users of this machine may read or write it (mode "
            f"{_mode(open_files[0]):04o}). Close it to them: chmod 600 {shlex.join(open_files)}. "
            f"If they are meant to use it, write sqlite:///{quote(files[0])}?shared=1"
        )


def _mode(path: str) -> int:
    """Return the permission bits of a file; 0 if there is no file."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return 0
