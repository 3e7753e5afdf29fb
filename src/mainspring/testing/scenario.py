"""A store driven by hand: schedules, settling, claims and outcomes through the rules, at instants the test gives."""

from __future__ import annotations

from mainspring.model.change import Body, Change, RunAbsent, RunAt, RunLease
from mainspring.model.events import RunScheduled
from mainspring.model.gate import Gate
from mainspring.model.ids import body_id
from mainspring.model.instant import Ms
from mainspring.model.policies import RunOptions
from mainspring.model.run import CLAIMABLE, OPEN, Run, State
from mainspring.model.schedule import Schedule, ScheduleSpec, ScheduleState
from mainspring.ports.store import Agenda, Offer, Runs, Schedules, Store
from mainspring.rules import lifecycle, scheduling
from mainspring.rules.draft import Draft
from mainspring.rules.planning import OpenRuns, settle
from mainspring.testing.factories import Ids

_STATES: tuple[ScheduleState, ...] = ("active", "paused", "finished", "deleted")


class Scenario:
    """Makes real histories: every write is what the engine would write."""

    def __init__(self, store: Store, *, task: str = "t", lane: str = "default/default") -> None:
        self.store = store
        self.ids = Ids()
        self.task = task
        self.lane = lane

    # ── schedules ──────────────────────────────────────────────────────────

    async def create(self, spec: ScheduleSpec, now: Ms, name: str = "nightly", *, body: str | None = None) -> str:
        """A new schedule; returns its id."""
        bodies: list[Body] = []
        if body is not None:
            bodies = [Body(body_id(body.encode()), body)]
            spec = ScheduleSpec(**{f: getattr(spec, f) for f in spec.__struct_fields__} | {"body": bodies[0].id})
        schedule_id = self.ids.next()
        draft = scheduling.create(schedule_id, "default", name, spec, now)
        draft.bodies.extend(bodies)
        await self.write(draft, now)
        return schedule_id

    async def schedule(self, schedule_id: str) -> Schedule:
        """The row as it is."""
        (row,) = await self.store.find(Schedules(id=schedule_id, states=_STATES))
        return row

    async def opened(self, schedule_id: str) -> OpenRuns:
        """What is open of a schedule."""
        rows = await self.store.find(
            Runs(schedule_id=schedule_id, states=tuple(OPEN), oldest_first=True, limit=100_000)
        )
        waiting = sum(run.state is not State.RUNNING for run in rows)
        return OpenRuns(len(rows), waiting, rows[0].id if rows else None)

    async def settle(self, schedule_id: str, now: Ms) -> None:
        """Account for everything due, in as many changes as it takes."""
        while True:
            draft = settle(await self.schedule(schedule_id), await self.opened(schedule_id), now)
            if draft.changed:
                await self.write(draft, now)
            if not draft.more:
                return

    async def update(self, schedule_id: str, spec: ScheduleSpec, now: Ms) -> None:
        """A new revision."""
        row = await self.schedule(schedule_id)
        await self.write(scheduling.update(row, await self.opened(schedule_id), spec, now), now)

    async def pause(self, schedule_id: str, now: Ms) -> None:
        """Not looked at from here on."""
        row = await self.schedule(schedule_id)
        await self.write(scheduling.pause(row, await self.opened(schedule_id), now, reason="test"), now)

    async def resume(self, schedule_id: str, now: Ms) -> None:
        """Planned again."""
        await self.write(scheduling.resume(await self.schedule(schedule_id), now), now)

    async def delete(self, schedule_id: str, now: Ms) -> None:
        """Gone; history stays."""
        row = await self.schedule(schedule_id)
        await self.write(scheduling.delete(row, await self.opened(schedule_id), now), now)

    async def rearm(self, schedule_id: str, ended_at: Ms) -> None:
        """Give a fixed-delay schedule its next fire."""
        await self.write(scheduling.rearm(await self.schedule(schedule_id), ended_at), ended_at)

    async def write(self, draft: Draft, now: Ms) -> None:
        """Apply a draft; it must be accepted."""
        await self.apply(draft.change(self.ids.change()), now)

    async def apply(self, change: Change, now: Ms) -> None:
        """Apply one change; it must be accepted."""
        applied = await self.store.apply([change], now=now)
        assert applied.results[0].status == "accepted", applied.results[0]

    # ── runs ───────────────────────────────────────────────────────────────

    async def enqueue(self, now: Ms, *, body: str | None = None, gates: tuple[Gate, ...] = ()) -> str:
        """Ad-hoc work; returns the run's id."""
        bodies = () if body is None else (Body(body_id(body.encode()), body),)
        event = RunScheduled(
            run_id=self.ids.next(),
            task=self.task,
            due_at=now,
            lane=self.lane,
            gates=tuple(gate.name for gate in gates),
            body=bodies[0].id if bodies else None,
            options=RunOptions(timeout=5_000),
        )
        run = lifecycle.born(event)
        guard = RunAbsent(run.id)
        change = Change(id=self.ids.change(), guard=guard, run=run, bodies=bodies, gates=gates, events=(event,))
        await self.apply(change, now)
        return run.id

    async def claim(self, now: Ms, limit: int = 1_000, ids: tuple[str, ...] = ()) -> list[Run]:
        """Take what is claimable."""
        await self.store.due(Agenda.GATES, 1_000, now=now)
        offer = Offer("worker-1", (self.lane,), (self.task,), 30_000)
        return [claim.run for claim in (await self.store.claim(offer, limit, ids=ids, now=now)).claims]

    async def finish(self, run: Run, command: lifecycle.Command, now: Ms) -> None:
        """Record what became of a claimed run."""
        (event,) = lifecycle.decide(run, command, now)
        after = lifecycle.evolve(run, event)
        guard = RunLease(run.id, run.epoch)
        releases = run.gates if after.state is not State.RUNNING else ()
        change = Change(id=self.ids.change(), guard=guard, run=after, releases=releases, events=(event,))
        await self.apply(change, now)

    async def command(self, run_id: str, command: lifecycle.Command, now: Ms) -> None:
        """Cancel, reopen or discard a run by its row."""
        (run,) = await self.store.find(Runs(id=run_id))
        (event,) = lifecycle.decide(run, command, now)
        after = lifecycle.evolve(run, event)
        left = run.state is State.RUNNING and after.state is not State.RUNNING
        change = Change(
            id=self.ids.change(),
            guard=RunAt(run.id, run.n),
            run=after,
            releases=run.gates if left else (),
            events=(event,),
        )
        await self.apply(change, now)

    async def work(self, now: Ms) -> int:
        """Claim and complete until nothing is claimable."""
        done = 0
        while runs := await self.claim(now):
            for run in runs:
                await self.finish(run, lifecycle.Complete(now, 5, '"ok"'), now)
            done += len(runs)
        return done

    async def runs(self, schedule_id: str | None = None) -> list[Run]:
        """All rows, oldest first."""
        return await self.store.find(Runs(schedule_id=schedule_id, oldest_first=True, limit=1_000_000))

    async def claimable(self) -> list[Run]:
        """Rows that could be taken."""
        return await self.store.find(Runs(states=tuple(CLAIMABLE), oldest_first=True, limit=1_000_000))
