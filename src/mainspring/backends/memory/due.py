"""The memory store's `due`: the agendas of schedules, touched schedules, expired leases and gates."""

from __future__ import annotations

import heapq

from msgspec.structs import replace

from mainspring.backends.memory.tables import MemoryTables, claim_order
from mainspring.model.instant import Ms
from mainspring.model.run import Run, State
from mainspring.ports.store import Agenda, Due, DueSchedule


class MemoryDue(MemoryTables):
    """The part of `MemoryStore` that implements the port's `due`."""

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
        """Hold up to `limit` schedules whose next fire is at `through` or earlier; return them in the order of fires.

        `next_at` in the answer is when a further schedule falls due or a hold ends, whichever is first. `hold`: how
        long to hold a schedule. `wall`: the present time.
        """
        ids, early = self._hold_schedules(limit, hold, wall, through)
        while self._agenda and not self._is_current(self._agenda[0], wall):
            heapq.heappop(self._agenda)
        next_at = self._agenda[0][0] if self._agenda else None
        # Only now, so that `next_at` leaves these entries out: the caller plans the early fires itself.
        for entry in early:
            heapq.heappush(self._agenda, entry)
        ids.sort(key=lambda sid: (self._schedules[sid].next_at or 0, sid))
        return Due(wall, next_at, tuple(self._due_schedule(sid) for sid in ids))

    def _hold_schedules(self, limit: int, hold: Ms, wall: Ms, through: Ms) -> tuple[list[str], list[tuple[Ms, str]]]:
        """Hold up to `limit` schedules whose next fire is at `through` or earlier; return (their ids, heap entries).

        A schedule that is due at the present time `wall` is held for `hold` ms. A schedule that is due later is held
        until its fire, and its entry (fire time, id) is taken off the heap of fire times: these entries are returned,
        and the caller puts them back.
        """
        ids: list[str] = []
        later: list[tuple[Ms, str]] = []
        early: list[tuple[Ms, str]] = []
        while self._agenda and self._agenda[0][0] <= through and len(ids) < limit:
            _, sid = heapq.heappop(self._agenda)
            next_at = self._next_fire(sid)
            if next_at is None or next_at > through or sid in ids:
                continue
            held = self._held.get(sid, 0)
            if held > wall:
                later.append((held, sid))
                continue
            ids.append(sid)
            is_early = next_at > wall
            self._held[sid] = until = next_at if is_early else wall + hold
            (early if is_early else later).append((until, sid))
        for entry in later:
            heapq.heappush(self._agenda, entry)
        return ids, early

    def _next_fire(self, sid: str) -> Ms | None:
        """Return when the schedule must be settled next; None if it has no such time, has ended or does not exist."""
        schedule = self._schedules.get(sid)
        return None if schedule is None or schedule.state in ("finished", "deleted") else schedule.next_at

    def _is_current(self, entry: tuple[Ms, str], wall: Ms) -> bool:
        """Return True if an entry (time, schedule id) of the heap is current, False if a later write made it stale.

        A current entry is of a schedule that has a `next_at`. The entry's time is past, or is this `next_at`, or is the
        end of the schedule's hold. `wall`: the present time.
        """
        next_at = self._next_fire(entry[1])
        return next_at is not None and (entry[0] in (next_at, self._held.get(entry[1], 0)) or entry[0] <= wall)

    def _due_schedule(self, sid: str) -> DueSchedule:
        runs = sorted((self._runs[rid] for rid in self._open.get(sid, ())), key=lambda run: run.id)
        waiting = sum(run.state is not State.RUNNING for run in runs)
        return DueSchedule(self._schedules[sid], len(runs), waiting, tuple(runs[:2]), self._touched.get(sid, 0))

    def _due_expired(self, limit: int, hold: Ms, wall: Ms, lease_now: Ms) -> Due:
        """Hold up to `limit` running runs whose lease ended, for `hold` ms, and return them.

        `next_at` in the answer is the instant at which the next of the other running runs is due, when both its lease
        and its hold, if it has one, have ended. `wall`: the present time. `lease_now`: the present time by the clock of
        leases.
        """
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
        """Make up to `limit` parked runs claimable where their gate has room; return how many.

        If there are any, wake the callers of `wait`. The runs of one gate are taken in the order of claims. A gate that
        does not exist has room for all. `wall`: the present time.
        """
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
