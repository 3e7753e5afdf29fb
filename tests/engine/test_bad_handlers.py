"""Handlers that block, hang, print or do not stop: what they may delay, how they end, who is told.

Handlers that raise, exit or return what cannot be stored: `test_executors.py` and `test_processes.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring, State
from mainspring.model.events import LoopBlocked, RunHandedBack, RunStarted

LONG = 20.0


@contextlib.contextmanager
def beside(app: Mainspring) -> Iterator[None]:
    """The app on a loop and thread of its own, so that the test can go on while that loop is blocked."""
    errors: list[BaseException] = []

    def body() -> None:
        try:
            asyncio.run(app.run_async(signals=False))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body, name="handlers", daemon=True)
    thread.start()
    until(lambda: app._stopper is not None or bool(errors))
    try:
        yield
    finally:
        app.stop()
        thread.join(LONG)
        app.sync.close()
        app._engine.stop()
        assert not errors
        assert not thread.is_alive()


def until(fact: Callable[[], bool]) -> None:
    """Wait for a fact."""
    end = time.monotonic() + LONG
    while not fact():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


class Named(logging.Handler):
    """Opens when the engine warns that the loop is blocked."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen = threading.Event()
        self.words: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "handlers' loop" in text:
            self.words.append(text)
        if "does not answer" in text:
            self.seen.set()


@pytest.fixture
def named() -> Iterator[Named]:
    handler = Named()
    logger = logging.getLogger("mainspring.engine")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.fixture
def app(tmp_path: Path) -> Mainspring:
    return Mainspring(f"sqlite:///{tmp_path}/x.db", shutdown_timeout="5s")


def blocked(app: Mainspring) -> list[LoopBlocked]:
    return [event for event in app.sync.events(types=[LoopBlocked]) if isinstance(event, LoopBlocked)]


# ── what blocks the loop ───────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["coroutine", "function on the loop", "task of a handler", "callback of a handler"])
def test_what_blocks_the_loop_is_named_with_task_and_run(app: Mainspring, named: Named, how: str) -> None:
    def hold() -> None:
        assert named.seen.wait(LONG)

    async def hold_within() -> None:
        hold()

    @app.task(name="culprit")
    async def coroutine() -> None:
        if how == "task of a handler":
            await asyncio.gather(hold_within(), asyncio.sleep(0))
        elif how == "callback of a handler":
            asyncio.get_running_loop().call_soon(hold)
            await asyncio.sleep(0.001)
        else:
            hold()

    @app.task(executor="loop")
    def on_loop() -> None:
        hold()

    task: Any = on_loop if how == "function on the loop" else coroutine
    with beside(app):
        handle = task.sync.enqueue()
        handle.result(timeout=LONG)
        (note,) = blocked(app)
        (started,) = app.sync.events(run=handle.id, types=[RunStarted])
        assert (note.task, note.run_id, note.attempt, note.owner) == (task.name, handle.id, 1, started.owner)
        assert note.ms >= 100
        assert "test_bad_handlers.py" in note.where
        assert note.where.endswith("in hold")
        until(lambda: len(named.words) == 2)
    said, freed = named.words
    assert f"held by task {task.name} (run {handle.id}) at {note.where}" in said
    assert 'executor="thread"' in said
    assert freed.endswith(f"held by task {task.name} (run {handle.id})")


def test_code_on_the_loop_that_is_no_handler_is_named_as_such(app: Mainspring, named: Named) -> None:
    @app.task
    async def innocent() -> None:
        await began()

    async def began() -> None:
        outside.call_soon_threadsafe(hold)
        while not named.seen.is_set():  # noqa: ASYNC110 - on purpose: runs before and after, never during
            await asyncio.sleep(0.01)

    def hold() -> None:
        assert named.seen.wait(LONG)

    class Outside:
        """Schedules from a thread of its own, as a web framework would, without the handler's context."""

        def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
            loop = asyncio.get_running_loop()
            thread = threading.Thread(target=loop.call_soon_threadsafe, args=(call,))
            thread.start()
            thread.join()

    outside = Outside()
    with beside(app):
        innocent.sync.enqueue().result(timeout=LONG)
        (note,) = blocked(app)
    assert (note.task, note.run_id) == (None, None)
    assert note.where.endswith("in hold")
    assert "held by code that is no handler" in named.words[0]


def test_what_cannot_begin_for_a_second_is_handed_back_and_taken_by_another_instance(
    app: Mainspring, tmp_path: Path
) -> None:
    release = threading.Event()
    ran: list[str] = []

    @app.task(executor="loop")
    def block() -> None:
        assert release.wait(LONG)

    @app.task(name="quick")
    async def quick_here() -> str:
        ran.append("here")
        return "here"

    other = Mainspring(app.url, shutdown_timeout="5s")

    @other.task(name="quick")
    async def quick_there() -> str:
        ran.append("there")
        return "there"

    first = block.sync.enqueue()
    second = quick_here.sync.enqueue()  # both are claimed at once, and the first keeps the second from beginning
    with beside(app):
        until(lambda: bool(app.sync.events(run=second.id, types=[RunHandedBack])))
        with beside(other):
            assert second.result(timeout=LONG) == "there"
        assert app.sync.find_by_id(first.id).state is State.RUNNING
        release.set()
        first.result(timeout=LONG)
        quick_here.sync.enqueue().result(timeout=LONG)  # the loop has worked off whatever was posted to it
    assert ran == ["there", "here"], "what was handed back must not begin when the loop comes free"
    (back,) = app.sync.events(run=second.id, types=[RunHandedBack])
    assert (back.reason, back.began) == ("loop_blocked", False)
    run = app.sync.find_by_id(second.id)
    assert (run.failures, run.crashes, run.attempt) == (0, 0, 2)
    run = app.sync.find_by_id(first.id)
    assert (run.state, run.attempt) == (State.SUCCEEDED, 1)
    app.sync.close()
    app._engine.stop()


def test_a_blocked_loop_delays_only_coroutines_and_claims_no_more_of_them(app: Mainspring, named: Named) -> None:
    release = threading.Event()

    @app.task(executor="loop")
    def block() -> None:
        assert release.wait(LONG)

    @app.task
    async def coroutine() -> str:
        return "at last"

    @app.task
    def thread() -> str:
        return "at once"

    with beside(app):
        first = block.sync.enqueue()
        assert named.seen.wait(LONG)
        later = coroutine.sync.enqueue()
        assert thread.sync.enqueue().result(timeout=LONG) == "at once"
        assert app.sync.find_by_id(later.id).attempt == 0  # the older one, left where another instance could take it
        release.set()
        first.result(timeout=LONG)
        assert later.result(timeout=LONG) == "at last"
        assert len(app.sync.events(run=later.id, types=[RunStarted])) == 1
        assert not app.sync.events(types=[RunHandedBack])
