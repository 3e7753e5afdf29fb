"""The bench a contract test works at: one fresh store, its ids, and the few steps every test repeats."""

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
from mainspring.testing.factories import (
    T0,
    Ids,
    create_schedule_change,
    enqueue_change,
    finish_change,
    make_run,
    make_schedule,
)

LANE = "default/default"
C = TypeVar("C", bound="ContractBase")


class Bench:
    """A store under test with a counter for ids. Every call says what time it is."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.ids = Ids()

    async def apply(self, *changes: Change, now: Ms = T0) -> list[Result]:
        """What became of each change."""
        return (await self.store.apply(changes, now=now)).results

    async def accept(self, *changes: Change, now: Ms = T0) -> None:
        """Apply changes of which none may be refused or repeated."""
        results = await self.apply(*changes, now=now)
        assert [result.status for result in results] == ["accepted"] * len(changes), results

    async def enqueue(self, *, now: Ms = T0, payload: str | None = None, made: Sequence[Gate] = (), **over: Any) -> Run:
        """A new run, as the store gives it back; `made` are gates that come with it."""
        run = make_run(self.ids, **over)
        await self.accept(enqueue_change(self.ids, run, body=payload, gates=made), now=now)
        return await self.run(run.id)

    async def schedule(self, *, now: Ms = T0, payload: str | None = None, **over: Any) -> Schedule:
        """A new schedule, as the store gives it back."""
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
        lanes: tuple[str, ...] = (LANE,),
        tasks: tuple[str, ...] = ("t",),
        ttl: Ms = 10_000,
    ) -> Claimed:
        """Claim as worker `w1` unless told otherwise."""
        return await self.store.claim(Offer(owner, lanes, tasks, ttl), limit, ids=ids, now=now)

    async def start(self, now: Ms = T0, **over: Any) -> Run:
        """Claim exactly one run."""
        claims = (await self.claim(now, **over)).claims
        assert len(claims) == 1, claims
        return claims[0].run

    async def end(self, run: Run, state: State = State.SUCCEEDED, *, now: Ms = T0, **over: Any) -> Run:
        """Finish a claimed run; the row as it is then."""
        await self.accept(finish_change(self.ids, run, state, **over), now=now)
        return await self.run(run.id)

    async def run(self, run_id: str) -> Run:
        """The row of a run that must exist."""
        rows = await self.store.find(Runs(id=run_id))
        assert len(rows) == 1, (run_id, rows)
        return rows[0]

    async def runs(self, **query: Any) -> list[Run]:
        """Runs, oldest first unless told otherwise."""
        return await self.store.find(Runs(**{"oldest_first": True, **query}))

    async def schedule_row(self, schedule_id: str) -> Schedule:
        """The row of a schedule that must exist."""
        rows = await self.store.find(Schedules(id=schedule_id))
        assert len(rows) == 1, (schedule_id, rows)
        return rows[0]

    async def gate(self, name: str) -> Gate:
        """A gate that must exist."""
        rows = await self.store.find(Gates(names=(name,)))
        assert len(rows) == 1, (name, rows)
        return rows[0]

    async def events(self, **query: Any) -> list[Event]:
        """Events, in the order of the log."""
        return await self.store.find(Events(**query))

    async def names(self, **query: Any) -> list[str]:
        """The types of events, in the order of the log."""
        return [type(event).__name__ for event in await self.events(**query)]


class ContractBase:
    """What a backend gives: `make(tmp_path)`, a fresh store that is not yet open (a coroutine is fine)."""

    make: ClassVar[Callable[[Path], Any]]


def on_store(test: Callable[[C, Bench], Awaitable[None]]) -> Callable[[C, Path], None]:
    """A test on a fresh, open store, driven by a loop of its own: no plugin and no fixture is needed."""

    async def drive(case: C, tmp_path: Path) -> None:
        made = type(case).make(tmp_path)
        store: Store = await made if inspect.isawaitable(made) else made
        await store.open()
        try:
            await test(case, Bench(store))
        finally:
            await store.close()

    def run(self: C, tmp_path: Path) -> None:
        asyncio.run(drive(self, tmp_path))

    # Not functools.wraps: pytest would read the inner signature and look for a fixture of that name.
    run.__name__ = run.__qualname__ = test.__name__
    run.__doc__ = test.__doc__
    return run
