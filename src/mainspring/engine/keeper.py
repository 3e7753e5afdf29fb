"""The keeper: removes old rows, repairs damaged schedules, and pauses schedules that no program declares any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from mainspring.engine.automatic_pause import log_automatic_pause
from mainspring.engine.leader import Leader
from mainspring.engine.loop import Loop
from mainspring.engine.presence import INSTANCE_PREFIX, list_instances
from mainspring.model.errors import StoreError
from mainspring.model.instant import Ms
from mainspring.model.plural import plural
from mainspring.model.retention import Retention
from mainspring.model.schedule import Schedule
from mainspring.model.settings import Settings
from mainspring.ports.clock import Clock
from mainspring.ports.lock import EXECUTION_PREFIX
from mainspring.ports.store import Schedules, Store

log = logging.getLogger("mainspring.engine")

#: The most runs that one call to the store removes.
PURGE_BATCH_ROWS = 500
#: Milliseconds between two searches for damaged schedules; damage is rare.
REPAIR_INTERVAL_MS: Ms = 3_600_000
#: The most schedules read in one page, in the search for damaged schedules.
REPAIR_PAGE_ROWS = 500
#: The most schedules read in one page, in the search for undeclared schedules.
UNDECLARED_PAGE_ROWS = 100


class Keeper(Loop):
    """Does the housekeeping of the app while this instance is its leader. Thread: engine loop.

    Why only the leader: to save work. Several instances could do it at once, because every write is guarded.
    """

    name = "keeper"

    def __init__(
        self,
        store: Store,
        clock: Clock,
        settings: Settings,
        leader: Leader,
        pause: Callable[[Schedule, str], Awaitable[object]],
        touch: Callable[[Sequence[str]], Awaitable[object]],
    ) -> None:
        """Do housekeeping while `leader` leads. `pause(schedule, reason)` pauses a schedule and stores the reason.

        `touch(ids)` touches the schedules with these ids, so that the settler settles them again.
        """
        super().__init__(max(settings.poll / 1000, settings.lease_ttl / 3000))
        self._store = store
        self._clock = clock
        self._settings = settings
        self._leader = leader
        leader.on_elected(self.wake)
        self._pause = pause
        self._touch = touch
        #: When the last repair began, in boot time.
        self._repaired_at: Ms | None = None
        #: Since when this instance leads without a failure of the store, in monotonic seconds. After an outage of the
        #: store the heartbeats of all instances are old, so undeclared schedules are paused only some time later.
        self._steady_since: float | None = None

    def degraded(self, error: StoreError) -> None:
        """Log a failure of the store, as every loop does, and wait again before undeclared schedules are paused."""
        self._steady_since = None
        super().degraded(error)

    async def run_once(self) -> float:
        """Do a bounded part of each duty; nothing while this instance does not lead. Return the seconds to wait.

        The duties: remove old rows, pause undeclared schedules, repair damaged schedules. Raises: StoreError.
        """
        if not self._leader.leads:
            self._steady_since = None
            return self.poll
        more = await self.retain()
        if self._steady_since is None:
            self._steady_since = self._clock.monotonic()
        if (self._clock.monotonic() - self._steady_since) * 1000 >= self._settings.undeclared_after:
            await self.pause_undeclared()
        if self._repaired_at is None or self._clock.boot() - self._repaired_at >= REPAIR_INTERVAL_MS:
            self._repaired_at = self._clock.boot()
            await self.repair()
        return 0.0 if more else self.poll

    async def retain(self) -> bool:
        """Remove a batch of what is past the retention period: ended runs, events, presence rows and execution leases.

        Presence rows stay for `Settings.undeclared_after` at least. Without a configured period (`Settings.history`),
        the store's own period and its limit of ended runs apply. Return True if more remain to be removed. Raises:
        StoreError.
        """
        now = self._clock.now()
        history, max_ended_runs = self._settings.history, None
        if history is None:
            history, max_ended_runs = self._store.capabilities.history, self._store.capabilities.ended_runs
        before: Ms = now - history
        policy = Retention(
            ended_before=before,
            lease_prefix=INSTANCE_PREFIX,
            leases_before=min(before, now - self._settings.undeclared_after),  # presence rows hold the declarations
            at_most=max_ended_runs,
        )
        purged = await self._store.purge(policy, PURGE_BATCH_ROWS)
        if purged.runs:
            runs, events = plural(purged.runs, "run"), plural(purged.events, "event")
            log.info("retention: %s and %s removed", runs, events)
        fires = Retention(ended_before=0, lease_prefix=EXECUTION_PREFIX, leases_before=before)
        return (await self._store.purge(fires, PURGE_BATCH_ROWS)).more or purged.more

    async def repair(self) -> int:
        """Touch each active schedule of the namespace without a next fire time, so that the settler plans it.

        Return the number of schedules touched. End early if the leadership is lost. Usually such a schedule is damaged.
        A fixed-delay schedule whose run is open has no next fire time either; the settler leaves it as it is. Raises:
        StoreError.
        """
        found = 0
        after: str | None = None
        while True:
            page = await self._store.find(
                Schedules(ns=self._settings.namespace, unplanned=True, after=after, limit=REPAIR_PAGE_ROWS)
            )
            if page:
                await self._touch([schedule.id for schedule in page])
                found += len(page)
            if len(page) < REPAIR_PAGE_ROWS or not self._leader.leads:
                return found
            after = page[-1].id
            await asyncio.sleep(0)  # let other tasks run: the calls of a store in this process never suspend

    async def pause_undeclared(self) -> int:
        """Pause the active schedules of this app that no program declares any more. Return the number paused.

        A schedule is paused if it has not changed for `Settings.undeclared_after` and no instance that ran within that
        time declares it. It is never deleted. End early if the leadership is lost. Raises: StoreError.
        """
        horizon = self._clock.now() - self._settings.undeclared_after
        declared = await self._find_declared(horizon)
        paused = 0
        after: str | None = None
        while True:
            page = await self._store.find(
                Schedules(
                    ns=self._settings.namespace,
                    app=self._settings.app,
                    states=("active",),
                    after=after,
                    limit=UNDECLARED_PAGE_ROWS,
                )
            )
            for schedule in page:
                if schedule.name not in declared and schedule.updated_at <= horizon:
                    await self._pause(schedule, "not_declared")
                    log_automatic_pause(schedule, "not_declared")
                    paused += 1
            if len(page) < UNDECLARED_PAGE_ROWS or not self._leader.leads:
                return paused
            after = page[-1].id

    async def _find_declared(self, horizon: Ms) -> set[str]:
        """Return the names of the schedules declared by the instances of this app that run now or ran after `horizon`.

        `horizon`: store time.
        """
        declared: set[str] = set()
        for lease, instance in await list_instances(self._store):
            if instance.app == self._settings.app and (lease.live or lease.renewed_at > horizon):
                declared.update(instance.declares)
        return declared
