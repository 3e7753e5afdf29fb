"""Handlers that block, hang, print or do not stop: what they may delay, how they end, and what is reported.

Handlers that raise, exit or return what cannot be stored: `test_executors.py` and `test_processes.py`; that kill the
worker: `system/test_handlers_that_kill.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from mainspring import Context, Mainspring, State
from mainspring.app.internals import host_of, runner_of
from mainspring.engine.work.watchdog import Watchdog
from mainspring.model.events import LoopBlocked, RunHandedBack, RunStarted
from mainspring.model.outcome import Succeeded
from mainspring.ports.executor import Flag, HeldRun, Kind
from mainspring.testing.virtual_time import VirtualClock
from tests.engine.support import ONCE, failed

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
    until(lambda: runner_of(app).stopper is not None or bool(errors))
    try:
        yield
    finally:
        app.stop()
        thread.join(LONG)
        app.sync.close()
        assert not errors
        assert not thread.is_alive()


def until(fact: Callable[[], bool]) -> None:
    """Wait for a fact."""
    end = time.monotonic() + LONG
    while not fact():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


class Named(logging.Handler):
    """Opens when the engine warns that the expected handler blocks the loop: a busy machine may starve it, too."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen = threading.Event()
        self.holder = "blocked"
        self.words: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "handlers' loop" in text and self.holder in text:
            self.words.append(text)
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
    named.holder = f"by task {task.name}"
    with beside(app):
        handle = task.sync.enqueue()
        handle.result(timeout=LONG)
        (note,) = [note for note in blocked(app) if note.task is not None]
        (started,) = app.sync.events(run=handle.id, types=[RunStarted])
        assert (note.task, note.run_id, note.attempt, note.owner) == (task.name, handle.id, 1, started.owner)
        assert note.ms >= 100
        assert "test_bad_handlers.py" in note.where
        assert note.where.endswith("in hold")
        until(lambda: len(named.words) == 2)
    said, freed = named.words
    assert "has been blocked for" in said
    assert f"ms by task {task.name} (run {handle.id}, attempt 1) at {note.where}" in said
    assert 'executor="thread"' in said
    assert freed.endswith(f"blocked by task {task.name} (run {handle.id}, attempt 1)")


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
    named.holder = "by code that is no handler"
    with beside(app):
        innocent.sync.enqueue().result(timeout=LONG)
        notes = [note for note in blocked(app) if note.where.endswith("in hold")]
    assert [(note.task, note.run_id) for note in notes] == [(None, None)]
    assert notes[0].where in named.words[0]


def test_what_cannot_begin_for_a_second_is_handed_back_and_taken_by_another_instance(
    app: Mainspring, tmp_path: Path
) -> None:
    release = threading.Event()
    ran: list[str] = []

    @app.task(executor="loop")
    def block() -> None:
        assert release.wait(LONG)

    def declare(ms: Mainspring, place: str) -> Any:
        """Declare one function of one program, so that the instances do not compete for its name."""

        @ms.task
        async def quick() -> str:
            ran.append(place)
            return place

        return quick

    quick_here = declare(app, "here")
    other = Mainspring(app.url, shutdown_timeout="5s")
    declare(other, "there")
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
        named.holder = "by task block"
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


class HashableNamespace(SimpleNamespace):
    """A namespace that is equal to itself only, as a `HeldRun` is."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Silence:
    """A watchdog whose loop and clock a test moves by hand."""

    def __init__(self) -> None:
        self.clock = VirtualClock(0)
        self.posted: list[Callable[[], None]] = []
        self.notes: list[Any] = []
        self.reported: list[str] = []
        held = HashableNamespace(
            attempt=SimpleNamespace(handler=SimpleNamespace(kind="async"), timeout=None),
            execution=SimpleNamespace(began_at=1, handle=None),
            stop=None,
            abandon=lambda: None,
        )
        self.running: dict[str, Any] = {"r": held}
        self.closed: frozenset[Kind] = frozenset()
        self.dog = Watchdog(
            cast("Any", self),
            cast("Any", self),
            self.clock,
            "me",
            self.notes.append,
            lambda attempt: Succeeded(),
            lambda attempt, why: self.reported.append(why),
            cast("Any", self),
        )

    def close_kinds(self, kinds: frozenset[Kind]) -> None:
        """As the worker."""
        self.closed = kinds

    def open_kinds(self) -> None:
        """As the worker."""
        self.closed = frozenset()

    is_running, is_closed = staticmethod(lambda: True), staticmethod(lambda: False)  # as the handlers' loop

    def call_soon_threadsafe(self, call: Callable[..., None], *args: Any) -> None:
        self.posted.append(lambda: call(*args))

    def start(self, held_runs: Sequence[HeldRun]) -> None:
        """As the executor."""

    async def close(self) -> None:
        """As the executor."""

    def finished(self, done: Sequence[tuple[HeldRun, Any]]) -> None:
        """As the worker."""
        self.running.clear()

    def start_at(self, now: float) -> int:
        """Start something then; how many questions are open."""
        self.clock.move_to(now)
        self.dog.start([])
        return len(self.posted)

    def look(self, seconds: float, late: float = 0.0) -> float | None:
        """The next check, `seconds` after the last, later than it should be."""
        self.clock.move_to(self.clock.monotonic() + seconds + late)
        self.dog._due = self.clock.monotonic() - late
        return self.dog._ping_or_judge(self.clock.monotonic())


async def test_a_loop_that_answers_within_100_ms_is_not_called_blocked() -> None:
    world = Silence()
    for _ in range(20):
        assert world.look(0.05) == 0.05
        assert world.look(0.05) == 0.05
        world.posted.pop()()
    assert not world.notes


async def test_a_start_takes_the_look_that_is_due_soon() -> None:
    world = Silence()
    assert [world.start_at(now) for now in (0.0, 0.04)] == [0, 0]
    armed = world.dog._timer
    assert world.start_at(0.06) == 1
    assert armed is not None
    assert armed.cancelled()
    assert world.start_at(0.2) == 1, "the answer is awaited"
    world.posted.pop()()
    assert world.start_at(0.3) == 1
    world.posted.pop()()
    assert world.start_at(1.1) == 0, "handlers that do not stop are looked for in a later turn of the loop"
    await world.dog.close()


async def test_silence_while_the_watchdog_was_held_up_too_is_not_a_blockage() -> None:
    world = Silence()
    world.look(0.05)
    world.look(0.05, late=30.0)  # the machine slept, or something held the interpreter
    world.look(0.05)
    assert not world.notes
    world.look(0.05)
    assert [note.ms for note in world.notes] == [100]


async def test_a_blockage_is_named_once_and_the_worker_opens_again_at_its_end() -> None:
    world = Silence()
    for _ in range(15):
        world.look(0.05)
    assert len(world.notes) == 1
    assert world.closed == {"async", "sync"}
    world.posted.pop()()
    world.look(0.05)
    assert world.closed == frozenset()
    del world.running["r"]
    world.posted.pop()()
    assert world.look(0.05) is None  # nothing runs: it sleeps


# ── what does not stop ─────────────────────────────────────────────────────


async def test_a_thread_past_its_time_limit_keeps_slot_and_gate_until_it_returns(plain_ms: Mainspring) -> None:
    told, release = threading.Event(), threading.Event()
    began: list[int] = []

    @plain_ms.task(timeout="50ms", limit=1)
    def slow(ctx: Context) -> str:
        began.append(ctx.attempt)
        if ctx.run_id == first.id:
            assert ctx._held.cancelled.wait(LONG)
            told.set()
            assert release.wait(LONG)
        return "done"

    @plain_ms.task
    async def probe() -> None: ...

    first = await slow.enqueue()
    second = await slow.enqueue()
    async with plain_ms.running():
        assert await asyncio.to_thread(told.wait, LONG)
        await (await probe.enqueue()).result(timeout=LONG)  # the worker has claimed since
        runtime = host_of(plain_ms).runtime
        assert runtime is not None
        assert runtime.worker is not None
        assert first.id in runtime.worker.running
        assert await first.state() is State.RUNNING
        waiting = await second.run()
        assert (waiting.attempt, waiting.parked_on) == (0, "task:default/slow")
        release.set()
        assert await first.result(timeout=LONG) == "done"
        await second.result(timeout=LONG)
    assert began == [1, 1]


async def test_a_coroutine_that_swallows_its_cancellation_is_reported_once_and_held_until_it_ends() -> None:
    world = Silence()
    (held,) = world.running.values()
    held.attempt.timeout, held.attempt.handler.overrun = 500, None
    held.execution.started, held.cancelled = world.clock.monotonic(), Flag()
    for _ in range(40):
        assert world.look(0.05) is not None
        while world.posted:
            world.posted.pop()()
        if world.clock.monotonic() - held.execution.started < 1.4:
            assert (world.reported, held.cancelled.is_set()) == ([], False)
    for _ in range(1_000):
        world.look(0.05)
        while world.posted:
            world.posted.pop()()
    assert world.reported == ["it did not end when it was cancelled"]
    assert held.cancelled.is_set()
    assert (world.dog.abandoned, list(world.running)) == (0, ["r"])


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
async def test_what_does_not_stop_within_the_overrun_is_failed_abandoned_and_counted(
    plain_ms: Mainspring, kind: str
) -> None:
    release = threading.Event()

    @plain_ms.task(timeout="30ms", overrun="50ms", retry=ONCE)
    def deaf() -> None:
        assert release.wait(LONG)

    @plain_ms.task(timeout="30ms", overrun="50ms", retry=ONCE)
    async def stubborn() -> None:
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.005)

    async with plain_ms.running():
        run = await failed(deaf if kind == "thread" else stubborn)
        assert run.error == "timed out after 0.03 s, did not stop within 0.05 s and was abandoned"
        assert (run.reason, run.failures, run.dead) == ("timeout", 1, True)
        runtime = host_of(plain_ms).runtime
        assert runtime is not None
        assert runtime.worker is not None
        assert not runtime.worker.running
        assert runtime._describe().abandoned == 1
        release.set()


# ── processes ──────────────────────────────────────────────────────────────


async def test_a_process_handler_may_print_megabytes(program: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    size = 4 * 1024 * 1024
    async with program.ms.running():
        assert await (await program.loud.enqueue(size)).result(timeout=LONG) == size
        assert await (await program.fail.enqueue("fine")).result(timeout=LONG) == "fine"
    said = capfd.readouterr()
    assert (said.out.count("x"), said.err.count("x")) == (size, size)


@pytest.mark.parametrize("executor", ["loop", "thread"])
async def test_other_handlers_may_print_megabytes(
    plain_ms: Mainspring, capfd: pytest.CaptureFixture[str], executor: Any
) -> None:
    size = 4 * 1024 * 1024

    @plain_ms.task(executor=executor)
    def loud() -> int:
        print("x" * size, flush=True)
        return size

    async with plain_ms.running():
        assert await (await loud.enqueue()).result(timeout=LONG) == size
    assert capfd.readouterr().out.count("x") == size


async def test_a_killed_process_handler_fails_though_its_own_children_live(program: ModuleType, tmp_path: Path) -> None:
    mark = tmp_path / "end"
    try:
        async with program.ms.running():
            run = await failed(program.orphan, str(mark))
            assert run.error == "the handler's process ended by signal 9"
            assert (run.reason, run.failures) == ("process", 1)
            assert await (await program.fail.enqueue("next")).result(timeout=LONG) == "next"
    finally:
        mark.touch()


async def test_a_child_killed_while_idle_fails_no_attempt(program: ModuleType) -> None:
    async with program.ms.running():
        pid, _ = await (await program.pid.enqueue(program.Point(1, 2))).result(timeout=LONG)
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        handle = await program.pid.enqueue(program.Point(3, 4))
        assert (await handle.result(timeout=LONG))[1] == 7
        assert (await handle.run()).attempt == 1
