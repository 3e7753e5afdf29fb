"""The part of the composition root for HTTP agents: it makes their client, with address guard and secrets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec.structs import replace

from mainspring.agents.guard import AddressGuard
from mainspring.model.errors import MissingExtra
from mainspring.model.http import AgentSettings
from mainspring.model.run import Run
from mainspring.ports.clock import Clock
from mainspring.ports.executor import Done, Executor, Handler

if TYPE_CHECKING:
    from mainspring.agents.vault import CallSecrets, Vault
    from mainspring.executors.http import HttpClient


def make_agent_client(
    settings: AgentSettings, loop: asyncio.AbstractEventLoop, clock: Clock, vault: Vault
) -> tuple[HttpClient, Handler]:
    """Return the client that calls agents on `loop`, and the handler of the built-in task that uses the client.

    The client reads the secrets of a call from `vault`, on the engine loop unless they are cached. Raises: MissingExtra
    if aiohttp is not installed. Thread: engine loop.
    """
    try:
        from mainspring.executors.http import HttpClient, http_handler
    except ImportError as error:
        raise MissingExtra(
            f"HTTP agents need {error.name}, which is not installed: pip install 'mainspring[serve]'"
        ) from None
    engine = asyncio.get_running_loop()

    async def look_up_secrets(run: Run) -> CallSecrets:
        """Return the secrets for the call of a run. Thread: `loop`."""
        ref = run.options.http.headers_ref if run.options is not None and run.options.http is not None else None
        known = vault.cached(ref, run.schedule_id or "")
        if known is not None:
            return known
        reading = vault.load(ref, run.schedule_id or "")
        if loop is engine:
            return await reading
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(reading, engine))

    client = HttpClient(settings, AddressGuard(settings), clock, look_up_secrets)
    return client, replace(http_handler(settings), call=client.call)


def make_agent_executor(loop: asyncio.AbstractEventLoop, clock: Clock, done: Done, client: HttpClient) -> Executor:
    """Return the executor that calls agents through `client` on `loop` and passes each outcome to `done`."""
    from mainspring.executors.http import HttpExecutor

    return HttpExecutor(loop, clock, done, client)
