"""Behind PgBouncer, each connection serves the next caller, also after a statement failed on it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mainspring.backends.postgres import PostgresStore
from mainspring.model.errors import StoreError
from servers.for_tests import fresh_url, pooled_url


@pytest.fixture
async def store() -> AsyncIterator[PostgresStore]:
    store = PostgresStore(fresh_url(pooled_url(), pooler=1))
    await store.open()
    yield store
    await store.close()


async def test_a_query_that_failed_leaves_no_transaction_behind(store: PostgresStore) -> None:
    with pytest.raises(StoreError):
        async with store._db.read_only() as session:
            await session.connection.fetchval("SELECT 1 / 0")
    async with store._db.read_only() as session:
        assert await session.connection.fetchval("SELECT 1") == 1
    async with store._db.transaction("test") as session:
        assert await session.connection.fetchval("SELECT 2") == 2
