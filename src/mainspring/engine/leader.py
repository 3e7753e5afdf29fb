"""The leader: the one instance of an app that keeps house. Nothing waits for it and no promise rests on it.

A term is a durable row with an epoch that only grows: (owner, epoch) names it. It is renewed every third of its TTL.
An instance trusts its term until a little before the row can be another's, counted by its own boot clock from before
the request was sent: after a pause, a lost answer or a cut cable it stops by itself, before the next one begins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec import Struct

from mainspring.engine.service import Service
from mainspring.engine.term import LeaseRows, Said, Term, part
from mainspring.model.errors import StoreError
from mainspring.model.events import Event, LeaderElected, LeaderLost
from mainspring.model.instant import Ms
from mainspring.model.settings import Settings
from mainspring.ports.clock import Clock
from mainspring.ports.store import Store

log = logging.getLogger("mainspring.engine")

PREFIX = "leader:"


class Leadership(Struct, frozen=True):
    """Who leads, since when, and the how-manieth term it is; `live` is false when nobody does."""

    instance: str
    since: Ms
    term: int
    live: bool

    @property
    def changes(self) -> int:
        """How often the lead has changed hands, or was won again by the same one."""
        return self.term - 1


def lease_name(settings: Settings) -> str:
    """One leader for each app and namespace: some duties concern only what the app itself declares."""
    return f"{PREFIX}{part(settings.namespace)}:{part(settings.app)}"


async def leadership(store: Store, settings: Settings) -> Leadership | None:
    """As the store knows it; None when there never was a leader."""
    holder = await LeaseRows(store).holder(lease_name(settings))
    if holder is None:
        return None
    return Leadership(holder.owner, Said.read(holder.data).since, holder.token, holder.live)


class Leader(Service):
    """Stands for election, renews the term, steps down when it can no longer be sure."""

    name = "leader"

    def __init__(
        self, store: Store, clock: Clock, settings: Settings, owner: str, note: Callable[[Event], None]
    ) -> None:
        super().__init__(settings.lease_ttl / 3000)
        self._term = Term(LeaseRows(store), clock, lease_name(settings), owner, settings.lease_ttl)
        self._owner = owner
        self._note = note
        self._leading: int | None = None
        self.elected: Callable[[], None] = lambda: None
        #: Terms that this process won.
        self.terms = 0

    @property
    def leads(self) -> bool:
        """True while no other instance can believe the same; ask again before each duty."""
        return self._term.trusted

    @property
    def epoch(self) -> int | None:
        """The term's number, while there is one."""
        return self._term.token

    async def run_once(self) -> float:
        """Renew the term, or try to win one."""
        term = self._term
        try:
            if term.token is not None and not await term.renew():
                self._stepped_down("expired")
            if term.token is None and await term.take():
                self._won()
        except StoreError:
            if term.token is not None and not term.trusted:
                self._stepped_down("unreachable")
                term.drop()
            raise
        return self.poll

    def _backoff(self) -> float:
        """A store that answers again should have a leader within a term."""
        return min(super()._backoff(), self.poll)

    def _won(self) -> None:
        self._leading = self._term.token
        self.terms += 1
        log.info("leader: %s won term %d", self._owner, self._leading)
        self._note(LeaderElected(instance=self._owner, term=self._leading or 0))
        self.elected()

    def _stepped_down(self, reason: str) -> None:
        term, self._leading = self._leading, None
        if term is not None:
            level = logging.INFO if reason == "stopped" else logging.WARNING
            log.log(level, "leader: term %d of %s is over: %s", term, self._owner, reason)
            self._note(LeaderLost(instance=self._owner, term=term, reason=reason))

    async def leave(self) -> None:
        """Hand over: another instance wins the next term at its next look, without waiting for this one to run out."""
        if self._term.token is not None and await self._term.release():
            self._stepped_down("stopped")
