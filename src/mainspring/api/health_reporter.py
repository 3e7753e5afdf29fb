"""Health of an instance: whether its engine's thread answers, whether it is ready for work, status of each part."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec import Struct

from mainspring.api.schemas import ComponentView, HealthStatus
from mainspring.app.internals import host_of
from mainspring.config.settings import SchedulerSettings, ServeRole, ServeSettings
from mainspring.model.errors import StoreError
from mainspring.model.health import Health
from mainspring.model.instant import Ms, format_duration, isoformat
from mainspring.ports.broker import Broker
from mainspring.ports.store import Schedules

if TYPE_CHECKING:
    from mainspring.app.mainspring import Mainspring
    from mainspring.runtime.runtime import Runtime

T = TypeVar("T")

#: For this long a report is reused, so that frequent probing costs the store little.
REPORT_LIFETIME_SECONDS = 0.5
#: A store, or an engine's thread, that does not answer within this time is reported as unhealthy.
PROBE_TIMEOUT_SECONDS = 2.0
_BEST_TO_WORST: tuple[HealthStatus, ...] = ("healthy", "degraded", "unhealthy")
_REDIS_SCHEMES = ("redis", "valkey")


class Liveness(Struct, frozen=True):
    """Report behind `/health`: whether the engine's thread answers. `components` has one part, `engine`."""

    status: HealthStatus
    components: dict[str, ComponentView]
    last_updated: str


class Readiness(Struct, frozen=True):
    """Report behind `/ready` and `/api/health`: the status of each part of an instance, by the part's name.

    `ready` is True if the instance should receive work. `status` is the worst status of any part; but if that is
    "unhealthy" and the store is healthy, it is "degraded". `last_updated` is the time of the report, in RFC 3339.
    """

    status: HealthStatus
    ready: bool
    components: dict[str, ComponentView]
    last_updated: str
    role: ServeRole = "all"
    version: str = ""


class HealthReporter:
    """Makes the reports behind `/health`, `/ready` and `/api/health`. Requests within half a second share a report.

    `settings` None: the app is embedded in another program. Its engine may run in another process or not at all, so a
    stopped engine is no fault. With `settings`, `mainspring serve` runs the engine, and a stopped engine is a fault.
    """

    def __init__(self, ms: Mainspring, settings: ServeSettings | None = None) -> None:
        self._ms = ms
        self._host = host_of(ms)
        self._stopping = False
        self._liveness = _SharedReport(ms.clock.monotonic, self._probe_engine)
        self._readiness = _SharedReport(ms.clock.monotonic, self._probe_all_parts)
        self.adopt(settings)

    def adopt(self, settings: ServeSettings | None) -> None:
        """Use `settings` from the next report on; None: the app is embedded in another program."""
        self._embedded = settings is None
        self._role: ServeRole = "all" if settings is None else settings.role
        self._max_lag: Ms = (SchedulerSettings() if settings is None else settings.scheduler).max_lag

    def mark_stopping(self) -> None:
        """Report this instance as not ready from now on. Called when the server begins to stop."""
        self._stopping = True
        self._readiness.drop()

    async def liveness(self) -> Liveness:
        """Return the report on the engine's thread: "unhealthy" if it does not answer, so that a restart would help."""
        return await self._liveness.get()

    async def readiness(self) -> Readiness:
        """Return the report on every part of the instance, with the answer whether the instance should receive work."""
        return await self._readiness.get()

    async def dependencies(self) -> Readiness:
        """Return the readiness report, but with the servers on which the instance depends as its `components`.

        `database` is the store. `broker` is the broker, left out if there is none. `redis` has the status of the store
        or the broker, whichever is a Redis or Valkey server. If both are, `redis` has the worse status. If neither is,
        `redis` is left out.
        """
        report = await self.readiness()
        database, broker = report.components["store"], report.components.get("broker")
        parts = {"database": database}
        if broker is not None:
            parts["broker"] = broker
        on_redis = [database] if _is_redis(self._ms.url) else []
        if broker is not None and _is_redis(self._ms.broker):
            on_redis.append(broker)
        if on_redis:
            parts["redis"] = max(on_redis, key=_badness)
        return Readiness(report.status, report.ready, parts, report.last_updated, report.role, report.version)

    # ── liveness ───────────────────────────────────────────────────────────

    async def _probe_engine(self) -> Liveness:
        """Have the engine's thread run an empty call. Report it as healthy if it did so in time, else as unhealthy."""
        at = isoformat(self._ms.clock.now())
        engine = ComponentView("healthy", at)
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                await self._host.engine.call(_do_nothing())
        except TimeoutError:
            engine = ComponentView("unhealthy", at, f"no answer within {PROBE_TIMEOUT_SECONDS:g} s")
        return Liveness(engine.status, {"engine": engine}, at)

    # ── readiness ──────────────────────────────────────────────────────────

    async def _probe_all_parts(self) -> Readiness:
        """Make a new readiness report: ask the store, and read the status that the engine reports of its loops."""
        at = isoformat(self._ms.clock.now())
        store, lag = await self._probe_store(at)
        api = ComponentView("degraded", at, "stopping") if self._stopping else ComponentView("healthy", at)
        parts = {"store": store, **self._engine_parts(at, lag), "api": api}
        status = max((part.status for part in parts.values()), key=_BEST_TO_WORST.index)
        if status == "unhealthy" and store.status == "healthy":
            status = "degraded"  # all work is safe in the store, and other instances can go on
        # An instance without its broker is only slower. Taking all instances out of service would help no caller.
        # And a schedule that was planned ahead of the clock waits for a person, on every instance alike.
        needed = (part for name, part in parts.items() if name not in ("broker", "schedules"))
        ready = not self._stopping and all(part.status == "healthy" for part in needed)
        return Readiness(status, ready, parts, at, self._role, version("mainspring"))

    async def _probe_store(self, at: str) -> tuple[ComponentView, Ms | None]:
        """Ask the store for overdue schedules. Return its status, and by how many milliseconds planning is late.

        The number is None if planning is not late, or if the store does not answer. `at` is the time of the report.
        """
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                lag = await self._host.call(self._planning_lag)
        except StoreError as error:
            return ComponentView("unhealthy", at, str(error)), None
        except TimeoutError:
            return ComponentView("unhealthy", at, f"no answer within {PROBE_TIMEOUT_SECONDS:g} s"), None
        runtime = self._host.runtime
        return ComponentView("healthy", at, "" if runtime is None else "; ".join(runtime.store_warnings)), lag

    async def _planning_lag(self, runtime: Runtime) -> Ms | None:
        """Return by how many milliseconds planning is late: how long an overdue schedule has been due.

        Return None if no schedule has been due for longer than the setting `max_lag`. The query reads just enough
        overdue schedules, in the order of their ids, to find one that counts; another may have been due for longer. A
        schedule whose planning fails does not count: it must not take the whole instance out of service. In a role that
        does not plan, return None after an empty query, which shows that the store answers. Raises: StoreError.
        """
        if self._role not in ("all", "planner"):
            await runtime.store.find(Schedules(id="-", limit=1))
            return None
        now = runtime.time.now()
        unplannable = runtime.settler.unplannable
        overdue = Schedules(states=("active",), due_before=now - self._max_lag, limit=len(unplannable) + 1)
        rows = await runtime.store.find(overdue)
        waits = [now - row.next_at for row in rows if row.next_at is not None and row.id not in unplannable]
        return max(waits, default=None)

    def _engine_parts(self, at: str, lag: Ms | None) -> dict[str, ComponentView]:
        """Return the status of "planner", "worker" and "broker", as the engine reports it: name → status.

        Parts that the instance's role excludes are left out, as is "broker" if there is none. If the engine is stopped,
        "worker" is left out. Then, an app that is embedded in another program has no "broker" either, and any other app
        has the unhealthy part "engine". `at` is the time of the report. `lag`: by how many milliseconds planning is
        late; None: it is not late, or the store did not answer.
        """
        if self._role == "api":
            return {}
        health = self._ms.health()
        failing = dict(health.failing)
        broker, planner = failing.pop("broker", ""), failing.pop("settler", "")
        ahead = failing.pop("schedules", "")
        parts: dict[str, ComponentView] = {}
        if self._ms.broker is not None and not self._runs_elsewhere(health):
            parts["broker"] = _part(at, broker)
        if self._role in ("all", "planner"):
            parts["planner"] = self._planner_part(at, planner, lag)
        if health.status == "stopped":
            if not self._embedded:
                parts["engine"] = ComponentView("unhealthy", at, "not running")
        elif self._role in ("all", "worker"):
            parts["worker"] = _part(at, "; ".join(f"{name}: {text}" for name, text in failing.items()))
        if ahead:
            parts["schedules"] = _part(at, ahead)
        self._add_work_warnings(parts)
        return parts

    def _add_work_warnings(self, parts: dict[str, ComponentView]) -> None:
        """Say in the detail of the planner, else of the worker, what keeps work from being done.

        The status stays, because not this instance has to change.
        """
        runtime = self._host.runtime
        name = next((name for name in ("planner", "worker") if name in parts), None)
        if runtime is None or name is None or not runtime.work_warnings:
            return
        part = parts[name]
        detail = "; ".join(filter(None, (part.detail, *runtime.work_warnings)))
        parts[name] = ComponentView(part.status, part.last_updated, detail)

    def _runs_elsewhere(self, health: Health) -> bool:
        """Return True if the app is embedded and its engine does not run in this process."""
        return self._embedded and health.status == "stopped"

    def _planner_part(self, at: str, trouble: str, lag: Ms | None) -> ComponentView:
        """Return the planner's status: unhealthy if planning is late; else degraded if its loop fails; else healthy.

        `at` is the time of the report. `trouble` says why the loop fails; "" if it does not. `lag`: by how many
        milliseconds planning is late; None: it is not late, or the store did not answer.
        """
        if lag is not None and lag > self._max_lag:
            behind = f"schedules have waited to be planned for {format_duration(lag - lag % 1_000)}"
            return ComponentView("unhealthy", at, trouble or behind)
        return _part(at, trouble)


class _SharedReport(Generic[T]):
    """A report that callers share. `make_report` makes it; for `REPORT_LIFETIME_SECONDS`, later callers get it, too."""

    def __init__(self, monotonic: Callable[[], float], make_report: Callable[[], Awaitable[T]]) -> None:
        self._monotonic = monotonic
        self._make_report = make_report
        self._last: tuple[float, T] | None = None
        self._running: asyncio.Task[T] | None = None

    def drop(self) -> None:
        """Discard the last report. The next caller gets a report that is begun after this call."""
        self._last = self._running = None

    async def get(self) -> T:
        """Return the last report if it is recent, else a new report, made once for all callers that wait for it."""
        if self._last is not None and self._monotonic() - self._last[0] < REPORT_LIFETIME_SECONDS:
            return self._last[1]
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._renew())
        return await asyncio.shield(self._running)

    async def _renew(self) -> T:
        """Make a new report and return it. Keep it for later callers, unless `drop` was called meanwhile."""
        found = await self._make_report()
        if self._running is asyncio.current_task():  # else dropped meanwhile: this report is outdated already
            self._last = (self._monotonic(), found)
        return found


async def _do_nothing() -> None:
    return


def _part(at: str, trouble: str) -> ComponentView:
    """Return the status of a part at the time `at`: degraded, with `trouble` as detail; healthy if `trouble` is ""."""
    return ComponentView("degraded" if trouble else "healthy", at, trouble)


def _badness(part: ComponentView) -> int:
    return _BEST_TO_WORST.index(part.status)


def _is_redis(place: str | Broker | None) -> bool:
    """Return True if `place` is the URL of a Redis or Valkey server; False for any other URL, a `Broker` and None."""
    return isinstance(place, str) and place.lower().startswith(_REDIS_SCHEMES)
