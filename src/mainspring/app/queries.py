"""Queries: translates the arguments of `ms.runs`, `ms.events` and other reading methods into queries of the store.

They return stored rows. `app/read_models.py` turns rows into what programs get.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mainspring.app.engine_host import EngineHost
from mainspring.app.log_line import LogLine, log_line
from mainspring.model.event_names import resolve_type_names
from mainspring.model.events import Event
from mainspring.model.instant import Ms, instant_ms
from mainspring.model.policies import check_choice
from mainspring.model.run import CLAIMABLE, Run, State
from mainspring.model.run_log import LogEntry
from mainspring.model.schedule import Schedule
from mainspring.ports.store import Events, RunLogs, Runs, Schedules
from mainspring.runtime.runtime import Runtime
from mainspring.service.unresolved_runs import find_missing_worker, find_unresolved

if TYPE_CHECKING:
    from mainspring.runtime.runtime import Runtime

log = logging.getLogger("mainspring")


class Queries:
    """Reads schedules, runs and events of the app's namespace, for the methods of `Mainspring`."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host

    async def find_schedule(self, key: str) -> Schedule:
        """Return the schedule with the name or id `key`. Raises: UnknownSchedule, with the nearest name."""
        namespace = self._host.settings.namespace
        return await self._host.call(lambda runtime: runtime.commands.schedule(namespace, key))

    async def _find_schedule_id(self, key: str | None) -> str | None:
        """Return the id of the schedule with the name or id `key`; None if `key` is None. Raises: UnknownSchedule."""
        return None if key is None else (await self.find_schedule(key)).id

    async def find_schedules(
        self, enabled: bool | None = None, limit: int = 1_000, after: str | None = None
    ) -> list[Schedule]:
        """Return up to `limit` schedules that are not deleted, in the order of their ids.

        `enabled` True: only active ones; False: only paused or finished ones; None: both. `after`: only those with a
        greater id; None: from the first on.
        """
        states: tuple[Any, ...] = ("active", "paused", "finished")
        if enabled is not None:
            states = ("active",) if enabled else ("paused", "finished")
        query = Schedules(ns=self._host.settings.namespace, states=states, limit=limit, after=after)
        return await self._host.call(lambda runtime: runtime.commands.schedules(query))

    async def find_run(self, run_id: str) -> Run:
        """Return a run by its id. Raises: UnknownRun."""
        return await self._host.call(lambda runtime: runtime.commands.run(run_id))

    async def find_runs(
        self,
        schedule: str | None = None,
        state: State | str | Iterable[State | str] | None = None,
        since: datetime | None = None,
        task: str | None = None,
        due_before: datetime | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[Run]:
        """Return up to `limit` runs, newest first. A condition that is None is not applied.

        `schedule` is a name or id, `state` one or several states or their names, `task` a task's name. `since`: created
        at that instant or later. `due_before`: due by that instant. `after`: the id of the last run of the page before.
        Raises: UnknownSchedule; InvalidInput.
        """
        query = Runs(
            ns=self._host.settings.namespace,
            schedule_id=await self._find_schedule_id(schedule),
            states=None if state is None else _parse_states(state),
            created_since=None if since is None else instant_ms(since, field="since"),
            due_before=None if due_before is None else instant_ms(due_before, field="due_before"),
            task=task,
            limit=limit,
            after=after,
        )
        return await self._host.call(lambda runtime: runtime.commands.runs(query))

    async def find_waiting(self, due_before: Ms, limit: int) -> list[Run]:
        """Return up to `limit` waiting and retrying runs that are due by the instant `due_before`, oldest first."""
        states = tuple(sorted(CLAIMABLE))
        namespace = self._host.settings.namespace
        query = Runs(ns=namespace, states=states, due_before=due_before, limit=limit, oldest_first=True)
        return await self._host.call(lambda runtime: runtime.commands.runs(query))

    async def find_unresolved(self, limit: int) -> list[Run]:
        """Return up to `limit` waiting and retrying runs whose task no live instance has registered, oldest first."""
        namespace = self._host.settings.namespace
        return await self._host.call(lambda runtime: find_unresolved(runtime.store, namespace, limit))

    async def find_events(
        self,
        run: str | None,
        schedule: str | None,
        types: Iterable[type[Event] | str] | None,
        since: datetime | None,
        until: datetime | None,
        limit: int,
    ) -> list[Event]:
        """Return up to `limit` events of the log, oldest first.

        `run` is a run id, `schedule` a name or id, `types` holds event classes or their names. Only events with
        `since` ≤ time < `until` are returned. A condition that is None is not applied. Raises: UnknownSchedule;
        InvalidInput.
        """
        query = Events(
            ns=self._host.settings.namespace,
            run_id=run,
            schedule_id=await self._find_schedule_id(schedule),
            types=None if types is None else resolve_type_names(types),
            since=None if since is None else instant_ms(since, field="since"),
            until=None if until is None else instant_ms(until, field="until"),
            limit=limit,
        )
        return await self._host.call(lambda runtime: runtime.commands.events(query))

    async def find_missing_worker(self, task: str) -> str | None:
        """Return a warning if no live instance has `task`, else None. If this instance has it, read nothing."""

        async def find(runtime: Runtime) -> str | None:
            if runtime.worker is not None and task in runtime.offered_tasks:
                return None
            return await find_missing_worker(runtime.store, task)

        return await self._host.call(find)

    async def warn_if_unserved(self, schedule: Schedule) -> None:
        """Log a warning if no live instance has the task of `schedule`, of which a run was just started."""
        warning = await self.find_missing_worker(schedule.spec.task)
        if warning is not None:
            log.warning("schedule %r was triggered, but %s", schedule.name, warning)

    async def find_logs(self, run_id: str, attempt: int | None, after: int | None, limit: int) -> list[LogLine]:
        """Return up to `limit` lines of a run's log, oldest first: of one attempt or all, with numbers over `after`.

        Lines that handlers of this process have written are stored before. Raises: UnknownRun; StoreError.
        """

        async def read(runtime: Runtime) -> list[LogEntry]:
            await runtime.commands.run(run_id)
            await runtime.workers.log_writer.flush()
            query = RunLogs(run_id=run_id, attempt=attempt, after=None if after is None else str(after), limit=limit)
            return await runtime.store.find(query)

        return [log_line(entry) for entry in await self._host.call(read)]


def _parse_states(state: State | str | Iterable[State | str]) -> tuple[State, ...]:
    """Return the states that one or several states or names stand for. Raises: InvalidInput for an unknown name."""
    several = (state,) if isinstance(state, str) else tuple(state)
    return tuple(State(check_choice(str(one), tuple(State), field="state")) for one in several)
