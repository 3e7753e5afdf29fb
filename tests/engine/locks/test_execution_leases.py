"""Execution leases: one executor of a fire, in source 003's sense, for work that Mainspring does not run itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import ExecutionGuard, ExecutionTaken, LockLost, LockTaken, Mainspring
from mainspring.app.internals import host_of
from mainspring.model.errors import EmptyName, InvalidDuration, InvalidInput, LeaseTooShort, NaiveDatetime
from mainspring.ports.store import Leases
from mainspring.testing.time_travel import manual, travel
from tests.engine.locks.lock_support import row, second
from tests.engine.support import START, Make

NINE = datetime(2026, 3, 2, 9, tzinfo=UTC)


async def test_a_fire_has_one_executor_at_a_time(ms: Mainspring, make: Make) -> None:
    other = await second(make, ms)
    async with ms.execution_lease("refresh", NINE) as lease:
        assert lease.token == 1
        with pytest.raises(ExecutionTaken, match=r"refresh at 2026-03-02T09:00:00Z is being executed by ") as error:
            async with other.execution_lease("refresh", NINE):
                raise AssertionError("two executors")
        assert (error.value.done, error.value.holder) == (False, lease._hold.term.owner)
        assert isinstance(error.value, LockTaken)


async def test_other_fires_and_other_schedules_go_on_beside_it(ms: Mainspring) -> None:
    async with (
        ms.execution_lease("refresh", NINE),
        ms.execution_lease("refresh", NINE + timedelta(milliseconds=1)),
        ms.execution_lease("report", NINE),
        ms.execution_lease("refresh:1", NINE),
        ms.lock(f"refresh:{int(NINE.timestamp() * 1000)}", wait=False),
    ):
        pass


async def test_the_same_instant_in_another_zone_is_the_same_fire(ms: Mainspring) -> None:
    from zoneinfo import ZoneInfo

    async with ms.execution_lease("refresh", NINE):
        with pytest.raises(ExecutionTaken):
            async with ms.execution_lease("refresh", NINE.astimezone(ZoneInfo("Asia/Shanghai"))):
                pass


async def test_a_fire_that_was_executed_stays_so_for_as_long_as_it_is_remembered(ms: Mainspring, make: Make) -> None:
    """A slow machine that comes to the same fire a little later does not repeat it."""
    async with manual(ms, START) as t:
        other = await second(make, ms)
        async with ms.execution_lease("refresh", NINE, remember="1h"):
            await t.advance("5m")
        for _ in range(3):
            with pytest.raises(ExecutionTaken, match="has been executed by") as error:
                async with other.execution_lease("refresh", NINE):
                    pass
            assert error.value.done
            await t.advance("19m59s")
        await t.advance("3s")
        async with other.execution_lease("refresh", NINE) as lease:
            assert lease.token == 2


async def test_a_fire_that_failed_is_free_at_once(ms: Mainspring) -> None:
    with pytest.raises(ZeroDivisionError):
        async with ms.execution_lease("refresh", NINE):
            raise ZeroDivisionError
    async with ms.execution_lease("refresh", NINE) as lease:
        assert lease.token == 2


async def test_without_memory_it_is_only_a_lock(ms: Mainspring) -> None:
    for token in (1, 2):
        async with ms.execution_lease("refresh", NINE, remember=0) as lease:
            assert lease.token == token


async def test_a_fire_whose_executor_died_is_free_after_the_ttl(ms: Mainspring) -> None:
    async with manual(ms, START) as t:
        key = f"execution:default:refresh:{int(NINE.timestamp() * 1000)}"
        await host_of(ms).call(lambda runtime: runtime.store.lease(key, "dead", 30_000))
        with pytest.raises(ExecutionTaken, match="by dead"):
            async with ms.execution_lease("refresh", NINE):
                pass
        await t.advance("30s")
        async with ms.execution_lease("refresh", NINE) as lease:
            assert lease.token == 2


async def test_a_lease_that_was_lost_is_not_marked_as_done(ms: Mainspring, make: Make) -> None:
    async with manual(ms, START) as t:
        other = await second(make, ms)
        with pytest.raises(LockLost):
            async with ms.execution_lease("refresh", NINE, ttl="30s"):
                t.clock.move_to(t.clock.monotonic() + 40)
                async with other.execution_lease("refresh", NINE, remember=0) as lease:
                    assert lease.token == 2
        async with other.execution_lease("refresh", NINE) as lease:
            assert lease.token == 3


def test_the_blocking_door(make: Make) -> None:
    ms = make()
    with ms.sync.execution_lease("refresh", NINE) as lease:
        lease.check()
    with pytest.raises(ExecutionTaken), ms.sync.execution_lease("refresh", NINE):
        pass


async def test_old_fires_are_forgotten_and_locks_never(make: Make) -> None:
    """Retention: a row for each fire would grow without end; the row of a lock carries its token."""
    ms = make(history="1h", lease_ttl="1h")
    async with travel(ms, START) as t:
        for hour in range(5):
            async with ms.execution_lease("refresh", NINE + timedelta(hours=hour), remember="10m"):
                pass
        async with ms.execution_lease("refresh", NINE - timedelta(hours=1), remember="30d"):
            pass
        async with ms.lock("x"):
            pass
        await t.advance("90m")
        await t.runtime.keeper.run_once()
        left = await t.runtime.store.find(Leases(prefix="execution:"))
        assert [lease.live for lease in left] == [True]
        assert not (await row(ms, "lock:")).live


class _Cron:
    """Another library's scheduler, which uses only the guard."""

    def __init__(self, guard: ExecutionGuard) -> None:
        self.guard = guard
        self.ran = 0

    async def fire(self, at: datetime) -> None:
        try:
            async with self.guard.execution_lease("refresh", at):
                self.ran += 1
        except ExecutionTaken:
            return


async def test_two_foreign_schedulers_with_one_guard_execute_each_fire_once(ms: Mainspring, make: Make) -> None:
    ours, theirs = _Cron(ms), _Cron(await second(make, ms))
    for minute in range(10):
        first, then = (ours, theirs) if minute % 3 else (theirs, ours)
        await first.fire(NINE + timedelta(minutes=minute))
        await then.fire(NINE + timedelta(minutes=minute))
    assert (ours.ran, theirs.ran) == (6, 4)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"schedule": ""}, EmptyName, "schedule: '' is empty"),
        ({"fire_time": datetime(2026, 1, 1)}, NaiveDatetime, "fire_time: 2026-01-01T00:00:00 has no time zone"),
        ({"fire_time": 17}, InvalidInput, "fire_time: int is not a datetime"),
        ({"ttl": "10ms"}, LeaseTooShort, "ttl: 10ms is too short"),
        ({"remember": "-1d"}, InvalidDuration, "remember: '-1d' is negative"),
    ],
)
def test_bad_input(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error) as raised:
        Mainspring("memory://").execution_lease(**{"schedule": "x", "fire_time": NINE, **options})
    assert said in str(raised.value)
