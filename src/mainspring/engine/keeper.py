"""The keeper: retention, and schedules that no code declares any more. The leader does it, nobody else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from mainspring.engine.leader import Leader
from mainspring.engine.presence import PREFIX, instances
from mainspring.engine.service import Service
from mainspring.model.errors import StoreError
from mainspring.model.instant import Ms
from mainspring.model.schedule import Schedule
from mainspring.model.settings import Settings
from mainspring.ports.clock import Clock
from mainspring.ports.lock import EXECUTION
from mainspring.ports.store import Retention, Schedules, Store

log = logging.getLogger("mainspring.engine")

PURGE_BATCH = 500
#: Damage is rare.
REPAIR_EVERY: Ms = 3_600_000
REPAIR_PAGE = 500


class Keeper(Service):
    """Housekeeping by the leader: that only saves work, every write is guarded as always."""

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
        super().__init__(max(settings.poll / 1000, settings.lease_ttl / 3000))
        self._store = store
        self._clock = clock
        self._settings = settings
        self._leader = leader
        leader.elected = self.wake
        self._pause = pause
        self._touch = touch
        self._looked: Ms | None = None
        #: Since when this instance keeps house without a failure: after an outage everybody's heartbeat is old.
        self._steady_since: float | None = None

    def degraded(self, error: StoreError) -> None:
        self._steady_since = None
        super().degraded(error)

    async def run_once(self) -> float:
        """One bounded piece of each duty, or nothing while another instance leads."""
        if not self._leader.leads:
            self._steady_since = None
            return self.poll
        more = await self.retain()
        if self._steady_since is None:
            self._steady_since = self._clock.monotonic()
        if (self._clock.monotonic() - self._steady_since) * 1000 >= self._settings.undeclared_after:
            await self.pause_undeclared()
        if self._looked is None or self._clock.boot() - self._looked >= REPAIR_EVERY:
            self._looked = self._clock.boot()
            await self.repair()
        return 0.0 if more else self.poll

    async def retain(self) -> bool:
        """Remove what is older than the history; true when there is more."""
        now = self._clock.now()
        kept, most = self._settings.history, None
        if kept is None:
            kept, most = self._store.capabilities.history, self._store.capabilities.ended_runs
        before: Ms = now - kept
        policy = Retention(
            ended_before=before,
            lease_prefix=PREFIX,
            leases_before=min(before, now - self._settings.undeclared_after),  # they say who declares what
            at_most=most,
        )
        purged = await self._store.purge(policy, PURGE_BATCH)
        if purged.runs:
            log.info("retention: %d runs and %d events removed", purged.runs, purged.events)
        fires = Retention(ended_before=0, lease_prefix=EXECUTION, leases_before=before)
        return (await self._store.purge(fires, PURGE_BATCH)).more or purged.more

    async def repair(self) -> int:
        """Have every active schedule without a next time looked at again: as a rule only damage leaves one like that.

        A fixed-delay schedule whose run is open is looked at too, and left as it is.
        """
        found = 0
        after: str | None = None
        while True:
            page = await self._store.find(
                Schedules(ns=self._settings.namespace, unplanned=True, after=after, limit=REPAIR_PAGE)
            )
            if page:
                await self._touch([schedule.id for schedule in page])
                found += len(page)
            if len(page) < REPAIR_PAGE or not self._leader.leads:
                return found
            after = page[-1].id
            await asyncio.sleep(0)  # a store in this process never suspends by itself

    async def pause_undeclared(self) -> int:
        """Pause declared schedules of this app that no instance seen lately declares; never delete them."""
        horizon = self._clock.now() - self._settings.undeclared_after
        known: set[str] = set()
        for lease, instance in await instances(self._store):
            if instance.app == self._settings.app and (lease.live or lease.renewed_at > horizon):
                known.update(instance.declares)
        paused = 0
        after: str | None = None
        while True:
            page = await self._store.find(
                Schedules(ns=self._settings.namespace, app=self._settings.app, states=("active",), after=after)
            )
            for schedule in page:
                if schedule.name not in known and schedule.updated_at <= horizon:
                    await self._pause(schedule, "not_declared")
                    paused += 1
            if len(page) < 100 or not self._leader.leads:
                return paused
            after = page[-1].id
