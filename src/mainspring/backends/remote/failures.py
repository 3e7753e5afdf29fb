"""Failures of a call to a remote store: two exceptions that stay inside a backend, and the error for a lost answer."""

from __future__ import annotations

from mainspring.model.errors import OutcomeUnknown, StoreError


class _CallFailed(Exception):
    """A failed call that may be repeated. `store_error`: what to raise to the store's caller instead."""

    def __init__(self, store_error: StoreError) -> None:
        super().__init__(str(store_error))
        self.store_error = store_error


class WriteConflict(_CallFailed):
    """The write collided with another write, and the server rolled it back. It changed nothing and can be repeated."""


class ConnectionLost(_CallFailed):
    """The connection broke during a call. A write that was under way may or may not have been stored."""


def outcome_unknown(error: BaseException, where: str) -> OutcomeUnknown:
    """Return the error for a write whose answer was lost, and which could not be repeated in time.

    `error`: the failure that lost the answer. `where`: the name of the store, for the text.
    """
    return OutcomeUnknown(
        f"{where} went away while a change was being stored ({error}): whether it was is not known. "
        "Check whether it was stored before you repeat it"
    )
