"""The store port: the Protocol that every backend implements, with its queries and results.

The store holds the truth: runs, schedules, gates, leases and the event log. `apply` writes what the engine has decided,
as changes. Other methods write, too, each for one narrow purpose: `claim`, `renew`, `lease`, `put`, `purge` and so on.
Methods whose work depends on the time take `now`: None means the store's own clock; only tests and simulations pass a
value. To a store, payloads, results and definitions of schedules are text without meaning. One contract suite
(`mainspring.testing.contract`) tests every backend.
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
from mainspring.model.run_log import LogEntry
from mainspring.model.schedule import Schedule, ScheduleState, Span

T = TypeVar("T")


class Capabilities(Struct, frozen=True):
    """What a backend can do. The engine checks a capability and never the name of a backend."""

    #: True if the content outlives the process.
    durable: bool
    #: True if several processes may open one store at the same time.
    multi_process: bool
    #: True if runs can be found by full-text search.
    search: bool = False
    #: True if the store has a clock of its own, which is not this machine's.
    own_clock: bool = False
    #: True if the store is a server: each event loop may then have connections of its own.
    remote: bool = False
    #: How long ended runs are kept unless the user configures it, in milliseconds.
    history: Ms = 30 * 86_400_000
    #: The most ended runs that are kept; None: no limit.
    ended_runs: int | None = None
    #: The most bytes of all run logs together, unless the user configures it.
    logs_limit: int = 1 << 30


# ── due work ────────────────────────────────────────────────────────────────


class Agenda(StrEnum):
    """A kind of due work that the settler asks for with `due`."""

    #: Schedules whose `next_at` has come: usually the time of the next fire, or the end of a pause.
    SCHEDULES = "schedules"
    #: Running runs whose lease has ended.
    EXPIRED = "expired"
    #: Schedules that were touched: something about them changed, so the settler examines them again.
    TOUCHED = "touched"
    #: Gates that have room again and at which runs are parked. `due` unparks the runs itself.
    GATES = "gates"


class DueSchedule(Struct, frozen=True, gc=False):
    """A schedule that is due or touched, with what the settler must know about its runs that have not ended.

    `open` is the number of these runs, `waiting` the number of those that are not running, and `oldest` up to two of
    the oldest. `touched` is the number of the schedule's last touch, which the settler passes back in the `ScheduleAt`
    guard.
    """

    schedule: Schedule
    open: int
    waiting: int
    oldest: tuple[Run, ...] = ()
    touched: int = 0


class Due(Struct, frozen=True):
    """The answer of `due`: the rows that are due, the store's time `now`, and when to ask again.

    `next_at` is the next instant at which a row of this agenda falls due; None if no such instant is known. `unparked`
    is the number of runs that `due` unparked, for the agenda `GATES`.
    """

    now: Ms
    next_at: Ms | None = None
    schedules: tuple[DueSchedule, ...] = ()
    runs: tuple[Run, ...] = ()
    unparked: int = 0


# ── claims and leases ───────────────────────────────────────────────────────


class Offer(Struct, frozen=True):
    """What a worker tells the store when it claims runs.

    `owner` is the worker's name. It claims only runs of these lanes and tasks. `ttl` is the length of the leases.
    """

    owner: str
    lanes: tuple[str, ...]
    tasks: tuple[str, ...]
    ttl: Ms
    #: Claim ahead: runs that fall due within this many milliseconds may be claimed, if `can_claim_ahead` allows it. The
    #: worker starts them at their time, not before.
    ahead: Ms = 0


class Claim(Struct, frozen=True, gc=False):
    """A claimed run, whose fields hold the new lease, and its payload `body` as JSON (None: it has none)."""

    run: Run
    body: str | None


class ClaimRequest(Struct, frozen=True):
    """A claim of up to `limit` runs, made by a call of `apply` after its changes. Why: it saves a call and a commit."""

    offer: Offer
    limit: int


class Claimed(Struct, frozen=True):
    """The answer of `claim`: the claimed runs, the store's time `now`, and `next_at`, when to claim again.

    `next_at` is the instant at which the next run becomes claimable, or earlier if the store must look again. None: no
    such instant is known.
    """

    now: Ms
    claims: list[Claim]
    next_at: Ms | None = None


class Applied(Struct, frozen=True):
    """The answer of `apply`: one result for each change, in the order of the changes, and the claimed runs.

    `now` is the instant that the events carry. If the store needed several commits, it is the instant of the last one.
    `claimed` is None if no claim was made.
    """

    now: Ms
    results: list[Result]
    claimed: Claimed | None = None
    #: False if the store knows that no run is parked. After releasing a gate, the caller then need not unpark runs.
    parked: bool = True


class Renewed(Struct, frozen=True):
    """The answer of `renew`: the runs whose leases were extended (`kept`), and those whose leases are `lost`.

    `now` is the store's time. `cancel`: id of each run that should stop → the reason. `strays` are runs that this owner
    holds by the store's rows, but whose leases it did not name in the call.
    """

    now: Ms
    kept: frozenset[RunId]
    lost: frozenset[RunId]
    cancel: dict[RunId, str]
    strays: tuple[Run, ...] = ()


# ── copies ────────────────────────────────────────────────────────────────


class Page(Struct, frozen=True, kw_only=True):
    """A part of another store's content, which `restore` writes unchanged.

    `after`: number of the event at which the written store's log must end. Events keep their fields `seq`, `at`, `n`
    and `change`. A row replaces the stored row with its key, if there is one. `touched`: schedule id → number of its
    last touch. Spans replace nothing: a span that is written twice is stored twice. So a page contains a span only
    together with its event, which is written once: the event that made it, or the snapshot that replaced this event.
    """

    after: int
    events: tuple[Event, ...] = ()
    runs: tuple[Run, ...] = ()
    schedules: tuple[Schedule, ...] = ()
    touched: dict[ScheduleId, int] = {}
    spans: tuple[Span, ...] = ()
    #: (schedule id, instant): the spans of this schedule that end then or later are removed before `spans` are written.
    cuts: tuple[tuple[ScheduleId, Ms], ...] = ()
    bodies: tuple[Body, ...] = ()
    gates: tuple[Gate, ...] = ()
    tallies: tuple[Tally, ...] = ()
    #: Named leases. Each ends `left` milliseconds after it is written, by the clock of the written store.
    leases: tuple[Lease, ...] = ()


# ── queries: what `find` answers on every store ─────────────────────────────


class LaneCount(Struct, frozen=True):
    """The number of runs of one lane and priority that wait for a worker and are not parked at a gate, due or not."""

    lane: str
    priority: int
    waiting: int


class Query(Struct, Generic[T], frozen=True, kw_only=True):
    """A question for `find`: return at most `limit` rows, starting after the row whose key is `after`.

    `after` None: start with the first row. Subclasses add conditions. A condition that is None does not apply; all
    others must hold.
    """

    limit: int = 100
    after: str | None = None


class Runs(Query[Run], frozen=True, kw_only=True):
    """Selects runs, newest first. `after` is a run id; ids sort by time of creation, those of fires by fire time.

    `fired_since`: with a fire time later than this. `created_since`: created then or later. `due_before`: ready to run
    then or earlier.
    """

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


class LastRuns(Query[Run], frozen=True, kw_only=True):
    """Selects the newest run of each schedule in `ids`, in no particular order. `limit` and `after` do not apply."""

    ids: tuple[ScheduleId, ...] = ()


class Schedules(Query[Schedule], frozen=True, kw_only=True):
    """Selects schedules, in the order of their ids. `after` is a schedule id.

    Without `id`, `ids` and `states`, deleted schedules are left out. `due_before`: with a `next_at` then or earlier.
    `planned_after`: with a `cursor` later than this.
    """

    id: ScheduleId | None = None
    ids: tuple[ScheduleId, ...] | None = None
    ns: str | None = None
    name: str | None = None
    states: tuple[ScheduleState, ...] | None = None
    app: str | None = None
    due_before: Ms | None = None
    unplanned: bool = False  # only active schedules without a next time
    planned_after: Ms | None = None


class Spans(Query[Span], frozen=True, kw_only=True):
    """Selects spans, in the order of schedule id and end. `since`: spans that end later than this.

    Spans have no id, so `after` is the number of rows to skip.
    """

    schedule_id: ScheduleId | None = None
    since: Ms | None = None


class Events(Query[Event], frozen=True, kw_only=True):
    """Selects events, in the order of the log: those after event number `after`, with `since` <= time < `until`."""

    ns: str | None = None
    run_id: RunId | None = None
    schedule_id: ScheduleId | None = None
    types: tuple[str, ...] | None = None
    since: Ms | None = None
    until: Ms | None = None


class Bodies(Query[Body], frozen=True, kw_only=True):
    """Selects the payloads with the given ids, in no particular order. `limit` and `after` do not apply."""

    ids: tuple[str, ...] = ()


class Gates(Query[Gate], frozen=True, kw_only=True):
    """Selects gates, in the order of their names. `after` is a name."""

    names: tuple[str, ...] | None = None


class Lanes(Query[LaneCount], frozen=True, kw_only=True):
    """Selects the number of runs that wait for a worker, due or not, for each lane and priority that has such runs.

    Runs that are parked at a gate do not count.
    """


class Leases(Query[Lease], frozen=True, kw_only=True):
    """Selects named leases, live or ended, whose name starts with `prefix`, by name in the order of code points."""

    prefix: str = ""


class Tallies(Query[Tally], frozen=True, kw_only=True):
    """Selects tallies: how many runs, and fires in spans, `purge` removed, for each schedule, day and outcome."""

    schedule_id: ScheduleId | None = None


class KeyValues(Query[KeyValue], frozen=True, kw_only=True):
    """Selects key-value entries of one kind that have not expired, in the order of their ids."""

    kind: str
    ids: tuple[str, ...] | None = None


class RunLogs(Query[LogEntry], frozen=True, kw_only=True):
    """Selects lines of one run's log, in the order of their numbers. `after` is the number of a line."""

    run_id: RunId
    attempt: int | None = None


class LoggedRuns(Query[RunId], frozen=True, kw_only=True):
    """Selects the ids of the runs that have a log, in their order. `after` is a run id."""


class Store(Protocol):
    """The only way to the stored state. Its methods raise `StoreError` if they cannot do their work.

    A method that takes `now` uses the store's own clock if it is None. Optional abilities, such as advisory locks, are
    Protocols of their own in `ports/store_extras.py`.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    async def open(self) -> None:
        """Connect, and create the schema or check it.

        Raises `StoreError` with a remedy if the store cannot be used, for example because of its schema's version.
        """
        ...

    async def close(self) -> None:
        """Close files and connections. The store may be opened again."""
        ...

    async def due(self, agenda: Agenda, limit: int, *, hold: Ms = 1_000, ahead: Ms = 0, now: Ms | None = None) -> Due:
        """Return up to `limit` due rows of an agenda and hold them for `hold` milliseconds.

        For the agenda `GATES`, unpark up to `limit` runs instead, and return their number (`Due.unparked`).

        The hold keeps other instances from doing the same work at the same time. It guards nothing: correctness comes
        from the guards of the changes that follow.

        With `ahead`, schedules that fall due within this many milliseconds count as due. They are held until their fire
        time and no longer. `next_at` of the answer leaves them out, because the caller has them already.
        """
        ...

    async def apply(
        self, changes: Sequence[Change], *, claim_request: ClaimRequest | None = None, now: Ms | None = None
    ) -> Applied:
        """Apply a batch of changes, then make the claim that `claim_request` asks for, if it is given.

        Each change takes effect whole or not at all. That is not promised for the batch: a store may commit it in
        several parts, so an error can leave some changes applied. It is safe to call again with the same change ids:
        a change that was applied before is answered `repeated`, or refused by its guard.

        The claim is made after the changes, in their commit where the store can do that. The results have the order of
        the changes.
        """
        ...

    async def claim(self, offer: Offer, limit: int, *, ids: Sequence[RunId] = (), now: Ms | None = None) -> Claimed:
        """Claim up to `limit` due runs for a worker: each gets its owner, lease and next epoch in one write.

        Due runs of the offered lanes and tasks are claimed by priority, then by `ready_at`; with `ids`, only runs with
        these ids. A run with a full gate is parked instead. A run that crashed before is claimed alone (`admit` in
        `model/gate.py`).
        """
        ...

    async def renew(
        self, owner: str, leases: Sequence[tuple[RunId, int]], ttl: Ms, *, now: Ms | None = None
    ) -> Renewed:
        """Extend the leases of `owner`, given as pairs of run id and epoch, to `ttl` milliseconds from now.

        A lease that ended before is not extended but lost, even if no other worker has claimed the run since.
        """
        ...

    async def find(self, query: Query[T]) -> list[T]:
        """Return the rows that a query selects, at most `query.limit` of them."""
        ...

    async def tail(self, after: int, limit: int) -> list[Event]:
        """Return up to `limit` events with a number greater than `after`, in the order of the log."""
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
        """Acquire a named lease for `ttl` milliseconds, or renew it, and return it; return None if that is refused.

        Without `epoch`, begin a new term; refused while any term lasts, even one of `owner`. With `epoch`, extend the
        term of `owner` that has this number; refused once it has ended. `data` is stored; None at a renewal keeps the
        old text.
        """
        ...

    async def release(self, name: str, owner: str, epoch: int, *, now: Ms | None = None) -> bool:
        """End the term `epoch` of a named lease early, and return True.

        Return False if the term was released before, or is not the lease's present term of `owner`. A term that has
        expired still counts as present until a new term begins. The row stays, so that the epoch of the next term is
        higher.
        """
        ...

    async def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for a hint that the store changed. Return True if one arrived.

        A hint saves latency only: callers poll as well. Writes through this object need not cause a hint, because their
        caller knows of them.
        """
        ...

    async def progress(self, run_id: RunId, epoch: int, text: str) -> bool:
        """Store the progress line of a run, without an event.

        Return False, with nothing stored, if the run is not running under the lease `epoch`.
        """
        ...

    async def append_log(self, entries: Sequence[LogEntry], limit: int) -> None:
        """Append lines to the logs of their runs in one transaction, and number them.

        A run's log takes up to `MAX_RUN_LOG_BYTES`; then a line says that the rest was cut. Lines of runs that do not
        exist are dropped. If all logs together have more than `limit` bytes after that, whole logs are removed, those
        of the oldest runs first; one call removes up to a thousand.
        """
        ...

    async def purge(self, policy: Retention, limit: int, *, now: Ms | None = None) -> Purged:
        """Remove rows that the policy no longer keeps, at most `limit` of each kind. Return what was removed.

        A store may remove more than `limit` spans. Tallies (counts of removed rows) and snapshots of schedules take the
        place of removed rows and events, so that the ledger still adds up. The log of a run is removed with the run.
        """
        ...

    async def put(self, items: Sequence[KeyValue], *, replace: bool = False, now: Ms | None = None) -> list[bool]:
        """Insert key-value entries in one transaction. Return one value for each, in order: True if it was written.

        Without `replace`, an existing entry that has not expired stays as it is, and the value for it is False.
        """
        ...

    async def remove(self, kind: str, ids: Sequence[str]) -> int:
        """Delete the key-value entries of a kind with these ids. Return how many existed."""
        ...

    async def restore(self, page: Page) -> bool:
        """Write a part of another store's content in one transaction, and return True.

        If the log of this store does not end at `page.after`, write nothing and return False.
        """
        ...
