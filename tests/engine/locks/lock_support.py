"""What the tests of locks and leaders share: a store that can be made to fail, and instances on one store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from mainspring import Mainspring
from mainspring.app.internals import host_of, runner_of, runtime_of
from mainspring.model.errors import StoreUnavailable
from mainspring.model.lease import Lease
from mainspring.ports.store import Leases, Store
from mainspring.runtime.engine_thread import SameLoop
from mainspring.testing.time_travel import Travel
from tests.engine.support import Make


class Faulty:
    """A store of which `lease` or `release` fails before its effect, loses its answer, or never answers."""

    def __init__(self, store: Store) -> None:
        self.inner = store
        self.before: set[str] = set()
        self.after: set[str] = set()
        self.hangs: set[str] = set()
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        if name not in ("lease", "release"):
            return value
        return lambda *args, **kwargs: self._call(name, value, *args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_clock":  # travel gives an embedded store its clock
            self.inner._clock = value  # type: ignore[attr-defined]
        object.__setattr__(self, name, value)

    async def _call(self, name: str, verb: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        self.asked.append(name)
        if name in self.hangs:
            await asyncio.Event().wait()
        if name in self.before:
            raise StoreUnavailable(f"{name}: the store does not answer")
        answer = await verb(*args, **kwargs)
        if name in self.after:
            raise StoreUnavailable(f"{name}: the answer was lost")
        return answer


async def second(make: Make, first: Mainspring, **options: Any) -> Mainspring:
    """Another instance on the same store, as if in another process."""
    await first.schedules()  # opens it
    other = make(**options)
    host, before = host_of(other), host_of(first)
    if isinstance(before.engine, SameLoop) or before.store is not None:
        host.move_to(replace(host.environment, clock=before.clock, engine=before.engine, store=before.store))
    return other


@asynccontextmanager
async def beside(app: Mainspring, t: Travel) -> AsyncIterator[Mainspring]:
    """Run a second instance in the time of the first."""
    host, other = host_of(app), host_of(t.app)
    settings = replace(host.settings, poll=other.settings.poll)
    host.move_to(replace(host.environment, clock=other.clock, engine=other.engine, settings=settings))
    await runner_of(app).start()
    try:
        yield app
    finally:
        if host_of(app).runtime is not None:
            await runtime_of(app).stop_now()
            await runtime_of(app).stop(0)
            await app.close()


async def row(app: Mainspring, prefix: str) -> Lease:
    """The one lease of this prefix."""
    (found,) = await host_of(app).call(lambda runtime: runtime.store.find(Leases(prefix=prefix)))
    return found
