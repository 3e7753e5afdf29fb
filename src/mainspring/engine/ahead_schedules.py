"""Schedules ahead of the clock: finds those that a wrong clock planned far into the future, and warns about them."""

from __future__ import annotations

import logging

from mainspring.engine.loop import Loop
from mainspring.engine.store_clock import StoreClock
from mainspring.model.instant import Ms, isoformat
from mainspring.model.schedule import Schedule, ScheduleState
from mainspring.ports.paging import iterate_rows
from mainspring.ports.store import Schedules, Store
from mainspring.rules.remedies import schedule_command
from mainspring.rules.rewind import AHEAD_TOLERANCE_MS, is_ahead

log = logging.getLogger("mainspring.engine")

#: Seconds between two searches through all schedules, and between two log lines about one of them.
SEARCH_INTERVAL_SECONDS = 3_600.0
#: Seconds between two looks at the schedules that are known to be ahead.
RECHECK_INTERVAL_SECONDS = 5.0
#: Most names of schedules in a text.
MAX_NAMES = 5
#: Schedules that can be ahead of the clock, and could fire again.
_STATES: tuple[ScheduleState, ...] = ("active", "paused", "finished")


class AheadSchedules(Loop):
    """Searches for schedules that are ahead, at its start, hourly, and when the clock was stepped. Thread: engine loop.

    While some are known, only these are read between two searches, so that a rewind shows at once.
    """

    name = "ahead-schedules"

    def __init__(self, store: Store, time: StoreClock, namespace: str) -> None:
        """Search the schedules of `namespace` in `store`, by the store's `time`."""
        super().__init__(SEARCH_INTERVAL_SECONDS)
        self._store = store
        self._time = time
        self._namespace = namespace
        #: The schedules that were ahead at the last look, by id.
        self.found: dict[str, Schedule] = {}
        #: When to search and log next, in monotonic seconds.
        self._search_at = 0.0

    def search_soon(self) -> None:
        """Search through all schedules soon, because the clock was stepped."""
        self._search_at = 0.0
        self.wake()

    async def run_once(self) -> float:
        """Search if it is time, else read the known ones again. Return the seconds to wait. Raises: StoreError."""
        monotonic = self._time.monotonic()
        now = await self._time.read()
        if monotonic >= self._search_at:
            self.found = await find_ahead(self._store, self._namespace, now)
            self._search_at = monotonic + SEARCH_INTERVAL_SECONDS
            for schedule in self.found.values():
                log.warning("%s", describe_ahead(schedule, now))
        elif self.found:
            rows = await self._store.find(Schedules(ids=tuple(self.found), limit=len(self.found)))
            self.found = {row.id: row for row in rows if is_ahead(row, now)}
        wait = self._search_at - monotonic
        return min(wait, RECHECK_INTERVAL_SECONDS) if self.found else wait

    @property
    def trouble_text(self) -> str | None:
        """What a person should know about the schedules that are ahead, None if there are none. Thread: any."""
        found = list(self.found.values())
        if not found:
            return None
        names = ", ".join(repr(one.name) for one in found[:MAX_NAMES])
        more = f" and {len(found) - MAX_NAMES} more" if len(found) > MAX_NAMES else ""
        return f"planned ahead of the clock: {names}{more}. Was the clock wrong? Rewind them"


async def find_ahead(store: Store, ns: str | None, now: Ms) -> dict[str, Schedule]:
    """Return the schedules of a namespace (None: of all) that are planned ahead of the clock, by id.

    Raises: StoreError.
    """
    query = Schedules(ns=ns, states=_STATES, planned_after=now + AHEAD_TOLERANCE_MS, limit=500)
    return {row.id: row async for row in iterate_rows(store, query, lambda row: row.id) if is_ahead(row, now)}


def describe_ahead(schedule: Schedule, now: Ms) -> str:
    """Return what is wrong with a schedule that is planned ahead of the clock, and the command that sets it back."""
    command = schedule_command("rewind", schedule.name, schedule.ns)
    far = _format_span(schedule.cursor - now)
    return (
        f"schedule {schedule.name!r} was planned up to {isoformat(schedule.cursor)}, {far} from now, and does "
        f"not fire until then: was the clock wrong? Run: {command}"
    )


def _format_span(ms: Ms) -> str:
    """Return a long duration in words of one unit: "10 years", "3 hours"."""
    for name, size in (("year", 31_557_600_000), ("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000)):
        count = round(ms / size)
        if ms >= size:
            return f"{count} {name}" if count == 1 else f"{count} {name}s"
    return f"{ms // 1000} seconds"
