"""The contract of named leases, on which locks, execution leases and the leader election rest."""

from __future__ import annotations

import asyncio
import random

from msgspec.structs import replace

from mainspring.model.lease import Lease
from mainspring.model.retention import Retention
from mainspring.ports.store import Leases
from mainspring.testing.contract.bench import ContractBase, StoreBench, on_store
from mainspring.testing.contract.factories import T0

LEASE_TTL_MS = 100


class LeaseTerms(ContractBase):
    """Tests of terms: one owner at a time, and an epoch that grows with every term and is never used twice."""

    @on_store
    async def test_each_term_gets_the_next_epoch_however_the_last_one_ended(self, b: StoreBench) -> None:
        now, epochs = T0, []
        for number in range(12):
            lease = await take_lease(b, f"i{number % 3}", now)
            epochs.append(lease.epoch)
            if number % 3 == 0:
                assert await b.store.release("lock", lease.owner, lease.epoch, now=now + 1)
                now += 2
            elif number % 3 == 1:
                assert (
                    await b.store.lease("lock", lease.owner, LEASE_TTL_MS, epoch=lease.epoch, now=now + 50) is not None
                )
                now += 50 + LEASE_TTL_MS
            else:
                now += LEASE_TTL_MS
        assert epochs == list(range(1, 13))

    @on_store
    async def test_a_lease_survives_closing_and_opening(self, b: StoreBench) -> None:
        first = await take_lease(b, "i1", T0)
        await b.store.release("lock", "i1", first.epoch, now=T0)
        second = await take_lease(b, "i2", T0 + 1)
        await b.store.close()
        await b.store.open()
        assert await b.store.lease("lock", "i3", LEASE_TTL_MS, now=T0 + 50) is None
        kept = await b.store.lease("lock", "i2", LEASE_TTL_MS, epoch=second.epoch, now=T0 + 50)
        assert kept is not None
        assert (await take_lease(b, "i3", T0 + 50 + LEASE_TTL_MS)).epoch == 3

    @on_store
    async def test_a_lease_can_be_taken_one_millisecond_after_its_last(self, b: StoreBench) -> None:
        await take_lease(b, "i1", T0)
        assert await b.store.lease("lock", "i2", LEASE_TTL_MS, now=T0 + LEASE_TTL_MS - 1) is None
        assert await b.store.lease("lock", "i1", LEASE_TTL_MS, epoch=1, now=T0 + LEASE_TTL_MS - 1) is not None
        assert await b.store.lease("lock", "i1", LEASE_TTL_MS, epoch=1, now=T0 + 2 * LEASE_TTL_MS - 1) is None
        assert (await take_lease(b, "i2", T0 + 2 * LEASE_TTL_MS - 1)).epoch == 2

    @on_store
    async def test_a_renewal_counts_from_now_and_may_be_longer_or_shorter(self, b: StoreBench) -> None:
        await take_lease(b, "i1", T0)
        assert await b.store.lease("lock", "i1", 10_000, epoch=1, now=T0 + 10) is not None
        assert await b.store.lease("lock", "i2", LEASE_TTL_MS, now=T0 + 10_009) is None
        assert await b.store.lease("lock", "i1", 20, epoch=1, now=T0 + 5_000) is not None
        assert (await take_lease(b, "i2", T0 + 5_020)).epoch == 2

    @on_store
    async def test_a_new_term_has_its_own_data(self, b: StoreBench) -> None:
        assert await b.store.lease("lock", "i1", LEASE_TTL_MS, data='{"since":1}', now=T0) is not None
        lease = await b.store.lease("lock", "i2", LEASE_TTL_MS, now=T0 + LEASE_TTL_MS)
        assert lease is not None
        assert lease.data is None
        (row,) = await b.store.find(Leases(prefix="lock"))
        assert (row.owner, row.epoch, row.data) == ("i2", 2, None)

    @on_store
    async def test_a_refused_take_changes_nothing(self, b: StoreBench) -> None:
        await b.store.lease("lock", "i1", LEASE_TTL_MS, data="mine", now=T0)
        before = [replace(row, left=0) for row in await b.store.find(Leases())]  # `left` follows the store's own clock
        assert await b.store.lease("lock", "i2", 10_000, data="theirs", now=T0 + 1) is None
        assert await b.store.lease("lock", "i2", 10_000, epoch=1, data="theirs", now=T0 + 1) is None
        assert not await b.store.release("lock", "i2", 1, now=T0 + 1)
        assert [replace(row, left=0) for row in await b.store.find(Leases())] == before

    @on_store
    async def test_a_late_release_is_refused_if_another_owner_took_the_lease(self, b: StoreBench) -> None:
        """A late release is accepted if no other owner took the lease since it expired, and refused otherwise."""
        await take_lease(b, "i1", T0)
        assert await b.store.release("lock", "i1", 1, now=T0 + 5 * LEASE_TTL_MS)
        await take_lease(b, "i1", T0 + 6 * LEASE_TTL_MS)
        await take_lease(b, "i2", T0 + 8 * LEASE_TTL_MS)
        assert not await b.store.release("lock", "i1", 2, now=T0 + 8 * LEASE_TTL_MS)
        assert await b.store.lease("lock", "i3", LEASE_TTL_MS, now=T0 + 8 * LEASE_TTL_MS) is None

    @on_store
    async def test_names_do_not_mix(self, b: StoreBench) -> None:
        names = ["lock:a", "lock:a:b", "lock:a%", "lock:a_", "lock:A", "lock:ä ☃", "lock:" + "x" * 600, "lock:'"]
        for number, name in enumerate(names):
            lease = await b.store.lease(name, f"i{number}", LEASE_TTL_MS, now=T0)
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
        assert await b.store.lease("lock:a:b", "other", LEASE_TTL_MS, now=T0 + 1) is None

    @on_store
    async def test_of_concurrent_requests_one_takes_each_term(self, b: StoreBench) -> None:
        for term in range(1, 6):
            now = T0 + term * LEASE_TTL_MS
            answers = await asyncio.gather(
                b.store.lease("lock", "late", LEASE_TTL_MS, epoch=max(1, term - 1), now=now),
                *(b.store.lease("lock", f"i{i}", LEASE_TTL_MS, now=now) for i in range(6)),
            )
            assert [lease.epoch for lease in answers if lease is not None] == [term]

    @on_store
    async def test_purge_removes_only_ended_leases_with_its_prefix(self, b: StoreBench) -> None:
        for name in ("execution:old", "execution:held", "lock:old"):
            await b.store.lease(name, "i1", LEASE_TTL_MS, now=T0)
        await b.store.lease("execution:held", "i1", 1_000_000, epoch=1, now=T0 + 1)
        policy = Retention(ended_before=0, lease_prefix="execution:", leases_before=T0 + 1_000)
        assert (await b.store.purge(policy, 9, now=T0 + 2_000)).leases == 1
        assert [lease.name for lease in await b.store.find(Leases())] == ["execution:held", "lock:old"]

    @on_store
    async def test_a_thousand_random_steps_of_five_owners(self, b: StoreBench) -> None:
        """Compare the store with a reference of four variables: owner, epoch, expiry, and each owner's last epoch."""
        rng = random.Random(7)  # noqa: S311 - no secret
        now, owner, epoch, until = T0, "", 0, 0
        terms: dict[str, int] = {}
        for _ in range(1_000):
            now += rng.choice((0, 1, 20, 60, 130))
            who, step = f"i{rng.randrange(5)}", rng.choice(("take", "renew", "renew", "release"))
            mine = terms.get(who, 1)
            held = now < until
            if step == "take":
                lease = await b.store.lease("lock", who, LEASE_TTL_MS, now=now)
                assert (lease is not None) == (not held)
                if lease is not None:
                    owner, epoch, until = who, epoch + 1, now + LEASE_TTL_MS
                    assert lease.epoch == epoch
                    terms[who] = epoch
            elif step == "renew":
                kept = await b.store.lease("lock", who, LEASE_TTL_MS, epoch=mine, now=now)
                assert (kept is not None) == (held and (who, mine) == (owner, epoch))
                until = now + LEASE_TTL_MS if kept is not None else until
            else:
                ended = await b.store.release("lock", who, mine, now=now)
                assert ended == (until > 0 and (who, mine) == (owner, epoch))
                until = 0 if ended else until


async def take_lease(b: StoreBench, owner: str, now: int) -> Lease:
    """Begin a term of the lease "lock" and return it; fail if it is refused."""
    lease = await b.store.lease("lock", owner, LEASE_TTL_MS, now=now)
    assert lease is not None
    assert (lease.owner, lease.expires_at - lease.renewed_at) == (owner, LEASE_TTL_MS)
    return lease
