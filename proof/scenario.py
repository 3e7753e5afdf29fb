"""Writes schedules, plans, claims and outcomes into a store by the rules of `rules/`, without an engine.

Tests use it to make histories quickly; they pass the time to every call.
"""

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
from mainspring.rules import lifecycle, run_commands, schedule_commands
from mainspring.rules.planning import OpenRuns, settle
from mainspring.rules.schedule_draft import ScheduleDraft
from mainspring.testing.contract.factories import Ids, with_kind

_STATES: tuple[ScheduleState, ...] = ("active", "paused", "finished", "deleted")


class Scenario:
    """Writes histories into a store by the engine's rules: every row and event is one that the engine would write."""

    def __init__(self, store: Store, *, task: str = "t", lane: str = "default/default") -> None:
        self.store = store
        self.ids = Ids()
        self.task = task
        self.lane = lane

    # ── schedules ──────────────────────────────────────────────────────────

    async def create(self, spec: ScheduleSpec, now: Ms, name: str = "nightly", *, body: str | None = None) -> str:
        """Create a schedule and return its id."""
        bodies: list[Body] = []
        if body is not None:
            bodies = [Body(body_id(body.encode()), body)]
            spec = ScheduleSpec(**{f: getattr(spec, f) for f in spec.__struct_fields__} | {"body": bodies[0].id})
        schedule_id = self.ids.next()
        draft = schedule_commands.create(schedule_id, "default", name, spec, now)
        draft.bodies.extend(bodies)
        await self.write(draft, now)
        return schedule_id

    async def schedule(self, schedule_id: str) -> Schedule:
        """Return the row of a schedule in any state."""
        (row,) = await self.store.find(Schedules(id=schedule_id, states=_STATES))
        return row

    async def open_runs(self, schedule_id: str) -> OpenRuns:
        """Return how many runs of a schedule are open, how many of these do not run yet, and the oldest one's id."""
        rows = await self.store.find(
            Runs(schedule_id=schedule_id, states=tuple(OPEN), oldest_first=True, limit=100_000)
        )
        waiting = sum(run.state is not State.RUNNING for run in rows)
        return OpenRuns(len(rows), waiting, rows[0].id if rows else None)

    async def settle(self, schedule_id: str, now: Ms) -> None:
        """Turn every fire of a schedule that is due at `now` into a run or a part of a span, one change at a time."""
        while True:
            draft = settle(await self.schedule(schedule_id), await self.open_runs(schedule_id), now)
            if draft.changed:
                await self.write(draft, now)
            if not draft.more:
                return

    async def update(self, schedule_id: str, spec: ScheduleSpec, now: Ms) -> None:
        """Give a schedule a new definition; its revision increases by one."""
        row = await self.schedule(schedule_id)
        await self.write(schedule_commands.update(row, await self.open_runs(schedule_id), spec, now), now)

    async def pause(self, schedule_id: str, now: Ms) -> None:
        """Pause a schedule."""
        row = await self.schedule(schedule_id)
        await self.write(schedule_commands.pause(row, await self.open_runs(schedule_id), now, reason="test"), now)

    async def resume(self, schedule_id: str, now: Ms) -> None:
        """Resume a paused schedule."""
        await self.write(schedule_commands.resume(await self.schedule(schedule_id), now), now)

    async def delete(self, schedule_id: str, now: Ms) -> None:
        """Delete a schedule; its runs and events stay."""
        row = await self.schedule(schedule_id)
        await self.write(schedule_commands.delete(row, await self.open_runs(schedule_id), now), now)

    async def rearm(self, schedule_id: str, ended_at: Ms) -> None:
        """Plan the next fire of a fixed-delay schedule after a run ended at `ended_at`."""
        await self.write(schedule_commands.rearm(await self.schedule(schedule_id), ended_at), ended_at)

    async def write(self, draft: ScheduleDraft, now: Ms) -> None:
        """Apply the change of a draft; fail unless the store accepts it."""
        await self.apply(draft.change(self.ids.change()), now)

    async def apply(self, change: Change, now: Ms) -> None:
        """Apply one change; fail unless the store accepts it."""
        applied = await self.store.apply([change], now=now)
        assert applied.results[0].status == "accepted", applied.results[0]

    # ── runs ───────────────────────────────────────────────────────────────

    async def enqueue(self, now: Ms, *, body: str | None = None, gates: tuple[Gate, ...] = ()) -> str:
        """Enqueue an ad-hoc run and return its id."""
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
        run = lifecycle.run_from_event(event)
        guard = RunAbsent(run.id)
        change = Change(id=self.ids.change(), guard=guard, run=run, bodies=bodies, gates=gates, events=(event,))
        await self.apply(with_kind(change), now)
        return run.id

    async def claim(self, now: Ms, limit: int = 1_000, ids: tuple[str, ...] = ()) -> list[Run]:
        """Unpark the runs whose gates have room, then claim runs and return them. `ids`: claim only these; (): any.

        Only runs of the scenario's task and lane are claimed.
        """
        await self.store.due(Agenda.GATES, 1_000, now=now)
        offer = Offer("worker-1", (self.lane,), (self.task,), 30_000)
        return [claim.run for claim in (await self.store.claim(offer, limit, ids=ids, now=now)).claims]

    async def finish(self, run: Run, command: run_commands.Command, now: Ms) -> None:
        """Record the outcome of a claimed run under its lease."""
        (event,) = lifecycle.decide(run, command, now)
        after = lifecycle.evolve(run, event)
        guard = RunLease(run.id, run.epoch)
        releases = run.gates if after.state is not State.RUNNING else ()
        change = Change(id=self.ids.change(), guard=guard, run=after, releases=releases, events=(event,))
        await self.apply(with_kind(change), now)

    async def command(self, run_id: str, command: run_commands.Command, now: Ms) -> None:
        """Cancel, reopen or discard a run, guarded by the event number of its row."""
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
        """Claim runs and complete them until none is claimable; return their number."""
        done = 0
        while runs := await self.claim(now):
            for run in runs:
                await self.finish(run, run_commands.Complete(now, 5, '"ok"'), now)
            done += len(runs)
        return done

    async def runs(self, schedule_id: str | None = None) -> list[Run]:
        """Return the runs of a schedule, or all runs, oldest first."""
        return await self.store.find(Runs(schedule_id=schedule_id, oldest_first=True, limit=1_000_000))

    async def claimable(self) -> list[Run]:
        """Return the runs in a state that can be claimed, oldest first."""
        return await self.store.find(Runs(states=tuple(CLAIMABLE), oldest_first=True, limit=1_000_000))
