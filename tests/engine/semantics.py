"""What the tests of source 003's semantics share."""

from __future__ import annotations

from datetime import UTC, datetime

from mainspring import Context, Mainspring
from mainspring.model.instant import Ms
from mainspring.model.schedule import Schedule
from mainspring.ports.store import Schedules
from mainspring.testing.time_travel import Travel

START = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)  # a Monday
MINUTE: Ms = 60_000


class Log(list[datetime]):
    """A task that notes the fire times it was run for."""

    def on(self, ms: Mainspring) -> None:
        @ms.task(name="note")
        async def note(ctx: Context) -> None:
            self.append(ctx.fire_time)


def at(hour: int, minute: int = 0, second: int = 0) -> datetime:
    return START.replace(hour=hour, minute=minute, second=second)


async def row(t: Travel, schedule_id: str) -> Schedule:
    every = ("active", "paused", "finished", "deleted")
    (found,) = await t.runtime.store.find(Schedules(id=schedule_id, states=every))
    return found
