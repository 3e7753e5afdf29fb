"""The memory store: the reference for every other backend. Dictionaries under the port's rules, nothing more."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from mainspring.model.change import (
    RUN_VALUES,
    Change,
    Result,
    RunAbsent,
    RunAt,
    RunLease,
    ScheduleAbsent,
    ScheduleAt,
)
from mainspring.model.events import Event, RunEvent, RunStarted, ScheduleEvent
from mainspring.model.gate import admit, may_be_early
from mainspring.model.instant import Ms
from mainspring.model.run import ENDED, OPEN, Run, State
from mainspring.model.schedule import Schedule
from mainspring.ports.store import (
    Agenda,
    Applied,
    Capabilities,
    Claim,
    Claimed,
    Due,
    DueSchedule,
    Lease,
    Offer,
    Renewed,
    Wish,
)
from mainspring.stores.memory_tables import MemoryTables, claim_order, claimable

_ACCEPTED = Result("accepted")


class MemoryStore(MemoryTables):
    """Everything lives as long as the process."""

    capabilities = Capabilities(durable=False, multi_process=False)

    async def open(self) -> None:
        """Nothing to prepare."""

    async def close(self) -> None:
        """Wake whoever waits; the data stays with the object."""
        self._hints.notify()

    # ── due ────────────────────────────────────────────────────────────────

    async def due(self, agenda: Agenda, limit: int, *, hold: Ms = 1_000, ahead: Ms = 0, now: Ms | None = None) -> Due:
        wall, lease_now = self._clocks(now)
        if agenda is Agenda.SCHEDULES:
            return self._due_schedules(limit, hold, wall, wall + ahead)
        if agenda is Agenda.TOUCHED:
            ids = [sid for sid in self._touched if self._held.get(sid, 0) <= wall][:limit]
            for sid in ids:
                self._held[sid] = wall + hold
            return Due(wall, None, tuple(self._due_schedule(sid) for sid in ids))
        if agenda is Agenda.EXPIRED:
            return self._due_expired(limit, hold, wall, lease_now)
        return Due(wall, None, unparked=self._unpark(limit, wall))

    def _due_schedules(self, limit: int, hold: Ms, wall: Ms, through: Ms) -> Due:
        ids: list[str] = []
        later: list[tuple[Ms, str]] = []
        early: list[tuple[Ms, str]] = []
        while self._agenda and self._agenda[0][0] <= through and len(ids) < limit:
            _, sid = heapq.heappop(self._agenda)
            schedule = self._schedules.get(sid)
            if schedule is None or schedule.next_at is None or schedule.state in ("finished", "deleted"):
                continue
            if schedule.next_at > through or sid in ids:
                continue
            held = self._held.get(sid, 0)
            if held > wall:
                later.append((held, sid))
                continue
            ids.append(sid)
            is_early = schedule.next_at > wall
            self._held[sid] = until = schedule.next_at if is_early else wall + hold
            (early if is_early else later).append((until, sid))
        for entry in later:
            heapq.heappush(self._agenda, entry)
        while self._agenda and not self._live_agenda_entry(self._agenda[0], wall):
            heapq.heappop(self._agenda)
        next_at = self._agenda[0][0] if self._agenda else None
        for entry in early:
            heapq.heappush(self._agenda, entry)
        ids.sort(key=lambda sid: (self._schedules[sid].next_at or 0, sid))
        return Due(wall, next_at, tuple(self._due_schedule(sid) for sid in ids))

    def _live_agenda_entry(self, entry: tuple[Ms, str], wall: Ms) -> bool:
        schedule = self._schedules.get(entry[1])
        if schedule is None or schedule.next_at is None or schedule.state in ("finished", "deleted"):
            return False
        return entry[0] in (schedule.next_at, self._held.get(schedule.id, 0)) or entry[0] <= wall

    def _due_schedule(self, sid: str) -> DueSchedule:
        runs = sorted((self._runs[rid] for rid in self._open.get(sid, ())), key=lambda run: run.id)
        waiting = sum(run.state is not State.RUNNING for run in runs)
        return DueSchedule(self._schedules[sid], len(runs), waiting, tuple(runs[:2]), self._touched.get(sid, 0))

    def _due_expired(self, limit: int, hold: Ms, wall: Ms, lease_now: Ms) -> Due:
        found: list[Run] = []
        next_in: Ms | None = None
        for rid in list(self._running):
            run = self._runs[rid]
            ends_in = (run.lease_until or 0) - lease_now
            held = self._held.get(rid, 0)
            if ends_in <= 0 and held <= wall and len(found) < limit:
                self._held[rid] = wall + hold
                found.append(run)
            else:
                wait = max(ends_in, held - wall, 0)
                next_in = wait if next_in is None else min(next_in, wait)
        return Due(wall, None if next_in is None else wall + next_in, runs=tuple(found))

    def _unpark(self, limit: int, wall: Ms) -> int:
        done = 0
        for name in list(self._parked):
            gate = self._gates.get(name)
            room = limit if gate is None else gate.room(wall)
            waiting = sorted((self._runs[rid] for rid in self._parked[name]), key=claim_order)
            for run in waiting[: min(room, limit - done)]:
                self._put_run(replace(run, parked_on=None))
                done += 1
            if not self._parked[name]:
                del self._parked[name]
        if done:
            self._hints.notify()
        return done

    # ── apply ──────────────────────────────────────────────────────────────

    async def apply(self, changes: Sequence[Change], *, wish: Wish | None = None, now: Ms | None = None) -> Applied:
        wall, lease_now = self._clocks(now)
        results = [self._apply_one(change, wall) for change in changes]
        self._hints.notify()
        claimed = None if wish is None else self._claim(wish.offer, wish.limit, (), wall, lease_now)
        return Applied(wall, results, claimed)

    def _plain_outcome(self, change: Change, wall: Ms) -> bool:
        """The short way for what happens most: a run ends under its lease and nothing else changes."""
        guard, run, events = change.guard, change.run, change.events
        if type(guard) is not RunLease or run is None or run.state not in ENDED or len(events) != 1:
            return False
        old, event = self._runs.get(guard.id), events[0]
        plain = old is not None and old.state is State.RUNNING and old.epoch == guard.epoch and not change.touches
        extra = change.runs or change.spans or change.bodies or change.gates or change.releases
        if old is None or not plain or extra or event.run_id != guard.id or not isinstance(event, RunEvent):
            return False
        self._put_run(
            replace(
                old,
                n=old.n + 1,
                state=run.state,
                ready_at=run.ready_at,
                failures=run.failures,
                crashes=run.crashes,
                reason=run.reason,
                result=run.result,
                error=run.error,
                began_at=run.began_at,
                ms=run.ms,
                dead=run.dead,
                ended_at=wall,
                owner=None,
                lease_until=None,
                parked_on=None,
                progress=None,
            )
        )
        self._record(event, wall, old.n + 1, change.id)
        return True

    def _apply_one(self, change: Change, wall: Ms) -> Result:
        if self._plain_outcome(change, wall):
            return _ACCEPTED
        refused = self._check(change)
        if refused is not None:
            return refused
        guard = change.guard
        inserted: dict[str, Run] = {}
        n = 0
        for body in change.bodies:
            self._bodies.setdefault(body.id, body.data)
        for gate in change.gates:
            known = self._gates.get(gate.name)
            self._gates[gate.name] = gate if known is None else replace(known, max=gate.max)
        if isinstance(guard, RunLease | RunAt):
            n = self._move_run(change, wall)
        elif isinstance(guard, RunAbsent):
            assert change.run is not None
            inserted[guard.id] = change.run
        elif isinstance(guard, ScheduleAt | ScheduleAbsent):
            n = self._write_schedule(change, wall)
        for run in change.runs:
            if run.id not in self._runs and (run.schedule_id, run.fire_key) not in self._fire_keys:
                inserted[run.id] = run
        born = Counter(event.run_id for event in change.events if isinstance(event, RunEvent))
        for run in inserted.values():
            moves = born[run.id]
            n = moves if isinstance(guard, RunAbsent) and run.id == guard.id else n
            ended = wall if run.state in ENDED else None
            self._put_run(replace(run, n=moves, created_at=wall, ended_at=ended))
        self._spans.extend(change.spans)
        for sid in change.touches:
            if sid in self._schedules:
                self._touched[sid] = self._touched.get(sid, 0) + 1
        for name in change.releases:
            held = self._gates.get(name)
            if held is not None:
                self._gates[name] = replace(held, held=max(0, held.held - 1))
        self._append(change, guard, n, inserted, wall)
        return Result("accepted", 0 if isinstance(guard, RunLease) else n)

    def _check(self, change: Change) -> Result | None:
        """None when the guard holds, else the answer that says why not."""
        guard = change.guard
        current: Run | Schedule | None = None
        if isinstance(guard, RunLease):
            run = self._runs.get(guard.id)
            if run is not None and run.state is State.RUNNING and run.epoch == guard.epoch:
                return None
            current = run
        elif isinstance(guard, RunAt):
            run = self._runs.get(guard.id)
            if run is not None and run.n == guard.n and not self._unique_taken(change.run, run):
                return None
            current = run
        elif isinstance(guard, RunAbsent):
            assert change.run is not None
            other = self._unique.get((change.run.ns, guard.unique_key)) if guard.unique_key is not None else None
            if guard.id not in self._runs and other is None:
                return None
            current = self._runs.get(guard.id) or self._runs[other or ""]
        elif isinstance(guard, ScheduleAt):
            schedule = self._schedules.get(guard.id)
            if schedule is not None and (schedule.revision, schedule.cursor, schedule.n) == (
                guard.revision,
                guard.cursor,
                guard.n,
            ):
                return None
            current = schedule
        elif isinstance(guard, ScheduleAbsent):
            other = self._names.get((guard.ns, guard.name))
            if guard.id not in self._schedules and other is None:
                return None
            current = self._schedules.get(guard.id) or self._schedules[other or ""]
        else:
            return None
        if current is not None and self._made(change, current):
            return Result("repeated", current.n, current)
        return Result("refused", current.n if current is not None else 0, current)

    def _unique_taken(self, new: Run | None, old: Run) -> bool:
        if new is None or new.unique_key is None or new.state not in OPEN or old.state in OPEN:
            return False
        return (new.ns, new.unique_key) in self._unique

    def _made(self, change: Change, row: Run | Schedule) -> bool:
        """True when an event of the guarded row, or of a run the change inserts, says this change was accepted."""
        own = self._run_events if isinstance(row, Run) else self._schedule_events
        found = [own.get(row.id, []), *(self._run_events.get(run.id, []) for run in change.runs)]
        return any(event.change == change.id for stream in found for event in stream)

    def _move_run(self, change: Change, wall: Ms) -> int:
        assert change.run is not None
        old = self._runs[change.run.id]
        moves = sum(e.run_id == old.id and isinstance(e, RunEvent) for e in change.events)
        values: dict[str, Any] = {name: getattr(change.run, name) for name in RUN_VALUES}
        if isinstance(change.guard, RunAt):
            values |= {"cancel": change.run.cancel, "body": change.run.body}
        if change.run.state is not State.RUNNING:
            values |= {"owner": None, "lease_until": None, "parked_on": None, "progress": None}
        if change.run.state in ENDED:
            values["ended_at"] = wall if old.state in OPEN else old.ended_at
        else:
            values["ended_at"] = None
        self._put_run(replace(old, n=old.n + moves, **values))
        return old.n + moves

    def _write_schedule(self, change: Change, wall: Ms) -> int:
        assert change.schedule is not None
        new = change.schedule
        old = self._schedules.get(new.id)
        moves = sum(e.schedule_id == new.id and isinstance(e, ScheduleEvent) for e in change.events)
        n = (old.n if old is not None else 0) + moves
        created = old.created_at if old is not None else wall
        new = replace(new, n=n, created_at=created, updated_at=wall if moves else (old.updated_at if old else wall))
        self._schedules[new.id] = new
        if new.state == "deleted":
            if self._names.get((new.ns, new.name)) == new.id:
                del self._names[new.ns, new.name]
        else:
            self._names[new.ns, new.name] = new.id
        self._held.pop(new.id, None)
        if isinstance(change.guard, ScheduleAt) and self._touched.get(new.id) == change.guard.touched:
            self._touched.pop(new.id, None)
        if new.next_at is not None:
            heapq.heappush(self._agenda, (new.next_at, new.id))
        return n

    def _append(self, change: Change, guard: object, n: int, inserted: dict[str, Run], wall: Ms) -> None:
        guarded = getattr(guard, "id", None)
        own = sum(_is_move_of(event, guarded) for event in change.events)
        numbers: dict[str | None, int] = defaultdict(int)
        numbers[guarded] = n - own if guarded not in inserted else 0
        for event in change.events:
            number: int | None = None
            if isinstance(event, RunEvent):
                if event.run_id != guarded and event.run_id not in inserted:
                    continue
                numbers[event.run_id] += 1
                number = numbers[event.run_id]
            elif isinstance(event, ScheduleEvent):
                numbers[event.schedule_id] += 1
                number = numbers[event.schedule_id]
            self._record(event, wall, number, change.id)

    # ── claim, renew ───────────────────────────────────────────────────────

    async def claim(self, offer: Offer, limit: int, *, ids: Sequence[str] = (), now: Ms | None = None) -> Claimed:
        return self._claim(offer, limit, ids, *self._clocks(now))

    def _claim(self, offer: Offer, limit: int, ids: Sequence[str], wall: Ms, lease_now: Ms) -> Claimed:
        candidates, unfit = self._candidates(offer, limit, set(ids), wall)
        if len(candidates) >= limit and any(run.gates or run.crashes for run in candidates):
            self._put_back(candidates)  # some may not pass: look deeper
            self._put_back(unfit)
            candidates, unfit = self._candidates(offer, 4 * limit, set(ids), wall)
        verdict = admit(candidates, self._gates, limit, wall, self._first_parked(candidates))
        self._put_back(unfit)
        for run, gate in verdict.parked:
            self._put_run(replace(run, parked_on=gate))
        for name, count in verdict.slots.items():
            self._gates[name] = replace(self._gates[name], held=self._gates[name].held + count)
        if len(verdict.taken) < len(candidates):
            taken = {run.id for run in verdict.taken} | {run.id for run, _ in verdict.parked}
            self._put_back([run for run in candidates if run.id not in taken])
        claims: list[Claim] = []
        for run in verdict.taken:
            started = replace(
                run,
                state=State.RUNNING,
                n=run.n + 1,
                epoch=run.epoch + 1,
                attempt=run.attempt + 1,
                owner=offer.owner,
                lease_until=lease_now + offer.ttl,
                started_at=max(wall, run.ready_at),
            )
            self._put_run(started)
            event = RunStarted(
                ns=run.ns,
                run_id=run.id,
                schedule_id=run.schedule_id,
                epoch=started.epoch,
                attempt=started.attempt,
                owner=offer.owner,
            )
            self._record(event, started.started_at or wall, started.n, None)
            claims.append(Claim(started, self._bodies.get(run.body) if run.body else None))
        return Claimed(wall, claims, self._next_ready(offer, wall))

    def _put_back(self, runs: list[Run]) -> None:
        for run in runs:
            heapq.heappush(self._queues[run.lane, run.priority].heap, (run.ready_at, run.id))

    def _candidates(self, offer: Offer, enough: int, ids: set[str], wall: Ms) -> tuple[list[Run], list[Run]]:
        """Due runs by priority then time, and those passed over (another task, not asked for)."""
        found: list[Run] = []
        unfit: list[Run] = []
        seen: set[str] = set()
        for priority in range(4):
            due: list[Run] = []
            for lane in offer.lanes:
                heap = self._queues[lane, priority].heap
                most = len(due) + enough
                while heap and heap[0][0] <= wall + offer.ahead and len(due) < most:
                    ready_at, rid = heapq.heappop(heap)
                    run = self._runs.get(rid)
                    if run is None or rid in seen or not claimable(run) or run.ready_at != ready_at:
                        continue
                    seen.add(rid)
                    in_time = ready_at <= wall or may_be_early(run.gates, run.crashes)
                    if in_time and run.task in offer.tasks and (not ids or rid in ids):
                        due.append(run)
                    else:
                        unfit.append(run)
            found.extend(sorted(due, key=claim_order))
            if len(found) >= enough:
                break
        return found, unfit

    def _first_parked(self, candidates: list[Run]) -> dict[str, tuple[int, Ms, str]]:
        names = {name for run in candidates for name in run.gates if self._parked.get(name)}
        return {name: min(claim_order(self._runs[rid]) for rid in self._parked[name]) for name in names}

    def _next_ready(self, offer: Offer, wall: Ms) -> Ms | None:
        """The next instant at which an offered run becomes claimable; what is due already counts as now."""
        best: Ms | None = None
        for lane in offer.lanes:
            for priority in range(4):
                heap = self._queues[lane, priority].heap
                while heap and not self._live_queue_entry(heap[0]):
                    heapq.heappop(heap)
                for ready_at, rid in heap[:1] if heap and self._runs[heap[0][1]].task in offer.tasks else sorted(heap):
                    run = self._runs.get(rid)
                    if run is not None and claimable(run) and run.ready_at == ready_at and run.task in offer.tasks:
                        best = ready_at if best is None else min(best, ready_at)
                        break
        return best

    def _live_queue_entry(self, entry: tuple[Ms, str]) -> bool:
        run = self._runs.get(entry[1])
        return run is not None and claimable(run) and run.ready_at == entry[0]

    async def renew(self, owner: str, leases: Sequence[tuple[str, int]], ttl: Ms, *, now: Ms | None = None) -> Renewed:
        wall, lease_now = self._clocks(now)
        kept: set[str] = set()
        lost: set[str] = set()
        cancel: dict[str, str] = {}
        named = {rid for rid, _ in leases}
        for rid, epoch in leases:
            run = self._runs.get(rid)
            if (
                run is None
                or run.state is not State.RUNNING
                or (run.owner, run.epoch) != (owner, epoch)
                or (run.lease_until or 0) <= lease_now
            ):
                lost.add(rid)
                continue
            kept.add(rid)
            self._runs[rid] = replace(run, lease_until=lease_now + ttl)
            if run.cancel is not None:
                cancel[rid] = run.cancel
        strays = tuple(r for r in (self._runs[i] for i in self._running) if r.owner == owner and r.id not in named)
        return Renewed(wall, frozenset(kept), frozenset(lost), cancel, strays)

    async def progress(self, run_id: str, epoch: int, text: str) -> bool:
        run = self._runs.get(run_id)
        if run is None or run.state is not State.RUNNING or run.epoch != epoch:
            return False
        self._runs[run_id] = replace(run, progress=text)
        return True

    # ── leases, hints ──────────────────────────────────────────────────────

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
        wall, lease_now = self._clocks(now)
        old = self._leases.get(name)
        live = old is not None and old.live and old.expires_at > lease_now
        if epoch is None:
            if live:
                return None
            epoch = 1 if old is None else old.epoch + 1
        elif old is None or not live or (old.owner, old.epoch) != (owner, epoch):
            return None
        else:
            data = old.data if data is None else data
        self._leases[name] = Lease(name, owner, epoch, lease_now + ttl, wall, data)
        return self._leases[name]

    async def release(self, name: str, owner: str, epoch: int, *, now: Ms | None = None) -> bool:
        old = self._leases.get(name)
        if old is None or not old.live or (old.owner, old.epoch) != (owner, epoch):
            return False
        self._leases[name] = replace(old, live=False)
        return True

    async def wait(self, timeout: float) -> bool:
        return await self._hints.wait(timeout)


def _is_move_of(event: Event, row_id: str | None) -> bool:
    return (isinstance(event, RunEvent) and event.run_id == row_id) or (
        isinstance(event, ScheduleEvent) and event.schedule_id == row_id
    )
