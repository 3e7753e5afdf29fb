"""Waking tasks from any thread and on any loop; a notification between the look for work and the wait is not lost."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from typing import Any

from mainspring.aio.wakeup import Wakeup

GUARD_SECONDS = 5.0


async def test_a_notification_wakes_every_waiting_task_once() -> None:
    wakeup = Wakeup()
    tasks = [asyncio.create_task(wakeup.wait(GUARD_SECONDS)) for _ in range(3)]
    await asyncio.sleep(0)
    wakeup.notify()
    assert await asyncio.gather(*tasks) == [True] * 3
    assert not await wakeup.wait(0.001)
    assert not wakeup._waiters


async def test_a_wait_without_a_notification_ends_at_the_time_out() -> None:
    wakeup = Wakeup()
    assert not await wakeup.wait(0.001)
    assert not await wakeup.wait(0.001, wakeup.latest)
    assert not wakeup._waiters


async def test_a_notification_between_the_look_and_the_wait_is_not_lost() -> None:
    wakeup = Wakeup()
    wakeup.notify()
    seen = wakeup.latest
    wakeup.notify()
    assert await wakeup.wait(GUARD_SECONDS, seen)
    assert not wakeup._waiters


async def test_a_notification_before_the_look_does_not_count() -> None:
    wakeup = Wakeup()
    wakeup.notify()
    assert not await wakeup.wait(0.001, wakeup.latest)
    assert not await wakeup.wait(0.001)


async def test_a_notification_without_a_waiter_takes_no_lock() -> None:
    wakeup = Wakeup()

    class Refusing:
        def __enter__(self) -> None:
            raise AssertionError("the lock was taken")

        def __exit__(self, *_: object) -> None: ...

    wakeup._lock = Refusing()  # type: ignore[assignment]
    wakeup.notify()
    assert wakeup.latest == 1


async def test_a_cancelled_waiter_is_forgotten() -> None:
    wakeup = Wakeup()
    task = asyncio.create_task(wakeup.wait(GUARD_SECONDS))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert not wakeup._waiters
    wakeup.notify()


async def test_a_waiter_that_was_cancelled_and_notified_does_no_harm() -> None:
    wakeup = Wakeup()
    task = asyncio.create_task(wakeup.wait(GUARD_SECONDS))
    await asyncio.sleep(0)
    wakeup.notify()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    await asyncio.sleep(0)


def test_a_waiter_whose_loop_was_closed_is_skipped() -> None:
    wakeup = Wakeup()
    loop = asyncio.new_event_loop()
    closed: Any = (loop, loop.create_future())
    loop.close()
    woken: list[bool] = []

    async def wait() -> None:
        wakeup._waiters.add(closed)
        task = asyncio.create_task(wakeup.wait(GUARD_SECONDS))
        await asyncio.sleep(0)
        wakeup.notify()
        woken.append(await task)

    asyncio.run(wait())
    assert woken == [True]


def test_waiters_on_several_loops_are_notified_from_another_thread() -> None:
    wakeup = Wakeup()
    woken: list[bool] = []

    def run() -> None:
        woken.append(asyncio.run(wakeup.wait(GUARD_SECONDS)))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + GUARD_SECONDS
    while len(wakeup._waiters) < 3 and time.monotonic() < end:
        time.sleep(0.001)
    wakeup.notify()
    for thread in threads:
        thread.join(GUARD_SECONDS)
    assert woken == [True] * 3


def test_no_notification_is_lost_between_threads() -> None:
    """Three threads add work and notify; a task that looks, then waits, finds all of it without one time-out."""
    wakeup = Wakeup()
    done: list[int] = []
    numbers = itertools.count()
    per_thread = 2_000

    def add() -> None:
        for _ in range(per_thread):
            done.append(next(numbers))
            wakeup.notify()

    async def consume() -> int:
        time_outs = 0
        while True:
            seen = wakeup.latest
            if len(done) == 3 * per_thread:
                return time_outs
            time_outs += not await wakeup.wait(GUARD_SECONDS, seen)

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert asyncio.run(consume()) == 0
    for thread in threads:
        thread.join(GUARD_SECONDS)
