"""The supervisor with programs that behave badly: they cannot start, they die at once, they do not end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from mainspring.model.errors import StoreUnavailable
from mainspring.rules.autoscale import Bounds, Demand
from mainspring.server.supervisor import Supervisor


async def nothing(pids: Collection[int], enough: int) -> Demand:
    return Demand(0, 0)


def supervisor(
    *command: str,
    bounds: Bounds = Bounds(1, 1, 1),  # noqa: B008 - a value, not changed
    demand: Callable[[Collection[int], int], asyncio.Future[Demand]] | object = nothing,
) -> Supervisor:
    return Supervisor(command, bounds, slots=1, poll=0.02, shutdown_timeout=600.0, demand=demand)  # type: ignore[arg-type]  # an async function


async def until(fact: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not fact():  # noqa: ASYNC110 - another process makes it true
            await asyncio.sleep(0.02)


def signalled(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


async def test_a_program_that_cannot_start_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    running = asyncio.ensure_future(supervisor("/no/such/program").run())
    await until(lambda: caplog.text.count("could not be started") >= 2)
    assert "another is started in 1 s" in caplog.text  # half a second first, then twice that
    signalled()
    assert await running == 0


async def test_a_worker_that_dies_at_once_is_started_again_less_and_less_often(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "log"
    code = f"open({str(log)!r}, 'a').write('x'); raise SystemExit(3)"
    running = asyncio.ensure_future(supervisor(sys.executable, "-c", code).run())
    await until(lambda: "exit code 3); another is started in 1 s" in caplog.text)
    signalled()  # while it waits: nothing is started any more
    assert await running == 0
    assert log.read_text() == "xx"


async def test_the_third_signal_kills_workers_that_do_not_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    mark = tmp_path / "ready"
    code = f"""
import pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path({str(mark)!r}).touch()
time.sleep(600)
"""
    running = asyncio.ensure_future(supervisor(sys.executable, "-c", code).run())
    await until(mark.exists)
    for _ in range(3):
        signalled(signal.SIGINT)
        await until(lambda: "stopping 1 worker" in caplog.text)
        assert not running.done()
        await asyncio.sleep(0)
    async with asyncio.timeout(30):  # long before the time to shut down is over
        assert await running == 1
    assert "did not end and is killed" in caplog.text


async def test_a_store_that_does_not_answer_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    asked = 0

    async def away(pids: Collection[int], enough: int) -> Demand:
        nonlocal asked
        asked += 1
        if asked <= 3:
            raise StoreUnavailable("away") if asked < 3 else ValueError("odd")
        return Demand(5, 0)

    caplog.set_level(logging.INFO)
    code = "import sys; sys.stdin.read()"
    running = asyncio.ensure_future(supervisor(sys.executable, "-c", code, bounds=Bounds(1, 2, 1), demand=away).run())
    await until(lambda: "pool resized from 1 to 2 workers (5 runs wait, " in caplog.text)
    assert caplog.text.count("cannot read the backlog, the pool keeps its size") == 3
    signalled()
    assert await running == 0


async def test_the_log_says_that_more_runs_may_wait_than_were_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def many(pids: Collection[int], enough: int) -> Demand:
        return Demand(8, 1, at_least=True)

    caplog.set_level(logging.INFO)
    code = "import sys; sys.stdin.read()"
    running = asyncio.ensure_future(supervisor(sys.executable, "-c", code, bounds=Bounds(1, 2, 1), demand=many).run())
    await until(lambda: "pool resized from 1 to 2 workers (at least 8 runs wait, 1 is running)" in caplog.text)
    signalled()
    assert await running == 0
