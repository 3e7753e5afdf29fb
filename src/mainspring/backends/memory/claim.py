"""The memory store's `claim`, `renew` and `progress`: leases on runs."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from msgspec.structs import replace

from mainspring.backends.memory.tables import MemoryTables, claim_order, is_claimable
from mainspring.model.events import RunStarted
from mainspring.model.gate import admit, can_claim_ahead
from mainspring.model.instant import Ms
from mainspring.model.run import Run, State
from mainspring.ports.store import Claim, Claimed, Offer, Renewed

_PRIORITIES = range(4)


class MemoryClaim(MemoryTables):
    """The part of `MemoryStore` that implements the port's `claim`, `renew` and `progress`."""

    async def claim(self, offer: Offer, limit: int, *, ids: Sequence[str] = (), now: Ms | None = None) -> Claimed:
        return self._claim(offer, limit, ids, *self._clocks(now))

    def _claim(self, offer: Offer, limit: int, ids: Sequence[str], wall: Ms, lease_now: Ms) -> Claimed:
        """Lease up to `limit` due runs to the offer's owner; return their claims, and when the next run can be claimed.

        Only runs that the offer covers are claimed, and only those of `ids` unless it is empty. Runs that a gate
        refuses are parked. `wall`: the present time. `lease_now`: the present time by the clock of leases.
        """
        taken = self._admit(offer, limit, set(ids), wall)
        claims = [self._start(run, offer, wall, lease_now) for run in taken]
        return Claimed(wall, claims, self._next_ready(offer, wall))

    def _admit(self, offer: Offer, limit: int, ids: set[str], wall: Ms) -> list[Run]:
        """Take due runs off the queues, return up to `limit` that pass their gates, and take slots of these gates.

        Runs that a gate refuses are parked. Runs that are neither returned nor parked go back to their queues. `ids`:
        consider only these runs; empty: all. `wall`: the present time.
        """
        candidates, unfit = self._candidates(offer, limit, ids, wall)
        if len(candidates) >= limit and any(run.gates or run.crashes for run in candidates):
            self._put_back(candidates)  # gates may refuse some of them: read more
            self._put_back(unfit)
            candidates, unfit = self._candidates(offer, 4 * limit, ids, wall)
        verdict = admit(candidates, self._gates, limit, wall, self._first_parked(candidates))
        self._put_back(unfit)
        for run, gate in verdict.parked:
            self._put_run(replace(run, parked_on=gate))
        for name, count in verdict.slots.items():
            self._gates[name] = replace(self._gates[name], held=self._gates[name].held + count)
        if len(verdict.taken) < len(candidates):
            decided = {run.id for run in verdict.taken} | {run.id for run, _ in verdict.parked}
            self._put_back([run for run in candidates if run.id not in decided])
        return verdict.taken

    def _start(self, run: Run, offer: Offer, wall: Ms, lease_now: Ms) -> Claim:
        """Write the run as running under a new lease, with its RunStarted event; return its claim.

        `wall`: the present time. `lease_now`: the present time by the clock of leases.
        """
        started_at = max(wall, run.ready_at)
        started = replace(
            run,
            state=State.RUNNING,
            n=run.n + 1,
            epoch=run.epoch + 1,
            attempt=run.attempt + 1,
            owner=offer.owner,
            lease_until=lease_now + offer.ttl,
            started_at=started_at,
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
        self._record(event, started_at or wall, started.n, None)
        return Claim(started, self._bodies.get(run.body) if run.body else None)

    def _put_back(self, runs: list[Run]) -> None:
        """Put runs that were taken off their queues on the queues again."""
        for run in runs:
            heapq.heappush(self._queues[run.lane, run.priority].heap, (run.ready_at, run.id))

    def _candidates(self, offer: Offer, enough: int, ids: set[str], wall: Ms) -> tuple[list[Run], list[Run]]:
        """Take runs that fall due by `wall + offer.ahead` off the offer's queues; return (runs that fit, all others).

        A run fits if its task is offered, `ids` is empty or has it, and it is due or may be claimed ahead. Runs that
        fit are in the order of claims; the caller puts the others back. At most `enough` fitting runs are taken per
        queue; less urgent priorities are read only while fewer than `enough` fit in all. `wall`: the present time.
        """
        found: list[Run] = []
        unfit: list[Run] = []
        seen: set[str] = set()
        for priority in _PRIORITIES:
            due: list[Run] = []
            for lane in offer.lanes:
                self._pop_due(lane, priority, offer, enough, ids, wall, (due, unfit, seen))
            found.extend(sorted(due, key=claim_order))
            if len(found) >= enough:
                break
        return found, unfit

    def _pop_due(
        self,
        lane: str,
        priority: int,
        offer: Offer,
        enough: int,
        ids: set[str],
        wall: Ms,
        into: tuple[list[Run], list[Run], set[str]],
    ) -> None:
        """Take due runs off one queue into the lists of `into`, until `enough` of them fit; remove stale entries.

        `into`: runs that fit, runs that do not fit, ids of all runs seen so far. A run fits if its task is offered, it
        is in `ids` (empty: any run), and it is due or may be claimed ahead. `wall`: the present time.
        """
        due, unfit, seen = into
        heap = self._queues[lane, priority].heap
        most = len(due) + enough
        while heap and heap[0][0] <= wall + offer.ahead and len(due) < most:
            ready_at, rid = heapq.heappop(heap)
            run = self._runs.get(rid)
            if run is None or rid in seen or not is_claimable(run) or run.ready_at != ready_at:
                continue
            seen.add(rid)
            in_time = ready_at <= wall or can_claim_ahead(run.gates, run.crashes)
            if in_time and run.task in offer.tasks and (not ids or rid in ids):
                due.append(run)
            else:
                unfit.append(run)

    def _first_parked(self, candidates: list[Run]) -> dict[str, tuple[int, Ms, str]]:
        """Return gate name → place in the order of claims (`claim_order`) of the first run that is parked at the gate.

        Only gates of the candidates at which runs are parked are included.
        """
        names = {name for run in candidates for name in run.gates if self._parked.get(name)}
        return {name: min(claim_order(self._runs[rid]) for rid in self._parked[name]) for name in names}

    def _next_ready(self, offer: Offer, wall: Ms) -> Ms | None:
        """Return when the first run of the offer's lanes and tasks becomes claimable; None: there is no such run.

        It is a past instant if a run is due already. `wall` is not used.
        """
        times = [self._first_ready(lane, priority, offer) for lane in offer.lanes for priority in _PRIORITIES]
        return min((at for at in times if at is not None), default=None)

    def _first_ready(self, lane: str, priority: int, offer: Offer) -> Ms | None:
        """Return the earliest `ready_at` of a run with an offered task in the queue of this lane and priority.

        None if there is no such run. Stale entries at the head of the queue are removed.
        """
        heap = self._queues[lane, priority].heap
        while heap and not self._is_queued(heap[0]):
            heapq.heappop(heap)
        if not heap or self._runs[heap[0][1]].task in offer.tasks:
            return heap[0][0] if heap else None
        current = (entry for entry in sorted(heap) if self._is_queued(entry))
        return next((at for at, rid in current if self._runs[rid].task in offer.tasks), None)

    def _is_queued(self, entry: tuple[Ms, str]) -> bool:
        """Return True if an entry (ready_at, run id) of a queue is of a claimable run; False if the entry is stale."""
        run = self._runs.get(entry[1])
        return run is not None and is_claimable(run) and run.ready_at == entry[0]

    async def renew(self, owner: str, leases: Sequence[tuple[str, int]], ttl: Ms, *, now: Ms | None = None) -> Renewed:
        wall, lease_now = self._clocks(now)
        kept: set[str] = set()
        cancel: dict[str, str] = {}
        named = {rid for rid, _ in leases}
        for rid, epoch in leases:
            run = self._leased_run(rid, owner, epoch, lease_now)
            if run is None:
                continue
            kept.add(rid)
            self._runs[rid] = replace(run, lease_until=lease_now + ttl)
            if run.cancel is not None:
                cancel[rid] = run.cancel
        strays = tuple(r for r in (self._runs[i] for i in self._running) if r.owner == owner and r.id not in named)
        return Renewed(wall, frozenset(kept), frozenset(named - kept), cancel, strays)

    def _leased_run(self, rid: str, owner: str, epoch: int, lease_now: Ms) -> Run | None:
        """Return the run `rid` if the owner's lease of this epoch still holds, else None.

        `lease_now`: the present time by the clock of leases.
        """
        run = self._runs.get(rid)
        if run is None or run.state is not State.RUNNING or (run.owner, run.epoch) != (owner, epoch):
            return None
        return run if (run.lease_until or 0) > lease_now else None

    async def progress(self, run_id: str, epoch: int, text: str) -> bool:
        run = self._runs.get(run_id)
        if run is None or run.state is not State.RUNNING or run.epoch != epoch:
            return False
        self._runs[run_id] = replace(run, progress=text)
        return True
