"""A store with faults: each call may be slow, fail before it takes effect, or take effect and lose its answer."""

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
from mainspring.model.keyvalue import KeyValue
from mainspring.model.lease import Lease
from mainspring.model.retention import Purged, Retention
from mainspring.model.run_log import LogEntry
from mainspring.ports.store import (
    Agenda,
    Applied,
    Capabilities,
    Claimed,
    ClaimRequest,
    Due,
    Offer,
    Page,
    Query,
    Renewed,
    Store,
)

T = TypeVar("T")
VERBS = ("due", "apply", "claim", "renew", "find", "tail", "lease", "release", "progress", "purge")

#: Longest delay of a request, in seconds, without a fault.
FAIR_DELAY_SECONDS = 0.002


class StoreFaults(Struct):
    """The faults between a process and its store.

    `slow`: longest delay in seconds, each way. `before` and `after`: probability that a request fails before it takes
    effect, and that its answer is lost. `verbs`: the methods that may fail.
    """

    slow: float = FAIR_DELAY_SECONDS
    before: float = 0.0
    after: float = 0.0
    verbs: tuple[str, ...] = VERBS


class SimulatedHints:
    """Hints of a simulated world: wakes waiters in the order in which they began to wait, and loses some hints.

    `lost`: the fraction of hints that is lost; `rng` decides which.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random, lost: float) -> None:
        self._loop = loop
        self._rng = rng
        self._lost = lost
        self._outside = contextvars.Context()
        self._waiters: dict[asyncio.Future[None], None] = {}

    def notify(self) -> None:
        """Wake all current waiters, except those whose hint is lost."""
        for waiter in list(self._waiters):
            if self._rng.random() >= self._lost:
                del self._waiters[waiter]
                self._loop.call_soon(_wake, waiter, context=self._outside)

    async def wait(self, timeout: float) -> bool:
        """Wait for a hint; return False if none came within `timeout` seconds."""
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
    """A set that is iterated in sorted order, whatever the hash seed of the process."""

    def __iter__(self) -> Any:
        return iter(sorted(super().__iter__()))


def _delay(rng: random.Random, slow: float) -> float:
    """Return a random delay of up to `slow` seconds; without a fault it is 0 in three of four calls.

    A delay of 0 still is one await, at which a process can die, and it needs no timer, so worlds take less time.
    """
    return rng.random() * slow if slow > FAIR_DELAY_SECONDS or rng.random() < 0.25 else 0.0


class FaultyStore:
    """One process's connection to the shared store, with faults.

    `on_wire`: the fraction of requests that take effect although the process dies or is stopped after it sent them.
    """

    def __init__(self, store: Store, rng: random.Random, store_faults: StoreFaults, on_wire: float = 0.3) -> None:
        self._store = store
        self._rng = rng
        self._on_wire = on_wire
        self.store_faults = store_faults
        self._outside = contextvars.Context()

    @property
    def capabilities(self) -> Capabilities:
        return replace(self._store.capabilities, own_clock=True)

    async def open(self) -> None:
        """Do nothing: the shared store is open."""

    async def close(self) -> None:
        """Do nothing: the shared store stays open."""

    async def _send(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        """Return `await call()`, after the delays and with the faults that are drawn for this call.

        Raises: StoreUnavailable for a failure, or for a lost answer.
        """
        store_faults, rng = self.store_faults, self._rng
        bad = verb in store_faults.verbs
        there, back = _delay(rng, store_faults.slow), _delay(rng, store_faults.slow)
        fails = bad and rng.random() < store_faults.before
        loses = bad and rng.random() < store_faults.after
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

    async def apply(
        self, changes: Sequence[Change], *, claim_request: ClaimRequest | None = None, now: Ms | None = None
    ) -> Applied:
        return await self._send("apply", lambda: self._store.apply(changes, claim_request=claim_request, now=now))

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

    async def append_log(self, entries: Sequence[LogEntry], limit: int) -> None:
        await self._send("append_log", lambda: self._store.append_log(entries, limit))

    async def purge(self, policy: Retention, limit: int, *, now: Ms | None = None) -> Purged:
        return await self._send("purge", lambda: self._store.purge(policy, limit, now=now))

    async def put(self, items: Sequence[KeyValue], *, replace: bool = False, now: Ms | None = None) -> list[bool]:
        return await self._send("put", lambda: self._store.put(items, replace=replace, now=now))

    async def remove(self, kind: str, ids: Sequence[str]) -> int:
        return await self._send("remove", lambda: self._store.remove(kind, ids))

    async def restore(self, page: Page) -> bool:
        return await self._send("restore", lambda: self._store.restore(page))
