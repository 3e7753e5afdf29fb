"""The contract of the store port, as one test class for pytest.

To test a store, write three lines:

    class TestMine(StoreContract):
        make = staticmethod(lambda tmp_path: MyStore(tmp_path / "ledger"))

`make` returns an empty store that is not yet open, or a coroutine that returns such a store. The tests pass the time as
an argument, and do not wait for it, except those of the store's own clock and of `wait`. For readable failures call
`pytest.register_assert_rewrite("mainspring.testing")` in conftest.py.
"""

from __future__ import annotations

from mainspring.testing.contract.apply import ApplyInserts, ApplyPlans
from mainspring.testing.contract.apply_moves import ApplyMoves
from mainspring.testing.contract.apply_renames import ApplyRenames
from mainspring.testing.contract.claim import Claims, GatedClaims, Renewals
from mainspring.testing.contract.claim_ahead import ClaimsAhead
from mainspring.testing.contract.due import DueExpired, DueSchedules, NamedLeases
from mainspring.testing.contract.find import FindOthers, FindRuns
from mainspring.testing.contract.keyvalue import KeyValueEntries
from mainspring.testing.contract.leases import LeaseTerms
from mainspring.testing.contract.purge import Purges
from mainspring.testing.contract.restore import Restores
from mainspring.testing.contract.rewind import Rewinds
from mainspring.testing.contract.run_logs import LogsOfRuns


class StoreContract(
    ApplyInserts,
    ApplyPlans,
    ApplyMoves,
    ApplyRenames,
    Claims,
    ClaimsAhead,
    GatedClaims,
    Renewals,
    DueSchedules,
    DueExpired,
    NamedLeases,
    LeaseTerms,
    KeyValueEntries,
    FindRuns,
    FindOthers,
    Purges,
    LogsOfRuns,
    Restores,
    Rewinds,
):
    """Tests of every method of the store port, and of the promises in its docstrings; a subclass sets `make`."""


__all__ = ["StoreContract"]
