"""The leader: the one instance of an app that does housekeeping. Nothing waits for it and no guarantee depends on it.

A term is the time for which an instance holds the leader's lease row. The row's epoch grows with each term, so owner
and epoch identify the term. The leader renews the lease every third of its TTL. It trusts its term until a little
before another instance can take the row, counted by its own boot clock from before the request was sent. So after a
pause, a lost answer or a cut cable, it stops its housekeeping by itself before the next leader begins.
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

#: The beginning of the name of every leader's lease; namespace and app follow.
LEADER_PREFIX = "leader:"
#: What the log says about each reason for which a term ends; the event `LeaderLost` carries the reason itself.
END_REASONS = {
    "expired": "its lease expired",
    "unreachable": "the store was unreachable",
    "stopped": "it stopped",
}


class Leadership(Struct, frozen=True):
    """Which instance leads an app, or led it last, for status and metrics."""

    instance: str
    #: When its term began, in wall time.
    since: Ms
    #: Number of its term, from 1.
    term: int
    #: True if the term goes on; False if it is over and there is no leader now.
    live: bool

    @property
    def changes(self) -> int:
        """Number of terms won after the first term, by a new leader or again by the old leader."""
        return self.term - 1


def lease_name(settings: Settings) -> str:
    """Return the name of the leader's lease. Each app has a leader: some duties concern one app's declarations."""
    return f"{LEADER_PREFIX}{escape_name_part(settings.namespace)}:{escape_name_part(settings.app)}"


async def find_leadership(store: Store, settings: Settings) -> Leadership | None:
    """Return the present or last leader of the app, read from the store; None if there never was a leader.

    Raises: StoreError.
    """
    holder = await LeaseRows(store).find_holder(lease_name(settings))
    if holder is None:
        return None
    return Leadership(holder.owner, TermData.read(holder.data).since, holder.token, holder.live)


class Leader(Loop):
    """Tries to make this instance the leader, renews its term, and ends the term when it can no longer be trusted.

    Thread: engine loop.
    """

    name = "leader"

    def __init__(
        self, store: Store, clock: Clock, settings: Settings, owner: str, append_event: Callable[[Event], None]
    ) -> None:
        """Make the loop by which the instance `owner` can become the leader of the app of `settings`.

        `append_event` appends an event to the event log soon.
        """
        super().__init__(settings.lease_ttl / 3000)
        self._term = LeaseTerm(LeaseRows(store), clock, lease_name(settings), owner, settings.lease_ttl)
        self._owner = owner
        self._append_event = append_event
        #: Number of the term that was logged as won and not yet as over.
        self._leading: int | None = None
        self._on_elected: Callable[[], None] = lambda: None
        #: Number of terms that this process won.
        self.terms = 0

    def on_elected(self, callback: Callable[[], None]) -> None:
        """From now on, call `callback` on the engine loop when this instance wins a term. Replaces an earlier one."""
        self._on_elected = callback

    @property
    def leads(self) -> bool:
        """True while this instance leads and no other instance can. Ask again before each duty: it may end any time."""
        return self._term.trusted

    @property
    def epoch(self) -> int | None:
        """Number of this instance's term; None if it has none. Ask `leads` whether the term can still be trusted."""
        return self._term.token

    async def run_once(self) -> float:
        """Renew the term; without a term, or if it was lost, try to win one. Return the seconds to wait.

        Raises: StoreError if the store fails. A term that can no longer be trusted is given up before.
        """
        term = self._term
        try:
            if term.token is not None and not await term.renew():
                self._report_term_over("expired")
            if term.token is None and await term.acquire():
                self._report_won()
        except StoreError:
            if term.token is not None and not term.trusted:
                self._report_term_over("unreachable")
                term.drop()
            raise
        return self.poll

    def _backoff(self) -> float:
        """Return the seconds to pause after a failure of the store, at most a third of the lease's TTL.

        So an app has a leader soon after the store answers again.
        """
        return min(super()._backoff(), self.poll)

    def _report_won(self) -> None:
        """Write to the log and the event log that this instance won a term, and call the callback of `on_elected`."""
        self._leading = self._term.token
        self.terms += 1
        log.info("this instance does the housekeeping, such as retention (%s, term %d)", self._owner, self._leading)
        self._append_event(LeaderElected(instance=self._owner, term=self._leading or 0))
        self._on_elected()

    def _report_term_over(self, reason: str) -> None:
        """Write to the log and the event log that this instance's term is over. `reason`: a key of `END_REASONS`.

        Do nothing if no term was reported as won since the last report.
        """
        term, self._leading = self._leading, None
        if term is not None:
            level = logging.INFO if reason == "stopped" else logging.WARNING
            why = END_REASONS[reason]
            log.log(level, "this instance no longer does the housekeeping (%s, term %d): %s", self._owner, term, why)
            self._append_event(LeaderLost(instance=self._owner, term=term, reason=reason))

    async def leave(self) -> None:
        """Release the term, if there is one, because this instance stops. Another instance can then lead at once.

        Raises: StoreError.
        """
        if self._term.token is not None and await self._term.release():
            self._report_term_over("stopped")
