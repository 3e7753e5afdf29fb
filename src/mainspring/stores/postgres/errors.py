"""PostgreSQL's errors in Mainspring's words."""

from __future__ import annotations

import asyncio

import asyncpg

from mainspring.model.errors import (
    OutcomeUnknown,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

#: What the driver may raise; `InterfaceError` also when the connection was closed under it.
DRIVER = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
    asyncio.IncompleteReadError,
)
#: Rolled back, and right again when tried again: two writers met.
MET = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.UniqueViolationError,
)
#: The connection is gone: what was under way may have been committed.
BROKEN = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server's last word came while nobody was asking: the driver loses its step
    OSError,
    TimeoutError,
    asyncio.IncompleteReadError,
)
_AWAY = (
    *BROKEN,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.QueryCanceledError,
    asyncpg.LockNotAvailableError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
)


def starting(error: BaseException) -> bool:
    """True when a server that is not there yet may be there soon."""
    return isinstance(error, asyncpg.CannotConnectNowError | asyncpg.TooManyConnectionsError | OSError | TimeoutError)


def translate(error: BaseException, where: str) -> StoreError:
    """What happened, and what to do about it."""
    reason = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, asyncpg.InvalidPasswordError | asyncpg.InvalidAuthorizationSpecificationError):
        return StoreDenied(f"{where} refused the user or the password ({reason}). Check the URL, or pg_hba.conf")
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        name = where.rpartition("/")[2]
        return StoreDenied(f"{where}: there is no such database ({reason}). Create it: createdb {name}")
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return StoreDenied(
            f"{where}: the user lacks a right ({reason}). Grant it, or let an owner run `mainspring migrate` once"
        )
    if isinstance(error, asyncpg.DiskFullError):
        return StoreFull(f"the disk of {where} is full ({reason}); nothing was changed. Free some space")
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return StoreReadOnly(f"{where} is read-only ({reason}): it may be a standby. Give the primary's address")
    if isinstance(error, asyncpg.TooManyConnectionsError):
        return StoreUnavailable(f"{where} has no connection left ({reason}). Raise max_connections, or lower ?pool=")
    if isinstance(error, _AWAY):
        return StoreUnavailable(f"{where} does not answer ({reason})")
    return StoreError(f"{where}: {reason}")


def unknown(error: BaseException, where: str) -> OutcomeUnknown:
    """A commit was sent, its answer is lost, and nobody could be asked since."""
    return OutcomeUnknown(
        f"{where} went away while a change was being stored ({error}): whether it was is not known. "
        "Sent again with the same id it is stored once"
    )
