"""A history with something of everything that a copy must bring over, and random ones."""

from __future__ import annotations

import random

from mainspring.model.change import Change
from mainspring.model.events import InstanceJoined, StaleResultRejected
from mainspring.model.gate import Gate
from mainspring.model.instant import Ms
from mainspring.model.keyvalue import COPIED_KINDS, IDEMPOTENCY_KIND, KeyValue
from mainspring.model.retention import Retention
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule, ScheduleSpec, ScheduleState
from mainspring.model.trigger import CronSpec, EverySpec
from mainspring.ports.store import Schedules, Store
from mainspring.rules import run_commands
from mainspring.testing.contract.factories import T0
from proof.scenario import Scenario

MINUTE: Ms = 60_000
HOUR: Ms = 60 * MINUTE
#: When it ends.
THEN: Ms = T0 + 6 * HOUR


async def make_history(store: Store) -> Scenario:
    """Schedules in every state, runs in every state, spans, payloads, gates, notes, and retention in the middle."""
    s = Scenario(store)
    gate = Gate("narrow", 1)
    cron = await s.create(ScheduleSpec(CronSpec("*/5 * * * *"), "t"), T0, "cron", body='{"a":"é"}')
    gone = await s.create(ScheduleSpec(CronSpec("* * * * *"), "t"), T0, "gone")
    paused = await s.create(ScheduleSpec(EverySpec(interval=MINUTE), "t"), T0, "paused")
    delay = await s.create(ScheduleSpec(EverySpec(interval=MINUTE, fixed_delay=True), "t"), T0, "delay")
    ended = await s.create(ScheduleSpec(CronSpec("* * * * *"), "t", end=T0 + 10 * MINUTE), T0, "ended")
    many = await s.create(ScheduleSpec(EverySpec(interval=MINUTE), "t", overlap="allow_parallel"), T0, "many")
    for minute in (1, 5, 10, 11):
        for sid in (cron, gone, paused, delay, ended, many):
            await s.settle(sid, T0 + minute * MINUTE)
        await s.work(T0 + minute * MINUTE)
        await s.rearm(delay, T0 + minute * MINUTE)
    await s.pause(paused, T0 + 12 * MINUTE)
    await s.delete(gone, T0 + 12 * MINUTE)
    await s.resume(paused, T0 + 90 * MINUTE)
    await s.update(cron, ScheduleSpec(CronSpec("*/10 * * * *"), "t"), T0 + 95 * MINUTE)
    late = await s.enqueue(T0 + 95 * MINUTE, body='"old"')
    await s.work(T0 + 95 * MINUTE)
    note = StaleResultRejected(run_id=late, outcome="succeeded", epoch=1, owner="w0")
    await s.apply(Change(id=s.ids.change(), events=(note,)), T0 + 96 * MINUTE)
    assert (await store.purge(Retention(ended_before=T0 + 30 * MINUTE), 1_000, now=T0 + 2 * HOUR)).runs > 10
    # After retention: the log begins with what is left.
    await s.create(ScheduleSpec(CronSpec("0 0 1 1 *"), "t"), T0 + 2 * HOUR, "gone", body='"again"')
    await s.pause(paused, T0 + 3 * HOUR)
    for sid in (cron, delay, many):
        await s.settle(sid, T0 + 4 * HOUR)
    await s.apply(Change(id=s.ids.change(), events=(InstanceJoined(instance="w1", version="2"),)), T0 + 4 * HOUR)
    await _runs_in_every_state(s, gate, cron)
    await store.put([KeyValue(kind=kind, id=name, data=f'"{kind} é"') for kind in COPIED_KINDS for name in ("1", "2")])
    await store.put([KeyValue(kind=IDEMPOTENCY_KIND, id="1", data="{}")])
    return s


async def _runs_in_every_state(s: Scenario, gate: Gate, schedule: str) -> None:
    now = THEN - HOUR
    for run in await s.claim(now):
        await s.finish(run, run_commands.Complete(now, 5, '"ok"'), now)
    commands: tuple[run_commands.Command, ...] = (
        run_commands.Complete(now, 7, '{"much":"ünder"}'),
        run_commands.Fail("ValueError: no", now, 3),
        run_commands.Fail("ValueError: again", now, 3, retry_at=THEN + MINUTE),
    )
    for command in commands:
        await s.enqueue(now, body=f'"{type(command).__name__}"')
        (run,) = await s.claim(now)
        await s.finish(run, command, now)
    await s.command(await s.enqueue(now), run_commands.RequestCancel("asked", "me"), now)
    # One holds the gate, two are parked behind it, one runs freely, two wait.
    for _ in range(3):
        await s.enqueue(now, gates=(gate,))
    await s.enqueue(now)
    assert len(await s.claim(now)) == 2
    await s.apply(Change(id=s.ids.change(), touches=(schedule,)), now)
    await s.settle(schedule, THEN - MINUTE)
    await s.enqueue(now, body='"shared"')
    await s.enqueue(THEN + HOUR, body='"shared"')


class Walk:
    """Random steps that the engine or a person could take."""

    def __init__(self, store: Store, rng: random.Random) -> None:
        self.s = Scenario(store)
        self.rng = rng
        self.now = T0
        self.made = 0
        self.leased: list[Run] = []

    async def go(self, steps: int) -> None:
        for _ in range(steps):
            self.now += self.rng.randint(1, 5) * MINUTE
            step = self.rng.choice(
                (self.create, self.plan, self.plan, self.change, self.enqueue, self.take, self.finish)
            )
            await step()

    async def create(self) -> None:
        self.made += 1
        trigger = EverySpec(self.rng.randint(1, 9) * MINUTE, fixed_delay=self.rng.random() < 0.2)
        await self.s.create(ScheduleSpec(trigger, "t"), self.now, f"s{self.made}", body=f'"{self.rng.randint(0, 3)}"')

    async def _some(self, *states: ScheduleState) -> Schedule | None:
        rows = await self.s.store.find(Schedules(states=states))
        return self.rng.choice(rows) if rows else None

    async def plan(self) -> None:
        if (row := await self._some("active")) is not None:
            await self.s.settle(row.id, self.now)

    async def change(self) -> None:
        row = await self._some("active", "paused")
        if row is None:
            return
        if row.state == "paused":
            await self.s.resume(row.id, self.now)
        elif (roll := self.rng.random()) < 0.4:
            await self.s.pause(row.id, self.now)
        elif roll < 0.7:
            await self.s.update(row.id, ScheduleSpec(CronSpec("*/7 * * * *"), "t"), self.now)
        else:
            await self.s.delete(row.id, self.now)

    async def enqueue(self) -> None:
        gates = (Gate("g", 2),) if self.rng.random() < 0.5 else ()
        await self.s.enqueue(self.now, body=f'"{self.rng.randint(0, 9)}"', gates=gates)

    async def take(self) -> None:
        self.leased += await self.s.claim(self.now, limit=self.rng.randint(1, 4))

    async def finish(self) -> None:
        if not self.leased:
            return
        run = self.leased.pop(self.rng.randrange(len(self.leased)))
        commands = (
            run_commands.Complete(self.now, 1, '"ok"'),
            run_commands.Fail("ValueError: no", self.now, 1),
            run_commands.Fail("ValueError: no", self.now, 1, retry_at=self.now + MINUTE),
            run_commands.HandBack("shutdown"),
        )
        await self.s.finish(run, self.rng.choice(commands), self.now)
