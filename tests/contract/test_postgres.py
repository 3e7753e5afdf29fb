"""The PostgreSQL store keeps the contract."""

from __future__ import annotations

import pytest

from mainspring.testing.contract import StoreContract
from servers.for_tests import fresh_store

#: Rows are written past the rules, which no log could rebuild: not for `events verify`.
pytestmark = pytest.mark.tampers


class TestPostgres(StoreContract):
    make = staticmethod(lambda tmp_path: fresh_store())
