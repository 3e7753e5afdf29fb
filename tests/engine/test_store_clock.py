"""A store with a clock of its own judges: a machine whose clock is wrong decides nothing by it."""

from __future__ import annotations

import pytest

from mainspring import Context, Mainspring, Retry
from mainspring.backends.memory.store import MemoryStore
from mainspring.model.events import FiresElided, RunRetrying
from mainspring.model.instant import Ms
from mainspring.model.run import State
from mainspring.ports.store import Capabilities
from mainspring.testing import travel
from mainspring.testing.virtual_time import VirtualClock
from tests.stored_rows import stored

HOUR = 3_600_000


class Elsewhere(MemoryStore):
    """A store on another machine."""

    capabilities = Capabilities(durable=False, multi_process=True, own_clock=True)


class Apart:
    """Another machine's clock, which differs from ours."""

    def __init__(self, clock: VirtualClock, by: Ms) -> None:
        self._clock = clock
        self._by = by

    def now(self) -> Ms:
        return self._clock.now() + self._by

    def boot(self) -> Ms:
        return self._clock.boot() + 12_345

    def monotonic(self) -> float:
        return self._clock.monotonic()


@pytest.mark.parametrize("by", [-HOUR, HOUR])
async def test_a_wrong_clock_here_settles_and_delays_nothing_wrongly(by: Ms) -> None:
    store = Elsewhere()
    ms = Mainspring(store=store)

    @ms.task(retry=Retry(max_attempts=2, backoff="fixed", initial="10s", jitter=0))
    async def work(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise LookupError("not yet")

    async with travel(ms, "2026-01-01T00:00Z") as t:
        there = Apart(t.clock, by)
        store._clock = there
        await t.runtime.time.read()
        await ms.schedule("s", work, every="1m")
        await t.advance("90s")
        await ms.update("s", priority="high")
        await ms.pause("s")
        await t.advance("3m")
        await ms.resume("s")
        (run,) = await t.runs("s")
        assert run.fire_time == run.due_at <= run.created_at <= there.now()
        assert (await stored(ms, ms.get("s"))).cursor <= there.now()
        (elided,) = await ms.events(types=[FiresElided])
        assert (elided.reason, elided.count, elided.through) == ("paused", 3, there.now())
        (retrying,) = await ms.events(types=[RunRetrying])
        assert retrying.next_attempt_at - retrying.at == 10_000
        handle = await work.using(delay="5s").enqueue()
        assert (await stored(ms, handle.run())).due_at == there.now() + 5_000
        await t.advance("16s")
        assert await handle.state() is State.SUCCEEDED
