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

#: The errors that a call of the driver raises. One of them, `InterfaceError`, may mean that the connection was closed
#: during the call.
DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
    asyncio.IncompleteReadError,
)
#: Two writers collided and the server refused one of them. The call can succeed when it is repeated.
CONFLICT_ERRORS = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.UniqueViolationError,
)
#: The connection is gone, or of no use after a time-out: a statement that was under way may have been committed.
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
#: The server cannot do the work now: these become `StoreUnavailable`.
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
    """Return True if a try to connect may have failed because the server is starting, so a later try may succeed."""
    return isinstance(error, asyncpg.CannotConnectNowError | asyncpg.TooManyConnectionsError | OSError | TimeoutError)


def translate(error: BaseException, where: str) -> StoreError:
    """Return the `StoreError` for a driver's error. Its text has the store's name, the reason, and a remedy if known.

    `where`: the store's name for error texts, without the password.
    """
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
