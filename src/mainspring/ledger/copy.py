"""Copy one store into another, in pages of the event log, each with the runs and spans that its events are about.

The target's own log shows how far the copy is: a page is written in one transaction, and only if the log ends where the
page begins. A copy that was interrupted is therefore resumed at the end of this log and writes no event twice. Runs go
with a page as they are in the source now, not as they were at the event. After the last page come schedules, open runs
(once more), gates, tallies, secrets and API keys; a resumed copy writes all of these again. Logs of runs come last.

The target keeps the source's name in the data of a named lease, `copy`. Other named leases are copied with their epochs
and the time that is left of them: fencing tokens keep growing, and a fire that was executed stays taken. Instances are
not copied. A running run is copied with an expired lease: the first instance on the target rescues it, as it would
after a crash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.engine.presence import INSTANCE_PREFIX
from mainspring.model.change import Body
from mainspring.model.errors import CopyRefused
from mainspring.model.events import Event, FiresElided, LogCompacted, ScheduleRewound, ScheduleSnapshot
from mainspring.model.instant import Ms
from mainspring.model.keyvalue import COPIED_KINDS
from mainspring.model.lease import Lease
from mainspring.model.run import OPEN, Run, State
from mainspring.model.schedule import Schedule, ScheduleState, Span
from mainspring.ports.paging import find_log_end, iterate_rows, iterate_spans
from mainspring.ports.store import (
    Agenda,
    Bodies,
    Gates,
    KeyValues,
    Leases,
    LoggedRuns,
    Page,
    Query,
    RunLogs,
    Runs,
    Schedules,
    Spans,
    Store,
    Tallies,
)

T = TypeVar("T")
#: Events in one transaction, unless the caller chooses another number.
EVENTS_PER_TRANSACTION = 1_000
#: A transaction of payloads ends when it has this many bytes, or more.
PAYLOAD_BYTES_PER_TRANSACTION = 4 << 20
_PAYLOADS_PER_READ = 100
#: The copy forgets which payloads it has written when it remembers more ids than this. It writes some again then.
_MAX_SENT_IDS = 50_000
#: Name of the lease in the target whose data is the `Mark` as JSON.
MARK_LEASE = "copy"
_ALL_STATES: tuple[ScheduleState, ...] = ("active", "paused", "finished", "deleted")
_OPEN = tuple(sorted(OPEN))
#: More rows than the queries that use it can find.
_NO_LIMIT = 1_000_000


class Mark(Struct, frozen=True):
    """What the target stores about the copy that fills it, so that the copy can be resumed."""

    #: Name of the source, for messages.
    source: str
    #: Number of the source's last event when the copy began.
    began: int


class Step(Struct, frozen=True):
    """Progress of a copy, given to the caller's `progress` function."""

    #: What is being written: "events" or "rows".
    what: str
    #: Number of the last event written.
    seq: int
    #: Number of the last event to write.
    end: int


class Copied(Struct):
    """Result of one call of `copy`: what it has written."""

    #: Number of the event after which the copy was resumed; 0 if it began anew.
    resumed: int = 0
    #: Events that this call has written.
    events: int = 0
    #: Runs that are running in the target: the first instance on it rescues them.
    running: int = 0


async def copy(
    source: Store,
    target: Store,
    *,
    name: str = "",
    force: bool = False,
    page: int = EVENTS_PER_TRANSACTION,
    progress: Callable[[Step], None] = lambda step: None,
    now: Ms | None = None,
) -> Copied:
    """Copy a store into an empty one, or resume such a copy. Return what this call has written.

    Both stores must be open. `name` is the source's name, for messages of later copies. `force` copies although an
    instance works on the source. `page` is the number of events in one transaction. `progress` is called after each of
    these transactions, and before the rows are written. `now` overrides the source's clock, for tests.

    Raises: CopyRefused if a live instance works on a store, if the target holds anything but the beginning of this
    copy, or if something else changes the target or removes events of the source meanwhile. The message tells whether
    the target was changed.
    """
    await check_source(source, force=force)
    await _check_target(target)
    end = await find_log_end(source)
    at = await find_log_end(target)
    mark = await _check_mark(source, target, at, Mark(name, end))
    copied = Copied(resumed=at)
    writer = _Writer(source, target, at)
    while events := await source.tail(writer.at, page):
        _check_not_compacted(events, mark)
        await writer.write_events(events)
        copied.events += len(events)
        progress(Step("events", writer.at, max(end, writer.at)))
    progress(Step("rows", writer.at, writer.at))
    copied.running = await writer.write_rows(now)
    return copied


# ── checks before the copy ──────────────────────────────────────────────────


async def check_source(source: Store, *, force: bool = False) -> None:
    """Raise `CopyRefused` if a live instance works on the source: its writes would be copied in part.

    With `force`, do nothing.
    """
    if not force and (instances := await _find_live_instances(source)):
        raise CopyRefused(
            f"instance {instances} works on the source. Stop it first; if it is dead, wait until its lease ends or "
            "give --force. Nothing was changed"
        )


async def _check_target(target: Store) -> None:
    """Raise `CopyRefused` if a live instance works on the target."""
    if instances := await _find_live_instances(target):
        raise CopyRefused(
            f"instance {instances} works on the target. Stop it, and give an empty store; nothing was changed"
        )


async def _find_live_instances(store: Store) -> str:
    """Return text for a message: the name of a live instance, and how many more there are; "" if there is none."""
    rows = iterate_rows(store, Leases(prefix=INSTANCE_PREFIX, limit=1_000), lambda lease: lease.name)
    live = [lease.name.removeprefix(INSTANCE_PREFIX) async for lease in rows if lease.live]
    return f"{live[0]} and {len(live) - 1} more" if len(live) > 1 else "".join(live)


async def _check_mark(source: Store, target: Store, at: int, mine: Mark) -> Mark:
    """Return the `Mark` of this copy: for an empty target log, `mine`, else what an earlier call stored in the target.

    `mine`: what a new copy of this source stores in the target; this function stores it if the log is empty. `at`: the
    number of the last event in the target's log, 0 for an empty log.

    Raises CopyRefused for a log with events, if the target has no mark, or if the log's first or last event differs
    from the source's. Raises it for an empty log, if the target has rows and no mark of a source of this name.
    """
    known = await _read_mark(target)
    if at == 0:
        if (known is None or known.source != mine.source) and await _holds_rows(target):
            raise CopyRefused("the target is not empty: it has rows. Give an empty store; nothing was changed")
        if known != mine:
            await _write_mark(target, mine)
        return mine
    if known is None:
        raise CopyRefused(
            f"the target is not empty: its log has events up to {at}, and they are not an unfinished copy. "
            "Give an empty store; nothing was changed"
        )
    of = f" of {known.source}" if known.source else ""
    for after in (0, at - 1):
        if await target.tail(after, 1) != await source.tail(after, 1):
            raise CopyRefused(
                f"the target holds a copy{of}, and its log (to event {at}) differs from the source's: it is a copy of "
                "another store, was written to, or retention removed events. Give an empty store; nothing was changed"
            )
    return known


async def _holds_rows(store: Store) -> bool:
    """Return True if the store has any row that a copy would write."""
    return bool(
        await store.find(Runs(limit=1))
        or await store.find(Schedules(limit=1, states=_ALL_STATES))
        or await store.find(Spans(limit=1))
        or await store.find(Gates(limit=1))
        or await store.find(Tallies(limit=1))
        or [kind for kind in COPIED_KINDS if await store.find(KeyValues(kind=kind, limit=1))]
    )


async def _read_mark(target: Store) -> Mark | None:
    """Return the `Mark` in the target, None if no copy has begun there."""
    for lease in await target.find(Leases(prefix=MARK_LEASE, limit=1)):
        if lease.name == MARK_LEASE and lease.data:
            return msgspec.json.decode(lease.data, type=Mark)
    return None


async def _write_mark(target: Store, mark: Mark) -> None:
    """Store `mark` as data of the lease `copy`. Release the lease at once: a killed copy must not block the next.

    Raises: CopyRefused if another copy acquires the lease meanwhile.
    """
    for old in await target.find(Leases(prefix=MARK_LEASE, limit=1)):
        if old.name == MARK_LEASE and old.live:
            await target.release(MARK_LEASE, MARK_LEASE, old.epoch)
    lease = await target.lease(MARK_LEASE, MARK_LEASE, 60_000, data=msgspec.json.encode(mark).decode())
    if lease is None:
        raise CopyRefused("another copy into this target has just begun. Let it end; nothing was changed")
    await target.release(MARK_LEASE, MARK_LEASE, lease.epoch)


def _check_not_compacted(events: Sequence[Event], mark: Mark) -> None:
    """Raise `CopyRefused` if one of these events shows that retention removed events after the copy began.

    `mark`: tells when the copy began.
    """
    for event in events:
        if isinstance(event, LogCompacted) and event.seq > mark.began:
            raise CopyRefused(
                f"retention removed history from the source (event {event.seq}) after this copy began, so the copied "
                "events may differ from it. Begin again with an empty target"
            )


# ── writing ─────────────────────────────────────────────────────────────────


class _Writer:
    """Reads from the source and writes to the target. `at` is the number of the last event in the target's log."""

    def __init__(self, source: Store, target: Store, at: int) -> None:
        self._source = source
        self._target = target
        self.at = at
        #: Ids of payloads that were written, as keys. Why: a payload that many runs name is written once.
        self._sent: dict[str, None] = {}

    async def _write(self, page: Page) -> None:
        """Write a page in one transaction. Raises: CopyRefused if another process has written to the target's log."""
        if not await self._target.restore(page):
            raise CopyRefused(
                f"another process writes to the target: its log does not end at event {page.after} any more. "
                "Stop it, and begin again with an empty target"
            )

    async def write_events(self, events: Sequence[Event]) -> None:
        """Write events with the rows of their runs and spans in one transaction, and set `at` to the last event.

        The payloads that these rows and events name are written before, in transactions of their own.
        """
        ids = tuple(dict.fromkeys(event.run_id for event in events if event.run_id is not None))
        runs = [_with_ended_lease(run) for run in await self._source.find(Runs(ids=ids, limit=len(ids)))] if ids else []
        await self._write_bodies([*_body_ids(events), *(run.body for run in runs)])
        spans: list[Span] = []
        cuts: dict[str, Ms] = {}
        for event in events:
            if isinstance(event, FiresElided) and event.schedule_id is not None:
                spans.append(
                    Span(
                        event.schedule_id,
                        event.revision,
                        event.after,
                        event.through,
                        event.count,
                        event.reason,
                        event.ns,
                    )
                )
            elif isinstance(event, ScheduleRewound) and event.schedule_id is not None:
                sid, to = event.schedule_id, event.to
                cuts[sid] = min(to, cuts.get(sid, to))
                spans = [one for one in spans if one.schedule_id != sid or one.through < to]
                spans += event.kept
            elif isinstance(event, ScheduleSnapshot):
                # The snapshot replaced the events of older spans, so that only their rows are left.
                async for span in iterate_spans(self._source, event.schedule_id):
                    if span.through <= event.state.cursor:
                        spans.append(span)
        await self._write(
            Page(after=self.at, events=tuple(events), runs=tuple(runs), spans=tuple(spans), cuts=tuple(cuts.items()))
        )
        self.at = events[-1].seq

    async def write_rows(self, now: Ms | None) -> int:
        """Write the rows that follow the log's last page; return how many runs are running in the target.

        These are schedules, open runs, gates, tallies (counts of removed rows), leases, secrets, API keys and logs of
        runs. Open runs are written a second time, because parking and progress have no event. Secrets and API keys that
        the source no longer has are removed from the target. `now`: the instant at which the source is asked for
        touched schedules; None: the source's clock decides.
        """
        touched = {
            row.schedule.id: row.touched
            for row in (await self._source.due(Agenda.TOUCHED, _NO_LIMIT, hold=0, now=now)).schedules
        }
        # Deleted schedules go first: another schedule may have the name by now.
        for states in (("deleted",), ("active", "paused", "finished")):
            query = Schedules(states=states, limit=500)
            async for rows in _read_pages(self._source, query, lambda row: row.id):
                await self._write_schedules(rows, touched)
        # Parking and progress have no event, so open runs are read once more.
        async for runs in _read_pages(
            self._source, Runs(states=_OPEN, oldest_first=True, limit=500), lambda run: run.id
        ):
            await self._write(Page(after=self.at, runs=tuple(map(_with_ended_lease, runs))))
        holders: Counter[str] = Counter()
        running = 0
        async for run in iterate_rows(
            self._target, Runs(states=(State.RUNNING,), oldest_first=True, limit=500), lambda run: run.id
        ):
            running += 1
            holders.update(run.gates)
        async for gates in _read_pages(self._source, Gates(limit=1_000), lambda gate: gate.name):
            held = (replace(gate, held=holders[gate.name]) for gate in gates)
            await self._write(Page(after=self.at, gates=tuple(held)))
        tallies = await self._source.find(Tallies(limit=_NO_LIMIT))
        for start in range(0, len(tallies), 1_000):
            await self._write(Page(after=self.at, tallies=tuple(tallies[start : start + 1_000])))
        await self._write_leases()
        await self._write_values()
        await self._write_logs()
        return running

    async def _write_leases(self) -> None:
        """Write the named leases that a copy contains: locks, execution leases and the leaders' terms."""
        async for rows in _read_pages(self._source, Leases(limit=1_000), lambda row: row.name):
            await self._write(Page(after=self.at, leases=tuple(row for row in rows if is_copied_lease(row))))

    async def _write_values(self) -> None:
        """Write secrets and API keys to the target, and remove from it entries that the source no longer has."""
        for kind in COPIED_KINDS:
            names: set[str] = set()
            async for rows in _read_pages(self._source, KeyValues(kind=kind, limit=500), lambda row: row.id):
                await self._target.put(rows, replace=True)
                names.update(row.id for row in rows)
            async for row in iterate_rows(self._target, KeyValues(kind=kind, limit=500), lambda row: row.id):
                if row.id not in names:
                    await self._target.remove(kind, [row.id])

    async def _write_logs(self) -> None:
        """Write the logs of runs. Of a log that an earlier call has written, write only the lines that it lacks."""
        async for run_ids in _read_pages(self._source, LoggedRuns(limit=500), lambda run_id: run_id):
            for run_id in run_ids:
                query = RunLogs(run_id=run_id, limit=_NO_LIMIT)
                lines, written = await self._source.find(query), await self._target.find(query)
                if len(lines) > len(written):
                    await self._target.append_log(lines[len(written) :], self._target.capabilities.logs_limit)

    async def _write_schedules(self, rows: list[Schedule], touched: dict[str, int]) -> None:
        """Write rows of schedules, and their payloads before. `touched`: schedule id → number of its last touch."""
        await self._write_bodies(row.spec.body for row in rows)
        mine = {row.id: touched[row.id] for row in rows if row.id in touched}
        await self._write(Page(after=self.at, schedules=tuple(rows), touched=mine))

    async def _write_bodies(self, names: Iterable[str | None]) -> None:
        """Write the payloads whose ids are `names`, in transactions of bounded size.

        Skip None, ids without a payload in the source, and payloads written before.
        """
        wanted = [name for name in dict.fromkeys(names) if name is not None and name not in self._sent]
        found: list[Body] = []
        size = 0
        for start in range(0, len(wanted), _PAYLOADS_PER_READ):
            ids = tuple(wanted[start : start + _PAYLOADS_PER_READ])
            for body in await self._source.find(Bodies(ids=ids, limit=len(ids))):
                found.append(body)
                size += len(body.data)
                if size >= PAYLOAD_BYTES_PER_TRANSACTION:
                    await self._write(Page(after=self.at, bodies=tuple(found)))
                    found, size = [], 0
        if found:
            await self._write(Page(after=self.at, bodies=tuple(found)))
        if len(self._sent) > _MAX_SENT_IDS:
            self._sent.clear()
        self._sent.update(dict.fromkeys(wanted))


def is_copied_lease(lease: Lease) -> bool:
    """Return True if a copy contains this named lease: not the row of an instance, nor the mark of the copy itself."""
    return lease.name != MARK_LEASE and not lease.name.startswith(INSTANCE_PREFIX)


def _with_ended_lease(run: Run) -> Run:
    """Return the run as it is written: if it is running, with an expired lease, because leases are not copied."""
    return replace(run, lease_until=0) if run.state is State.RUNNING else run


def _body_ids(events: Iterable[Event]) -> Iterable[str | None]:
    """Yield the ids of the payloads that the events name, including payloads that no row names any more.

    Yield None for an event without a payload.
    """
    for event in events:
        yield getattr(event, "body", None)
        definition = getattr(event, "spec", None)
        if definition is not None:
            yield definition.body


async def _read_pages(store: Store, query: Query[T], key: Callable[[T], str]) -> AsyncIterator[list[T]]:
    """Yield the rows of a query in lists of at most its limit; `key` returns a row's value for `Query.after`."""
    while rows := await store.find(query):
        yield rows
        if len(rows) < query.limit:
            return
        query = replace(query, after=key(rows[-1]))


__all__ = ["EVENTS_PER_TRANSACTION", "Copied", "Mark", "Step", "check_source", "copy", "find_log_end"]
