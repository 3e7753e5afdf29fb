"""Failures of a call to a remote store: two exceptions that stay inside a backend, and the error for a lost answer."""

from __future__ import annotations

from mainspring.model.errors import OutcomeUnknown, StoreError


class _CallFailed(Exception):
    """Carries `store_error`, the error that the store's caller receives if the call is not repeated."""

    def __init__(self, store_error: StoreError) -> None:
        super().__init__(str(store_error))
        self.store_error = store_error


class WriteConflict(_CallFailed):
    """Two writers collided and the server rolled this one back. The call changed nothing and can be repeated."""


class ConnectionLost(_CallFailed):
    """The connection broke during a call. A write that was under way may or may not be stored."""


def outcome_unknown(error: BaseException, where: str) -> OutcomeUnknown:
    """Return the error for a write whose answer was lost, and about which the store could not be asked since.

    `error` is the failure that lost the answer, `where` names the store.
    """
    return OutcomeUnknown(
        f"{where} went away while a change was being stored ({error}): whether it was is not known. "
        "Sent again with the same id it is stored once"
    )
