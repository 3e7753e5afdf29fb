"""The part of the composition root that HTTP agents need: their client, their guard, their secrets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec.structs import replace

from mainspring.agents.guard import Guard
from mainspring.agents.vault import Known
from mainspring.model.errors import MissingExtra
from mainspring.model.http import AgentSettings
from mainspring.model.run import Run
from mainspring.ports.executor import Done, Handler

if TYPE_CHECKING:
    from mainspring.engine.runtime import Runtime
    from mainspring.executors.http import HttpExecutor


def agent_executor(
    runtime: Runtime, settings: AgentSettings, loop: asyncio.AbstractEventLoop, done: Done
) -> tuple[HttpExecutor, Handler]:
    """An executor whose client lives on the handlers' loop and asks the engine's loop for what is kept."""
    try:
        from mainspring.executors.http import HttpClient, HttpExecutor, http_handler
    except ImportError as error:
        raise MissingExtra(
            f"HTTP agents need {error.name}, which is not installed: pip install 'mainspring[serve]'"
        ) from None
    engine, vault = asyncio.get_running_loop(), runtime.vault

    async def lookup(run: Run) -> Known:
        ref = run.options.http.headers_ref if run.options is not None and run.options.http is not None else None
        known = vault.at_hand(ref, run.schedule_id or "")
        if known is not None:
            return known
        reading = vault.known(ref, run.schedule_id or "")
        if loop is engine:
            return await reading
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(reading, engine))

    client = HttpClient(settings, Guard(settings), runtime.time, lookup)
    return HttpExecutor(loop, runtime.time, done, client), replace(http_handler(settings), call=client.call)
