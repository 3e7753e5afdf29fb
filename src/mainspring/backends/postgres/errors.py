"""Translation of the PostgreSQL driver's errors into Mainspring's errors."""

from __future__ import annotations

import asyncio

import asyncpg

from mainspring.model.errors import (
    StoreDenied,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

#: All errors that a call of the driver may raise. `InterfaceError` also means that the connection was closed during it.
DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
    asyncio.IncompleteReadError,
)
#: Two writers collided and the server rolled one back: a repeated call can succeed.
CONFLICT_ERRORS = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.UniqueViolationError,
)
#: The connection is gone: a statement that was under way may have been committed.
CONNECTION_ERRORS = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server sent its last message between two statements, which confuses the driver
    OSError,
    TimeoutError,
    asyncio.IncompleteReadError,
)
_UNAVAILABLE_ERRORS = (
    *CONNECTION_ERRORS,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.QueryCanceledError,
    asyncpg.LockNotAvailableError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
)


def may_be_starting(error: BaseException) -> bool:
    """Return True if a connection may have failed because the server is starting, so that a later try may succeed."""
    return isinstance(error, asyncpg.CannotConnectNowError | asyncpg.TooManyConnectionsError | OSError | TimeoutError)


def translate(error: BaseException, where: str) -> StoreError:
    """Return the `StoreError` for a driver's error: its text names the store, the reason and a remedy."""
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
    if isinstance(error, _UNAVAILABLE_ERRORS):
        return StoreUnavailable(f"{where} does not answer ({reason})")
    return StoreError(f"{where}: {reason}")
