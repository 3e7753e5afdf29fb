"""The memory store's tables and indexes, how they are read, and what retention removes."""

from __future__ import annotations

import bisect
import hashlib
import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar, cast

from msgspec.structs import replace

from mainspring.model.change import (
    Body,
)
from mainspring.model.events import (
    Event,
    LogCompacted,
    ScheduleEvent,
    ScheduleSnapshot,
    definitions,
)
from mainspring.model.gate import Gate
from mainspring.model.instant import Ms
from mainspring.model.kept import Kept
from mainspring.model.run import CLAIMABLE, OPEN, Run, State
from mainspring.model.schedule import Schedule, Span
from mainspring.ports.clock import Clock, SystemClock
from mainspring.ports.store import (
    Bodies,
    Events,
    Gates,
    KeptOnes,
    LaneCount,
    Lanes,
    Lease,
    Leases,
    Page,
    Purged,
    Query,
    Retention,
    Runs,
    Schedules,
    Spans,
    Tallies,
    Tally,
)
from mainspring.stores.hints import Hints

T = TypeVar("T")
DAY_MS = 86_400_000
_MOVES = frozenset(cls.__name__ for cls in ScheduleEvent.__subclasses__())


class _Queue:
    """Claimable runs of one lane and priority: a heap by (ready_at, id); stale entries are dropped when met."""

    def __init__(self) -> None:
        self.heap: list[tuple[Ms, str]] = []


class MemoryTables:
    """Rows, log and indexes; `MemoryStore` adds the verbs that decide."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._hints = Hints()
        self._seq = 0
        self._runs: dict[str, Run] = {}
        self._schedules: dict[str, Schedule] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._log: list[Event] = []
        self._notes: list[Event] = []
        self._run_events: dict[str, list[Event]] = defaultdict(list)
        self._schedule_events: dict[str, list[Event]] = defaultdict(list)
        self._fire_keys: dict[tuple[str | None, str | None], str] = {}
        self._unique: dict[tuple[str, str], str] = {}
        self._bodies: dict[str, str] = {}
        self._spans: list[Span] = []
        self._gates: dict[str, Gate] = {}
        self._leases: dict[str, Lease] = {}
        self._tallies: dict[tuple[str | None, int, str], int] = defaultdict(int)
        self._kept: dict[tuple[str, str], Kept] = {}
        # operational indexes
        self._of_schedule: dict[str, dict[str, None]] = defaultdict(dict)
        self._open: dict[str, dict[str, None]] = defaultdict(dict)
        self._running: dict[str, None] = {}
        self._ended: list[tuple[Ms, str]] = []  # a heap; the head says whether retention has anything to do
        self._queues: dict[tuple[str, int], _Queue] = defaultdict(_Queue)
        self._parked: dict[str, dict[str, None]] = defaultdict(dict)
        self._agenda: list[tuple[Ms, str]] = []
        self._held: dict[str, Ms] = {}
        self._touched: dict[str, int] = {}

    def _clocks(self, now: Ms | None) -> tuple[Ms, Ms]:
        """(wall time, lease time); a test's `now` stands for both."""
        return (self._clock.now(), self._clock.boot()) if now is None else (now, now)

    def _record(self, event: Event, at: Ms, n: int | None, change: str | None) -> None:
        self._seq += 1
        self._keep(replace(event, seq=self._seq, at=at, n=n, change=change))

    def _keep(self, event: Event) -> None:
        self._log.append(event)
        if event.n is None:
            self._notes.append(event)
        if event.run_id is not None:
            self._run_events[event.run_id].append(event)
        if isinstance(event, ScheduleEvent) and event.schedule_id is not None:
            self._schedule_events[event.schedule_id].append(event)

    def _put_run(self, run: Run) -> None:
        """Write a row and keep every index true."""
        before = self._runs.get(run.id)
        if run.ended_at is not None and (before is None or before.ended_at != run.ended_at):
            heapq.heappush(self._ended, (run.ended_at, run.id))
        self._runs[run.id] = run
        is_open = run.state in OPEN
        if run.schedule_id is not None:
            if before is None:
                self._of_schedule[run.schedule_id][run.id] = None
            if run.fire_key is not None:
                self._fire_keys[run.schedule_id, run.fire_key] = run.id
            if is_open:
                self._open[run.schedule_id][run.id] = None
            elif run.schedule_id in self._open:
                self._open[run.schedule_id].pop(run.id, None)
                if not self._open[run.schedule_id]:
                    del self._open[run.schedule_id]
        if run.unique_key is not None:
            key = (run.ns, run.unique_key)
            if is_open:
                self._unique[key] = run.id
            elif self._unique.get(key) == run.id:
                del self._unique[key]
        if run.state is State.RUNNING:
            self._running[run.id] = None
        else:
            self._running.pop(run.id, None)
            self._held.pop(run.id, None)
        for gate in run.gates:
            if gate in self._parked:
                self._parked[gate].pop(run.id, None)
        if run.state in CLAIMABLE:
            if run.parked_on is not None:
                self._parked[run.parked_on][run.id] = None
            else:
                heapq.heappush(self._queues[run.lane, run.priority].heap, (run.ready_at, run.id))

    # ── restore ────────────────────────────────────────────────────────────

    async def restore(self, page: Page) -> bool:
        if (self._log[-1].seq if self._log else 0) != page.after:
            return False
        self._bodies.update({body.id: body.data for body in page.bodies})
        for run in page.runs:
            self._put_run(run)
        for schedule in page.schedules:
            self._put_schedule(schedule, page.touched.get(schedule.id, 0))
        self._spans.extend(page.spans)
        self._gates.update({gate.name: gate for gate in page.gates})
        self._tallies.update({(row.schedule_id, row.day, row.outcome): row.count for row in page.tallies})
        for event in page.events:
            self._keep(event)
            self._seq = max(self._seq, event.seq)
        self._hints.notify()
        return True

    def _put_schedule(self, schedule: Schedule, touched: int) -> None:
        name = (schedule.ns, schedule.name)
        if schedule.state != "deleted":
            self._names[name] = schedule.id
        elif self._names.get(name) == schedule.id:
            del self._names[name]
        self._schedules[schedule.id] = schedule
        self._touched.pop(schedule.id, None)
        if touched:
            self._touched[schedule.id] = touched
        if schedule.next_at is not None:
            heapq.heappush(self._agenda, (schedule.next_at, schedule.id))

    # ── find, tail ─────────────────────────────────────────────────────────

    async def find(self, query: Query[T]) -> list[T]:
        answer = self._FIND[type(query)](self, query)
        return cast("list[T]", answer)

    async def tail(self, after: int, limit: int) -> list[Event]:
        start = bisect.bisect_right(self._log, after, key=lambda event: event.seq)
        return self._log[start : start + limit]

    def _find_runs(self, q: Runs) -> list[Run]:
        rows: Iterable[Run]
        if q.id is not None:
            rows = [self._runs[q.id]] if q.id in self._runs else []
        elif q.ids is not None:
            rows = [self._runs[rid] for rid in q.ids if rid in self._runs]
        elif q.schedule_id is not None:
            rows = [self._runs[rid] for rid in self._of_schedule.get(q.schedule_id, ()) if rid in self._runs]
        else:
            rows = self._runs.values()
        found = [run for run in rows if _run_matches(run, q)]
        found.sort(key=lambda run: run.id, reverse=not q.oldest_first)
        return found[: q.limit]

    def _find_schedules(self, q: Schedules) -> list[Schedule]:
        rows = (
            s
            for s in self._schedules.values()
            if (q.id is None or s.id == q.id)
            and (q.ns is None or s.ns == q.ns)
            and (q.name is None or s.name == q.name)
            and (s.state in q.states if q.states is not None else s.state != "deleted" or q.id is not None)
            and (q.app is None or s.app == q.app)
            and (q.due_before is None or (s.next_at is not None and s.next_at <= q.due_before))
            and not (q.unplanned and (s.state != "active" or s.next_at is not None))
            and (q.after is None or s.id > q.after)
        )
        return sorted(rows, key=lambda s: s.id)[: q.limit]

    def _find_spans(self, q: Spans) -> list[Span]:
        rows = [
            s
            for s in self._spans
            if (q.schedule_id is None or s.schedule_id == q.schedule_id) and (q.since is None or s.through > q.since)
        ]
        rows.sort(key=lambda s: (s.schedule_id, s.through, s.after))
        start = int(q.after) if q.after else 0
        return rows[start : start + q.limit]

    def _find_events(self, q: Events) -> list[Event]:
        rows: Iterable[Event]
        if q.run_id is not None:
            rows = self._run_events.get(q.run_id, [])
        elif q.schedule_id is not None and q.types is not None and _MOVES.issuperset(q.types):
            rows = self._schedule_events.get(q.schedule_id, [])
        else:
            rows = self._log
        after = int(q.after) if q.after else 0
        found = (
            e
            for e in rows
            if e.seq > after
            and (q.schedule_id is None or e.schedule_id == q.schedule_id)
            and (q.types is None or type(e).__name__ in q.types)
            and (q.since is None or e.at >= q.since)
            and (q.until is None or e.at < q.until)
        )
        return [event for _, event in zip(range(q.limit), found, strict=False)]

    def _find_bodies(self, q: Bodies) -> list[Body]:
        return [Body(i, self._bodies[i]) for i in q.ids if i in self._bodies]

    def _find_gates(self, q: Gates) -> list[Gate]:
        rows = (g for g in self._gates.values() if q.names is None or g.name in q.names)
        return [g for g in sorted(rows, key=lambda g: g.name) if q.after is None or g.name > q.after][: q.limit]

    def _find_lanes(self, q: Lanes) -> list[LaneCount]:
        counts: dict[tuple[str, int], int] = defaultdict(int)
        for run in self._runs.values():
            if claimable(run):
                counts[run.lane, run.priority] += 1
        return [LaneCount(lane, priority, n) for (lane, priority), n in sorted(counts.items())]

    def _find_leases(self, q: Leases) -> list[Lease]:
        _, lease_now = self._clocks(None)
        names = sorted(name for name in self._leases if name.startswith(q.prefix) and name > (q.after or ""))
        rows = (self._leases[name] for name in names[: q.limit])
        return [replace(x, live=x.live and x.expires_at > lease_now) for x in rows]

    def _find_tallies(self, q: Tallies) -> list[Tally]:
        return [
            Tally(sid, day, outcome, count)
            for (sid, day, outcome), count in sorted(self._tallies.items(), key=lambda kv: (kv[0][0] or "", *kv[0][1:]))
            if q.schedule_id is None or q.schedule_id == sid
        ]

    def _find_kept(self, q: KeptOnes) -> list[Kept]:
        now, _ = self._clocks(None)
        wanted = None if q.ids is None else frozenset(q.ids)
        rows = (
            one
            for (kind, name), one in sorted(self._kept.items())
            if kind == q.kind
            and name > (q.after or "")
            and (wanted is None or name in wanted)
            and not _expired(one, now)
        )
        return [one for _, one in zip(range(q.limit), rows, strict=False)]

    _FIND: ClassVar[dict[type, Callable[..., Sequence[Any]]]] = {
        Runs: _find_runs,
        Schedules: _find_schedules,
        Spans: _find_spans,
        Events: _find_events,
        Bodies: _find_bodies,
        Gates: _find_gates,
        Lanes: _find_lanes,
        Leases: _find_leases,
        Tallies: _find_tallies,
        KeptOnes: _find_kept,
    }

    # ── kept things ────────────────────────────────────────────────────────

    async def keep(self, items: Sequence[Kept], *, replace: bool = False, now: Ms | None = None) -> list[bool]:
        wall, _ = self._clocks(now)
        answers = []
        for item in items:
            old = self._kept.get((item.kind, item.id))
            free = replace or old is None or _expired(old, wall)
            answers.append(free)
            if free:
                self._kept[item.kind, item.id] = _dated(item, wall)
        return answers

    async def forget(self, kind: str, ids: Sequence[str]) -> int:
        return sum(self._kept.pop((kind, name), None) is not None for name in ids)

    # ── purge ──────────────────────────────────────────────────────────────

    async def purge(self, policy: Retention, limit: int, *, now: Ms | None = None) -> Purged:
        wall, lease_now = self._clocks(now)
        before = policy.ended_before
        doomed = list(self._purgeable(policy, limit + 1))
        spans = [s for s in self._spans if s.through < before]
        notes = self._old_notes(before)
        leases = [
            name
            for name, lease in self._leases.items()
            if name.startswith(policy.lease_prefix)
            and lease.renewed_at < policy.leases_before
            and not (lease.live and lease.expires_at > lease_now)
        ]
        gone = [
            row
            for row in self._schedules.values()
            if row.state == "deleted"
            and row.updated_at < before
            and not self._of_schedule.get(row.id)
            and not any(span.schedule_id == row.id for span in self._spans)
        ]
        past = [key for key, one in self._kept.items() if _expired(one, wall)]
        if not (doomed or spans or notes or gone or leases or past):
            return Purged()
        more = any(len(rows) > limit for rows in (doomed, notes, gone, leases, past))
        doomed, notes, gone, leases = doomed[:limit], notes[:limit], gone[:limit], leases[:limit]
        for name in leases:
            del self._leases[name]
        for thing in past[:limit]:
            del self._kept[thing]
        schedules = {run.schedule_id for run in doomed} | {span.schedule_id for span in spans}
        removed: set[int] = set()
        tallies: Counter[tuple[str | None, int, str]] = Counter()
        for run in doomed:
            kind = "fire" if run.origin == "fire" else "adhoc"
            day = (run.fire_time if run.fire_time is not None else run.created_at) // DAY_MS
            tallies[run.schedule_id, day, f"{kind}/{run.state}"] += 1
            removed.update(e.seq for e in self._run_events.pop(run.id, ()))
            del self._runs[run.id]
            if run.schedule_id is not None:
                self._of_schedule[run.schedule_id].pop(run.id, None)
            self._fire_keys.pop((run.schedule_id, run.fire_key), None)
        for span in spans:
            tallies[span.schedule_id, span.through // DAY_MS, f"span/{span.reason}"] += span.count
        for key, count in tallies.items():
            self._tallies[key] += count
        self._spans = [s for s in self._spans if s.through >= policy.ended_before]
        for row in gone:
            removed.update(self._forget(row.id))
        used = {run.body for run in self._runs.values()} | {s.spec.body for s in self._schedules.values()}
        bodies = {run.body for run in doomed} | {row.spec.body for row in gone}
        orphans = [i for i in bodies if i is not None and i not in used]
        for orphan in orphans:
            self._bodies.pop(orphan, None)
        for sid in sorted(s for s in schedules if s is not None and s in self._schedules):
            row = self._schedules[sid]
            stream = self._schedule_events.pop(sid, [])
            removed.update(e.seq for e in stream)
            self._log = [e for e in self._log if e.seq not in removed]
            snapshot = ScheduleSnapshot(ns=row.ns, schedule_id=sid, state=row, definitions=definitions(stream))
            self._record(snapshot, wall, row.n, None)
        for note in notes:
            if note.run_id in self._run_events:
                self._run_events[note.run_id].remove(note)
        dropped = removed.union(note.seq for note in notes)
        self._log = [e for e in self._log if e.seq not in dropped]
        self._notes = [e for e in self._notes if e.seq not in dropped]
        answer = Purged(
            runs=len(doomed),
            events=len(removed),
            spans=len(spans),
            bodies=len(orphans),
            more=more,
            notes=len(notes),
            schedules=len(gone),
            leases=len(leases),
            kept=len(past[:limit]),
        )
        if not (doomed or spans or gone):
            return answer
        digest = hashlib.blake2b(",".join(map(str, sorted(removed))).encode(), digest_size=16).hexdigest()
        compacted = LogCompacted(
            through=max(removed, default=0),
            streams=len(doomed),
            events=len(removed),
            tallies=len(tallies),
            digest=digest,
        )
        self._record(compacted, wall, None, None)
        return answer

    def _old_notes(self, before: Ms) -> list[Event]:
        """Notes that may go; the newest word of a compaction stays, the tallies rest on it."""
        newest = max((e.seq for e in self._notes if isinstance(e, LogCompacted)), default=0)
        return [e for e in self._notes if e.at < before and e.seq != newest]

    def _forget(self, schedule_id: str) -> list[int]:
        """Remove a schedule with its stream and gate, and keep its tallies in nobody's name; the numbers that went."""
        del self._schedules[schedule_id]
        self._of_schedule.pop(schedule_id, None)
        for key in [key for key in self._tallies if key[0] == schedule_id]:
            self._tallies[None, key[1], key[2]] += self._tallies.pop(key)
        gate = self._gates.get(f"schedule:{schedule_id}")
        if gate is not None and gate.held == 0:
            del self._gates[gate.name]
        return [event.seq for event in self._schedule_events.pop(schedule_id, ())]

    def _purgeable(self, policy: Retention, limit: int) -> Iterator[Run]:
        while self._ended and getattr(self._runs.get(self._ended[0][1]), "ended_at", None) != self._ended[0][0]:
            heapq.heappop(self._ended)
        if not self._ended or self._ended[0][0] >= policy.ended_before:
            return
        ended = (
            run
            for run in self._runs.values()
            if run.ended_at is not None and run.ended_at < policy.ended_before and not (policy.keep_dead and run.dead)
        )
        for _, run in zip(range(limit), ended, strict=False):
            yield run


def _expired(one: Kept, now: Ms) -> bool:
    return one.expires_at is not None and one.expires_at <= now


def _dated(one: Kept, now: Ms) -> Kept:
    return one if one.created_at else replace(one, created_at=now)


def claimable(run: Run) -> bool:
    return run.state in CLAIMABLE and run.parked_on is None


def claim_order(run: Run) -> tuple[int, Ms, str]:
    return (run.priority, run.ready_at, run.id)


def _run_matches(run: Run, q: Runs) -> bool:
    after = q.after is None or (run.id > q.after if q.oldest_first else run.id < q.after)
    return (
        after
        and (q.ns is None or run.ns == q.ns)
        and (q.schedule_id is None or run.schedule_id == q.schedule_id)
        and (q.task is None or run.task == q.task)
        and (q.states is None or run.state in q.states)
        and (q.origin is None or run.origin == q.origin)
        and (q.fire_time is None or run.fire_time == q.fire_time)
        and (q.fired_since is None or (run.fire_time is not None and run.fire_time > q.fired_since))
        and (q.created_since is None or run.created_at >= q.created_since)
        and (q.due_before is None or run.ready_at <= q.due_before)
        and (q.dead is None or run.dead == q.dead)
        and (q.unique_key is None or run.unique_key == q.unique_key)
    )
