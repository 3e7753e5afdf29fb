"""The engine beside a synchronous program: `with ms.background():`, `ms.start_background()` and `ms.sync.start()`."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from datetime import datetime

import pytest

from mainspring import Context, InvalidInput, Mainspring
from mainspring.app.shutdown import describe_wait
from mainspring.model.errors import RunsAlready, StoreUnavailable
from mainspring.model.events import InstanceJoined, InstanceLeft, RunHandedBack
from mainspring.ports.executor import LOADING_VARIABLE
from mainspring.testing import Kit
from tests.engine.support import START, WAIT, Make

LONG = 20.0


def test_coroutines_and_functions_run_while_the_block_blocks_its_thread(ms: Mainspring) -> None:
    threads: set[int] = set()

    @ms.task
    async def coroutine() -> str:
        await asyncio.sleep(0)
        threads.add(threading.get_ident())
        return "coroutine"

    @ms.task
    def function() -> str:
        threads.add(threading.get_ident())
        return "function"

    with ms.background() as same:
        assert same is ms
        assert ms.is_running
        assert ms.health().status == "ok"
        assert coroutine.sync.enqueue().result(timeout=WAIT) == "coroutine"
        assert function.sync.enqueue().result(timeout=WAIT) == "function"
    assert threading.get_ident() not in threads
    assert not ms.is_running
    assert ms.health().status == "stopped"
    joined, left = (ms.sync.events(types=[kind]) for kind in (InstanceJoined, InstanceLeft))
    assert (len(joined), len(left)) == (1, 1)


@pytest.mark.parametrize("start", [Mainspring.start_background, lambda ms: ms.sync.start()])
def test_the_started_engine_can_be_stopped_and_started_again(
    ms: Mainspring, start: Callable[[Mainspring], object]
) -> None:
    @ms.task
    async def work() -> str:
        return "done"

    for _ in range(2):
        start(ms)
        background = ms._background
        assert background.is_running
        assert work.sync.enqueue().result(timeout=WAIT) == "done"
        background.stop()
        assert not background.is_running
        background.stop()  # a second call does nothing
    assert not ms.is_running


def test_a_second_start_is_refused_and_harms_nothing(ms: Mainspring) -> None:
    @ms.task
    async def work() -> str:
        return "done"

    with ms.background():
        for again in (ms.start_background, ms.sync.start, ms.run, lambda: ms.background().__enter__()):
            with pytest.raises(RunsAlready, match=r"runs already: one run\(\).* or background\(\) at a time"):
                again()
        assert ms.is_running
        assert work.sync.enqueue().result(timeout=WAIT) == "done"
    assert not ms.is_running


async def test_a_start_beside_a_running_engine_is_refused(ms: Mainspring) -> None:
    async with ms.running():
        with pytest.raises(RunsAlready):
            await asyncio.to_thread(ms.start_background)
        assert ms.is_running
    assert not ms.is_running


def test_stop_lets_runs_end(ms: Mainspring) -> None:
    began, go = threading.Event(), threading.Event()

    @ms.task
    async def slow() -> str:
        began.set()
        await asyncio.to_thread(go.wait, LONG)
        return "finished"

    with ms.background():
        handle = slow.sync.enqueue()
        assert began.wait(LONG)
        threading.Timer(0, go.set).start()
    assert handle.result(timeout=WAIT) == "finished"
    assert ms.sync.events(types=[RunHandedBack]) == []


def test_the_stop_of_the_app_and_the_end_of_the_block_are_one_request(ms: Mainspring) -> None:
    """A second request would hand the run back."""
    began, go = threading.Event(), threading.Event()

    @ms.task
    async def slow() -> str:
        began.set()
        await asyncio.to_thread(go.wait, LONG)
        return "finished"

    with ms.background():
        handle = slow.sync.enqueue()
        assert began.wait(LONG)
        ms.stop()
        threading.Timer(0.2, go.set).start()
    assert handle.result(timeout=WAIT) == "finished"


def test_a_handler_may_stop_the_engine(ms: Mainspring) -> None:
    background = ms.start_background()

    @ms.task
    async def last() -> str:
        background.stop()  # on the handlers' loop it does not wait for itself
        return "last"

    handle = last.sync.enqueue()
    assert background._ended is not None
    assert background._ended.wait(LONG)
    assert handle.result(timeout=WAIT) == "last"


def test_a_store_that_cannot_be_opened_is_the_error_of_the_start(tmp_path: object) -> None:
    ms = Mainspring(f"sqlite:///{tmp_path}/no/such/folder/x.db")
    with pytest.raises(StoreUnavailable):
        ms.start_background()
    assert not ms.is_running
    with pytest.raises(StoreUnavailable):  # not RunsAlready
        ms.start_background()


def test_an_unknown_role_is_refused(ms: Mainspring) -> None:
    with pytest.raises(InvalidInput, match="role"):
        ms.start_background(role="boss")  # type: ignore[arg-type]  # that is what is tested


def test_a_worker_in_the_background_plans_nothing(make: Make) -> None:
    ms = make()

    @ms.every("1h")
    async def hourly() -> None: ...

    with ms.background(role="worker"):
        assert ms.sync.schedules() == []


def test_the_import_by_another_program_starts_nothing(ms: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOADING_VARIABLE, "1")
    background = ms.start_background()
    assert not background.is_running
    background.stop()
    with pytest.raises(InvalidInput, match='if __name__ == "__main__"'), ms.background():
        raise AssertionError("the block must not run")


def test_in_a_test_kit_the_kit_drives_the_engine(make: Make) -> None:
    ms, ran = make(), list[datetime | None]()

    @ms.every("1m")
    def tick(ctx: Context) -> None:
        ran.append(ctx.fire_time)

    with Kit(START) as kit, kit.use(ms).app.background():
        kit.advance("3m")
        assert len(ran) == 3


def test_the_missing_method_start_names_the_right_calls(ms: Mainspring) -> None:
    with pytest.raises(AttributeError, match=r"call ms\.start_background\(\) .* async with ms\.running\(\):"):
        ms.start()  # type: ignore[attr-defined]  # that is what is tested


# ── what a stop says ───────────────────────────────────────────────────────


def test_a_stop_says_which_runs_it_waits_for(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    ms = make(shutdown_timeout="12s")
    began, go = threading.Semaphore(0), threading.Event()

    @ms.task
    async def slow() -> None:
        began.release()
        await asyncio.to_thread(go.wait, LONG)

    class GoOn(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("stopping"):
                go.set()

    handler = GoOn()
    logging.getLogger("mainspring.engine").addHandler(handler)
    try:
        with ms.background():
            slow.sync.enqueue_many([(), ()])
            assert all(began.acquire(timeout=LONG) for _ in range(2))
    finally:
        logging.getLogger("mainspring.engine").removeHandler(handler)
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("stopping")]
    assert said == ["stopping: waits up to 12 s for 2 runs (slow × 2); press Ctrl-C again to end now"]


def test_a_stop_that_waits_for_nothing_says_nothing(ms: Mainspring, caplog: pytest.LogCaptureFixture) -> None:
    with ms.background():
        pass
    assert "stopping" not in caplog.text


@pytest.mark.parametrize(
    ("tasks", "text"),
    [
        (["slow"], "stopping: waits up to 0.5 s for 1 run (slow)"),
        (["a", "b", "a"], "stopping: waits up to 0.5 s for 3 runs (a × 2, b)"),
        (list("abcdefg"), "stopping: waits up to 0.5 s for 7 runs (a, b, c, d, e and 2 more tasks)"),
    ],
)
def test_the_line_of_a_stop(tasks: list[str], text: str) -> None:
    assert describe_wait(tasks, 0.5, by_ctrl_c=False) == text
    assert describe_wait(tasks, 0.5, by_ctrl_c=True) == f"{text}; press Ctrl-C again to end now"
