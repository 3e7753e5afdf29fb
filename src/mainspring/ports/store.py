"""The store port: where the truth lives, in domain verbs.

Every verb takes `now`: `None` is the store's own clock, a value comes only from tests.
Payloads, results and specs are opaque text to a store. See docs/architecture.md.
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
from mainspring.model.kept import Kept
from mainspring.model.run import Run, State
from mainspring.model.schedule import Schedule, ScheduleState, Span

T = TypeVar("T")


class Capabilities(Struct, frozen=True):
    """What a backend can do; code asks, it never names a backend."""

    durable: bool
    multi_process: bool
    transactional: bool = True
    notifies: bool = False
    search: bool = False
    own_clock: bool = False  # judges by a clock that is not this machine's
    remote: bool = False  # a server: any loop may have a connection of its own
    time_precision: Ms = 1
    history: Ms = 30 * 86_400_000  # how long ended runs stay where the user does not say
    ended_runs: int | None = None  # how many of them at most


class Agenda(StrEnum):
    """What may be due."""

    SCHEDULES = "schedules"
    EXPIRED = "expired"
    TOUCHED = "touched"
    GATES = "gates"


class DueSchedule(Struct, frozen=True, gc=False):
    """A schedule whose time has come, with its open runs: how many, how many of them wait, the two oldest."""

    schedule: Schedule
    open: int
    waiting: int
    oldest: tuple[Run, ...] = ()
    touched: int = 0


class Due(Struct, frozen=True):
    """The rows that are due, the store's now and the next instant that will matter for this agenda."""

    now: Ms
    next_at: Ms | None = None
    schedules: tuple[DueSchedule, ...] = ()
    runs: tuple[Run, ...] = ()
    unparked: int = 0


class Offer(Struct, frozen=True):
    """What a worker can take: who, which lanes, which tasks, for how long."""

    owner: str
    lanes: tuple[str, ...]
    tasks: tuple[str, ...]
    ttl: Ms
    #: Runs that will be due so soon, too, where `may_be_early`. They start at their time, not before.
    ahead: Ms = 0


class Claim(Struct, frozen=True, gc=False):
    """A run given under a lease, with its payload."""

    run: Run
    body: str | None


class Wish(Struct, frozen=True):
    """A claim that rides along with a write: made after it, in the same commit."""

    offer: Offer
    limit: int


class Claimed(Struct, frozen=True):
    """What was claimed, the store's now and the next instant at which something becomes claimable."""

    now: Ms
    claims: list[Claim]
    next_at: Ms | None = None


class Applied(Struct, frozen=True):
    """A result for each change, in order, the instant stamped on their events, and what a wish was granted."""

    now: Ms
    results: list[Result]
    claimed: Claimed | None = None
    #: False when it is known that no run waits at any gate: whoever left one need not look for somebody to let in.
    parked: bool = True


class Renewed(Struct, frozen=True):
    """Leases kept and lost, runs asked to stop, and runs this owner holds without having named them."""

    now: Ms
    kept: frozenset[RunId]
    lost: frozenset[RunId]
    cancel: dict[RunId, str]
    strays: tuple[Run, ...] = ()


class Lease(Struct, frozen=True):
    """A named lease; `epoch` grows by one with each new term."""

    name: str
    owner: str
    epoch: int
    expires_at: Ms
    renewed_at: Ms
    data: str | None = None
    live: bool = True


class Retention(Struct, frozen=True):
    """What may be removed: runs that ended before, older notes, deleted schedules of which nothing else is left.

    Also named leases that ended, begin with `lease_prefix` and were not renewed since `leases_before`, and kept things
    that expired. With `at_most`, the oldest of the ended runs go, too, until no more are left; only a store that
    declares `ended_runs` need heed it.
    """

    ended_before: Ms
    keep_dead: bool = True
    lease_prefix: str = ""
    leases_before: Ms = 0
    at_most: int | None = None


class Purged(Struct, frozen=True):
    """What a purge removed; `more` when the limit cut it short."""

    runs: int = 0
    events: int = 0
    spans: int = 0
    bodies: int = 0
    more: bool = False
    notes: int = 0
    schedules: int = 0
    leases: int = 0
    kept: int = 0


class Tally(Struct, frozen=True):
    """Runs and span fires that retention removed, by schedule (or none), day of fire and outcome."""

    schedule_id: ScheduleId | None
    day: int
    outcome: str
    count: int


class Page(Struct, frozen=True, kw_only=True):
    """A piece of another store's content, to be written as it is; `after` is where this store's log must end.

    Events bring their own seq, at, n and change. Rows replace what is there; `touched` is the schedules' touch marks.
    Spans only ever come with the event that made them, so they are added.
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


class LaneCount(Struct, frozen=True):
    """How much waits in a lane."""

    lane: str
    priority: int
    waiting: int


# ── what `find` answers, on every store ────────────────────────────────────


class Query(Struct, Generic[T], frozen=True, kw_only=True):
    """A question; `after` is the key of the last row of the page before, `limit` the page's size."""

    limit: int = 100
    after: str | None = None


class Runs(Query[Run], frozen=True, kw_only=True):
    """Runs, newest first; keyset by (created_at, id) through the id, which is time-ordered."""

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
    """Schedules by id order."""

    id: ScheduleId | None = None
    ns: str | None = None
    name: str | None = None
    states: tuple[ScheduleState, ...] | None = None
    app: str | None = None
    due_before: Ms | None = None
    unplanned: bool = False  # active, and without a next time


class Spans(Query[Span], frozen=True, kw_only=True):
    """Spans by (schedule, through)."""

    schedule_id: ScheduleId | None = None
    since: Ms | None = None


class Events(Query[Event], frozen=True, kw_only=True):
    """Events in the order of the log; `after` is a seq."""

    run_id: RunId | None = None
    schedule_id: ScheduleId | None = None
    types: tuple[str, ...] | None = None
    since: Ms | None = None
    until: Ms | None = None


class Bodies(Query[Body], frozen=True, kw_only=True):
    """Payloads by id."""

    ids: tuple[str, ...] = ()


class Gates(Query[Gate], frozen=True, kw_only=True):
    """Gates by name."""

    names: tuple[str, ...] | None = None


class Lanes(Query[LaneCount], frozen=True, kw_only=True):
    """Lanes that hold claimable runs, with counts."""


class Leases(Query[Lease], frozen=True, kw_only=True):
    """Leases whose name starts with `prefix`, the ended ones too, by name in the order of code points."""

    prefix: str = ""


class Tallies(Query[Tally], frozen=True, kw_only=True):
    """Daily tallies."""

    schedule_id: ScheduleId | None = None


class KeptOnes(Query[Kept], frozen=True, kw_only=True):
    """Kept things of one kind by id; those that expired are not shown."""

    kind: str
    ids: tuple[str, ...] | None = None


class Store(Protocol):
    """A page of verbs; one contract suite proves every backend."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def open(self) -> None:
        """Create or check the schema; refuse clearly what cannot be used."""
        ...

    async def close(self) -> None: ...

    async def due(self, agenda: Agenda, limit: int, *, hold: Ms = 1_000, ahead: Ms = 0, now: Ms | None = None) -> Due:
        """What the settler should look at; rows are marked held to save work, the hold guards nothing.

        `ahead` asks for schedules that will be due so soon, too. Those are held until their time and no longer, and
        `next_at` leaves them out: who asked knows them.
        """
        ...

    async def apply(self, changes: Sequence[Change], *, wish: Wish | None = None, now: Ms | None = None) -> Applied:
        """The one write; one transaction for the batch, each change all or nothing; then a claim, if one is wished."""
        ...

    async def claim(self, offer: Offer, limit: int, *, ids: Sequence[RunId] = (), now: Ms | None = None) -> Claimed:
        """Due runs in the offered lanes, by priority then time, through their gates; one that crashed before, alone."""
        ...

    async def renew(
        self, owner: str, leases: Sequence[tuple[RunId, int]], ttl: Ms, *, now: Ms | None = None
    ) -> Renewed:
        """Extend leases that still hold; an expired one is lost even if nobody took it yet."""
        ...

    async def find(self, query: Query[T]) -> list[T]:
        """Answer one of the queries above."""
        ...

    async def tail(self, after: int, limit: int) -> list[Event]:
        """Events with a greater seq, in order."""
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
        """Take a lease that is free or ended (epoch None), or renew the term `epoch`; None when refused."""
        ...

    async def release(self, name: str, owner: str, epoch: int, *, now: Ms | None = None) -> bool:
        """End a term early; the row stays, so the epoch goes on growing."""
        ...

    async def wait(self, timeout: float) -> bool:
        """Return True when somebody changed something, False after `timeout` seconds. A hint, nothing more.

        What was written through this very object need not count: its user knows.
        """
        ...

    async def progress(self, run_id: RunId, epoch: int, text: str) -> bool:
        """Keep a run's progress line, if the lease still holds; operational, no event."""
        ...

    async def purge(self, policy: Retention, limit: int, *, now: Ms | None = None) -> Purged:
        """Remove what retention allows, in bounded batches; tallies and snapshots keep the equation true."""
        ...

    async def keep(self, items: Sequence[Kept], *, replace: bool = False, now: Ms | None = None) -> list[bool]:
        """Keep things beside the log, in one transaction; False: it was there, had not expired, and stays as it was."""
        ...

    async def forget(self, kind: str, ids: Sequence[str]) -> int:
        """Remove kept things; how many were there."""
        ...

    async def restore(self, page: Page) -> bool:
        """Write a piece of another store's content, all of it; False and nothing when the log ends elsewhere."""
        ...
