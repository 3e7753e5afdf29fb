"""Locks in virtual time: renewal, loss, pauses and lost answers, to the millisecond."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from mainspring import LockLost, LockTaken, Mainspring, StoreError
from mainspring.app.internals import host_of
from mainspring.backends.memory.store import MemoryStore
from mainspring.testing.time_travel import Travel, manual
from tests.engine.locks.lock_support import Faulty, row, second
from tests.engine.support import START, Make


async def test_a_lock_is_renewed_every_third_of_its_ttl_for_as_long_as_the_block_lasts(ms: Mainspring) -> None:
    async with manual(ms, START) as t, ms.lock("x", ttl="30s") as guard:
        for _ in range(60):
            await t.advance("7s")
            lease = await row(ms, "lock:")
            assert t.clock.boot() - (lease.expires_at - 30_000) <= 10_000
            guard.check()
            with pytest.raises(LockTaken):
                async with ms.lock("x", wait=False):
                    pass


async def test_nothing_is_renewed_once_the_block_has_ended(ms: Mainspring) -> None:
    async with manual(ms, START) as t:
        async with ms.lock("x", ttl="3s"):
            await t.advance("10s")
        before = await row(ms, "lock:")
        await t.advance("1m")
        assert await row(ms, "lock:") == before
        assert not before.live


async def test_a_crash_frees_the_lock_when_its_lease_ends_and_not_before(ms: Mainspring, make: Make) -> None:
    async with manual(ms, START) as t:
        other = await second(make, ms)
        await _hold_and_die(ms, ttl=30_000)
        with pytest.raises(LockTaken):
            async with Within(t, "29999ms", other.lock("x", wait="29999ms")):
                pass
        async with Within(t, "2s", other.lock("x")) as guard:
            assert guard.token == 2


async def test_waiting_ends_after_the_time_that_was_given(ms: Mainspring, make: Make) -> None:
    async with manual(ms, START) as t:
        other = await second(make, ms)
        for app in (ms, other):  # in the line of this process, and at the store
            async with ms.lock("x"):
                began = t.clock.boot()
                with pytest.raises(LockTaken):
                    async with Within(t, "10s", app.lock("x", wait="5s"), step="100ms"):
                        pass
                assert 5_000 <= t.clock.boot() - began <= 5_200


async def test_a_lock_is_lost_while_the_store_is_away_before_another_owner_can_have_it() -> None:
    """The block is told at nine tenths of the TTL after the last renewal that was sent in time."""
    store = Faulty(MemoryStore())
    ms, other = Mainspring(store=store), Mainspring(store=store.inner)  # type: ignore[arg-type]
    async with manual(ms, START) as t:
        host = host_of(other)
        host.move_to(replace(host.environment, clock=ms.clock, engine=host_of(ms).engine))
        began = t.clock.boot()
        with pytest.raises(LockLost, match="could not be renewed in time"):
            async with ms.lock("x", ttl="30s") as guard:
                await t.advance("9s")
                store.before = {"lease"}
                while True:
                    assert guard.held == (t.clock.boot() - began < 27_000)
                    with pytest.raises(LockTaken):
                        async with other.lock("x", wait=False):
                            pass
                    await t.advance("100ms")
        assert 27_000 <= t.clock.boot() - began <= 27_100
        assert store.asked.count("lease") > 5  # it was tried again and again
        async with other.lock("x", wait=False) as guard:  # let go at the end of the block, for it was still ours
            assert guard.token == 2


async def test_a_store_that_comes_back_in_time_costs_nothing() -> None:
    store = Faulty(MemoryStore())
    ms = Mainspring(store=store)  # type: ignore[arg-type]
    async with manual(ms, START) as t, ms.lock("x", ttl="30s") as guard:
        for _ in range(5):
            store.before = {"lease"}
            await t.advance("16s")
            store.before = set()
            await t.advance("10s")
            guard.check()


async def test_a_store_that_never_answers_loses_the_lock_in_time() -> None:
    store = Faulty(MemoryStore())
    ms = Mainspring(store=store)  # type: ignore[arg-type]
    async with manual(ms, START) as t:
        began = t.clock.boot()
        with pytest.raises(LockLost, match="did not answer in time"):
            async with ms.lock("x", ttl="30s"):
                store.hangs = {"lease"}
                await t.advance("10m")
        assert t.clock.boot() - began <= 27_001


async def test_after_a_pause_the_clock_says_at_once_that_the_lock_is_not_to_be_relied_on(
    ms: Mainspring, make: Make
) -> None:
    async with manual(ms, START) as t:
        other = await second(make, ms)
        with pytest.raises(LockLost, match=r"another owner may hold it|could not be renewed"):
            async with ms.lock("x", ttl="30s") as guard:
                await t.advance("5s")
                t.clock.move_to(t.clock.monotonic() + 40)  # SIGSTOP, a laptop's lid: nothing of us ran meanwhile
                assert not guard.held
                with pytest.raises(LockLost, match="could not be renewed in time"):
                    guard.check()
                async with other.lock("x", wait=False) as theirs:
                    assert theirs.token == guard.token + 1
                    await asyncio.Event().wait()


async def test_after_a_pause_in_which_no_other_owner_took_the_lock_the_block_was_alone(ms: Mainspring) -> None:
    async with manual(ms, START) as t:
        async with ms.lock("x", ttl="30s"):
            t.clock.move_to(t.clock.monotonic() + 40)
        async with ms.lock("x", wait=False) as guard:
            assert guard.token == 2


async def test_after_a_pause_in_which_another_owner_had_the_lock_the_block_ends_with_the_loss(
    ms: Mainspring, make: Make
) -> None:
    async with manual(ms, START) as t:
        other = await second(make, ms)
        with pytest.raises(LockLost, match="could not be renewed in time"):
            async with ms.lock("x", ttl="30s"):
                t.clock.move_to(t.clock.monotonic() + 40)
                taken = await host_of(other).call(lambda runtime: runtime.store.lease("lock:default:x", "thief", 1_000))
                assert taken is not None


async def test_a_block_that_swallows_the_cancellation_still_ends_with_the_loss() -> None:
    store = Faulty(MemoryStore())
    ms = Mainspring(store=store)  # type: ignore[arg-type]
    async with manual(ms, START) as t:
        swallowed = []
        with pytest.raises(LockLost):
            async with ms.lock("x", ttl="30s") as guard:
                store.before = {"lease"}
                try:
                    await t.advance("10m")
                except asyncio.CancelledError:
                    swallowed.append(guard.lost.is_set())
        assert swallowed == [True]
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


async def test_the_loss_of_the_outer_lock_stops_the_inner_block_and_says_which() -> None:
    store = Faulty(MemoryStore())
    ms = Mainspring(store=store)  # type: ignore[arg-type]
    async with manual(ms, START) as t:
        with pytest.raises(LockLost, match="'outer'"):
            async with ms.lock("outer", ttl="3s"), ms.lock("inner", ttl="1h"):
                store.before = {"lease"}
                await t.advance("10m")
        store.before = set()
        async with ms.lock("inner", wait=False), ms.lock("outer", wait=False):
            pass


async def test_a_lock_whose_answer_was_lost_is_given_back() -> None:
    """The caller gets an error, and no holder that does not know of it blocks the name for a TTL."""
    store = Faulty(MemoryStore())
    ms = Mainspring(store=store)  # type: ignore[arg-type]
    async with manual(ms, START) as t:
        store.after = {"lease"}
        with pytest.raises(StoreError, match="the answer was lost"):
            async with ms.lock("x"):
                pass
        store.after = set()
        await t.settle()
        async with ms.lock("x", wait=False) as guard:
            assert guard.token == 2


async def test_a_lost_answer_to_a_renewal_is_asked_again() -> None:
    store = Faulty(MemoryStore())
    ms = Mainspring(store=store)  # type: ignore[arg-type]
    async with manual(ms, START) as t, ms.lock("x", ttl="30s") as guard:
        store.after = {"lease"}
        await t.advance("20s")
        store.after = set()
        await t.advance("1m")
        guard.check()


async def test_a_release_that_fails_is_no_error_of_the_block_and_ends_by_itself() -> None:
    store = Faulty(MemoryStore())
    ms = Mainspring(store=store)  # type: ignore[arg-type]
    async with manual(ms, START) as t:
        async with ms.lock("x", ttl="30s"):
            store.before = {"release"}
        store.before = set()
        with pytest.raises(LockTaken):
            async with ms.lock("x", wait=False):
                pass
        await t.advance("30s")
        async with ms.lock("x", wait=False) as guard:
            assert guard.token == 2


async def test_a_step_of_the_wall_clock_neither_ends_nor_extends_a_lock(ms: Mainspring, make: Make) -> None:
    async with manual(ms, START) as t:
        other = await second(make, ms)
        async with ms.lock("x", ttl="30s") as guard:
            for step in (86_400_000, -172_800_000):
                t.step_wall_clock(step)
                await t.advance("45s")
                guard.check()
                with pytest.raises(LockTaken):
                    async with other.lock("x", wait=False):
                        pass


async def _hold_and_die(ms: Mainspring, ttl: int) -> None:
    lease = await host_of(ms).call(lambda runtime: runtime.store.lease("lock:default:x", "dead", ttl))
    assert lease is not None


class Within:
    """Enter a lock while time passes."""

    def __init__(self, t: Travel, longest: str, lock: Any, step: str = "50ms") -> None:
        self.t, self.longest, self.lock, self.step = t, longest, lock, step

    async def __aenter__(self) -> Any:
        entering = asyncio.ensure_future(self.lock.__aenter__())
        start = self.t.clock.boot()
        await self.t.settle()
        while not entering.done() and self.t.clock.boot() - start < _ms(self.longest) + 1_000:
            await self.t.advance(self.step)
        assert entering.done(), f"still waiting after {self.longest}"
        return await entering

    async def __aexit__(self, *error: Any) -> None:
        self.lock._task = asyncio.current_task()  # it was entered by another
        await self.lock.__aexit__(*error)


def _ms(text: str) -> int:
    from mainspring.model.instant import duration_ms

    return duration_ms(text)
