"""The run logger: lines of the engine about runs that name their schedules, which are looked up by id when needed."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

from mainspring.model.errors import StoreError
from mainspring.model.ids import ScheduleId
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule
from mainspring.ports.store import Schedules, Store
from mainspring.telemetry.run_records import log_run

#: The most schedules whose names are remembered; beyond that the names learned first are forgotten.
MAX_REMEMBERED_NAMES = 10_000
#: Seconds after which a remembered name is looked up again, because a schedule can be renamed.
NAME_TRUST_SECONDS = 60.0
#: The most lines that wait for a name. Beyond that, a line shows the schedule's id, so that it is not lost.
MAX_WAITING_LINES = 1_000


class RunLogger:
    """Logs lines about runs, each with the name of the run's schedule. Thread: engine loop, unless a method says more.

    A run's row has only the id of its schedule. The settler passes every schedule that it plans to `learn`, so a name
    is looked up in the store only where another instance plans, or for runs that `trigger` made.
    """

    def __init__(self, store: Store | None, monotonic: Callable[[], float]) -> None:
        """Look up names in `store`; None: look up nothing, and show ids where no name was learned.

        `monotonic` returns seconds.
        """
        self._store = store
        self._monotonic = monotonic
        #: Schedule id → its name, and until when that is trusted, in monotonic seconds.
        self._names: dict[ScheduleId, tuple[str, float]] = {}
        self._waiting: deque[tuple[int, Run, str, tuple[object, ...], str]] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._lookups: set[asyncio.Task[None]] = set()

    def learn(self, schedule: Schedule) -> None:
        """Remember the name of a schedule."""
        if len(self._names) >= MAX_REMEMBERED_NAMES and schedule.id not in self._names:
            del self._names[next(iter(self._names))]
        self._names[schedule.id] = (schedule.name, self._monotonic() + NAME_TRUST_SECONDS)

    def schedule_name(self, run: Run) -> str | None:
        """Return the name of a run's schedule if it has one whose name is remembered, else None. Thread: any."""
        known = None if run.schedule_id is None else self._names.get(run.schedule_id)
        return None if known is None else known[0]

    def look_up_soon(self, run: Run) -> None:
        """Learn the name of a run's schedule soon if it is not remembered, because the run may log lines."""
        if self._store is not None and run.schedule_id is not None and run.schedule_id not in self._names:
            task = asyncio.get_running_loop().create_task(self._look_up_quietly(self._store, run.schedule_id))
            self._lookups.add(task)
            task.add_done_callback(self._lookups.discard)

    async def _look_up_quietly(self, store: Store, schedule_id: ScheduleId) -> None:
        """Learn the name of a schedule from the store. If the store fails, the name stays unknown."""
        with contextlib.suppress(StoreError):
            await self._look_up(store, schedule_id)

    def write(self, level: int, run: Run, text: str, *args: object, trace: str = "") -> None:
        """Log a line about a run: at once if its schedule's name is known, else when the name has been looked up.

        The arguments are those of `log_run`. Lines keep their order.
        """
        known = run.schedule_id is None or self._is_trusted(run.schedule_id)
        if self._store is None or (known and not self._waiting) or len(self._waiting) >= MAX_WAITING_LINES:
            log_run(level, run, text, *args, schedule=self.schedule_name(run), trace=trace)
            return
        self._waiting.append((level, run, text, args, trace))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_waiting(self._store))

    def _is_trusted(self, schedule_id: ScheduleId) -> bool:
        """Return True if the schedule's name was learned less than `NAME_TRUST_SECONDS` ago."""
        known = self._names.get(schedule_id)
        return known is not None and self._monotonic() < known[1]

    async def _write_waiting(self, store: Store) -> None:
        """Look up the names for the lines that wait, and log the lines. If the store fails, they show ids."""
        fails = False
        while self._waiting:
            run = self._waiting[0][1]
            if run.schedule_id is not None and not fails and not self._is_trusted(run.schedule_id):
                try:
                    await self._look_up(store, run.schedule_id)
                except StoreError:
                    fails = True
            self._write_first()

    async def _look_up(self, store: Store, schedule_id: ScheduleId) -> None:
        """Learn the name of a schedule from the store, if the schedule is still stored. Raises: StoreError."""
        states: Any = ("active", "paused", "finished", "deleted")
        for schedule in await store.find(Schedules(id=schedule_id, states=states, limit=1)):
            self.learn(schedule)

    def _write_first(self) -> None:
        """Log the line that waits longest, unless `drain` has logged it meanwhile."""
        if self._waiting:
            level, run, text, args, trace = self._waiting.popleft()
            log_run(level, run, text, *args, schedule=self.schedule_name(run), trace=trace)

    async def drain(self) -> None:
        """Return when no line waits. Called when the engine stops."""
        while pending := [task for task in (self._writing, *self._lookups) if task is not None and not task.done()]:
            await asyncio.wait(pending)
