"""Trouble that must stay small: long outages, answers that cannot be told, lost and regained leases, odd orders."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from mainspring import Context, Every, InvalidInput, Mainspring, MainspringError, Retry, Snooze, State
from mainspring.app.internals import host_of, runtime_of
from mainspring.model.errors import StoreUnavailable
from mainspring.model.events import ScheduleUpdated
from mainspring.model.outcome import Succeeded
from mainspring.model.trigger import CronSpec
from mainspring.ports.executor import Attempt
from mainspring.ports.threads import SystemThreads
from mainspring.rules.schedule_draft import ScheduleDraft
from mainspring.testing import manual, travel
from tests.stored_rows import stored

START = "2026-01-01T00:00Z"


class Mute(Exception):
    """An error that cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


async def unavailable(*_: Any, **__: Any) -> Any:
    raise StoreUnavailable("away")


async def test_two_hours_without_the_store_kill_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    ms = Mainspring("memory://", lease_ttl="10m")

    @ms.every("10m", missed="skip")
    async def tick() -> None: ...

    async with travel(ms, START) as t:
        with monkeypatch.context() as patch:
            for verb in ("due", "claim", "renew", "lease", "apply"):
                patch.setattr(t.runtime.store, verb, unavailable)
            await t.advance("2h")
            t.runtime.settler.failures = 5_000
        await t.advance("1h")
        assert len([run for run in await t.runs("tick") if run.state is State.SUCCEEDED]) >= 6


@pytest.mark.parametrize("executor", ["loop", "thread"])
@pytest.mark.parametrize("answer", ["snooze", "mute", "surrogate"])
async def test_a_result_that_cannot_be_encoded_ends_the_attempt(executor: Any, answer: str, tmp_path: Any) -> None:
    ms = Mainspring(f"sqlite:///{tmp_path}/x.db")

    @ms.task(executor=executor, retry=Retry(max_attempts=1))
    def work() -> Any:
        if answer == "snooze":
            return Snooze("nonsense")
        raise Mute if answer == "mute" else ValueError("\ud800 and \0")

    async with ms.running():
        handle = await work.enqueue()
        with pytest.raises(MainspringError, match="failed"):
            await handle.result(timeout="20s")
        runtime = host_of(ms).runtime
        assert runtime is not None
        assert runtime.worker is not None
        assert not runtime.worker.running
        assert not runtime.recorder.unstored


async def test_a_schedule_that_cannot_be_planned_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    ms = Mainspring("memory://")

    @ms.task
    async def work() -> None: ...

    async with travel(ms, START) as t:
        await ms.schedule("good", work, cron="*/5 * * * *")
        bad = await stored(ms, ms.schedule("bad", work, cron="*/5 * * * *", tz="Europe/Berlin"))
        assert isinstance(bad.spec.trigger, CronSpec)
        draft = ScheduleDraft(bad)
        draft.emit(  # as another machine with newer zones would have written it
            ScheduleUpdated(
                schedule_id=bad.id,
                revision=2,
                spec=replace(bad.spec, trigger=replace(bad.spec.trigger, tz="Mars/Olympus")),
                anchor=bad.anchor,
                cursor=bad.cursor,
                next_at=bad.next_at,
            )
        )
        assert (await t.runtime.store.apply([draft.change("x")])).results[0].ok
        await t.advance("6m")
        assert len(await t.fires("good")) == 1
        assert "schedule 'bad' cannot be planned" in caplog.text


async def test_an_attempt_whose_lease_was_lost_and_regained_here_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    ms = Mainspring("memory://")
    live, most, stopped = 0, 0, []

    @ms.task(timeout="1h")
    async def long(ctx: Context) -> None:
        nonlocal live, most
        live += 1
        most = max(most, live)
        try:
            await asyncio.sleep(200)
        except asyncio.CancelledError:
            stopped.append(ctx.attempt)
            raise
        finally:
            live -= 1

    async with travel(ms, START) as t:
        handle = await long.enqueue()
        await t.advance("1s")
        with monkeypatch.context() as patch:
            patch.setattr(t.runtime.store, "renew", unavailable)
            await t.advance("31s")
        await t.advance("60s")
        assert (most, live, stopped, (await handle.run()).attempt) == (1, 1, [1], 2)


async def test_a_late_outcome_is_not_taken_for_a_stray() -> None:
    ms = Mainspring("memory://")

    @ms.task
    async def work() -> None:
        await asyncio.sleep(10_000)

    async with manual(ms, START) as t:
        handle = await work.enqueue()
        worker = t.runtime.worker
        assert worker is not None
        await worker.run_once()
        await t.advance("28s")  # the process was suspended: no heartbeat, the lease of 30 s just holds
        held = worker.running[handle.id]
        worker.finished([(held, Succeeded('"done"'))])
        await worker.heart.run_once()  # the overdue heartbeat, in the same turn of the loop
        await t.settle()
        assert (await handle.run()).result == "done"
        held.execution.handle.cancel()
        await t.settle()


async def test_a_start_deadline_is_for_the_first_start_only() -> None:
    ms = Mainspring("memory://")
    calls: list[int] = []

    @ms.at([], name="poll", start_deadline="1m", retry=Retry(max_attempts=1))
    async def poll(ctx: Context) -> Snooze | None:
        calls.append(ctx.attempt)
        if len(calls) == 2:
            raise ValueError("not yet")
        return Snooze("10m") if len(calls) == 1 else None

    async with travel(ms, START) as t:
        await ms.update("poll", every="1h", max_runs=1)
        await t.advance("90m")
        run = (await t.runs("poll"))[0]
        assert (calls, run.state) == ([1, 2], State.FAILED)
        await ms.retry(run.id)
        await t.advance("1m")
        assert (await ms.find_by_id(run.id)).state is State.SUCCEEDED


async def test_retrying_a_run_whose_key_is_taken_says_so() -> None:
    ms = Mainspring("memory://")

    @ms.task(retry=Retry(max_attempts=1))
    async def work() -> None:
        raise ValueError

    async with travel(ms, START) as t:
        dead = await work.using(unique="k").enqueue()
        await t.settle()
        await work.using(unique="k", delay="1h").enqueue()
        with pytest.raises(InvalidInput, match="held by another open run"):
            await ms.retry(dead.id)


async def test_a_schedule_that_becomes_fixed_delay_while_a_run_is_open_goes_on() -> None:
    ms = Mainspring("memory://")

    @ms.task
    async def work() -> None:
        await asyncio.sleep(150)

    async with travel(ms, START) as t:
        await ms.schedule("s", work, every="1m")
        await t.advance("61s")
        await ms.update("s", every=Every("1m", fixed_delay=True))
        await t.advance("30m")
        ended = [run for run in await t.runs("s") if run.state is State.SUCCEEDED]
        assert len(ended) >= 7
        assert (await stored(ms, ms.get("s"))).next_at is not None or any(
            r.state is State.RUNNING for r in await t.runs("s")
        )


class NoThreads(SystemThreads):
    """The machine refuses new threads for a while."""

    full = False

    def start(self, target: Callable[[], None], name: str) -> None:
        if self.full and name.startswith("mainspring-handler"):
            self.full = False
            raise RuntimeError("can't start new thread")
        super().start(target, name)


async def test_a_thread_that_cannot_be_started_costs_a_second_and_no_run() -> None:
    threads = NoThreads()
    ms = Mainspring("memory://", threads=threads)

    @ms.task
    def work() -> int:
        return 7

    threads.full = True
    async with ms.running():
        assert await (await work.enqueue()).result(timeout="20s") == 7


async def test_a_second_start_is_refused_and_the_first_goes_on() -> None:
    ms = Mainspring("memory://")

    @ms.task
    async def work() -> int:
        return 7

    async with ms.running():
        with pytest.raises(MainspringError, match="runs already"):
            async with ms.running():
                raise AssertionError("two engines in one object")
        assert await (await work.enqueue()).result(timeout="20s") == 7


async def test_nothing_is_kept_of_a_finished_attempt_or_a_cancelled_wait() -> None:
    ms = Mainspring("memory://")

    @ms.task(timeout="1h")
    def work() -> None: ...

    @ms.task
    async def never() -> None:
        await asyncio.sleep(1_000)

    async with ms.running():
        for handle in await work.enqueue_many(() for _ in range(50)):
            await handle.result(timeout="20s")
        waiting = await never.enqueue()
        for _ in range(5):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(waiting.result(), 0.01)
        gc.collect()
        # By type: some objects of others answer isinstance with an exception.
        done = [a for a in gc.get_objects() if type(a) is Attempt and a.run.task == "work"]
        assert len(done) <= 20, "time-outs of finished attempts must be let go"
        assert host_of(ms).runtime is not None
        while waiting.id in runtime_of(ms).waiters.waiting:  # noqa: ASYNC110 - the engine's thread lets go of it in its own time
            await asyncio.sleep(0)
        await ms.cancel(waiting.id)
