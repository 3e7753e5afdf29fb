"""What the tests of locks and leaders share: a store that can be made to fail, and instances on one store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace
from support import Make

from mainspring import Mainspring
from mainspring.engine.loop import SameLoop
from mainspring.model.errors import StoreUnavailable
from mainspring.ports.store import Lease, Leases, Store
from mainspring.testing.travel import Travel


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
    if isinstance(first._engine, SameLoop) or first._given_store is not None:
        other.clock, other._engine = first.clock, first._engine
        other._given_store = first._given_store
    return other


@asynccontextmanager
async def beside(app: Mainspring, t: Travel) -> AsyncIterator[Mainspring]:
    """Run a second instance in the time of the first."""
    app.clock, app._engine = t.app.clock, t.app._engine
    app.settings = replace(app.settings, poll=t.app.settings.poll)
    await app._start()
    try:
        yield app
    finally:
        if app._runtime is not None:
            await app._runtime.stop_now()
            await app._runtime.stop(0)
            await app.close()


async def row(app: Mainspring, prefix: str) -> Lease:
    """The one lease of this prefix."""
    (found,) = await app.call(lambda runtime: runtime.store.find(Leases(prefix=prefix)))
    return found
