"""Redis's errors in Mainspring's words."""

from __future__ import annotations

import asyncio
import ssl

from redis import exceptions

from mainspring.model.errors import (
    OutcomeUnknown,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

#: What the driver may raise.
DRIVER = (exceptions.RedisError, exceptions.RedisClusterException, OSError, TimeoutError, asyncio.IncompleteReadError)
#: The connection is gone, or silent: what was under way may have been done. An answer of the server, of whatever
#: kind, is not among these: a script that the server refuses has not begun.
BROKEN = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.InvalidResponse,
    OSError,
    TimeoutError,
    asyncio.IncompleteReadError,
)
_ELSEWHERE = (exceptions.MovedError, exceptions.ReadOnlyError, exceptions.MasterDownError)
#: It answers, but not yet, or not just now.
BUSY = (
    exceptions.BusyLoadingError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    exceptions.AskError,
)
DENIED = (
    exceptions.AuthenticationError,
    exceptions.AuthorizationError,
    exceptions.AuthenticationWrongNumberOfArgsError,
)
#: How the answers begin for which the driver has no class of its own.
_NO_REPLICAS, _BUSY_SCRIPT, _DISK, _NO_AUTH, _WRONG_PASSWORD = "NOREPLICAS", "BUSY", "MISCONF", "NOAUTH", "WRONGPASS"


class Broken(Exception):
    """The connection went away while something was under way; `why` says how, in our words."""

    def __init__(self, why: StoreError) -> None:
        super().__init__(str(why))
        self.why = why


def starting(error: StoreError, mode: str) -> bool:
    """True when a server that is not there yet may be there soon; behind a Sentinel a replica may become a primary."""
    return isinstance(error, StoreUnavailable) and not (isinstance(error, StoreReadOnly) and mode == "server")


def elsewhere(error: BaseException) -> bool:
    """True when the primary is another server by now; Redis 6.2 hides a script's reason in the text."""
    return isinstance(error, _ELSEWHERE) or "-READONLY " in str(error)


def translate(error: BaseException, where: str) -> StoreError:
    """What happened, and what to do about it."""
    if isinstance(error, StoreError):
        return error
    reason = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, exceptions.NoPermissionError) or "-NOPERM " in reason:
        return StoreDenied(
            f"{where}: the user lacks a right ({reason}). Grant it: ACL SETUSER name ~{{prefix}}:* &{{prefix}}:* +@all"
        )
    if isinstance(error, DENIED) or reason.startswith((_NO_AUTH, _WRONG_PASSWORD)):
        return StoreDenied(f"{where} refused the user or the password ({reason}). Check the URL, or the server's ACL")
    if isinstance(error, exceptions.ReadOnlyError) or "-READONLY " in reason:
        return StoreReadOnly(f"{where} is a read-only replica ({reason}). Give the primary's address, or a Sentinel's")
    if isinstance(error, exceptions.OutOfMemoryError) or "-OOM " in reason:
        return StoreFull(f"{where} has reached maxmemory ({reason}). Raise maxmemory, or shorten the history kept")
    if isinstance(error, exceptions.ClusterCrossSlotError):
        return StoreError(f"{where}: keys of two slots met ({reason}). One prefix must be one hash tag: this is a bug")
    if reason.startswith(_NO_REPLICAS):
        return StoreUnavailable(
            f"{where} has too few replicas to write ({reason}). Bring them back, or lower min-replicas-to-write"
        )
    if reason.startswith(_DISK):
        return StoreFull(f"{where} cannot persist ({reason}); nothing was changed. Free its disk, or mend its settings")
    if isinstance(error.__cause__ or error.__context__, ssl.SSLError):
        return StoreDenied(
            f"{where}: no TLS with it ({reason}). Check the scheme, ?tls_ca= and the certificate's names"
        )
    if isinstance(error, (*BROKEN, *BUSY, *_ELSEWHERE)) or reason.startswith(_BUSY_SCRIPT):
        return StoreUnavailable(f"{where} does not answer ({reason})")
    return StoreError(f"{where}: {reason}")


def unknown(error: BaseException, where: str) -> OutcomeUnknown:
    """A write was sent, its answer is lost, and nobody could be asked since."""
    return OutcomeUnknown(
        f"{where} went away while a change was being stored ({error}): whether it was is not known. "
        "Sent again with the same id it is stored once"
    )
