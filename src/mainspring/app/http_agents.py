"""HTTP agents of an app: check their addresses before a schedule is stored, and keep the secrets that sign calls."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mainspring.app.engine_host import EngineHost
from mainspring.model.errors import InvalidInput
from mainspring.model.http import HTTP_TASK, AgentSettings, HttpAgent
from mainspring.model.instant import Duration, duration_ms
from mainspring.model.schedule import Schedule

if TYPE_CHECKING:
    from mainspring.executors.http import HttpExecutor
    from mainspring.runtime.runtime import Runtime

log = logging.getLogger("mainspring")


class HttpAgents:
    """Checks the URLs of an app's HTTP agents, enables calls of them, and returns their signing secrets."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host

    def adopt(self, settings: AgentSettings) -> None:
        """Use `settings` for all calls of agents from now on. Thread: the handlers' loop."""
        self._host.enable_agents(settings)
        runtime = self._host.runtime
        executor: HttpExecutor | None = None if runtime is None else runtime.workers.executors.get("http")  # type: ignore[assignment]  # this kind is made by `start_agents`
        if executor is not None:
            executor.adopt(settings)

    async def check_url(self, url: str, *, field: str = "url") -> list[str]:
        """Return warnings about a URL, for example a host that has no address yet.

        Raises: InvalidInput, which names `field`, for a URL that this instance would never call.
        """
        from mainspring.agents.guard import AddressGuard  # most programs call no agent

        return await AddressGuard(self._host.agents or AgentSettings()).check_url(url, field=field)

    async def check_target(self, task: object) -> None:
        """Check the agent of a schedule that will be stored, and log warnings about its URL; other tasks pass.

        Raises: InvalidInput for a URL that this instance would never call.
        """
        if isinstance(task, HttpAgent):
            for warning in await self.check_url(task.target.url):
                log.warning("%s", warning)

    async def start_calling(self, task: object) -> None:
        """Enable calls of agents in this process's open runtime, after a schedule that calls an agent was stored.

        Nothing happens for other tasks, or if the store is not open.
        """
        settings = self._host.agents
        if not isinstance(task, HttpAgent) or self._host.runtime is None or settings is None:
            return

        async def start(runtime: Runtime) -> None:
            runtime.call_agents(settings)

        await self._host.call(start)

    async def signing_secret(self, key: str) -> str:
        """Return the secret that signs the calls of a schedule."""
        schedule = await self._find_schedule(key)
        return await self._host.call(lambda runtime: runtime.vault.show(schedule.id))

    async def rotate_secret(self, key: str, overlap: Duration) -> str:
        """Return a new signing secret; for the duration `overlap`, calls are signed with the old one, too."""
        schedule = await self._find_schedule(key)
        overlap_ms = duration_ms(overlap, field="overlap")
        return await self._host.call(lambda runtime: runtime.vault.rotate(schedule.id, overlap_ms))

    async def _find_schedule(self, key: str) -> Schedule:
        namespace = self._host.settings.namespace
        schedule = await self._host.call(lambda runtime: runtime.commands.schedule(namespace, key))
        if schedule.spec.task != HTTP_TASK:
            raise InvalidInput("schedule", f"{schedule.name!r} calls no HTTP agent", "Only calls of agents are signed")
        return schedule
