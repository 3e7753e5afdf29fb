"""The workbench of a contract test: one empty store, a counter for ids, and the steps that most tests repeat."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from mainspring.model.change import Change, Result
from mainspring.model.events import Event
from mainspring.model.gate import Gate
from mainspring.model.instant import Ms
from mainspring.model.run import Run, State
from mainspring.model.schedule import Schedule
from mainspring.ports.store import Claimed, Events, Gates, Offer, Runs, Schedules, Store
from mainspring.rules.change_shape import fits_kind
from mainspring.testing.contract.factories import (
    T0,
    Ids,
    create_schedule_change,
    enqueue_change,
    finish_change,
    make_run,
    make_schedule,
)

DEFAULT_LANE = "default/default"
C = TypeVar("C", bound="ContractBase")


class StoreBench:
    """A store under test with a counter for ids. Methods that write take the present time as `now`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.ids = Ids()

    async def apply(self, *changes: Change, now: Ms = T0) -> list[Result]:
        """Apply changes in one batch and return their results; fail for a change that does not fit its `kind`."""
        assert all(map(fits_kind, changes)), changes
        return (await self.store.apply(changes, now=now)).results

    async def accept(self, *changes: Change, now: Ms = T0) -> None:
        """Apply changes; fail unless every one is accepted."""
        results = await self.apply(*changes, now=now)
        assert [result.status for result in results] == ["accepted"] * len(changes), results

    async def enqueue(self, *, now: Ms = T0, payload: str | None = None, made: Sequence[Gate] = (), **over: Any) -> Run:
        """Insert a run with the fields in `over`, its payload and the gates `made`; return its row as stored."""
        run = make_run(self.ids, **over)
        await self.accept(enqueue_change(self.ids, run, body=payload, gates=made), now=now)
        return await self.run(run.id)

    async def schedule(self, *, now: Ms = T0, payload: str | None = None, **over: Any) -> Schedule:
        """Insert a schedule with the fields in `over` and its payload; return its row as stored."""
        schedule = make_schedule(self.ids, **over)
        await self.accept(create_schedule_change(self.ids, schedule, body=payload), now=now)
        return await self.schedule_row(schedule.id)

    async def claim(
        self,
        now: Ms = T0,
        *,
        limit: int = 10,
        ids: Sequence[str] = (),
        owner: str = "w1",
        lanes: tuple[str, ...] = (DEFAULT_LANE,),
        tasks: tuple[str, ...] = ("t",),
        ttl: Ms = 10_000,
    ) -> Claimed:
        """Claim runs; by default as worker `w1`, in lane `default/default`, of task `t`."""
        return await self.store.claim(Offer(owner, lanes, tasks, ttl), limit, ids=ids, now=now)

    async def start(self, now: Ms = T0, **over: Any) -> Run:
        """Claim one run and return it; fail unless exactly one was claimed. `over`: arguments of `claim`."""
        claims = (await self.claim(now, **over)).claims
        assert len(claims) == 1, claims
        return claims[0].run

    async def end(self, run: Run, state: State = State.SUCCEEDED, *, now: Ms = T0, **over: Any) -> Run:
        """Move a claimed run to `state` and return its row after that. `over`: arguments of `finish_change`."""
        await self.accept(finish_change(self.ids, run, state, **over), now=now)
        return await self.run(run.id)

    async def run(self, run_id: str) -> Run:
        """Return the row of a run; fail if there is none."""
        rows = await self.store.find(Runs(id=run_id))
        assert len(rows) == 1, (run_id, rows)
        return rows[0]

    async def runs(self, **query: Any) -> list[Run]:
        """Find runs, by default oldest first; `query` holds fields of `Runs`."""
        return await self.store.find(Runs(**{"oldest_first": True, **query}))

    async def schedule_row(self, schedule_id: str) -> Schedule:
        """Return the row of a schedule; fail if there is none."""
        rows = await self.store.find(Schedules(id=schedule_id))
        assert len(rows) == 1, (schedule_id, rows)
        return rows[0]

    async def gate(self, name: str) -> Gate:
        """Return a gate; fail if there is none."""
        rows = await self.store.find(Gates(names=(name,)))
        assert len(rows) == 1, (name, rows)
        return rows[0]

    async def events(self, **query: Any) -> list[Event]:
        """Find events in the order of the log; `query` holds fields of `Events`."""
        return await self.store.find(Events(**query))

    async def names(self, **query: Any) -> list[str]:
        """Find events and return the names of their types, in the order of the log."""
        return [type(event).__name__ for event in await self.events(**query)]


class ContractBase:
    """Base of the contract classes; a backend sets `make(tmp_path)`, which returns an empty store, not yet open.

    `make` may also return a coroutine that returns the store.
    """

    make: ClassVar[Callable[[Path], Any]]


def on_store(test: Callable[[C, StoreBench], Awaitable[None]]) -> Callable[[C, Path], None]:
    """Turn a coroutine method into a test on an empty, open store.

    The test has an event loop of its own, so it needs neither a pytest plugin nor a fixture for async tests.
    """

    async def drive(case: C, tmp_path: Path) -> None:
        made = type(case).make(tmp_path)
        store: Store = await made if inspect.isawaitable(made) else made
        await store.open()
        try:
            await test(case, StoreBench(store))
        finally:
            await store.close()

    def run(self: C, tmp_path: Path) -> None:
        asyncio.run(drive(self, tmp_path))

    # Not functools.wraps: pytest would read the inner signature and look for a fixture of that name.
    run.__name__ = run.__qualname__ = test.__name__
    run.__doc__ = test.__doc__
    return run
