"""How the parts of an instance are: healthy, degraded or unhealthy, and since when that is known."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from mainspring.config.settings import ServeSettings
from mainspring.model.errors import StoreError
from mainspring.model.instant import Ms, format_duration, isoformat
from mainspring.ports.store import Schedules

if TYPE_CHECKING:
    from mainspring.app import Mainspring
    from mainspring.engine.runtime import Runtime

Status = Literal["healthy", "degraded", "unhealthy"]
#: An answer is good for so long, so that probes cost nothing, in seconds.
FRESH = 0.5
#: A store that needs longer does not answer.
PATIENCE = 2.0
_WORST: tuple[Status, ...] = ("healthy", "degraded", "unhealthy")


class Component(Struct, frozen=True):
    """One part of the service."""

    status: Status
    last_updated: str
    detail: str = ""


class Report(Struct, frozen=True):
    """All of it; `ready` when it should be given work."""

    status: Status
    ready: bool
    components: dict[str, Component]
    last_updated: str
    role: str = "all"
    version: str = ""


class Components:
    """Looks when asked, at most twice a second."""

    def __init__(self, ms: Mainspring, settings: ServeSettings) -> None:
        self._ms = ms
        self.settings = settings
        #: Set when it is told to stop: no new work, whatever the rest says.
        self.stopping = False
        self._last: tuple[float, Report] | None = None
        self._looking: asyncio.Task[Report] | None = None

    async def report(self) -> Report:
        """How it is; several who ask at once wait for one look."""
        now = self._ms.clock.monotonic()
        if self._last is not None and now - self._last[0] < FRESH and not self.stopping:
            return self._last[1]
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(self._looking)

    async def _look(self) -> Report:
        from importlib.metadata import version

        clock = self._ms.clock
        parts: dict[str, Component] = {}
        at = isoformat(clock.now())
        lag: Ms | None = None
        try:
            async with asyncio.timeout(PATIENCE):
                lag = await self._ms.call(self._behind)
            parts["store"] = Component("healthy", at, "; ".join(self._ms.health().warnings))
        except StoreError as error:
            parts["store"] = Component("unhealthy", at, str(error))
        except TimeoutError:
            parts["store"] = Component("unhealthy", at, f"no answer within {PATIENCE:g} s")
        parts |= self._loops(at, lag)
        parts["api"] = Component("degraded" if self.stopping else "healthy", at, "stopping" if self.stopping else "")
        worst = max((part.status for part in parts.values()), key=_WORST.index)
        status: Status = "degraded" if worst == "unhealthy" and parts["store"].status == "healthy" else worst
        # Without its broker an instance is slower, and nobody would be helped by taking all of them out.
        needed = (part for name, part in parts.items() if name != "broker")
        ready = not self.stopping and all(part.status == "healthy" for part in needed)
        report = Report(status, ready, parts, at, self.settings.role, version("mainspring"))
        self._last = (clock.monotonic(), report)
        return report

    def _loops(self, at: str, lag: Ms | None) -> dict[str, Component]:
        """Planner and worker, as far as this instance has them."""
        role = self.settings.role
        if role == "api":
            return {}
        health = self._ms.health()
        parts: dict[str, Component] = {}
        plans, works = role in ("all", "planner"), role in ("all", "worker")
        failing = dict(health.failing)
        broker = failing.pop("broker", "")
        if self._ms.broker is not None:
            parts["broker"] = Component("degraded" if broker else "healthy", at, broker)
        planner = failing.pop("settler", "")
        if plans:
            parts["planner"] = Component("degraded" if planner else "healthy", at, planner)
            if lag is not None and lag > self.settings.scheduler.max_lag:
                behind = f"schedules have waited to be planned for {format_duration(lag - lag % 1_000)}"
                parts["planner"] = Component("unhealthy", at, planner or behind)
        if health.status == "stopped":
            parts["engine"] = Component("unhealthy", at, "not running")
        elif works:
            detail = "; ".join(f"{name}: {text}" for name, text in failing.items())
            parts["worker"] = Component("degraded" if detail else "healthy", at, detail)
        return parts

    async def _behind(self, runtime: Runtime) -> Ms | None:
        """How long the oldest due schedule has waited to be planned; asking proves that the store answers, too."""
        if self.settings.role not in ("all", "planner"):
            await runtime.store.find(Schedules(id="-", limit=1))
            return None
        now = runtime.time.now()
        late = now - self.settings.scheduler.max_lag
        broken = runtime.settler.unplannable
        rows = await runtime.store.find(Schedules(states=("active",), due_before=late, limit=len(broken) + 1))
        return max(
            (now - row.next_at for row in rows if row.next_at is not None and row.id not in broken), default=None
        )
