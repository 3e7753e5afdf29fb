"""A lease term: a name that one owner holds, with token and trust deadline. Locks and the leader are built on it."""

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
    ) -> Lease | None:
        """Acquire the lease row for `ttl` milliseconds; with `epoch`, renew the term of `owner` that has this number.

        Return None if the row is held, or if the term to be renewed is over. `data` is a text to store in the row; None
        at a renewal: the stored text stays.
        """
        ...

    async def release(self, name: str, owner: str, epoch: int) -> bool:
        """Release the lease row. Return False if it was not held under this owner and epoch."""
        ...

    async def find(self, query: Query[T]) -> list[T]:
        """Return the rows of a query."""
        ...


class LeaseRows:
    """A lock backend on the lease rows of a store. The row's epoch is the token; a lease ends by the store's clock.

    `data` is a text stored in the row; None at a renewal: the stored text stays. Each method raises StoreError if the
    store fails.
    """

    def __init__(self, store: Leasing) -> None:
        self._store = store

    async def acquire(self, name: str, owner: str, ttl: Ms, data: str | None = None) -> int | None:
        """Acquire the lease `name` for `ttl` milliseconds. Return its token; None if it is held, even by this owner."""
        lease = await self._store.lease(name, owner, ttl, data=data)
        return None if lease is None else lease.epoch

    async def renew(self, name: str, owner: str, token: int, ttl: Ms, data: str | None = None) -> bool:
        """Extend the lease to `ttl` milliseconds from now. Return False if it is no longer held under `token`."""
        return await self._store.lease(name, owner, ttl, epoch=token, data=data) is not None

    async def release(self, name: str, owner: str, token: int) -> bool:
        """Release the lease `name`. Return False if the term `token` of `owner` was released or replaced before."""
        return await self._store.release(name, owner, token)

    async def find_holder(self, name: str) -> LockHolder | None:
        """Return the present or last holder of the lease `name`; None if there is no row of that name."""
        found = await self._store.find(Leases(prefix=name, limit=1))  # ordered by name: the name itself comes first
        if not found or found[0].name != name:
            return None
        return LockHolder(found[0].owner, found[0].epoch, found[0].live, found[0].data)


class TermData(Struct, frozen=True, omit_defaults=True):
    """The data of a lease row: since when it is held, in wall time, and whether the work that it protects is done."""

    since: Ms = 0
    done: bool = False

    def text(self) -> str:
        """Return the data as JSON, for the row."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def read(cls, text: str | None) -> TermData:
        """Return the data in the JSON of a row; the defaults if the row has none."""
        return msgspec.json.decode(text, type=cls) if text else cls()


def escape_name_part(text: str) -> str:
    """Return `text` with its colons escaped, as a part of a lease name: the parts are joined by colons."""
    return text.replace("%", "%25").replace(":", "%3A")


class LeaseTerm:
    """A name that one owner acquires, renews and releases, with the trust deadline until which it may rely on the name.

    The owner relies on `LEASE_TRUST_RATIO` of a lease, counted by this machine's boot clock from before the request was
    sent. Thread: one event loop.
    """

    def __init__(self, backend: LockBackend, clock: Clock, name: str, owner: str, ttl: Ms) -> None:
        """Make a term that is not acquired yet. `name`: the name to hold. `ttl`: the length of a lease in milliseconds.

        `backend` stores the lease. `owner` names its holder, and must be unique for each `LeaseTerm` of a name.
        """
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
        #: True if an `acquire` was not answered, or the term was dropped: the store may still count it as held.
        self._may_hold = False
        #: The token of the last term that `drop` gave up.
        self._dropped_token: int | None = None

    @property
    def trusted(self) -> bool:
        """True while a term is held and its trust deadline is ahead: no other owner can hold the name then.

        That is so even if the store fails, or if this process was suspended.
        """
        return self.token is not None and self._clock.boot() < self._trusted_until

    @property
    def trust_left(self) -> float:
        """Seconds for which the owner can rely on the term without a renewal: until the trust deadline; at least 0."""
        return max(0, self._trusted_until - self._clock.boot()) / 1000

    async def acquire(self) -> bool:
        """Acquire the name if it is free. Return True if this owner holds it now, else False.

        If an earlier request whose answer was lost has acquired it already, take up that term. Raises: StoreError;
        whether the name was acquired is then unknown.
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
        """Renew the term that an unanswered request gave this owner. Return its token and when it began.

        The token is None if there is no such term. If `drop` gave the term up, release it and acquire a new term, which
        begins at `since`. Raises: StoreError.
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
        """Renew the term that is held. Return False if the term is over, else True.

        `ttl`: milliseconds from now; None: those of the constructor. `data`: new data for the row; None: it stays as it
        is. Raises: StoreError, if the result is unknown. The trust deadline then stays as it was.
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
        """Give up the term for good, because its loss was reported, although the store may still count it as held.

        A later `acquire` does not take it up again: it begins a new term, unless another owner holds the name.
        """
        self._dropped_token, self.token = self.token, None
        self._may_hold = True

    async def release(self) -> bool:
        """Release the name. Return False if this owner no longer held it. Raises: StoreError."""
        token, self.token = self.token, None
        return token is not None and await self._backend.release(self.name, self.owner, token)

    async def release_unanswered(self) -> None:
        """Release the term that an `acquire` may have won although it was not answered or was cancelled.

        If the store fails, raise nothing: the lease expires by itself.
        """
        try:
            if self.token is None:
                holder = await self._backend.find_holder(self.name)
                if holder is not None and holder.live and holder.owner == self.owner:
                    self.token = holder.token
            await self.release()
        except StoreError:
            self.token = None
