"""HTTP agents from Python: declare schedules that call them, look after their secrets."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Unpack

from mainspring.model.errors import DuplicateTask, InvalidInput
from mainspring.model.http import HTTP_TASK, AgentSettings, Http, HttpAgent, Method
from mainspring.model.ids import check_name
from mainspring.model.instant import Duration, duration_ms
from mainspring.model.schedule import Schedule
from mainspring.registry import Registry
from mainspring.rules.definition import WhenAndHow

log = logging.getLogger("mainspring")


class AgentDoor(Registry):
    """What a program can say about HTTP agents."""

    def http(
        self,
        name: str,
        url: str,
        *,
        payload: Any = None,
        method: Method = "POST",
        headers: Mapping[str, str] | None = None,
        agent_id: str = "",
        silence: Duration = "60s",
        within: Duration = "1h",
        **when_and_how: Unpack[WhenAndHow],
    ) -> HttpAgent:
        """Declare a schedule that calls an HTTP agent; it is stored when the program runs, like a decorated one.

        The payload is sent as the body, unchanged. Header values are kept apart and never shown again.
        """
        agent = Http(url, method=method, headers=headers, agent_id=agent_id, silence=silence, within=within)
        wanted = {"task": agent, "payload": payload, **when_and_how}
        check_name(name)
        if name in self._declared:
            raise DuplicateTask("name", f"a schedule called {name!r} is declared already", "Give one another name")
        self._definition(name, **wanted)  # wrong values fail here
        self._declared[name] = wanted
        return agent

    def adopt_agents(self, settings: AgentSettings) -> None:
        """Call agents by other settings from now on; called on the handlers' loop."""
        self.agents = settings
        executor: Any = None if self._runtime is None else self._runtime.executors.get("http")
        if executor is not None:
            executor.adopt(settings)

    async def check_agent(self, url: str, *, field: str = "url") -> list[str]:
        """Refuse a URL that this instance would never call; the answer holds warnings."""
        from mainspring.agents.guard import Guard  # most programs call no agent

        return await Guard(self.agents or AgentSettings()).at_save(url, field=field)

    async def signing_secret(self, key: str) -> str:
        """The secret with which calls of this schedule are signed; it is shown once."""
        schedule = await self._agent_schedule(key)
        return await self.call(lambda runtime: runtime.vault.show(schedule.id))

    async def rotate_secret(self, key: str, *, overlap: Duration = "24h") -> str:
        """A new signing secret; for so long calls are signed with the old one, too."""
        schedule = await self._agent_schedule(key)
        both = duration_ms(overlap, field="overlap")
        return await self.call(lambda runtime: runtime.vault.rotate(schedule.id, both))

    async def _agent_schedule(self, key: str) -> Schedule:
        schedule = await self.call(lambda runtime: runtime.commands.schedule(self.settings.namespace, key))
        if schedule.spec.task != HTTP_TASK:
            raise InvalidInput("schedule", f"{schedule.name!r} calls no HTTP agent", "Only calls of agents are signed")
        return schedule

    async def _agent_at_save(self, task: object) -> None:
        """An address that may not be called is refused, one that is not there yet is warned of."""
        if isinstance(task, HttpAgent):
            for warning in await self.check_agent(task.target.url):
                log.warning("%s", warning)

    async def _agent_saved(self, task: object) -> None:
        """Whoever schedules calls makes them, too, if it runs already."""
        if isinstance(task, HttpAgent) and self._runtime is not None and self.agents is not None:
            settings = self.agents
            await self.call(lambda runtime: _call_agents(runtime, settings))


async def _call_agents(runtime: Any, settings: AgentSettings) -> None:
    runtime.call_agents(settings)
