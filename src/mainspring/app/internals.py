"""Internals of a `Mainspring`: access to the parts behind the object that users hold, for Mainspring's own packages.

Programs use the methods of `Mainspring`. The command line, the HTTP API, the server and the test kit also need the
engine host, the engine runner, the registry, stored rows or the runtime, and get them from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from mainspring.model.errors import MainspringError
from mainspring.model.policies import ON_CONFLICT, OnConflict, check_choice

if TYPE_CHECKING:
    from mainspring.app.engine_host import EngineHost
    from mainspring.app.engine_runner import EngineRunner
    from mainspring.app.http_agents import HttpAgents
    from mainspring.app.mainspring import Mainspring
    from mainspring.app.queries import Queries
    from mainspring.app.registry import Registry
    from mainspring.app.schedule_view import Schedule
    from mainspring.runtime.runtime import Runtime


def host_of(ms: Mainspring) -> EngineHost:
    """Return the engine host: it opens the store, and calls functions on the engine's loop."""
    return ms._host


def runner_of(ms: Mainspring) -> EngineRunner:
    """Return the engine runner: it starts and stops the engine."""
    return ms._runner


def registry_of(ms: Mainspring) -> Registry:
    """Return the registry of tasks and declared schedules."""
    return ms._registry


def queries_of(ms: Mainspring) -> Queries:
    """Return the queries for stored schedules and runs; the methods of `Mainspring` return views of these rows."""
    return ms._queries


async def create_with_any_name(
    ms: Mainspring, name: str, task: Any, *, on_conflict: OnConflict = "error", **options: Any
) -> Schedule:
    """Create a schedule as `ms.schedule` does, also under a name that no URL can hold.

    Why: the interfaces of other schedulers take such names, or make them of a cron expression.
    """
    check_choice(on_conflict, ON_CONFLICT, field="on_conflict")
    wanted = registry_of(ms).make_request(name, task=task, **options)
    return await ms._create(replace(wanted, any_name=True), task, on_conflict)


def http_agents_of(ms: Mainspring) -> HttpAgents:
    """Return the part that checks the URLs of HTTP agents, and shows and rotates the secrets that sign their calls."""
    return ms._agents


def runtime_of(ms: Mainspring) -> Runtime:
    """Return the runtime: the open store with the engine's parts. Raises: MainspringError if the store is not open."""
    runtime = ms._host.runtime
    if runtime is None:
        raise MainspringError("the store is not open: call any coroutine method of the Mainspring first")
    return runtime
