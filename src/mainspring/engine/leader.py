"""The leader: the one instance of an app that keeps house. Nothing waits for it and no guarantee depends on it.

A term is the time for which an instance holds one lease row. The row's epoch grows with each term; (owner, epoch)
identifies the term. The leader renews it every third of its TTL. It trusts its term until a little before another
instance can take the row, counted by its own boot clock from before the request was sent. So after a pause, a lost
answer or a cut cable, it stops keeping house by itself before the next leader begins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec import Struct

from mainspring.engine.locks.lease_term import LeaseRows, LeaseTerm, TermData, escape_name_part
from mainspring.engine.loop import Loop
from mainspring.model.errors import StoreError
from mainspring.model.events import Event, LeaderElected, LeaderLost
from mainspring.model.instant import Ms
from mainspring.model.settings import Settings
from mainspring.ports.clock import Clock
from mainspring.ports.store import Store

log = logging.getLogger("mainspring.engine")

LEADER_PREFIX = "leader:"


class Leadership(Struct, frozen=True):
    """The present leader, or the last one if `live` is False: its instance, the start and the number of its term."""

    instance: str
    since: Ms
    term: int
    live: bool

    @property
    def changes(self) -> int:
        """Number of terms that followed the first one, won by another instance or by the same one again."""
        return self.term - 1


def lease_name(settings: Settings) -> str:
    """Return the name of the leader's lease. Each app has a leader, as some duties concern one app's declarations."""
    return f"{LEADER_PREFIX}{escape_name_part(settings.namespace)}:{escape_name_part(settings.app)}"


async def find_leadership(store: Store, settings: Settings) -> Leadership | None:
    """Return the present or last leader of the app, read from the store; None if there never was one."""
    holder = await LeaseRows(store).find_holder(lease_name(settings))
    if holder is None:
        return None
    return Leadership(holder.owner, TermData.read(holder.data).since, holder.token, holder.live)


class Leader(Loop):
    """Stands for election, renews the term it won, and steps down when it can no longer trust it."""

    name = "leader"

    def __init__(
        self, store: Store, clock: Clock, settings: Settings, owner: str, note: Callable[[Event], None]
    ) -> None:
        """`owner` names this instance; `note` appends an event to the event log soon."""
        super().__init__(settings.lease_ttl / 3000)
        self._term = LeaseTerm(LeaseRows(store), clock, lease_name(settings), owner, settings.lease_ttl)
        self._owner = owner
        self._note = note
        self._leading: int | None = None
        self._on_elected: Callable[[], None] = lambda: None
        #: Number of terms that this process won.
        self.terms = 0

    def on_elected(self, callback: Callable[[], None]) -> None:
        """Have `callback` called, on the engine loop, each time this instance wins a term. There is one callback."""
        self._on_elected = callback

    @property
    def leads(self) -> bool:
        """True while this instance leads and no other can; ask again before each duty."""
        return self._term.trusted

    @property
    def epoch(self) -> int | None:
        """Number of the present term; None without one."""
        return self._term.token

    async def run_once(self) -> float:
        """Renew the term, or try to win one if there is none or it was lost. Return the seconds to wait.

        Raises: StoreError, after stepping down if the term can no longer be trusted.
        """
        term = self._term
        try:
            if term.token is not None and not await term.renew():
                self._stepped_down("expired")
            if term.token is None and await term.acquire():
                self._won()
        except StoreError:
            if term.token is not None and not term.trusted:
                self._stepped_down("unreachable")
                term.drop()
            raise
        return self.poll

    def _backoff(self) -> float:
        # At most a third of a TTL, so that a store that answers again has a leader within a term.
        return min(super()._backoff(), self.poll)

    def _won(self) -> None:
        """Log the new term, note it in the event log, and call the callback of `on_elected`."""
        self._leading = self._term.token
        self.terms += 1
        log.info("leader: %s won term %d", self._owner, self._leading)
        self._note(LeaderElected(instance=self._owner, term=self._leading or 0))
        self._on_elected()

    def _stepped_down(self, reason: str) -> None:
        """Log that the term is over, and note it in the event log; once per term."""
        term, self._leading = self._leading, None
        if term is not None:
            level = logging.INFO if reason == "stopped" else logging.WARNING
            log.log(level, "leader: term %d of %s is over: %s", term, self._owner, reason)
            self._note(LeaderLost(instance=self._owner, term=term, reason=reason))

    async def leave(self) -> None:
        """Release the term, if there is one, so that another instance need not wait until it expires to win the next.

        Raises: StoreError.
        """
        if self._term.token is not None and await self._term.release():
            self._stepped_down("stopped")
