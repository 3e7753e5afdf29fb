"""A store seen through bad weather: each verb may be slow, fail before it does anything, or lose its answer."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from mainspring.model.change import Change
from mainspring.model.errors import StoreUnavailable
from mainspring.model.events import Event
from mainspring.model.instant import Ms
from mainspring.model.kept import Kept
from mainspring.ports.store import (
    Agenda,
    Applied,
    Capabilities,
    Claimed,
    Due,
    Lease,
    Offer,
    Page,
    Purged,
    Query,
    Renewed,
    Retention,
    Store,
    Wish,
)

T = TypeVar("T")
VERBS = ("due", "apply", "claim", "renew", "find", "tail", "lease", "release", "progress", "purge")

#: Seconds that a request may take when nothing is wrong.
FAIR = 0.002


class Weather(Struct):
    """How a process's way to the store is: seconds of delay, odds of failing before and after the effect."""

    slow: float = FAIR
    before: float = 0.0
    after: float = 0.0
    verbs: tuple[str, ...] = VERBS


class SimulatedHints:
    """Wakes waiters in their order; some hints get lost, for hints are only hints."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random, lost: float) -> None:
        self._loop = loop
        self._rng = rng
        self._lost = lost
        self._outside = contextvars.Context()
        self._waiters: dict[asyncio.Future[None], None] = {}

    def notify(self) -> None:
        """Wake everyone who waits now, as a rule."""
        for waiter in list(self._waiters):
            if self._rng.random() >= self._lost:
                del self._waiters[waiter]
                self._loop.call_soon(_wake, waiter, context=self._outside)

    async def wait(self, timeout: float) -> bool:
        """True when notified within `timeout` seconds."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters[waiter] = None
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.pop(waiter, None)
        return True


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class _Sorted(frozenset[str]):
    """A set that is walked in one order whatever the hash seed."""

    def __iter__(self) -> Any:
        return iter(sorted(super().__iter__()))


def _delay(rng: random.Random, slow: float) -> float:
    """Usually none in fair weather: that is one await, too, and the world is sooner over."""
    return rng.random() * slow if slow > FAIR or rng.random() < 0.25 else 0.0


class StormyStore:
    """One process's connection to the shared store.

    Some requests are on the wire once they are sent: they take effect although the sender dies or is stopped.
    """

    def __init__(self, store: Store, rng: random.Random, weather: Weather, on_wire: float = 0.3) -> None:
        self._store = store
        self._rng = rng
        self._on_wire = on_wire
        self.weather = weather
        self._outside = contextvars.Context()

    @property
    def capabilities(self) -> Capabilities:
        return replace(self._store.capabilities, own_clock=True)

    async def open(self) -> None:
        """The store is there already."""

    async def close(self) -> None:
        """The store stays."""

    async def _send(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        weather, rng = self.weather, self._rng
        bad = verb in weather.verbs
        there, back = _delay(rng, weather.slow), _delay(rng, weather.slow)
        fails = bad and rng.random() < weather.before
        loses = bad and rng.random() < weather.after
        on_wire = rng.random() < self._on_wire
        request = self._request(call, there, fails)
        if on_wire:
            sent = asyncio.get_running_loop().create_task(request, context=self._outside.copy())
            answer = await asyncio.shield(sent)
        else:
            answer = await request
        await asyncio.sleep(back)
        if loses:
            raise StoreUnavailable(f"{verb}: the answer was lost")
        return answer

    @staticmethod
    async def _request(call: Callable[[], Awaitable[T]], there: float, fails: bool) -> T:
        await asyncio.sleep(there)
        if fails:
            raise StoreUnavailable("the store does not answer")
        return await call()

    # ── the verbs ──────────────────────────────────────────────────────────

    async def due(self, agenda: Agenda, limit: int, *, hold: Ms = 1_000, ahead: Ms = 0, now: Ms | None = None) -> Due:
        return await self._send("due", lambda: self._store.due(agenda, limit, hold=hold, ahead=ahead, now=now))

    async def apply(self, changes: Sequence[Change], *, wish: Wish | None = None, now: Ms | None = None) -> Applied:
        return await self._send("apply", lambda: self._store.apply(changes, wish=wish, now=now))

    async def claim(self, offer: Offer, limit: int, *, ids: Sequence[str] = (), now: Ms | None = None) -> Claimed:
        return await self._send("claim", lambda: self._store.claim(offer, limit, ids=ids, now=now))

    async def renew(self, owner: str, leases: Sequence[tuple[str, int]], ttl: Ms, *, now: Ms | None = None) -> Renewed:
        answer = await self._send("renew", lambda: self._store.renew(owner, leases, ttl, now=now))
        return replace(answer, kept=_Sorted(answer.kept), lost=_Sorted(answer.lost))

    async def find(self, query: Query[T]) -> list[T]:
        return await self._send("find", lambda: self._store.find(query))

    async def tail(self, after: int, limit: int) -> list[Event]:
        return await self._send("tail", lambda: self._store.tail(after, limit))

    async def lease(
        self,
        name: str,
        owner: str,
        ttl: Ms,
        *,
        epoch: int | None = None,
        data: str | None = None,
        now: Ms | None = None,
    ) -> Lease | None:
        return await self._send("lease", lambda: self._store.lease(name, owner, ttl, epoch=epoch, data=data, now=now))

    async def release(self, name: str, owner: str, epoch: int, *, now: Ms | None = None) -> bool:
        return await self._send("release", lambda: self._store.release(name, owner, epoch, now=now))

    async def wait(self, timeout: float) -> bool:
        return await self._store.wait(timeout)

    async def progress(self, run_id: str, epoch: int, text: str) -> bool:
        return await self._send("progress", lambda: self._store.progress(run_id, epoch, text))

    async def purge(self, policy: Retention, limit: int, *, now: Ms | None = None) -> Purged:
        return await self._send("purge", lambda: self._store.purge(policy, limit, now=now))

    async def keep(self, items: Sequence[Kept], *, replace: bool = False, now: Ms | None = None) -> list[bool]:
        return await self._send("keep", lambda: self._store.keep(items, replace=replace, now=now))

    async def forget(self, kind: str, ids: Sequence[str]) -> int:
        return await self._send("forget", lambda: self._store.forget(kind, ids))

    async def restore(self, page: Page) -> bool:
        return await self._send("restore", lambda: self._store.restore(page))
