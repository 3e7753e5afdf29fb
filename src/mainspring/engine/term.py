"""A term: a name held under a token, and until when this process may rely on it. Locks and leaders are made of it."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct

from mainspring.engine.heart import TRUST
from mainspring.model.errors import StoreError
from mainspring.model.instant import Ms
from mainspring.ports.clock import Clock
from mainspring.ports.lock import Holder, Locker
from mainspring.ports.store import Lease, Leases, Query

T = TypeVar("T")


class Leasing(Protocol):
    """The verbs of a store that lease rows need."""

    async def lease(
        self, name: str, owner: str, ttl: Ms, *, epoch: int | None = None, data: str | None = None
    ) -> Lease | None: ...

    async def release(self, name: str, owner: str, epoch: int) -> bool: ...

    async def find(self, query: Query[T]) -> list[T]: ...


class LeaseRows:
    """Names are rows of the store, judged by its clock; the epoch is the token."""

    def __init__(self, store: Leasing) -> None:
        self._store = store

    async def take(self, name: str, owner: str, ttl: Ms, data: str | None = None) -> int | None:
        lease = await self._store.lease(name, owner, ttl, data=data)
        return None if lease is None else lease.epoch

    async def renew(self, name: str, owner: str, token: int, ttl: Ms, data: str | None = None) -> bool:
        return await self._store.lease(name, owner, ttl, epoch=token, data=data) is not None

    async def release(self, name: str, owner: str, token: int) -> bool:
        return await self._store.release(name, owner, token)

    async def holder(self, name: str) -> Holder | None:
        found = await self._store.find(Leases(prefix=name, limit=1))  # by name: the name itself comes first
        if not found or found[0].name != name:
            return None
        return Holder(found[0].owner, found[0].epoch, found[0].live, found[0].data)


class Said(Struct, frozen=True, omit_defaults=True):
    """What a term's row says beside its owner: since when it is held, and whether its work is done."""

    since: Ms = 0
    done: bool = False

    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def read(cls, text: str | None) -> Said:
        return msgspec.json.decode(text, type=cls) if text else cls()


def part(text: str) -> str:
    """A part of a lease's name, such that parts joined by colons tell which is which."""
    return text.replace("%", "%25").replace(":", "%3A")


class Term:
    """Taken, renewed and released by whoever made it; the trust deadline counts from before a request was sent."""

    def __init__(self, locker: Locker, clock: Clock, name: str, owner: str, ttl: Ms) -> None:
        self._locker = locker
        self._clock = clock
        self.name = name
        self.owner = owner
        self.ttl = ttl
        self.token: int | None = None
        self.since: Ms = 0
        self._trust: Ms = 0
        self._unsure = False
        self._dropped: int | None = None

    @property
    def trusted(self) -> bool:
        """True while nobody else can hold the name, whatever happened to the store or to this process."""
        return self.token is not None and self._clock.boot() < self._trust

    @property
    def trust_left(self) -> float:
        """Seconds for which the term can be relied on without another word from the store."""
        return max(0, self._trust - self._clock.boot()) / 1000

    async def take(self) -> bool:
        """Hold the name if it is free, or if it was given to us by an answer that got lost."""
        sent, since = self._clock.boot(), self._clock.now()
        unsure, self._unsure = self._unsure, True
        token = await self._locker.take(self.name, self.owner, self.ttl, Said(since).text())
        if token is None and unsure:
            token, since = await self._mine(since)
        self._unsure = False
        if token is None:
            return False
        self.token, self.since = token, since
        self._trust = sent + int(self.ttl * TRUST)
        while not self.trusted:  # the answer took so long that it may be another's by now
            if not await self.renew():
                return False
        return True

    async def _mine(self, since: Ms) -> tuple[int | None, Ms]:
        """The token of a term that is ours although we did not hear of it."""
        holder = await self._locker.holder(self.name)
        if holder is None or not holder.live or holder.owner != self.owner:
            return None, since
        if holder.token == self._dropped:
            await self._locker.release(self.name, self.owner, holder.token)
            return await self._locker.take(self.name, self.owner, self.ttl, Said(since).text()), since
        kept = await self._locker.renew(self.name, self.owner, holder.token, self.ttl)
        return (holder.token if kept else None), Said.read(holder.data).since

    async def renew(self, *, ttl: Ms | None = None, said: Said | None = None) -> bool:
        """Hold on; False when the term is over, an error when nobody knows."""
        assert self.token is not None
        sent, asked = self._clock.boot(), ttl or self.ttl
        data = None if said is None else said.text()
        if not await self._locker.renew(self.name, self.owner, self.token, asked, data):
            self.token = None
            return False
        self._trust = sent + int(asked * TRUST)
        return True

    def drop(self) -> None:
        """Rely on it no more, whatever the store says later: what was told to be over stays over."""
        self._dropped, self.token = self.token, None
        self._unsure = True

    async def release(self) -> bool:
        """Let go; False when the name was another's already."""
        token, self.token = self.token, None
        return token is not None and await self._locker.release(self.name, self.owner, token)

    async def forget(self) -> None:
        """Give back what a lost or cancelled `take` may have got; as good as can be, the lease ends anyway."""
        try:
            if self.token is None:
                holder = await self._locker.holder(self.name)
                if holder is not None and holder.live and holder.owner == self.owner:
                    self.token = holder.token
            await self.release()
        except StoreError:
            self.token = None
