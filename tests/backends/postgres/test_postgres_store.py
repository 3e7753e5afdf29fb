"""The PostgreSQL store keeps the contract."""

from __future__ import annotations

import pytest

from mainspring.backends.postgres import PostgresStore
from mainspring.testing.contract.store import StoreContract
from servers.for_tests import fresh_store, fresh_url, pooled_url

#: Rows are written past the rules, which no log could rebuild: not for `events verify`.
pytestmark = pytest.mark.tampers


class TestPostgres(StoreContract):
    make = staticmethod(lambda tmp_path: fresh_store())


class TestThroughPgBouncer(StoreContract):
    """In transaction mode: nothing may rest on a session."""

    make = staticmethod(lambda tmp_path: PostgresStore(fresh_url(pooled_url(), pooler=1)))
