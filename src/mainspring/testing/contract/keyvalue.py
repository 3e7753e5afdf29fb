"""The contract of key-value entries: rows outside the event log, unique by kind and id, which may expire."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from mainspring.model.keyvalue import KeyValue
from mainspring.model.retention import Purged, Retention
from mainspring.ports.store import KeyValues
from mainspring.testing.contract.bench import ContractBase, StoreBench, on_store
from mainspring.testing.contract.factories import T0

#: Expiries in the years 2100 and 1970: `find` judges them by the store's own clock, so they must be far from it.
FAR, PAST = 4_102_444_800_000, 1_000
PURGE_NOTHING = Retention(ended_before=0)


def make_entry(name: str, data: str = "{}", *, kind: str = "key", expires_at: int | None = None) -> KeyValue:
    """Return an entry with the id `name`, created at T0."""
    return KeyValue(kind=kind, id=name, data=data, created_at=T0, expires_at=expires_at)


class KeyValueEntries(ContractBase):
    """Tests of entries, which last until they are replaced, removed or expired and leave no event."""

    @on_store
    async def test_an_entry_is_read_back_unchanged(self, b: StoreBench) -> None:
        things = [
            make_entry("a", '{"x":"é\\u0000"}'),
            make_entry("b", "", expires_at=FAR),
            make_entry("a", "other", kind="header"),
        ]
        assert await b.store.put(things, now=T0) == [True, True, True]
        assert await b.store.find(KeyValues(kind="key")) == things[:2]
        assert await b.store.find(KeyValues(kind="header")) == things[2:]
        assert await b.store.find(KeyValues(kind="nobody")) == []
        assert await b.names() == []

    @on_store
    async def test_an_entry_without_a_creation_time_gets_now(self, b: StoreBench) -> None:
        await b.store.put([replace(make_entry("a"), created_at=0), make_entry("b")], now=T0 + 5)
        assert [row.created_at for row in await b.store.find(KeyValues(kind="key"))] == [T0 + 5, T0]

    @on_store
    async def test_an_existing_entry_stays_unless_replace_is_set(self, b: StoreBench) -> None:
        await b.store.put([make_entry("a", "first")], now=T0)
        assert await b.store.put([make_entry("b", "new"), make_entry("a", "second")], now=T0) == [True, False]
        assert [row.data for row in await b.store.find(KeyValues(kind="key"))] == ["first", "new"]
        newer = make_entry("a", "third", expires_at=FAR)
        assert await b.store.put([newer], replace=True, now=T0) == [True]
        assert (await b.store.find(KeyValues(kind="key")))[0] == newer

    @on_store
    async def test_of_two_entries_with_one_id_in_a_batch_the_first_or_the_replacement_is_stored(
        self, b: StoreBench
    ) -> None:
        pair = [make_entry("a", "1"), make_entry("a", "2")]
        assert await b.store.put(pair, now=T0) == [True, False]
        assert [row.data for row in await b.store.find(KeyValues(kind="key"))] == ["1"]
        assert await b.store.put(pair, replace=True, now=T0) == [True, True]
        assert [row.data for row in await b.store.find(KeyValues(kind="key"))] == ["2"]

    @on_store
    async def test_an_entry_can_be_overwritten_from_the_instant_it_expires(self, b: StoreBench) -> None:
        await b.store.put([make_entry("a", "old", expires_at=T0 + 10)], now=T0)
        assert await b.store.put([make_entry("a", "new")], now=T0 + 9) == [False]
        assert await b.store.put([make_entry("a", "new")], now=T0 + 10) == [True]
        assert [row.data for row in await b.store.find(KeyValues(kind="key"))] == ["new"]

    @on_store
    async def test_expired_entries_are_not_found(self, b: StoreBench) -> None:
        await b.store.put(
            [make_entry("a", expires_at=PAST), make_entry("b"), make_entry("c", expires_at=FAR)], now=PAST - 1
        )
        assert [row.id for row in await b.store.find(KeyValues(kind="key"))] == ["b", "c"]
        assert await b.store.find(KeyValues(kind="key", ids=("a",))) == []

    @on_store
    async def test_entries_are_paged_by_id_in_the_order_of_code_points(self, b: StoreBench) -> None:
        names = ["10", "9", "A", "Z", "a", "é", "\u2400", "\U0001f600"]
        await b.store.put([make_entry(name) for name in reversed(names)], now=T0)
        found = await b.store.find(KeyValues(kind="key", limit=3))
        while page := await b.store.find(KeyValues(kind="key", limit=3, after=found[-1].id)):
            found += page
        assert [row.id for row in found] == names
        some = await b.store.find(KeyValues(kind="key", ids=("Z", "9", "?")))
        assert [row.id for row in some] == ["9", "Z"]
        assert await b.store.find(KeyValues(kind="key", ids=())) == []

    @on_store
    async def test_removing_returns_the_number_of_removed_entries(self, b: StoreBench) -> None:
        await b.store.put([make_entry("a"), make_entry("b"), make_entry("a", kind="header")], now=T0)
        assert await b.store.remove("key", ["a", "a", "?"]) == 1
        assert await b.store.remove("key", []) == 0
        assert [row.id for row in await b.store.find(KeyValues(kind="key"))] == ["b"]
        assert [row.id for row in await b.store.find(KeyValues(kind="header"))] == ["a"]

    @on_store
    async def test_purge_removes_expired_entries_in_bounded_batches(self, b: StoreBench) -> None:
        await b.store.put([make_entry(f"k{n}", expires_at=T0 + n) for n in range(5)], now=T0 - 1)
        await b.store.put([make_entry("lasting"), make_entry("k1", kind="header")], now=T0)
        assert await b.store.purge(PURGE_NOTHING, 2, now=T0 + 3) == Purged(kept=2, more=True)
        assert await b.store.purge(PURGE_NOTHING, 2, now=T0 + 3) == Purged(kept=2)
        assert await b.store.purge(PURGE_NOTHING, 2, now=T0 + 3) == Purged()
        assert await b.store.put([make_entry("k4"), make_entry("lasting")], now=T0 + 3) == [False, False]
        assert await b.store.remove("key", [f"k{n}" for n in range(5)]) == 1
        assert await b.names() == []

    @on_store
    async def test_of_ten_concurrent_entries_with_one_id_one_is_stored(self, b: StoreBench) -> None:
        answers = await asyncio.gather(*(b.store.put([make_entry("a", str(n))], now=T0) for n in range(10)))
        assert sorted(answer for (answer,) in answers) == [False] * 9 + [True]
        (row,) = await b.store.find(KeyValues(kind="key"))
        assert answers[int(row.data)] == [True]

    @on_store
    async def test_an_entry_survives_closing_and_opening(self, b: StoreBench) -> None:
        await b.store.put([make_entry("a", "kept")], now=T0)
        await b.store.close()
        await b.store.open()
        assert await b.store.find(KeyValues(kind="key")) == [make_entry("a", "kept")]

    @on_store
    async def test_the_repr_of_an_entry_hides_its_data(self, b: StoreBench) -> None:
        await b.store.put([make_entry("a", "canary")], now=T0)
        assert "canary" not in repr(await b.store.find(KeyValues(kind="key")))
