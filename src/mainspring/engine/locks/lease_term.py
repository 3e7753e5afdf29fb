"""A lease term: a name held under a token, and until when its owner may rely on it. Basis of locks and the leader."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct

from mainspring.engine.lease_trust import LEASE_TRUST_RATIO
from mainspring.model.errors import StoreError
from mainspring.model.instant import Ms
from mainspring.model.lease import Lease
from mainspring.ports.clock import Clock
from mainspring.ports.lock import LockBackend, LockHolder
from mainspring.ports.store import Leases, Query

T = TypeVar("T")


class Leasing(Protocol):
    """The methods of a store that `LeaseRows` needs."""

    async def lease(
        self, name: str, owner: str, ttl: Ms, *, epoch: int | None = None, data: str | None = None
    ) -> Lease | None: ...

    async def release(self, name: str, owner: str, epoch: int) -> bool: ...

    async def find(self, query: Query[T]) -> list[T]: ...


class LeaseRows:
    """A lock backend on the lease rows of a store: the row's epoch is the token, and the store's clock judges it."""

    def __init__(self, store: Leasing) -> None:
        self._store = store

    async def acquire(self, name: str, owner: str, ttl: Ms, data: str | None = None) -> int | None:
        lease = await self._store.lease(name, owner, ttl, data=data)
        return None if lease is None else lease.epoch

    async def renew(self, name: str, owner: str, token: int, ttl: Ms, data: str | None = None) -> bool:
        return await self._store.lease(name, owner, ttl, epoch=token, data=data) is not None

    async def release(self, name: str, owner: str, token: int) -> bool:
        return await self._store.release(name, owner, token)

    async def find_holder(self, name: str) -> LockHolder | None:
        found = await self._store.find(Leases(prefix=name, limit=1))  # by name: the name itself comes first
        if not found or found[0].name != name:
            return None
        return LockHolder(found[0].owner, found[0].epoch, found[0].live, found[0].data)


class TermData(Struct, frozen=True, omit_defaults=True):
    """The data of a lease row: since when it is held, in wall time, and whether the work that it protects is done."""

    since: Ms = 0
    done: bool = False

    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def read(cls, text: str | None) -> TermData:
        return msgspec.json.decode(text, type=cls) if text else cls()


def escape_name_part(text: str) -> str:
    """Return a part of a lease name with colons escaped, so that parts joined by colons stay distinct."""
    return text.replace("%", "%25").replace(":", "%3A")


class LeaseTerm:
    """A name that one owner acquires, renews and releases, with the deadline until which it may be relied on.

    The trust deadline counts from before the request was sent, by this machine's boot clock. Thread: one event loop.
    """

    def __init__(self, backend: LockBackend, clock: Clock, name: str, owner: str, ttl: Ms) -> None:
        self._backend = backend
        self._clock = clock
        self.name = name
        self.owner = owner
        self.ttl = ttl
        #: The fencing token of the term; None while no term is known to be held.
        self.token: int | None = None
        #: When the term began, in wall time.
        self.since: Ms = 0
        #: The trust deadline, in boot time.
        self._trusted_until: Ms = 0
        #: True if an acquire was not answered, so that the store may hold a term of this owner.
        self._may_hold = False
        #: The token of the term that `drop` gave up last.
        self._dropped_token: int | None = None

    @property
    def trusted(self) -> bool:
        """True while no other owner can hold the name, whatever happened to the store or to this process."""
        return self.token is not None and self._clock.boot() < self._trusted_until

    @property
    def trust_left(self) -> float:
        """Seconds for which the term can be relied on without another answer of the store."""
        return max(0, self._trusted_until - self._clock.boot()) / 1000

    async def acquire(self) -> bool:
        """Acquire the name if it is free, or if a lost answer gave it to this owner. Return True if this owner has it.

        Raises: StoreError, if the result is unknown.
        """
        sent, since = self._clock.boot(), self._clock.now()
        may_hold, self._may_hold = self._may_hold, True
        token = await self._backend.acquire(self.name, self.owner, self.ttl, TermData(since).text())
        if token is None and may_hold:
            token, since = await self._find_unanswered(since)
        self._may_hold = False
        if token is None:
            return False
        self.token, self.since = token, since
        self._trusted_until = sent + int(self.ttl * LEASE_TRUST_RATIO)
        while not self.trusted:  # the answer was late: the lease may have ended meanwhile
            if not await self.renew():
                return False
        return True

    async def _find_unanswered(self, since: Ms) -> tuple[int | None, Ms]:
        """Take up the term that an unanswered request gave this owner. Return its token and start; token None: no term.

        The term is renewed; one that `drop` gave up is released, and a new term begins at `since`.
        """
        holder = await self._backend.find_holder(self.name)
        if holder is None or not holder.live or holder.owner != self.owner:
            return None, since
        if holder.token == self._dropped_token:
            await self._backend.release(self.name, self.owner, holder.token)
            return await self._backend.acquire(self.name, self.owner, self.ttl, TermData(since).text()), since
        kept = await self._backend.renew(self.name, self.owner, holder.token, self.ttl)
        return (holder.token if kept else None), TermData.read(holder.data).since

    async def renew(self, *, ttl: Ms | None = None, data: TermData | None = None) -> bool:
        """Renew the term that is held, with another TTL or other data if given. Return False if the term is over.

        Raises: StoreError, if the result is unknown.
        """
        assert self.token is not None
        sent, asked = self._clock.boot(), ttl or self.ttl
        text = None if data is None else data.text()
        if not await self._backend.renew(self.name, self.owner, self.token, asked, text):
            self.token = None
            return False
        self._trusted_until = sent + int(asked * LEASE_TRUST_RATIO)
        return True

    def drop(self) -> None:
        """Stop relying on the term for good: a term that was reported as over is not taken up again."""
        self._dropped_token, self.token = self.token, None
        self._may_hold = True

    async def release(self) -> bool:
        """Release the name. Return False if this owner no longer held it. Raises: StoreError."""
        token, self.token = self.token, None
        return token is not None and await self._backend.release(self.name, self.owner, token)

    async def release_unanswered(self) -> None:
        """Release the term that an unanswered or cancelled `acquire` may have got.

        If the store fails, nothing is raised: the lease expires by itself.
        """
        try:
            if self.token is None:
                holder = await self._backend.find_holder(self.name)
                if holder is not None and holder.live and holder.owner == self.owner:
                    self.token = holder.token
            await self.release()
        except StoreError:
            self.token = None
