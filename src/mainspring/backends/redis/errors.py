"""Translate errors of the driver, and error answers of the server, into StoreErrors with a fix."""

from __future__ import annotations

import asyncio
import ssl
from typing import NamedTuple

from redis import exceptions

from mainspring.model.errors import (
    StoreDenied,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

#: Every class of error that a call of the driver may raise.
DRIVER_ERRORS = (
    exceptions.RedisError,
    exceptions.RedisClusterException,
    OSError,
    TimeoutError,
    asyncio.IncompleteReadError,
)
#: The connection broke or no answer came, so the commands under way may or may not have been executed. An error answer
#: is another case: a script that the server refuses has not begun.
CONNECTION_ERRORS = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.InvalidResponse,
    OSError,
    TimeoutError,
    asyncio.IncompleteReadError,
)
#: The server that answered is not, or no longer, the primary of the store's keys. It has executed nothing.
_PRIMARY_MOVED_ERRORS = (exceptions.MovedError, exceptions.ReadOnlyError, exceptions.MasterDownError)
#: The server answers, but cannot execute commands at the moment.
TRY_LATER_ERRORS = (
    exceptions.BusyLoadingError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    exceptions.AskError,
)
DENIED_ERRORS = (
    exceptions.AuthenticationError,
    exceptions.AuthorizationError,
    exceptions.AuthenticationWrongNumberOfArgsError,
)
_UNAVAILABLE_ERRORS = (*CONNECTION_ERRORS, *TRY_LATER_ERRORS, *_PRIMARY_MOVED_ERRORS)
#: The first words of error answers for which the driver has no class of its own.
_NO_REPLICAS, _BUSY_SCRIPT, _DISK, _NO_AUTH, _WRONG_PASSWORD = "NOREPLICAS", "BUSY", "MISCONF", "NOAUTH", "WRONGPASS"


class _Rule(NamedTuple):
    """How to translate one kind of error, which is recognised by its class, or by the beginning or a part of its text.

    Why by a part of its text: Redis 6.2 wraps the error of a command inside a script into an error of the script.
    """

    store_error: type[StoreError]
    #: The text of the StoreError. It has places for `where`, the server's name, and for `reason`, the text of the
    #: error.
    text: str
    errors: tuple[type[Exception], ...] = ()
    prefixes: tuple[str, ...] = ()
    part: str = ""

    def covers(self, error: BaseException, reason: str) -> bool:
        """Return True if this rule translates the error; `reason`: the error's text in one line."""
        return (
            isinstance(error, self.errors)
            or reason.startswith(self.prefixes)
            or (self.part != "" and self.part in reason)
        )


#: The order counts: the first rule that covers an error translates it.
_RULES = (
    _Rule(
        StoreDenied,
        "{where}: the user lacks a right ({reason}). Grant it: ACL SETUSER name ~{{prefix}}:* &{{prefix}}:* +@all",
        errors=(exceptions.NoPermissionError,),
        part="-NOPERM ",
    ),
    _Rule(
        StoreDenied,
        "{where} refused the user or the password ({reason}). Check the URL, or the server's ACL",
        errors=DENIED_ERRORS,
        prefixes=(_NO_AUTH, _WRONG_PASSWORD),
    ),
    _Rule(
        StoreReadOnly,
        "{where} is a read-only replica ({reason}). Give the primary's address, or a Sentinel's",
        errors=(exceptions.ReadOnlyError,),
        part="-READONLY ",
    ),
    _Rule(
        StoreFull,
        "{where} has reached maxmemory ({reason}). Raise maxmemory, or shorten the history kept",
        errors=(exceptions.OutOfMemoryError,),
        part="-OOM ",
    ),
    _Rule(
        StoreError,
        "{where}: the cluster refused keys of two slots ({reason}). This is a bug in Mainspring: please report it",
        errors=(exceptions.ClusterCrossSlotError,),
    ),
    _Rule(
        StoreUnavailable,
        "{where} has too few replicas to write ({reason}). Bring them back, or lower min-replicas-to-write",
        prefixes=(_NO_REPLICAS,),
    ),
    _Rule(
        StoreFull,
        "{where} cannot save its data ({reason}); nothing was changed. Free space on its disk, or correct its settings",
        prefixes=(_DISK,),
    ),
)


def may_be_starting(error: StoreError, mode: str) -> bool:
    """Return True if the error may come from a server that is starting, so that a later try may succeed.

    An error of a read-only replica counts only behind Sentinels or in a cluster, where the replica may become the
    primary. `mode`: the kind of server that the URL names, "server", "sentinel" or "cluster".
    """
    return isinstance(error, StoreUnavailable) and not (isinstance(error, StoreReadOnly) and mode == "server")


def has_primary_moved(error: BaseException) -> bool:
    """Return True if an error answer means that the server is not, or no longer, the primary of the store's keys.

    Why the text is searched, too: it is the only place where Redis 6.2 reports the error of a command inside a script.
    """
    return isinstance(error, _PRIMARY_MOVED_ERRORS) or "-READONLY " in str(error)


def translate(error: BaseException, where: str) -> StoreError:
    """Return the StoreError for an error of the driver or an error answer: what happened, and how to fix it.

    `where`: the server's name in error texts. A StoreError is returned unchanged.
    """
    if isinstance(error, StoreError):
        return error
    reason = " ".join(str(error).split()) or type(error).__name__
    for rule in _RULES:
        if rule.covers(error, reason):
            return rule.store_error(rule.text.format(where=where, reason=reason))
    if isinstance(error.__cause__ or error.__context__, ssl.SSLError):
        return StoreDenied(
            f"{where}: the TLS connection failed ({reason}). Check the scheme, ?tls_ca= and the certificate's names"
        )
    if isinstance(error, _UNAVAILABLE_ERRORS) or reason.startswith(_BUSY_SCRIPT):
        return StoreUnavailable(f"{where} does not answer ({reason})")
    return StoreError(f"{where}: {reason}")
