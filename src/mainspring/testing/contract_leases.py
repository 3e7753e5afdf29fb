"""The contract of a lease's terms: what locks, execution leases and the leader rest on."""

from __future__ import annotations

import asyncio
import random

from mainspring.ports.store import Lease, Leases, Retention
from mainspring.testing.contract_base import Bench, ContractBase, on_store
from mainspring.testing.factories import T0

TTL = 100


class LeaseTerms(ContractBase):
    """One holder at a time; an epoch that grows with each, and is never given twice."""

    @on_store
    async def test_every_term_has_the_next_epoch_however_the_last_one_ended(self, b: Bench) -> None:
        now, epochs = T0, []
        for number in range(12):
            lease = await _taken(b, f"i{number % 3}", now)
            epochs.append(lease.epoch)
            if number % 3 == 0:
                assert await b.store.release("lock", lease.owner, lease.epoch, now=now + 1)
                now += 2
            elif number % 3 == 1:
                assert await b.store.lease("lock", lease.owner, TTL, epoch=lease.epoch, now=now + 50) is not None
                now += 50 + TTL
            else:
                now += TTL
        assert epochs == list(range(1, 13))

    @on_store
    async def test_a_row_outlives_closing_and_opening(self, b: Bench) -> None:
        first = await _taken(b, "i1", T0)
        await b.store.release("lock", "i1", first.epoch, now=T0)
        second = await _taken(b, "i2", T0 + 1)
        await b.store.close()
        await b.store.open()
        assert await b.store.lease("lock", "i3", TTL, now=T0 + 50) is None
        kept = await b.store.lease("lock", "i2", TTL, epoch=second.epoch, now=T0 + 50)
        assert kept is not None
        assert (await _taken(b, "i3", T0 + 50 + TTL)).epoch == 3

    @on_store
    async def test_the_last_millisecond_belongs_to_the_holder_and_the_next_to_anybody(self, b: Bench) -> None:
        await _taken(b, "i1", T0)
        assert await b.store.lease("lock", "i2", TTL, now=T0 + TTL - 1) is None
        assert await b.store.lease("lock", "i1", TTL, epoch=1, now=T0 + TTL - 1) is not None
        assert await b.store.lease("lock", "i1", TTL, epoch=1, now=T0 + 2 * TTL - 1) is None
        assert (await _taken(b, "i2", T0 + 2 * TTL - 1)).epoch == 2

    @on_store
    async def test_a_renewal_counts_from_now_and_may_be_longer_or_shorter(self, b: Bench) -> None:
        await _taken(b, "i1", T0)
        assert await b.store.lease("lock", "i1", 10_000, epoch=1, now=T0 + 10) is not None
        assert await b.store.lease("lock", "i2", TTL, now=T0 + 10_009) is None
        assert await b.store.lease("lock", "i1", 20, epoch=1, now=T0 + 5_000) is not None
        assert (await _taken(b, "i2", T0 + 5_020)).epoch == 2

    @on_store
    async def test_a_new_term_has_its_own_data(self, b: Bench) -> None:
        assert await b.store.lease("lock", "i1", TTL, data='{"since":1}', now=T0) is not None
        lease = await b.store.lease("lock", "i2", TTL, now=T0 + TTL)
        assert lease is not None
        assert lease.data is None
        (row,) = await b.store.find(Leases(prefix="lock"))
        assert (row.owner, row.epoch, row.data) == ("i2", 2, None)

    @on_store
    async def test_a_refused_take_changes_nothing(self, b: Bench) -> None:
        await b.store.lease("lock", "i1", TTL, data="mine", now=T0)
        before = await b.store.find(Leases())
        assert await b.store.lease("lock", "i2", 10_000, data="theirs", now=T0 + 1) is None
        assert await b.store.lease("lock", "i2", 10_000, epoch=1, data="theirs", now=T0 + 1) is None
        assert not await b.store.release("lock", "i2", 1, now=T0 + 1)
        assert await b.store.find(Leases()) == before

    @on_store
    async def test_release_says_whether_anybody_took_it_meanwhile(self, b: Bench) -> None:
        """A holder that comes late learns whether it was alone: nobody took it, or somebody did."""
        await _taken(b, "i1", T0)
        assert await b.store.release("lock", "i1", 1, now=T0 + 5 * TTL)
        await _taken(b, "i1", T0 + 6 * TTL)
        await _taken(b, "i2", T0 + 8 * TTL)
        assert not await b.store.release("lock", "i1", 2, now=T0 + 8 * TTL)
        assert await b.store.lease("lock", "i3", TTL, now=T0 + 8 * TTL) is None

    @on_store
    async def test_names_do_not_mix(self, b: Bench) -> None:
        names = ["lock:a", "lock:a:b", "lock:a%", "lock:a_", "lock:A", "lock:ä ☃", "lock:" + "x" * 600, "lock:'"]
        for number, name in enumerate(names):
            lease = await b.store.lease(name, f"i{number}", TTL, now=T0)
            assert lease is not None, name
            assert (lease.name, lease.epoch) == (name, 1)
        for number, name in enumerate(names):
            (first,) = await b.store.find(Leases(prefix=name, limit=1))
            assert (first.name, first.owner) == (name, f"i{number}")  # the name itself comes before longer ones
        pages = [await b.store.find(Leases(prefix="lock:", limit=3))]
        while len(pages[-1]) == 3:
            pages.append(await b.store.find(Leases(prefix="lock:", limit=3, after=pages[-1][-1].name)))
        assert [lease.name for page in pages for lease in page] == sorted(names)
        assert await b.store.release("lock:a", "i0", 1, now=T0)
        assert await b.store.lease("lock:a:b", "other", TTL, now=T0 + 1) is None

    @on_store
    async def test_many_at_once_one_wins_each_round(self, b: Bench) -> None:
        for term in range(1, 6):
            now = T0 + term * TTL
            answers = await asyncio.gather(
                b.store.lease("lock", "late", TTL, epoch=max(1, term - 1), now=now),
                *(b.store.lease("lock", f"i{i}", TTL, now=now) for i in range(6)),
            )
            assert [lease.epoch for lease in answers if lease is not None] == [term]

    @on_store
    async def test_retention_leaves_what_is_held_and_what_it_is_not_told(self, b: Bench) -> None:
        for name in ("execution:old", "execution:held", "lock:old"):
            await b.store.lease(name, "i1", TTL, now=T0)
        await b.store.lease("execution:held", "i1", 1_000_000, epoch=1, now=T0 + 1)
        policy = Retention(ended_before=0, lease_prefix="execution:", leases_before=T0 + 1_000)
        assert (await b.store.purge(policy, 9, now=T0 + 2_000)).leases == 1
        assert [lease.name for lease in await b.store.find(Leases())] == ["execution:held", "lock:old"]

    @on_store
    async def test_a_thousand_steps_of_five_who_want_it(self, b: Bench) -> None:
        """Against the plainest possible reference: who holds it, until when, and how many terms there were."""
        rng = random.Random(7)  # noqa: S311 - no secret
        now, owner, epoch, until = T0, "", 0, 0
        terms: dict[str, int] = {}
        for _ in range(1_000):
            now += rng.choice((0, 1, 20, 60, 130))
            who, step = f"i{rng.randrange(5)}", rng.choice(("take", "renew", "renew", "release"))
            mine = terms.get(who, 1)
            held = now < until
            if step == "take":
                lease = await b.store.lease("lock", who, TTL, now=now)
                assert (lease is not None) == (not held)
                if lease is not None:
                    owner, epoch, until = who, epoch + 1, now + TTL
                    assert lease.epoch == epoch
                    terms[who] = epoch
            elif step == "renew":
                kept = await b.store.lease("lock", who, TTL, epoch=mine, now=now)
                assert (kept is not None) == (held and (who, mine) == (owner, epoch))
                until = now + TTL if kept is not None else until
            else:
                ended = await b.store.release("lock", who, mine, now=now)
                assert ended == (until > 0 and (who, mine) == (owner, epoch))
                until = 0 if ended else until


async def _taken(b: Bench, owner: str, now: int) -> Lease:
    lease = await b.store.lease("lock", owner, TTL, now=now)
    assert lease is not None
    assert (lease.owner, lease.expires_at - lease.renewed_at) == (owner, TTL)
    return lease
