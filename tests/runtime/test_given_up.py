"""An instance given up at any moment of its start or its work leaves no connection, socket or thread behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from mainspring import Mainspring
from mainspring.app.internals import host_of
from mainspring.app.shutdown import Stopper
from mainspring.model.errors import RunsAlready, StoreFull
from mainspring.runtime.log_notes import LogNotes
from servers import for_tests_redis
from servers.for_tests import fresh_url

#: Seconds after which it is given up: the start takes some hundredths.
MOMENTS = [moment / 1000 for moment in (0, 1, 2, 3, 4, 5, 7, 9, 11, 13, 15, 18, 21, 25, 30, 40, 60, 90)]
ROUNDS = int(os.environ.get("MAINSPRING_GIVE_UP_ROUNDS", "1"))

PLACES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder}/x.db",
    "postgresql": lambda _: fresh_url(),
    "valkey": lambda _: for_tests_redis.fresh_url(),
    "redis by TLS": lambda _: for_tests_redis.fresh_url(for_tests_redis.tls_url()),
}


@pytest.mark.usefixtures("frozen_heap")  # it collects garbage 18 times
@pytest.mark.parametrize("place", PLACES)
def test_an_instance_given_up_at_any_moment_leaves_nothing_open(place: str, tmp_path: Path) -> None:
    url = PLACES[place](tmp_path)
    before = set(threading.enumerate())
    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always")
        for moment in MOMENTS * ROUNDS:
            asyncio.run(_give_up(url, moment))
            gc.collect()
            assert not left, f"given up after {moment * 1000:g} ms: {[str(one.message) for one in left]}"
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive(), thread.name


async def _give_up(url: str, moment: float) -> None:
    ms = Mainspring(url, poll_interval="50ms")

    @ms.every("20ms")
    async def tick() -> None: ...

    work = asyncio.ensure_future(ms.run_async())
    asyncio.get_running_loop().call_later(moment, work.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await work
    await ms.close()


@pytest.mark.parametrize("turns", range(8))
async def test_a_caller_that_waits_for_a_start_can_be_cancelled_at_every_turn_of_the_loop(turns: int) -> None:
    stopper = Stopper()

    async def runs() -> None:
        await stopper.first_of(asyncio.sleep(0))
        await stopper.wait()

    work = asyncio.ensure_future(runs())
    for _ in range(turns):
        await asyncio.sleep(0)
    work.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert work.cancelled()


async def test_closing_waits_no_longer_for_a_server_that_is_not_there() -> None:
    ms = Mainspring("postgresql://nobody@127.0.0.1:1/nothing?wait=5m")
    work = asyncio.ensure_future(ms.run_async(signals=False))
    while host_of(ms)._opening is None:  # noqa: ASYNC110 - as soon as it knocks
        await asyncio.sleep(0.001)
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    opening = host_of(ms)._opening
    async with asyncio.timeout(5):
        await ms.close()
    assert opening is not None
    assert opening.cancelled()
    assert not ms.is_running


async def test_a_start_that_fails_stops_what_has_begun_and_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ms = Mainspring(f"sqlite:///{tmp_path}/x.db")

    async def full(*_: object) -> None:
        raise StoreFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(LogNotes, "append", full)
        with pytest.raises(StoreFull):
            await ms.run_async(signals=False)
    assert not ms.is_running
    async with ms.running():
        assert ms.is_running
        with pytest.raises(RunsAlready, match="runs already"):
            await ms.run_async(signals=False)
        assert ms.is_running
