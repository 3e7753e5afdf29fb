"""What the tests of policies share: an app that notes what it ran and when, and a ledger that must add up."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from mainspring import Context, Mainspring, Retry
from mainspring.backends.memory.store import MemoryStore
from mainspring.model.instant import Ms, instant_ms
from mainspring.model.schedule import Span
from mainspring.ports.store import Spans
from mainspring.testing.time_travel import Travel

START = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)  # a Monday
BERLIN = ZoneInfo("Europe/Berlin")


def at(hour: int, minute: int = 0, second: int = 0, day: int = 5) -> datetime:
    return START.replace(day=day, hour=hour, minute=minute, second=second)


def ms_at(hour: int, minute: int = 0, second: int = 0, day: int = 5) -> Ms:
    return instant_ms(at(hour, minute, second, day))


async def spans(t: Travel) -> list[Span]:
    return await t.runtime.store.find(Spans(limit=1_000))


class App:
    """An app with one task that notes fire times and when it ran."""

    def __init__(self, store: MemoryStore | None = None, **options: Any) -> None:
        self.store = store or MemoryStore()
        self.ms = Mainspring(store=self.store, lease_ttl="10m", **options)
        self.fires: list[datetime] = []
        self.ran: list[datetime] = []
        self.seconds = 0.0
        self.fails = False

        @self.ms.task(name="note", timeout=None, retry=Retry(max_attempts=2, backoff="fixed", initial="10s", jitter=0))
        async def note(ctx: Context) -> None:
            self.fires.append(ctx.fire_time)
            self.ran.append(datetime.fromtimestamp(self.ms.clock.now() / 1000, UTC))
            if self.seconds:
                await asyncio.sleep(self.seconds)
            if self.fails:
                raise ValueError("no")
