"""Repetition of calls to a remote store after a write conflict or a lost answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mainspring.backends.remote.failures import ConnectionLost, WriteConflict, outcome_unknown
from mainspring.model.errors import StoreError, StoreUnavailable

T = TypeVar("T")
#: How many times a call is tried while each try ends in a write conflict.
MAX_CONFLICTING_TRIES = 5
#: A write whose answer is lost is repeated for this long; then its caller receives `OutcomeUnknown`.
RESEND_SECONDS = 8.0
_RESEND_PAUSE_SECONDS = 0.1


async def translate_failures(call: Awaitable[T]) -> T:
    """Await a call and return its answer. The call is not repeated.

    Raises: the `StoreError` inside a `ConnectionLost`, instead of that exception.
    """
    try:
        return await call
    except ConnectionLost as error:
        raise error.store_error from error


async def retry_conflicts(call: Callable[[], Awaitable[T]]) -> T:
    """Await `call()`, and again after each write conflict, at most MAX_CONFLICTING_TRIES times; return its answer.

    Raises: the `StoreError` inside the last `WriteConflict`, or inside a `ConnectionLost` at once.
    """
    for tries_left in reversed(range(MAX_CONFLICTING_TRIES)):
        try:
            return await call()
        except WriteConflict as error:
            if not tries_left:
                raise error.store_error from error
        except ConnectionLost as error:
            raise error.store_error from error
    raise AssertionError("unreachable")


async def resend_until_answered(send: Callable[[bool], Awaitable[T]], where: str) -> T:
    """Await `send(resent)`, again and again until the store answers; return the answer.

    `resent` is True once an answer was lost, before that False. If it is True, the changes may be stored already, under
    their ids; for such changes the store answers "repeated". `where` names the store in error texts.

    Raises, if no answer was lost: `StoreError`, among others `StoreUnavailable` and the one inside the last of
    MAX_CONFLICTING_TRIES write conflicts; nothing is stored then. After a lost answer: `OutcomeUnknown`, at once for
    a failure that a repetition does not help, else if a try fails more than RESEND_SECONDS after that answer.
    """
    conflicts = 0
    lost: ConnectionLost | None = None
    loop = asyncio.get_running_loop()
    deadline = 0.0
    while True:
        try:
            return await send(lost is not None)
        except WriteConflict as error:
            conflicts += 1
            if lost is None and conflicts >= MAX_CONFLICTING_TRIES:
                raise error.store_error from error
        except ConnectionLost as error:
            deadline = deadline or loop.time() + RESEND_SECONDS
            lost = error
        except StoreUnavailable:
            if lost is None:
                raise
        except StoreError as error:
            if lost is None:
                raise
            raise outcome_unknown(error, where) from error
        if lost is not None:
            if loop.time() > deadline:
                raise outcome_unknown(lost.store_error, where) from lost
            await asyncio.sleep(_RESEND_PAUSE_SECONDS)
