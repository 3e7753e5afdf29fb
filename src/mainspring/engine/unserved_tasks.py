"""Unserved tasks: finds the runs that wait for a task which no live instance has, and warns about them.

Only names of tasks are compared. A run in a queue that no worker serves is not found here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

from mainspring.engine.leader import Leader
from mainspring.engine.loop import Loop
from mainspring.engine.presence import Instance, list_instances
from mainspring.engine.store_clock import StoreClock
from mainspring.model.instant import Ms
from mainspring.model.lease import Lease
from mainspring.model.run import CLAIMABLE
from mainspring.model.settings import Settings
from mainspring.model.unserved import UnservedTask
from mainspring.ports.paging import iterate_rows
from mainspring.ports.store import Offer, Runs, Schedules, Store
from mainspring.rules.lanes import lane_of

log = logging.getLogger("mainspring.engine")

#: Seconds between two checks, with the default heartbeat of 10 s. Instances with rarer heartbeats check more rarely.
CHECK_INTERVAL_SECONDS = 6.0
#: A run that has been due for less than this, in milliseconds, does not count: its program may just be restarting.
MIN_WAIT_MS: Ms = 3_000
#: The most runs of one task that are counted.
MAX_COUNTED_RUNS = 1_000
#: Seconds between two log lines about one task.
LOG_INTERVAL_SECONDS = 3_600.0


class UnservedTasks(Loop):
    """Checks whether runs wait for a task that no live instance has, and logs a warning. Thread: engine loop.

    The leader checks the tasks of instances that ended. Every instance that plans also checks the tasks for which its
    settler saw a run wait (`is_unserved`). While every task has an instance, a check costs the leader one query, and
    other instances none.
    """

    name = "unserved-tasks"

    def __init__(
        self,
        store: Store,
        time: StoreClock,
        settings: Settings,
        leader: Leader,
        offered: Callable[[], Collection[str]],
    ) -> None:
        """Check the tasks of the namespace of `settings`. `offered` returns the tasks that this instance executes."""
        super().__init__(max(CHECK_INTERVAL_SECONDS, settings.heartbeat / 2_000))
        self._store = store
        self._time = time
        self._settings = settings
        self._leader = leader
        self._offered = offered
        #: Tasks that this instance does not execute and for which the settler saw a run wait since the last check.
        self._suspects: set[str] = set()
        #: Lanes of the runs for which the settler saw that.
        self._lanes: set[str] = set()
        #: The unserved tasks that the last check found, by name.
        self.found: dict[str, UnservedTask] = {}
        #: Task → when to log the next warning about it, in monotonic seconds.
        self._log_at: dict[str, float] = {}

    def is_unserved(self, task: str, lane: str) -> bool:
        """Return True if the last check found runs that wait for `task`, which no live instance has.

        The settler calls this for a run of `task` in `lane` that waits although another fire of its schedule is due.
        """
        if task in self._offered():
            return False
        self._suspects.add(task)
        self._lanes.add(lane)
        return task in self.found

    async def run_once(self) -> float:
        """Check once, if there is something to check. Return the seconds to wait. Raises: StoreError."""
        if not (self._leader.leads or self._suspects or self.found):
            return self.poll
        instances = await list_instances(self._store)
        suspects, self._suspects = self._suspects | set(self.found), set()
        if self._leader.leads:
            suspects.update(task for _, one in instances for task in one.tasks)
        suspects -= served_tasks(instances)
        suspects.difference_update(self._offered())
        self._report(await self._find_waiting(suspects, instances) if suspects else {})
        return self.poll

    async def _find_waiting(
        self, suspects: Collection[str], instances: Iterable[tuple[Lease, Instance]]
    ) -> dict[str, UnservedTask]:
        """Return those of the tasks `suspects` for which runs of this namespace wait.

        A claim of no runs, which is cheap, tells whether there are any. Only runs in queues that an instance had, or in
        which the settler saw a run wait, are found. Raises: StoreError.
        """
        ns, now = self._settings.namespace, self._time.now()
        queues = {queue for _, one in instances for queue in one.queues} | set(self._settings.queues)
        lanes = {lane_of(ns, queue) for queue in queues} | self._lanes
        offer = Offer("", tuple(sorted(lanes)), tuple(sorted(suspects)), self._settings.lease_ttl)
        next_at = (await self._store.claim(offer, 0)).next_at
        if next_at is None or next_at > now - MIN_WAIT_MS:
            return {}
        return await count_waiting(self._store, ns, suspects, now - MIN_WAIT_MS)

    def _report(self, found: dict[str, UnservedTask]) -> None:
        """Keep what a check found. Log a warning for each task, at most once an hour, and the end of a warning."""
        now = self._time.monotonic()
        for task in self.found.keys() - found.keys():
            del self._log_at[task]
            log.info("no run waits any more for the task %r without an instance that has it", task)
        self.found = found
        for task, unserved in found.items():
            if now >= self._log_at.get(task, now):
                self._log_at[task] = now + LOG_INTERVAL_SECONDS
                log.warning("%s", unserved.describe())


def served_tasks(instances: Iterable[tuple[Lease, Instance]]) -> set[str]:
    """Return the names of the tasks that the live ones of `instances` execute."""
    return {task for lease, one in instances if lease.live for task in one.tasks}


async def count_waiting(
    store: Store, ns: str | None, tasks: Collection[str], due_before: Ms
) -> dict[str, UnservedTask]:
    """Return, for each of `tasks` with runs that wait and were due by `due_before`, their number and schedules.

    `ns` None: in every namespace. Raises: StoreError.
    """
    found: dict[str, UnservedTask] = {}
    for task in sorted(tasks):
        query = Runs(
            ns=ns, task=task, states=tuple(sorted(CLAIMABLE)), due_before=due_before, limit=MAX_COUNTED_RUNS + 1
        )
        runs = await store.find(query)
        if not runs:
            continue
        more = len(runs) > MAX_COUNTED_RUNS
        names: set[str] = set()
        for schedule_id in {run.schedule_id for run in runs if run.schedule_id is not None}:
            names.update(row.name for row in await store.find(Schedules(id=schedule_id, limit=1)))
        found[task] = UnservedTask(task, min(len(runs), MAX_COUNTED_RUNS), tuple(sorted(names)), more)
    return found


async def find_unserved(store: Store, ns: str | None, due_before: Ms) -> list[UnservedTask]:
    """Return the tasks of waiting runs that no live instance has, for a report: every waiting run is read.

    `ns` None: in every namespace. Only runs that were due by `due_before` count. Raises: StoreError.
    """
    served = served_tasks(await list_instances(store))
    waiting = Runs(ns=ns, states=tuple(sorted(CLAIMABLE)), due_before=due_before, oldest_first=True, limit=1_000)
    tasks = {run.task async for run in iterate_rows(store, waiting, lambda run: run.id)} - served
    return list((await count_waiting(store, ns, tasks, due_before)).values())
