"""Live one life of a program on a store: the process fills the store with the rows of that life.

    python tools/store_fixture_lives.py early|long|first_crash|second_crash STORE AGENT

This file uses only the public interface, so that it runs before and after a change of the source tree. A life ends in
order; a crash ends with SIGKILL and leaves a running run, its lock and its lease, as a power cut would. Schedules that
stay active begin in 2999, or end before the figures are taken.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from mainspring import (
    AgentSettings,
    Cancel,
    Context,
    Every,
    Http,
    Mainspring,
    Retry,
    RunHandle,
    Snooze,
    State,
    Window,
)

#: An instant after any use of a fixture.
FAR = datetime(2999, 1, 1, tzinfo=UTC)
NEVER = "300000d"
WAIT_SECONDS = 60.0


# ── the program ─────────────────────────────────────────────────────────────


def declare(ms: Mainspring) -> None:
    """Declare the two schedules that every fixture has. Do not change this function.

    To a later version this declaration must still be the stored definition, so that it changes nothing in the store.
    """

    @ms.task(retry=Retry(4, "linear", initial="2s"), limit=3)
    def nightly(what: str, copies: int = 1) -> str:
        return what * copies

    window = Window("01:00-05:00", weekdays="mon-fri", tz="Europe/Berlin")
    ms.cron("15 3 * * Mon-Fri", name="declared", start=FAR, window=window, missed="replay_all", args=("é",))(nightly)
    ms.cron("H 4 * * *", name="drifted", start=FAR, timeout="90s", kwargs={"what": "x", "copies": 2})(nightly)


class Program:
    """One life of the program that fills a store."""

    def __init__(self, url: str, life: str, **options: Any) -> None:
        self.ms = ms = Mainspring(
            url,
            name="fixture",
            version="1",
            tz="Europe/Berlin",
            queues=("default", "mail", *(("post",) if life.endswith("crash") else ())),
            labels={"zone": "eu"},
            poll_interval="100ms",
            lease_ttl="1500ms",
            shutdown_timeout="300ms",
            agents=AgentSettings(allow_private=True, public_url="http://127.0.0.1:9"),
            rng=random.Random(life),
            **options,
        )
        declare(ms)

        @ms.task
        def work(value: str, copies: int = 1) -> dict[str, int]:
            return {value: copies}

        @ms.task(retry=Retry(1))
        async def broken(value: str = "") -> None:
            raise ValueError(f"no 'such' thing: {value}\nin two lines, one with ünicode")

        @ms.task(retry=Retry(9, "fixed", initial=NEVER, max_delay=NEVER, jitter=0))
        async def stubborn() -> None:
            raise ConnectionError("refused")

        @ms.task(retry=Retry(3, initial="50ms", jitter=0))
        async def flaky(ctx: Context) -> str:
            if ctx.attempt == 1:
                raise ConnectionError("refused once")
            return "at last"

        @ms.task
        async def sleepy() -> Snooze:
            return Snooze(NEVER)

        @ms.task
        async def unwanted() -> Cancel:
            return Cancel("not wanted any more")

        @ms.task(timeout="100ms", retry=Retry(1))
        async def late() -> None:
            await asyncio.sleep(3_600)

        @ms.task
        async def slow(seconds: float) -> None:
            await asyncio.sleep(seconds)

        @ms.task(max_crashes=9)
        async def hold(ctx: Context, what: str) -> None:
            ctx.progress(0.5, f"holding {what}")
            await asyncio.sleep(3_600)

        @ms.task(limit=1)
        async def narrow(n: int) -> None:
            await asyncio.sleep(3_600)

        @ms.task(recovery="fail")
        async def fragile() -> None:
            await asyncio.sleep(3_600)

        self.work, self.broken, self.stubborn, self.flaky, self.sleepy = work, broken, stubborn, flaky, sleepy
        self.unwanted, self.late, self.slow, self.hold, self.narrow = unwanted, late, slow, hold, narrow
        self.fragile = fragile

    async def is_in(self, state: State, *handles: RunHandle[Any]) -> None:
        """Wait until each run is in the state."""
        for handle in handles:

            async def there(handle: RunHandle[Any] = handle) -> bool:
                return await handle.state() is state

            await until(there, f"{handle} to be {state}")

    async def fired(self, count: int, *names: str, states: tuple[State, ...] = (State.SUCCEEDED,)) -> None:
        """Wait until each schedule has at least `count` runs in the states."""
        for name in names:

            async def there(name: str = name) -> bool:
                return len(await self.ms.runs(schedule=name, state=states)) >= count

            await until(there, f"{count} runs of {name} to be {states}")

    async def stands(self, name: str, state: str) -> None:
        """Wait until a schedule is in the state; with `deleted`, until it is gone."""

        async def there() -> bool:
            found = {schedule.name: schedule.state for schedule in await self.ms.schedules()}
            return found.get(name, "deleted") == state

        await until(there, f"{name} to be {state}")


async def until(fact: Callable[[], Awaitable[object]], what: str) -> None:
    """Wait until the awaited condition is true."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not await fact():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {WAIT_SECONDS:g} s for {what}")
        await asyncio.sleep(0.02)


# ── its lives ───────────────────────────────────────────────────────────────


async def early(url: str, agent: str) -> None:
    """Fill an empty store with tallies, snapshots, a compaction event, and a dead letter that survives retention."""
    p = Program(url, "early", history="1s")
    ms = p.ms
    async with ms.running():
        await ms.schedule("old", p.work, every="200ms", args=("old",))
        await ms.schedule("ancient", p.work, every="200ms", args=("ancient",))
        for handle in await p.work.enqueue_many([("acme",), {"value": "globex", "copies": 3}] * 3):
            await handle.result("30s")
        await p.is_in(State.FAILED, await p.broken.enqueue("kept for ever"))
        await p.fired(2, "old", "ancient")
        await ms.pause("old", reason="a rest")
        await ms.delete("ancient", reason="no use")
        await asyncio.sleep(0.7)
        await ms.resume("old")
        await p.fired(1, "old")
        await ms.pause("old", reason="for good")

        async def compacted() -> bool:
            left = await ms.runs(state=(State.SUCCEEDED, State.CANCELLED, State.SKIPPED))
            return not left and not await ms.events(types=["ScheduleDeleted", "FiresElided"])

        await until(compacted, "retention")


async def long(url: str, agent: str) -> None:
    """Create schedules in every state, and most kinds of ended and waiting runs."""
    p = Program(url, "long")
    ms = p.ms
    async with ms.running():
        await _plan(p)
        await _enqueue(p)
        await _call(p, agent)
        await _edit(p)
        await p.fired(1, "busy", "replaced", states=(State.SKIPPED, State.CANCELLED))
        await p.fired(1, "tardy", states=(State.WAITING,))
        await p.fired(2, "beat", "fixed", "twice", "soon")
        for name in ("twice", "soon", "ended"):
            await p.stands(name, "finished")
        await p.stands("once", "deleted")
        await p.stands("fussy", "paused")
        await ms.pause("resting", reason="lunch")
        await asyncio.sleep(1.0)
        await ms.resume("resting")
        await ms.pause("beat", reason="until then", until=FAR)
        for name in ("resting", "window", "fixed", "queued", "tardy"):
            await ms.pause(name, reason="enough")
        assert await ms.events(schedule="window", types=["FiresElided"])
        await ms.delete("busy")
        await ms.delete("replaced", reason="cleaning")
        async with ms.lock("let-go"), ms.execution_lease("nightly", FAR, remember=NEVER):
            pass
        await p.is_in(State.RUNNING, await p.slow.using(queue="mail").enqueue(3_600.0))  # handed back at the end
    await _elsewhere(url)


async def _elsewhere(url: str) -> None:
    """Create a schedule and two runs in another namespace."""
    ms = Mainspring(url, namespace="other", rng=random.Random("other"))

    @ms.task
    def work(value: str) -> None:
        raise AssertionError("nothing runs here")

    await work.using(unique="one").enqueue("elsewhere")
    await ms.schedule("beat", work, every="1h", start=FAR, args=("elsewhere",))
    await ms.cancel((await work.enqueue("nowhere")).id, reason="another namespace")
    await ms.close()


async def _plan(p: Program) -> None:
    """Create schedules with every trigger, overlap policy and end."""
    ms, now = p.ms, datetime.now(UTC)
    shut = [(now + timedelta(hours=hours)).strftime("%H:%M") for hours in (6, 7)]
    await ms.schedule("beat", p.work, every="300ms", args=("beat",), jitter="20ms")
    await ms.schedule("busy", p.slow, every="300ms", args=(1.0,))
    await ms.schedule("queued", p.slow, every="300ms", args=(0.5,), overlap="queue_one")
    await ms.schedule("replaced", p.slow, every="1s", args=(30.0,), overlap="cancel_running")
    await ms.schedule("tardy", p.work, every="300ms", args=("tardy",), queue="post", start_deadline="100ms")
    await ms.schedule("window", p.work, every="300ms", args=("window",), window=Window("-".join(shut)))
    await ms.schedule("fixed", p.work, every=Every("200ms", fixed_delay=True), args=("fixed",))
    await ms.schedule("twice", p.work, every="200ms", args=("twice",), max_runs=2)
    await ms.schedule("soon", p.work, at=[now + timedelta(seconds=n) for n in (1, 2)], args=("soon",))
    await ms.schedule("ended", p.work, every="300ms", args=("ended",), end=now + timedelta(seconds=2))
    await ms.schedule("once", p.work, delay="300ms", args=("once",), terminal="delete")
    await ms.schedule("fussy", p.broken, every="300ms", on_exhausted="pause")
    await ms.schedule("resting", p.work, every="200ms", args=("resting",))
    await ms.schedule("gaps", p.work, every="500ms", args=("gaps",), missed="skip", grace=0)
    await ms.schedule("caught", p.work, every="500ms", args=("caught",), grace=0)
    await ms.schedule("replayed", p.work, every="500ms", args=("replayed",), grace=0, missed="replay_all", replay_max=2)
    await ms.schedule("still", p.work, every="1h", args=("still",), kwargs={"copies": 2}, spread="1m")
    await ms.pause("still", reason="goes on with a later version")
    await ms.schedule("far", p.work, at=[FAR, FAR + timedelta(days=1)], args=("far",), priority="low", queue="mail")
    items = ({"name": f"client-{n}", "every": "1h", "args": (f"client {n}",), "start": FAR} for n in range(5))
    await ms.schedule_many(p.work, items)


async def _enqueue(p: Program) -> None:
    """Enqueue one ad-hoc run for each course that a run can take."""
    ms, work = p.ms, p.work
    await p.is_in(State.SUCCEEDED, *await work.enqueue_many([("acme",), {"value": 'é " \\ 😀', "copies": 2}]))
    await p.is_in(State.SUCCEEDED, await work.using(priority="high", queue="mail").enqueue("urgent"))
    await p.is_in(State.SUCCEEDED, await p.flaky.enqueue())
    await p.is_in(State.FAILED, await p.broken.enqueue("dead"), await p.late.enqueue())
    await p.is_in(State.RETRYING, await p.stubborn.enqueue())
    await p.is_in(State.CANCELLED, await p.unwanted.enqueue())
    snoozed = await p.sleepy.enqueue()
    await until(lambda: ms.events(run=snoozed.id, types=["RunSnoozed"]), "a snooze")
    await work.using(at=FAR, unique="only one").enqueue("future")
    assert not (await work.using(at=FAR, unique="only one").enqueue("future")).created
    await work.using(queue="nowhere", timeout="5s", retry=Retry(7)).enqueue("left alone")
    waiting, asked = await work.using(delay="1h").enqueue("first"), await p.slow.enqueue(3_600.0)
    await ms.cancel(waiting.id, reason="changed my mind")
    await p.is_in(State.RUNNING, asked)
    await ms.cancel(asked.id, reason="takes too long")
    await p.is_in(State.CANCELLED, asked)
    await ms.retry(waiting.id)  # open again, and due at once
    await p.is_in(State.SUCCEEDED, waiting)


async def _call(p: Program, agent: str) -> None:
    """Create schedules that call the agent, with header values, signing secrets and answers."""
    ms = p.ms
    headers = {"Authorization": "Bearer s3cret", "X-Tenant": "acme"}
    called = Http(f"{agent}/well", headers=headers, agent_id="reporter")
    await ms.schedule("agent", called, cron="0 9 * * *", start=FAR, payload={"report": "é", "parts": [1, None, 2.5]})
    await ms.schedule("agent-broken", Http(f"{agent}/broken"), every="1h", start=FAR, retry=Retry(1))
    await ms.schedule("agent-later", Http(f"{agent}/later", silence=NEVER, within=NEVER), every="1h", start=FAR)
    await ms.schedule("agent-gone", Http(f"{agent}/well", headers={"X-Old": "1"}), every="1h", start=FAR)
    await ms.delete("agent-gone")
    await p.is_in(State.SUCCEEDED, await ms.trigger("agent"), await ms.trigger("agent", payload={"by": "hand"}))
    await p.is_in(State.FAILED, await ms.trigger("agent-broken"))
    await ms.signing_secret("agent")
    await ms.rotate_secret("agent", overlap=NEVER)


async def _edit(p: Program) -> None:
    """Edit schedules, so that some have several revisions and one is edited by a person."""
    ms = p.ms
    await ms.schedule("yearly", p.work, cron="0 0 1 1 *", start=FAR, args=("yearly",))
    await ms.update("yearly", cron="30 6 * * Mon#1", tz="America/New_York")
    await ms.update("yearly", args=("yearly, again",), priority="critical", overlap="allow_parallel")
    await ms.update("yearly", retry=Retry(2, "fixed"), timeout="1m", start_deadline="10m", recovery="fail")
    await ms.update("drifted", cron="5 5 * * *", priority="high")
    await p.is_in(State.SUCCEEDED, await ms.trigger("yearly"), await ms.trigger("far", args=("other", 7)))


async def first_crash(url: str, agent: str) -> None:
    """Start after a pause: leaves spans of missed fires, and two runs whose worker is killed."""
    p = Program(url, "first crash")
    async with p.ms.running():
        await until(lambda: p.ms.events(schedule="gaps", types=["FiresElided"]), "a span of missed fires")
        await until(lambda: p.ms.events(schedule="replayed", types=["FiresElided"]), "a span of fires too old")
        await p.fired(1, "gaps", "caught", "replayed")
        await p.fired(1, "tardy", states=(State.SKIPPED,))
        await p.is_in(State.RUNNING, await p.fragile.enqueue(), await p.hold.enqueue("the first"))
        os.kill(os.getpid(), signal.SIGKILL)


async def second_crash(url: str, agent: str) -> None:
    """Start after the crash: leaves a lost run, and runs that are running, parked or held by an agent."""
    p = Program(url, "second crash")
    ms = p.ms
    async with ms.running():

        async def rescued() -> bool:
            lost = await ms.runs(task="fragile", state=State.LOST)
            held = await ms.runs(task="hold", state=State.RUNNING)
            return bool(lost and [run for run in held if run.crashes == 1 and run.progress])

        await until(rescued, "what the crash left")
        for name in ("gaps", "caught", "replayed"):
            await ms.pause(name, reason="enough")
        narrow = await p.narrow.enqueue_many([(n,) for n in range(3)])

        async def parked() -> bool:
            return [(await handle.run()).parked_on is None for handle in narrow].count(False) == 2

        await until(parked, "two runs behind a gate")
        accepted = await ms.trigger("agent-later")

        async def is_elsewhere() -> bool:
            run = await accepted.run()
            return run.state is State.RUNNING and (run.lease_until or 0) > 2 * time.time() * 1_000

        await until(is_elsewhere, "an agent to take a run over")
        end = datetime.now(UTC) + timedelta(seconds=2)
        await ms.schedule("overdue", p.work, every="300ms", end=end, args=("overdue",))
        async with ms.lock("import", ttl="2s"):
            os.kill(os.getpid(), signal.SIGKILL)


LIVES = {life.__name__: life for life in (early, long, first_crash, second_crash)}


def main() -> None:
    """Parse the command line and live the named life."""
    if len(sys.argv) != 4 or sys.argv[1] not in LIVES:
        raise SystemExit(__doc__)
    _, life, url, agent = sys.argv
    logging.getLogger("mainspring").setLevel(logging.CRITICAL)  # what fails here is meant to
    asyncio.run(LIVES[life](url, agent))


if __name__ == "__main__":
    main()
