"""The contract every store keeps, as one test class for pytest.

A backend joins with three lines:

    class TestMine(StoreContract):
        make = staticmethod(lambda tmp_path: MyStore(tmp_path / "ledger"))

`make` gives a fresh store that is not yet open, or a coroutine of one. Every test says what time it is;
none sleeps. For readable failures: `pytest.register_assert_rewrite("mainspring.testing")` in conftest.py.
"""

from __future__ import annotations

from mainspring.testing.contract_apply import ApplyInserts, ApplyPlans
from mainspring.testing.contract_claim import Claims, Gated, Renewals
from mainspring.testing.contract_due import DueExpired, DueSchedules, NamedLeases
from mainspring.testing.contract_early import ClaimsAhead
from mainspring.testing.contract_find import FindRest, FindRuns
from mainspring.testing.contract_kept import KeptThings
from mainspring.testing.contract_leases import LeaseTerms
from mainspring.testing.contract_moves import ApplyMoves
from mainspring.testing.contract_purge import Purges
from mainspring.testing.contract_restore import Restores


class StoreContract(
    ApplyInserts,
    ApplyPlans,
    ApplyMoves,
    Claims,
    ClaimsAhead,
    Gated,
    Renewals,
    DueSchedules,
    DueExpired,
    NamedLeases,
    LeaseTerms,
    KeptThings,
    FindRuns,
    FindRest,
    Purges,
    Restores,
):
    """Every verb and every sentence of the store port."""


__all__ = ["StoreContract"]
