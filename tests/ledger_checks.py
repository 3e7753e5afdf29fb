"""Checks of the ledger that tests of several packages share."""

from __future__ import annotations

from typing import Any

from mainspring import Mainspring
from mainspring.app.internals import host_of
from mainspring.ledger.account import Ledger, ledger
from mainspring.testing.time_travel import Travel


async def check_ledger(t: Travel) -> Ledger:
    """Return the ledger of the app in `t`; fail if it leaves any fire unexplained."""
    return _without_gaps(await ledger(t.runtime.store, t.clock.now()))


async def check_ledger_of(app: Mainspring) -> Ledger:
    """Return the ledger of an app that starts its engine by itself; fail if it leaves any fire unexplained."""

    async def read(runtime: Any) -> Ledger:
        return await ledger(runtime.store, app.clock.now())

    return _without_gaps(await host_of(app).call(read))


def _without_gaps(book: Ledger) -> Ledger:
    assert book.unexplained == 0, book.differences
    return book
