"""The store port: the Protocol that every backend implements, with its queries and results.

The store holds the truth: runs, schedules, gates, leases and the event log. The one write is `apply`. Every method
takes `now`: None means the store's own clock, a value comes only from tests and simulations. Payloads, results and
specs are opaque text to a store. One contract suite (`mainspring.testing.contract`) proves every backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from mainspring.model.change import Body, Change, Result
from mainspring.model.events import Event
from mainspring.model.gate import Gate
from mainspring.model.ids import RunId, ScheduleId
from mainspring.model.instant import Ms
from mainspring.model.keyvalue import KeyValue
from mainspring.model.lease import Lease
from mainspring.model.retention import Purged, Retention, Tally
from mainspring.model.run import Run, State
from mainspring.model.schedule import Schedule, ScheduleState, Span

T = TypeVar("T")


class Capabilities(Struct, frozen=True):
    """What a backend can do. Code asks for a capability and never for the name of a backend."""

    #: The content outlives the process.
    durable: bool
    #: Several processes may open one store at the same time.
    multi_process: bool
    #: Full-text search over runs.
    search: bool = False
    #: Time is judged by a clock that is not this machine's.
    own_clock: bool = False
    #: The store is a server: any event loop may have a connection of its own.
    remote: bool = False
    #: How long ended runs stay unless the user configures it, in milliseconds.
    history: Ms = 30 * 86_400_000
    #: The largest number of ended runs that stay; None: no limit.
    ended_runs: int | None = None


# ── due work ────────────────────────────────────────────────────────────────


class Agenda(StrEnum):
    """A kind of due work that the settler asks for with `due`."""

    #: Schedules whose next fire time has come.
    SCHEDULES = "schedules"
    #: Running runs whose lease has ended.
    EXPIRED = "expired"
    #: Schedules that were marked for another look.
    TOUCHED = "touched"
    #: Gates with room again, at which runs are parked. The store unparks the runs itself.
    GATES = "gates"


class DueSchedule(Struct, frozen=True, gc=False):
    """A schedule that is due or touched, with what the settler must know about its open runs.

    `open` counts its open runs, `waiting` those of them that are not running; `oldest` holds up to two of them.
    `touched` is the schedule's touch mark, to be passed back in the `ScheduleAt` guard.
    """

    schedule: Schedule
    open: int
    waiting: int
    oldest: tuple[Run, ...] = ()
    touched: int = 0


class Due(Struct, frozen=True):
    """The answer of `due`: the rows that are due, the store's time, and when to ask again.

    `next_at` is the next instant at which something of this agenda falls due; None: nothing is in sight. `unparked`
    counts the runs that the store unparked, for the agenda `GATES`.
    """

    now: Ms
    next_at: Ms | None = None
    schedules: tuple[DueSchedule, ...] = ()
    runs: tuple[Run, ...] = ()
    unparked: int = 0


# ── claims and leases ───────────────────────────────────────────────────────


class Offer(Struct, frozen=True):
    """What a worker can run: its owner name, its lanes, its tasks, and the length of the lease in milliseconds."""

    owner: str
    lanes: tuple[str, ...]
    tasks: tuple[str, ...]
    ttl: Ms
    #: Claim ahead: also runs that fall due within this many milliseconds, if `can_claim_ahead` allows it. The worker
    #: starts them at their time, not before.
    ahead: Ms = 0


class Claim(Struct, frozen=True, gc=False):
    """A claimed run with its payload; the run carries the new lease."""

    run: Run
    body: str | None


class ClaimRequest(Struct, frozen=True):
    """A claim of up to `limit` runs that shares a call with a write: it is made after the changes of that `apply`."""

    offer: Offer
    limit: int


class Claimed(Struct, frozen=True):
    """The answer of `claim`: the claimed runs, the store's time, and when the next run becomes claimable.

    `next_at` is None when no such instant is known.
    """

    now: Ms
    claims: list[Claim]
    next_at: Ms | None = None


class Applied(Struct, frozen=True):
    """The answer of `apply`: one result for each change, in their order, and the runs of the claim request.

    `now` is the instant stamped on the events; if the store needed several commits, that of the last one.
    """

    now: Ms
    results: list[Result]
    claimed: Claimed | None = None
    #: False if the store knows that no run is parked: the caller can skip the unpark check after releasing a gate.
    parked: bool = True


class Renewed(Struct, frozen=True):
    """The answer of `renew`: which of the named leases still hold and which are lost.

    `cancel` maps the runs that should stop to the reason. `strays` are runs that this owner holds but did not name.
    """

    now: Ms
    kept: frozenset[RunId]
    lost: frozenset[RunId]
    cancel: dict[RunId, str]
    strays: tuple[Run, ...] = ()


# ── copies ────────────────────────────────────────────────────────────────


class Page(Struct, frozen=True, kw_only=True):
    """A part of another store's content, for `restore` to write as it is.

    `after` is the number of the event at which this store's log must end. Events carry their own seq, at, n and
    change. Rows replace the rows that exist; `touched` holds the schedules' touch marks. Spans are added: a page has a
    span only together with the event that made it.
    """

    after: int
    events: tuple[Event, ...] = ()
    runs: tuple[Run, ...] = ()
    schedules: tuple[Schedule, ...] = ()
    touched: dict[ScheduleId, int] = {}
    spans: tuple[Span, ...] = ()
    bodies: tuple[Body, ...] = ()
    gates: tuple[Gate, ...] = ()
    tallies: tuple[Tally, ...] = ()


# ── queries: what `find` answers on every store ─────────────────────────────


class LaneCount(Struct, frozen=True):
    """The number of claimable runs of one lane and priority."""

    lane: str
    priority: int
    waiting: int


class Query(Struct, Generic[T], frozen=True, kw_only=True):
    """A page of rows: at most `limit` of them, behind the row with the key `after` (the last one of the page before).

    A condition that is None is not applied.
    """

    limit: int = 100
    after: str | None = None


class Runs(Query[Run], frozen=True, kw_only=True):
    """Runs, newest first. `after` is a run id: ids are ordered by the time of creation."""

    id: RunId | None = None
    ids: tuple[RunId, ...] | None = None
    ns: str | None = None
    schedule_id: ScheduleId | None = None
    task: str | None = None
    states: tuple[State, ...] | None = None
    origin: str | None = None
    fire_time: Ms | None = None
    fired_since: Ms | None = None
    created_since: Ms | None = None
    due_before: Ms | None = None
    dead: bool | None = None
    unique_key: str | None = None
    oldest_first: bool = False


class Schedules(Query[Schedule], frozen=True, kw_only=True):
    """Schedules in the order of their ids. `after` is a schedule id."""

    id: ScheduleId | None = None
    ns: str | None = None
    name: str | None = None
    states: tuple[ScheduleState, ...] | None = None
    app: str | None = None
    due_before: Ms | None = None
    unplanned: bool = False  # only active schedules without a next time


class Spans(Query[Span], frozen=True, kw_only=True):
    """Spans in the order of (schedule, through). Spans have no id, so `after` is the number of rows to skip."""

    schedule_id: ScheduleId | None = None
    since: Ms | None = None


class Events(Query[Event], frozen=True, kw_only=True):
    """Events in the order of the log. `after` is a seq."""

    run_id: RunId | None = None
    schedule_id: ScheduleId | None = None
    types: tuple[str, ...] | None = None
    since: Ms | None = None
    until: Ms | None = None


class Bodies(Query[Body], frozen=True, kw_only=True):
    """Payloads in the order of their ids. `after` is a payload id."""

    ids: tuple[str, ...] = ()


class Gates(Query[Gate], frozen=True, kw_only=True):
    """Gates in the order of their names. `after` is a name."""

    names: tuple[str, ...] | None = None


class Lanes(Query[LaneCount], frozen=True, kw_only=True):
    """Lanes with claimable runs, and how many of them."""


class Leases(Query[Lease], frozen=True, kw_only=True):
    """Named leases whose name starts with `prefix`, ended ones included, by name in the order of code points."""

    prefix: str = ""


class Tallies(Query[Tally], frozen=True, kw_only=True):
    """Tallies of removed rows."""

    schedule_id: ScheduleId | None = None


class KeyValues(Query[KeyValue], frozen=True, kw_only=True):
    """Key-value entries of one kind in the order of their ids, without those that expired."""

    kind: str
    ids: tuple[str, ...] | None = None


class Store(Protocol):
    """The one way to the stored state. Its methods raise `StoreError` when they cannot do their work.

    Optional abilities, such as advisory locks, are Protocols of their own in `ports/store_extras.py`.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    async def open(self) -> None:
        """Create the schema or check it.

        Raises `StoreError` with a remedy if the store cannot be used, for example because of its schema's version.
        """
        ...

    async def close(self) -> None:
        """Release files and connections. The store may be opened again."""
        ...

    async def due(self, agenda: Agenda, limit: int, *, hold: Ms = 1_000, ahead: Ms = 0, now: Ms | None = None) -> Due:
        """Return up to `limit` due rows of an agenda and hold them for `hold` milliseconds.

        The hold keeps other instances from doing the same work at the same time. It guards nothing: correctness comes
        from the guards of the changes that follow.

        With `ahead`, schedules that fall due within this many milliseconds count as due. They are held until their
        time and no longer, and `next_at` skips them: the caller has them already.
        """
        ...

    async def apply(
        self, changes: Sequence[Change], *, claim_request: ClaimRequest | None = None, now: Ms | None = None
    ) -> Applied:
        """Apply a batch of changes, then make the requested claim. This is the one write.

        Each change takes effect whole or not at all. The batch has no such promise: a store may commit parts of it one
        after the other, so an error can leave some changes applied. Calling again with the same change ids is safe:
        each change that was applied before is answered `repeated`, or its guard refuses it.

        The claim is made after the changes, in their commit where the store can do that. The results have the order of
        the changes.
        """
        ...

    async def claim(self, offer: Offer, limit: int, *, ids: Sequence[RunId] = (), now: Ms | None = None) -> Claimed:
        """Claim up to `limit` due runs for a worker: each gets its owner, lease and next epoch in one write.

        Candidates are due runs in the offered lanes, or those of `ids`, by priority, then by time. A run must pass all
        its gates, else it is parked. A run that crashed before is claimed alone (`admit` in `model/gate.py`).
        """
        ...

    async def renew(
        self, owner: str, leases: Sequence[tuple[RunId, int]], ttl: Ms, *, now: Ms | None = None
    ) -> Renewed:
        """Extend the named leases, given as (run, epoch), that still hold, by `ttl` milliseconds from now.

        A lease that ended is lost, even if no other worker has claimed the run since.
        """
        ...

    async def find(self, query: Query[T]) -> list[T]:
        """Return one page of the rows that a query describes."""
        ...

    async def tail(self, after: int, limit: int) -> list[Event]:
        """Return up to `limit` events with a seq greater than `after`, in the order of the log."""
        ...

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
        """Acquire a named lease for `ttl` milliseconds, or renew it. Return None when refused.

        Without `epoch`, a lease that is free or ended begins a new term. With `epoch`, the owner's own term of that
        number is extended, if it has not ended.
        """
        ...

    async def release(self, name: str, owner: str, epoch: int, *, now: Ms | None = None) -> bool:
        """End a term of a named lease early. Return False if the owner no longer holds it.

        The row stays, so that the epoch of the next term is higher.
        """
        ...

    async def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for a hint that the store changed. Return True if one arrived.

        A hint saves latency only: callers poll as well. Writes through this very object need not count, for their
        caller knows of them.
        """
        ...

    async def progress(self, run_id: RunId, epoch: int, text: str) -> bool:
        """Store the progress line of a run, without an event. Return False if the lease `epoch` no longer holds."""
        ...

    async def purge(self, policy: Retention, limit: int, *, now: Ms | None = None) -> Purged:
        """Remove up to `limit` runs, and other rows, that the policy no longer keeps.

        Tallies and snapshots of schedules take the place of removed events, so that the ledger still adds up.
        """
        ...

    async def put(self, items: Sequence[KeyValue], *, replace: bool = False, now: Ms | None = None) -> list[bool]:
        """Insert key-value entries in one transaction. Return for each item whether it was written.

        Without `replace`, an entry that exists and has not expired stays as it is, and its answer is False.
        """
        ...

    async def remove(self, kind: str, ids: Sequence[str]) -> int:
        """Delete key-value entries. Return how many existed."""
        ...

    async def restore(self, page: Page) -> bool:
        """Write a part of another store's content in one transaction.

        Return False and write nothing unless this store's log ends at `page.after`.
        """
        ...
