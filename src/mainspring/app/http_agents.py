"""HTTP agents of an app: check their URLs before a schedule is stored, show and rotate the secrets that sign calls."""

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
        """Use new settings for HTTP agents; `mainspring serve` calls this when its configuration changes.

        They apply at once to URL checks of new schedules, the limit of calls per host, response sizes and the callback
        URL. They apply from the engine's next start on to the address guard of calls, the limit of all calls and
        time-outs. Thread: the handlers' loop.
        """
        self._host.enable_agents(settings)
        runtime = self._host.runtime
        executor: HttpExecutor | None = None if runtime is None else runtime.workers.executors.get("http")  # type: ignore[assignment]  # this kind is made by `make_agent_worker`
        if executor is not None:
            executor.adopt(settings)

    async def check_url(self, url: str, *, field: str = "url") -> list[str]:
        """Check the URL of an agent and return warnings, such as that its host has no address; empty: there are none.

        `field` names the URL in errors. Raises: InvalidInput for a URL that this instance may not call.
        """
        from mainspring.agents.guard import AddressGuard  # most programs call no agent

        return await AddressGuard(self._host.agents or AgentSettings()).check_url(url, field=field)

    async def check_target(self, task: object) -> None:
        """If the `task` of a new schedule is an HTTP agent, check its URL and log warnings about it.

        Raises: InvalidInput for a URL that this instance may not call.
        """
        if isinstance(task, HttpAgent):
            for warning in await self.check_url(task.target.url):
                log.warning("%s", warning)

    async def start_calling(self, task: object) -> None:
        """If the `task` of a schedule just stored is an HTTP agent, let the running engine call agents from now on.

        Why: an engine that started without settings for agents does not claim the agents' runs. If no engine runs, do
        nothing.
        """
        settings = self._host.agents
        if not isinstance(task, HttpAgent) or self._host.runtime is None or settings is None:
            return

        async def start(runtime: Runtime) -> None:
            runtime.call_agents(settings)

        await self._host.call(start)

    async def signing_secret(self, key: str) -> str:
        """Return the newest secret that signs the calls of the schedule `key` (a name or id), and mark it as shown.

        Raises: InvalidInput if it was shown before, here or by `rotate_secret`, or if the schedule calls no agent;
        UnknownSchedule.
        """
        schedule = await self._find_schedule(key)
        return await self._host.call(lambda runtime: runtime.vault.show(schedule.id))

    async def rotate_secret(self, key: str, overlap: Duration) -> str:
        """Replace the secret that signs the calls of the schedule `key` (a name or id), and return the new secret.

        For the duration `overlap`, calls are signed with the old secret, too. Raises: InvalidInput if the schedule
        calls no agent; UnknownSchedule.
        """
        schedule = await self._find_schedule(key)
        overlap_ms = duration_ms(overlap, field="overlap")
        return await self._host.call(lambda runtime: runtime.vault.rotate(schedule.id, overlap_ms))

    async def _find_schedule(self, key: str) -> Schedule:
        """Return the schedule with the name or id `key`. Raises: InvalidInput if it calls no agent; UnknownSchedule."""
        namespace = self._host.settings.namespace
        schedule = await self._host.call(lambda runtime: runtime.commands.schedule(namespace, key))
        if schedule.spec.task != HTTP_TASK:
            raise InvalidInput("schedule", f"{schedule.name!r} calls no HTTP agent", "Only calls of agents are signed")
        return schedule
