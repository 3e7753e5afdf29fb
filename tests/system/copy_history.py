"""A history with something of everything that a copy must bring over."""

from __future__ import annotations

from mainspring.model.change import Change
from mainspring.model.events import InstanceJoined, StaleResultRejected
from mainspring.model.gate import Gate
from mainspring.model.instant import Ms
from mainspring.model.schedule import ScheduleSpec
from mainspring.model.trigger import CronSpec, EverySpec
from mainspring.ports.store import Retention, Store
from mainspring.rules import lifecycle
from mainspring.testing.factories import T0
from mainspring.testing.scenario import Scenario

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
    return s


async def _runs_in_every_state(s: Scenario, gate: Gate, schedule: str) -> None:
    now = THEN - HOUR
    for run in await s.claim(now):
        await s.finish(run, lifecycle.Complete(now, 5, '"ok"'), now)
    commands: tuple[lifecycle.Command, ...] = (
        lifecycle.Complete(now, 7, '{"much":"ünder"}'),
        lifecycle.Fail("ValueError: no", now, 3),
        lifecycle.Fail("ValueError: again", now, 3, retry_at=THEN + MINUTE),
    )
    for command in commands:
        await s.enqueue(now, body=f'"{type(command).__name__}"')
        (run,) = await s.claim(now)
        await s.finish(run, command, now)
    await s.command(await s.enqueue(now), lifecycle.RequestCancel("asked", "me"), now)
    # One holds the gate, two are parked behind it, one runs freely, two wait.
    for _ in range(3):
        await s.enqueue(now, gates=(gate,))
    await s.enqueue(now)
    assert len(await s.claim(now)) == 2
    await s.apply(Change(id=s.ids.change(), touches=(schedule,)), now)
    await s.settle(schedule, THEN - MINUTE)
    await s.enqueue(now, body='"shared"')
    await s.enqueue(THEN + HOUR, body='"shared"')
