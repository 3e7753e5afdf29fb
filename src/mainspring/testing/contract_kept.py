"""The contract of kept things: rows beside the log, unique by kind and id, some of which expire."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from mainspring.model.kept import Kept
from mainspring.ports.store import KeptOnes, Purged, Retention
from mainspring.testing.contract_base import Bench, ContractBase, on_store
from mainspring.testing.factories import T0

#: `find` judges by the store's own clock, so these are far from it: the year 2100 and the year 1970.
FAR, PAST = 4_102_444_800_000, 1_000
NOTHING = Retention(ended_before=0)


def one(name: str, data: str = "{}", *, kind: str = "key", expires_at: int | None = None) -> Kept:
    return Kept(kind=kind, id=name, data=data, created_at=T0, expires_at=expires_at)


class KeptThings(ContractBase):
    """What is kept stays until it is replaced, forgotten or expired; no event tells of it."""

    @on_store
    async def test_what_is_kept_is_found_as_it_was(self, b: Bench) -> None:
        things = [one("a", '{"x":"é\\u0000"}'), one("b", "", expires_at=FAR), one("a", "other", kind="header")]
        assert await b.store.keep(things, now=T0) == [True, True, True]
        assert await b.store.find(KeptOnes(kind="key")) == things[:2]
        assert await b.store.find(KeptOnes(kind="header")) == things[2:]
        assert await b.store.find(KeptOnes(kind="nobody")) == []
        assert await b.names() == []

    @on_store
    async def test_without_an_instant_it_is_created_now(self, b: Bench) -> None:
        await b.store.keep([replace(one("a"), created_at=0), one("b")], now=T0 + 5)
        assert [row.created_at for row in await b.store.find(KeptOnes(kind="key"))] == [T0 + 5, T0]

    @on_store
    async def test_what_is_there_stays_unless_it_is_to_be_replaced(self, b: Bench) -> None:
        await b.store.keep([one("a", "first")], now=T0)
        assert await b.store.keep([one("b", "new"), one("a", "second")], now=T0) == [True, False]
        assert [row.data for row in await b.store.find(KeptOnes(kind="key"))] == ["first", "new"]
        newer = one("a", "third", expires_at=FAR)
        assert await b.store.keep([newer], replace=True, now=T0) == [True]
        assert (await b.store.find(KeptOnes(kind="key")))[0] == newer

    @on_store
    async def test_of_two_with_one_name_in_a_batch_the_first_stays_or_the_last_replaces(self, b: Bench) -> None:
        pair = [one("a", "1"), one("a", "2")]
        assert await b.store.keep(pair, now=T0) == [True, False]
        assert [row.data for row in await b.store.find(KeptOnes(kind="key"))] == ["1"]
        assert await b.store.keep(pair, replace=True, now=T0) == [True, True]
        assert [row.data for row in await b.store.find(KeptOnes(kind="key"))] == ["2"]

    @on_store
    async def test_an_expired_one_gives_way_and_its_last_millisecond_counts(self, b: Bench) -> None:
        await b.store.keep([one("a", "old", expires_at=T0 + 10)], now=T0)
        assert await b.store.keep([one("a", "new")], now=T0 + 9) == [False]
        assert await b.store.keep([one("a", "new")], now=T0 + 10) == [True]
        assert [row.data for row in await b.store.find(KeptOnes(kind="key"))] == ["new"]

    @on_store
    async def test_expired_ones_are_not_shown(self, b: Bench) -> None:
        await b.store.keep([one("a", expires_at=PAST), one("b"), one("c", expires_at=FAR)], now=PAST - 1)
        assert [row.id for row in await b.store.find(KeptOnes(kind="key"))] == ["b", "c"]
        assert await b.store.find(KeptOnes(kind="key", ids=("a",))) == []

    @on_store
    async def test_pages_by_name_in_the_order_of_code_points(self, b: Bench) -> None:
        names = ["10", "9", "A", "Z", "a", "é", "\u2400", "\U0001f600"]
        await b.store.keep([one(name) for name in reversed(names)], now=T0)
        found = await b.store.find(KeptOnes(kind="key", limit=3))
        while page := await b.store.find(KeptOnes(kind="key", limit=3, after=found[-1].id)):
            found += page
        assert [row.id for row in found] == names
        some = await b.store.find(KeptOnes(kind="key", ids=("Z", "9", "?")))
        assert [row.id for row in some] == ["9", "Z"]
        assert await b.store.find(KeptOnes(kind="key", ids=())) == []

    @on_store
    async def test_forgetting_counts_what_was_there(self, b: Bench) -> None:
        await b.store.keep([one("a"), one("b"), one("a", kind="header")], now=T0)
        assert await b.store.forget("key", ["a", "a", "?"]) == 1
        assert await b.store.forget("key", []) == 0
        assert [row.id for row in await b.store.find(KeptOnes(kind="key"))] == ["b"]
        assert [row.id for row in await b.store.find(KeptOnes(kind="header"))] == ["a"]

    @on_store
    async def test_retention_removes_what_expired_in_bounded_batches(self, b: Bench) -> None:
        await b.store.keep([one(f"k{n}", expires_at=T0 + n) for n in range(5)], now=T0 - 1)
        await b.store.keep([one("lasting"), one("k1", kind="header")], now=T0)
        assert await b.store.purge(NOTHING, 2, now=T0 + 3) == Purged(kept=2, more=True)
        assert await b.store.purge(NOTHING, 2, now=T0 + 3) == Purged(kept=2)
        assert await b.store.purge(NOTHING, 2, now=T0 + 3) == Purged()
        assert await b.store.keep([one("k4"), one("lasting")], now=T0 + 3) == [False, False]
        assert await b.store.forget("key", [f"k{n}" for n in range(5)]) == 1
        assert await b.names() == []

    @on_store
    async def test_of_many_who_keep_one_name_at_once_one_wins(self, b: Bench) -> None:
        answers = await asyncio.gather(*(b.store.keep([one("a", str(n))], now=T0) for n in range(10)))
        assert sorted(answer for (answer,) in answers) == [False] * 9 + [True]
        (row,) = await b.store.find(KeptOnes(kind="key"))
        assert answers[int(row.data)] == [True]

    @on_store
    async def test_it_outlives_closing_and_opening(self, b: Bench) -> None:
        await b.store.keep([one("a", "kept")], now=T0)
        await b.store.close()
        await b.store.open()
        assert await b.store.find(KeptOnes(kind="key")) == [one("a", "kept")]

    @on_store
    async def test_a_secret_is_not_in_its_words(self, b: Bench) -> None:
        await b.store.keep([one("a", "canary")], now=T0)
        assert "canary" not in repr(await b.store.find(KeptOnes(kind="key")))
