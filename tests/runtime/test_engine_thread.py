"""The engine's thread: begun by the first call, ended by `close`, and never while a caller still waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mainspring import Context, Mainspring
from mainspring.app.internals import host_of
from mainspring.model.errors import StoreUnavailable
from mainspring.runtime.engine_thread import ThreadLoop
from servers import for_tests_redis
from servers.for_tests import fresh_url

PLACES: dict[str, Callable[[Path], str]] = {
    "memory": lambda _: "memory://",
    "sqlite": lambda folder: f"sqlite:///{folder}/x.db",
    "postgresql": lambda _: fresh_url(),
    "valkey": lambda _: for_tests_redis.fresh_url(),
}


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("mainspring-")}


def until_gone(mine: set[threading.Thread]) -> None:
    for thread in mine:
        thread.join(10)
    assert not {thread for thread in mine if thread.is_alive()}


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


# ── close ends it ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("broker", [None, "memory://"])
def test_instances_that_come_and_go_leave_no_thread_and_no_file_open(
    place: str, broker: str | None, tmp_path: Path
) -> None:
    url, before = PLACES[place](tmp_path), threads()

    async def comes_and_goes() -> None:
        ms = Mainspring(url, broker=broker)

        @ms.task
        def blocks(context: Context) -> str:
            context.progress(0.5, "half way")
            return threading.current_thread().name

        @ms.task
        async def awaits() -> int:
            return 7

        @ms.every("1h")
        async def hourly() -> None: ...

        async with ms.running():
            assert (await (await blocks.enqueue()).result(timeout="20s")).startswith("mainspring-")
            assert await (await awaits.enqueue()).result(timeout="20s") == 7
        for _ in range(30):  # often enough for a connection of the caller's own
            await awaits.enqueue()
        await ms.close()

    for _ in range(2):  # what a library opens once and keeps
        asyncio.run(comes_and_goes())
    until_gone(threads() - before)
    open_files = files()
    for _ in range(5):
        asyncio.run(comes_and_goes())
    until_gone(threads() - before)
    assert files() <= open_files


async def test_after_close_the_next_call_begins_again(tmp_path: Path) -> None:
    ms = Mainspring(f"sqlite:///{tmp_path}/x.db")

    @ms.task
    async def send() -> None: ...

    for number in range(3):
        assert not host_of(ms).engine.begun
        await send.enqueue()
        assert host_of(ms).engine.begun
        assert len(await ms.runs()) == number + 1
        await ms.close()
        await ms.close()
    assert not host_of(ms).engine.begun


# ── but not under anybody ───────────────────────────────────────────────────


async def test_a_thread_that_is_asked_for_something_stays_until_it_has_answered() -> None:
    engine, gate, begun, used = ThreadLoop(), threading.Event(), threading.Event(), False

    async def waits() -> int:
        begun.set()
        await asyncio.to_thread(gate.wait, 10)
        return 7

    asked = asyncio.ensure_future(engine.call(waits()))
    await asyncio.to_thread(begun.wait, 10)
    await engine.stop_when_idle(lambda: not used)
    assert engine.begun
    used = True
    gate.set()
    assert await asked == 7
    await engine.stop_when_idle(lambda: not used)
    assert engine.begun, "its owner uses it"
    await asyncio.gather(engine.stop_when_idle(lambda: True), engine.stop_when_idle(lambda: True))
    assert not engine.begun
    engine.post(pytest.fail, "no loop runs that could call this")


async def test_what_is_under_way_on_it_is_not_cut_off_and_ends_it() -> None:
    engine, before, begun, done = ThreadLoop(), threads(), threading.Event(), threading.Event()
    over = []

    async def works() -> None:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(10)
        await asyncio.to_thread(done.wait, 10)  # as a driver that must not be left half way
        over.append(True)

    given_up = asyncio.ensure_future(engine.call(works()))
    await asyncio.to_thread(begun.wait, 10)
    given_up.cancel()
    await engine.stop_when_idle(lambda: True)
    assert (engine.begun, over) == (True, [])
    done.set()
    await asyncio.to_thread(until_gone, threads() - before)
    assert (engine.begun, over) == (False, [True])


@pytest.mark.parametrize("place", PLACES)
def test_a_caller_that_enqueues_while_others_close_is_always_answered(place: str, tmp_path: Path) -> None:
    ms = Mainspring(PLACES[place](tmp_path))

    @ms.task
    async def send(number: int) -> None: ...

    ms.sync.runs()
    end = time.monotonic() + 1
    stored: list[list[str]] = [[], [], []]
    refused: list[str] = []

    def blocking() -> None:
        while time.monotonic() < end:
            try:
                stored[0].append(send.sync.enqueue(0).id)
            except StoreUnavailable as error:
                refused.append(str(error))

    def awaiting(mine: list[str]) -> None:
        async def some() -> None:
            while time.monotonic() < end:
                try:
                    mine.append((await send.enqueue(1)).id)
                except StoreUnavailable as error:
                    refused.append(str(error))

        asyncio.run(some())

    callers = [threading.Thread(target=blocking)]
    callers += [threading.Thread(target=awaiting, args=(mine,)) for mine in stored[1:]]
    for caller in callers:
        caller.start()
    closed, before = 0, 0
    while any(caller.is_alive() for caller in callers):
        if before < (before := sum(map(len, stored))):
            ms.sync.close()
            closed += 1
    assert closed > 5
    assert all(stored)
    assert set(refused) <= {
        "the store was closed before it was open; nothing was stored",
        "the store was closed meanwhile; nothing was stored",
    }
    told = list(itertools.chain(*stored))
    found = {run.id for run in ms.sync.runs(limit=len(told) + len(refused) + 1000)}
    assert set(told) <= found
    ms.sync.close()
    assert not host_of(ms).engine.begun


async def test_a_caller_that_stops_waiting_for_the_end_of_the_thread_does_not_disturb_it() -> None:
    engine, before, gate = ThreadLoop(), threads(), threading.Event()

    async def begins() -> None:  # the thread's end waits for this
        asyncio.get_running_loop().run_in_executor(None, gate.wait, 10)

    await engine.call(begins())
    mine = threads() - before
    resting = asyncio.ensure_future(engine.stop_when_idle(lambda: True))
    while engine.begun:  # noqa: ASYNC110 - until it is told to end
        await asyncio.sleep(0.001)
    for _ in range(5):
        await asyncio.sleep(0.001)  # the answer comes, and the end is waited for
    resting.cancel()
    await asyncio.gather(resting, return_exceptions=True)
    assert resting.cancelled()
    gate.set()
    await asyncio.to_thread(until_gone, mine)  # an error in the thread fails the test


async def test_a_caller_gets_the_reason_why_no_loop_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> asyncio.AbstractEventLoop:
        raise OSError("too many open files")

    async def asks() -> int:
        return 7

    engine, before = ThreadLoop(), threads()
    with monkeypatch.context() as patch:
        patch.setattr("mainspring.runtime.engine_thread._new_loop", refuses)
        refused = asks()
        with pytest.raises(OSError, match="too many open files"):
            await engine.call(refused)
        refused.close()
    assert (engine.begun, threads()) == (False, before)
    assert await engine.call(asks()) == 7
    await engine.stop_when_idle(lambda: True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_while_others_ask_has_a_thread_of_its_own(tmp_path: Path) -> None:
    ms = Mainspring(f"sqlite:///{tmp_path}/x.db")
    over = threading.Event()

    def asks() -> None:
        while not over.is_set():
            ms.sync.runs()

    ms.sync.runs()  # SQLite believes that a lock held at the fork, as for the schema, is held in the child for ever
    others = [threading.Thread(target=asks) for _ in range(2)]
    for other in others:
        other.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                with contextlib.suppress(BaseException):
                    ms.sync.runs()
                    ms.sync.close()
                    os._exit(0)
                os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        over.set()
        for other in others:
            other.join()
    ms.sync.close()
