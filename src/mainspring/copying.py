"""Copying one store into another by the event log: page after page, each with the rows that its events made.

The target's own log says how far the copy is: a page is written in one transaction and only if the log ends where the
page begins, so whatever ends a copy, the next one goes on there and writes nothing twice. A lease row, `copy`, says
whose copy it is. What no event tells (next fires, touch marks, parking, gates, tallies, secrets and keys) is written
anew at the end.

Leases and instances stay behind. A run that is running is copied as one whose lease has ended: the first instance on
the target rescues it, as it would after a crash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.engine.presence import PREFIX
from mainspring.model.change import Body
from mainspring.model.errors import CopyRefused
from mainspring.model.events import Event, FiresElided, LogCompacted, ScheduleSnapshot
from mainspring.model.instant import Ms
from mainspring.model.kept import LASTING
from mainspring.model.run import OPEN, Run, State
from mainspring.model.schedule import Schedule, ScheduleState, Span
from mainspring.paging import all_rows, all_spans, log_end
from mainspring.ports.store import (
    Agenda,
    Bodies,
    Gates,
    KeptOnes,
    Leases,
    Page,
    Query,
    Runs,
    Schedules,
    Spans,
    Store,
    Tallies,
)

T = TypeVar("T")
#: Events in one transaction.
PAGE = 1_000
#: Payloads in one transaction, and in one question.
PAYLOAD_BYTES = 4 << 20
_PAYLOADS = 100
#: Payloads known to be there already, so that one shared by many runs is sent once.
_REMEMBERED = 50_000
MARK = "copy"
_EVERY: tuple[ScheduleState, ...] = ("active", "paused", "finished", "deleted")
_OPEN = tuple(sorted(OPEN))
_ALL = 1_000_000


class Mark(Struct, frozen=True):
    """What the target remembers: of which store it is a copy, and where that one's log ended when it began."""

    source: str
    began: int


class Step(Struct, frozen=True):
    """How far a copy is, in numbers of the source's log."""

    what: str
    seq: int
    end: int


class Copied(Struct):
    """What one call wrote; `resumed` is the event after which it went on."""

    resumed: int = 0
    events: int = 0
    running: int = 0


async def copy(
    source: Store,
    target: Store,
    *,
    name: str = "",
    force: bool = False,
    page: int = PAGE,
    progress: Callable[[Step], None] = lambda step: None,
    now: Ms | None = None,
) -> Copied:
    """Copy everything; both stores are open. `name` is what the target remembers the source by, for people.

    `now` is None, the source's own clock, but in tests.
    """
    await check_source(source, force=force)
    await _check_target(target)
    end = await log_end(source)
    at = await log_end(target)
    mark = await _agree(source, target, at, Mark(name, end))
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


# ── may it begin? ───────────────────────────────────────────────────────────


async def check_source(source: Store, *, force: bool = False) -> None:
    """Nobody may work on the source, or what is copied is neither here nor there; `force` knows better."""
    if not force and (who := await _living(source)):
        raise CopyRefused(
            f"instance {who} works on the source. Stop it first; if it is dead, wait until its lease ends or give "
            "--force. Nothing was changed"
        )


async def _check_target(target: Store) -> None:
    if who := await _living(target):
        raise CopyRefused(f"instance {who} works on the target. Stop it, and give an empty store; nothing was changed")


async def _living(store: Store) -> str:
    rows = all_rows(store, Leases(prefix=PREFIX, limit=1_000), lambda lease: lease.name)
    live = [lease.name.removeprefix(PREFIX) async for lease in rows if lease.live]
    return f"{live[0]} and {len(live) - 1} more" if len(live) > 1 else "".join(live)


async def _agree(source: Store, target: Store, at: int, mine: Mark) -> Mark:
    """The target's mark: written now if the target is empty, else that of an earlier copy of this very source."""
    known = await _mark(target)
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
                f"the target holds a copy{of}, and its log, which ends at event {at}, is not the beginning of this "
                "source's: it is another store's, or has been worked on since, or retention removed something here. "
                "Give an empty store; nothing was changed"
            )
    return known


async def _holds_rows(store: Store) -> bool:
    return bool(
        await store.find(Runs(limit=1))
        or await store.find(Schedules(limit=1, states=_EVERY))
        or await store.find(Spans(limit=1))
        or await store.find(Gates(limit=1))
        or await store.find(Tallies(limit=1))
        or [kind for kind in LASTING if await store.find(KeptOnes(kind=kind, limit=1))]
    )


async def _mark(target: Store) -> Mark | None:
    for lease in await target.find(Leases(prefix=MARK, limit=1)):
        if lease.name == MARK and lease.data:
            return msgspec.json.decode(lease.data, type=Mark)
    return None


async def _write_mark(target: Store, mark: Mark) -> None:
    """A note, not a lock: pages guard themselves, and a copy that was killed must not keep the next one out."""
    for old in await target.find(Leases(prefix=MARK, limit=1)):
        if old.name == MARK and old.live:
            await target.release(MARK, MARK, old.epoch)
    lease = await target.lease(MARK, MARK, 60_000, data=msgspec.json.encode(mark).decode())
    if lease is None:
        raise CopyRefused("another copy into this target has just begun. Let it end; nothing was changed")
    await target.release(MARK, MARK, lease.epoch)


def _check_not_compacted(events: Sequence[Event], mark: Mark) -> None:
    for event in events:
        if isinstance(event, LogCompacted) and event.seq > mark.began:
            raise CopyRefused(
                f"retention removed history from the source (event {event.seq}) after this copy began, so what is in "
                "the target already cannot be trusted. Begin again with an empty target"
            )


# ── the work ────────────────────────────────────────────────────────────────


class _Writer:
    """Writes pages to the target; `at` is where its log ends."""

    def __init__(self, source: Store, target: Store, at: int) -> None:
        self._source = source
        self._target = target
        self.at = at
        self._sent: dict[str, None] = {}

    async def _write(self, page: Page) -> None:
        if not await self._target.restore(page):
            raise CopyRefused(
                f"somebody else writes to the target: its log does not end at event {page.after} any more. "
                "Stop it, and begin again with an empty target"
            )

    async def write_events(self, events: Sequence[Event]) -> None:
        """A page of the log with the runs and spans it made, after the payloads they name."""
        ids = tuple(dict.fromkeys(event.run_id for event in events if event.run_id is not None))
        runs = [_resting(run) for run in await self._source.find(Runs(ids=ids, limit=len(ids)))] if ids else []
        await self._write_bodies([*_bodies_of(events), *(run.body for run in runs)])
        spans: list[Span] = []
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
            elif isinstance(event, ScheduleSnapshot):
                # The events of older spans went into the snapshot; their rows are all that is left of them.
                async for span in all_spans(self._source, event.schedule_id):
                    if span.through <= event.state.cursor:
                        spans.append(span)
        await self._write(Page(after=self.at, events=tuple(events), runs=tuple(runs), spans=tuple(spans)))
        self.at = events[-1].seq

    async def write_rows(self, now: Ms | None) -> int:
        """What no event tells; how many runs are running."""
        touched = {
            row.schedule.id: row.touched
            for row in (await self._source.due(Agenda.TOUCHED, _ALL, hold=0, now=now)).schedules
        }
        # A name that a deleted schedule gave up may be another's by now.
        for states in (("deleted",), ("active", "paused", "finished")):
            query = Schedules(states=states, limit=500)
            async for rows in _pages(self._source, query, lambda row: row.id):
                await self._write_schedules(rows, touched)
        # Parking and progress have no event, so what is open is read once more.
        async for runs in _pages(self._source, Runs(states=_OPEN, oldest_first=True, limit=500), lambda run: run.id):
            await self._write(Page(after=self.at, runs=tuple(map(_resting, runs))))
        holders: Counter[str] = Counter()
        running = 0
        async for run in all_rows(
            self._target, Runs(states=(State.RUNNING,), oldest_first=True, limit=500), lambda run: run.id
        ):
            running += 1
            holders.update(run.gates)
        async for gates in _pages(self._source, Gates(limit=1_000), lambda gate: gate.name):
            held = (replace(gate, held=holders[gate.name]) for gate in gates)
            await self._write(Page(after=self.at, gates=tuple(held)))
        tallies = await self._source.find(Tallies(limit=_ALL))
        for start in range(0, len(tallies), 1_000):
            await self._write(Page(after=self.at, tallies=tuple(tallies[start : start + 1_000])))
        await self._write_kept()
        return running

    async def _write_kept(self) -> None:
        """Secrets and keys; those that an earlier call brought and the source forgot since go again."""
        for kind in LASTING:
            names: set[str] = set()
            async for rows in _pages(self._source, KeptOnes(kind=kind, limit=500), lambda row: row.id):
                await self._target.keep(rows, replace=True)
                names.update(row.id for row in rows)
            async for row in all_rows(self._target, KeptOnes(kind=kind, limit=500), lambda row: row.id):
                if row.id not in names:
                    await self._target.forget(kind, [row.id])

    async def _write_schedules(self, rows: list[Schedule], touched: dict[str, int]) -> None:
        await self._write_bodies(row.spec.body for row in rows)
        mine = {row.id: touched[row.id] for row in rows if row.id in touched}
        await self._write(Page(after=self.at, schedules=tuple(rows), touched=mine))

    async def _write_bodies(self, names: Iterable[str | None]) -> None:
        """Payloads, in transactions of a bounded size; a name nobody has a payload for is passed over."""
        wanted = [name for name in dict.fromkeys(names) if name is not None and name not in self._sent]
        found: list[Body] = []
        size = 0
        for start in range(0, len(wanted), _PAYLOADS):
            ids = tuple(wanted[start : start + _PAYLOADS])
            for body in await self._source.find(Bodies(ids=ids, limit=len(ids))):
                found.append(body)
                size += len(body.data)
                if size >= PAYLOAD_BYTES:
                    await self._write(Page(after=self.at, bodies=tuple(found)))
                    found, size = [], 0
        if found:
            await self._write(Page(after=self.at, bodies=tuple(found)))
        if len(self._sent) > _REMEMBERED:
            self._sent.clear()
        self._sent.update(dict.fromkeys(wanted))


def _resting(run: Run) -> Run:
    """Nobody's lease moves with a run."""
    return replace(run, lease_until=0) if run.state is State.RUNNING else run


def _bodies_of(events: Iterable[Event]) -> Iterable[str | None]:
    """The payloads that events name, also those that no row names any more."""
    for event in events:
        yield getattr(event, "body", None)
        definition = getattr(event, "spec", None)
        if definition is not None:
            yield definition.body


async def _pages(store: Store, query: Query[T], key: Callable[[T], str]) -> AsyncIterator[list[T]]:
    """The rows of a query, as many at a time as it says."""
    while rows := await store.find(query):
        yield rows
        if len(rows) < query.limit:
            return
        query = replace(query, after=key(rows[-1]))


__all__ = ["PAGE", "Copied", "Mark", "Step", "check_source", "copy", "log_end"]
