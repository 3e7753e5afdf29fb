"""How attempts are carried out: on the loop, in threads, in processes; time-outs, deaths, leases, hand-backs."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mainspring import Context, Mainspring, Retry, RunNotSuccessful, State
from mainspring.model.events import LeaseExpired, RunHandedBack, RunStarted, StaleResultRejected
from mainspring.model.run import Run
from mainspring.testing import manual

WAIT = "20s"
ONCE = Retry(max_attempts=1)


@pytest.fixture
async def ms() -> AsyncIterator[Mainspring]:
    app = Mainspring("memory://", shutdown_timeout="5s")
    yield app
    await app.close()
    app._engine.stop()


async def failed(task: Any, *args: Any) -> Run:
    """The run of a call that does not succeed."""
    handle = await task.enqueue(*args)
    with pytest.raises(RunNotSuccessful):
        await handle.result(timeout=WAIT)
    run: Run = await handle.run()
    assert run.state is State.FAILED
    return run


# ── where handlers run ─────────────────────────────────────────────────────


async def test_each_kind_runs_where_it_should(ms: Mainspring) -> None:
    here = threading.get_ident()

    @ms.task
    async def coroutine() -> int:
        return threading.get_ident()

    @ms.task(executor="loop")
    def on_loop() -> int:
        return threading.get_ident()

    @ms.task
    def plain() -> int:
        return threading.get_ident()

    @ms.task(executor="thread")
    def threaded() -> str:
        return threading.current_thread().name

    async with ms.running():
        assert await (await coroutine.enqueue()).result(timeout=WAIT) == here
        assert await (await on_loop.enqueue()).result(timeout=WAIT) == here
        assert await (await plain.enqueue()).result(timeout=WAIT) != here
        assert (await (await threaded.enqueue()).result(timeout=WAIT)).startswith("mainspring-handler")


async def test_threads_are_used_again(ms: Mainspring) -> None:
    @ms.task
    def name() -> str:
        return threading.current_thread().name

    async with ms.running():
        names = {await (await name.enqueue()).result(timeout=WAIT) for _ in range(5)}
        assert len(names) == 1


# ── raising ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("executor", ["auto", "loop"])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
async def test_any_exception_is_an_outcome(ms: Mainspring, error: type[BaseException], executor: Any) -> None:
    @ms.task(executor=executor, retry=ONCE)
    def blocking() -> None:
        raise error("stop")

    @ms.task(retry=ONCE)
    async def coroutine() -> None:
        raise error("stop")

    @ms.task
    async def next_one() -> str:
        return "still here"

    async with ms.running():
        for task in (blocking, coroutine):
            run = await failed(task)
            assert error.__name__ in (run.error or "")
            assert run.attempt == 1
        assert await (await next_one.enqueue()).result(timeout=WAIT) == "still here"


async def test_awaiting_something_cancelled_is_a_failure_and_not_a_hand_back(ms: Mainspring) -> None:
    @ms.task(retry=ONCE)
    async def work() -> None:
        inner = asyncio.ensure_future(asyncio.Event().wait())
        inner.cancel()
        await inner

    async with ms.running():
        run = await failed(work)
        assert "CancelledError" in (run.error or "")
        assert not await ms.events(run=run.id, types=[RunHandedBack])


async def test_a_huge_error_text_is_cut(ms: Mainspring) -> None:
    @ms.task(retry=ONCE)
    async def work() -> None:
        raise ValueError("x" * 1_000_000 + "the end")

    async with ms.running():
        error = (await failed(work)).error or ""
        assert len(error) < 2_100
        assert error.startswith("ValueError: xxx")
        assert "characters left out" in error
        assert error.endswith("the end")


@pytest.mark.parametrize("executor", ["auto", "loop"])
async def test_an_unserialisable_result_fails_with_words_and_without_retry(ms: Mainspring, executor: Any) -> None:
    @ms.task(executor=executor)
    def work() -> Any:
        return {"a": [object()]}

    async with ms.running():
        run = await failed(work)
        assert "cannot be stored as JSON: <object object" in (run.error or "")
        assert "Pass numbers, text, lists" in (run.error or "")
        assert (run.reason, run.attempt) == ("result", 1)


async def test_an_oversized_result_fails_with_words(ms: Mainspring) -> None:
    @ms.task
    async def work() -> str:
        return "x" * (2 * 1024 * 1024)

    async with ms.running():
        run = await failed(work)
        assert run.reason == "result"
        assert "more than the limit" in (run.error or "")


# ── time-outs ──────────────────────────────────────────────────────────────


async def test_a_coroutine_past_its_time_out(ms: Mainspring) -> None:
    cleaned = asyncio.Event()

    @ms.task(timeout="50ms", retry=ONCE)
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    @ms.task(timeout="50ms", retry=ONCE)
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "I go on"
        return ""

    @ms.task(timeout="10s", retry=ONCE)
    async def own() -> None:
        raise TimeoutError("the bank did not answer")

    async with ms.running():
        run = await failed(work)
        assert (run.error, run.reason) == ("timed out after 0.05 s", "timeout")
        assert cleaned.is_set()
        assert (await failed(stubborn)).reason == "timeout"
        run = await failed(own)
        assert (run.error, run.reason) == ("TimeoutError: the bank did not answer", "error")


async def test_a_blocking_handler_on_the_loop_past_its_time_out(ms: Mainspring) -> None:
    @ms.task(executor="loop", timeout="20ms", retry=ONCE)
    def work() -> str:
        time.sleep(0.06)  # the thing under test: nobody can interrupt this
        return "late"

    async with ms.running():
        assert (await failed(work)).reason == "timeout"


async def test_a_thread_past_its_time_out_is_told(ms: Mainspring) -> None:
    told = threading.Event()

    @ms.task(timeout="50ms", retry=ONCE)
    def work(ctx: Context) -> None:
        assert ctx._attempt.cancelled.wait(20)
        if ctx.cancelled:
            told.set()

    async with ms.running():
        run = await failed(work)
        assert (run.error, run.reason) == ("timed out after 0.05 s", "timeout")
        assert told.is_set()


async def test_a_thread_that_does_not_listen_is_given_up_after_the_overrun(ms: Mainspring) -> None:
    release = threading.Event()
    ended = threading.Event()

    @ms.task(timeout="30ms", overrun="50ms", retry=ONCE)
    def deaf() -> str:
        release.wait(20)
        ended.set()
        return "too late"

    @ms.task
    def other() -> str:
        return "free"

    async with ms.running():
        run = await failed(deaf)
        assert not ended.is_set()
        assert (run.error, run.reason) == ("timed out after 0.03 s and did not stop", "timeout")
        assert run.failures == 1
        release.set()
        await asyncio.to_thread(ended.wait)
        assert await (await other.enqueue()).result(timeout=WAIT) == "free"
        assert (await ms.find_by_id(run.id)) == run  # the late return changed nothing


# ── processes ──────────────────────────────────────────────────────────────

PROGRAM = """
    import os, signal, sys, threading, time
    from dataclasses import dataclass
    from typing import Any
    from mainspring import Cancel, Context, Depends, Mainspring, Retry, Snooze

    ms = Mainspring("memory://", deps="deps", shutdown_timeout="5s")
    ONCE = Retry(max_attempts=1)

    @dataclass
    class Point:
        x: int
        y: int

    @ms.task(executor="process")
    def pid(point: Point) -> list[int]:
        return [os.getpid(), point.x + point.y]

    @ms.task(executor="process", name="renamed")
    def context(ctx: Context, n: int, extra: str = Depends(lambda: "extra")) -> list[Any]:
        return [ctx.run_id, ctx.attempt, ctx.deps, extra, n]

    @ms.task(executor="process", retry=ONCE)
    def fail(how: str) -> Any:
        if how == "raise":
            raise LookupError("in a child")
        if how == "exit":
            sys.exit(3)
        if how == "interrupt":
            raise KeyboardInterrupt
        if how == "hard exit":
            os._exit(7)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "result":
            return object()
        return how

    @ms.task(executor="process", retry=ONCE, timeout="1500ms")
    def forever(mark: str) -> None:
        with open(mark, "w") as file:
            file.write(str(os.getpid()))
        threading.Event().wait(60)

    @ms.task(executor="process")
    def answer(what: str) -> Any:
        return Cancel("not wanted") if what == "cancel" else Snooze("1h")
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "child_program.py").write_text(textwrap.dedent(PROGRAM))
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("child_program", None)
    module = importlib.import_module("child_program")
    yield module
    module.ms._engine.stop()
    sys.modules.pop("child_program", None)


async def test_processes(program: ModuleType) -> None:
    ms = program.ms
    async with ms.running():
        # the same child serves one run after the other
        first = await (await program.pid.enqueue(program.Point(1, 2))).result(timeout=WAIT)
        second = await (await program.pid.enqueue(program.Point(3, 4))).result(timeout=WAIT)
        assert first[0] == second[0] != os.getpid()
        assert (first[1], second[1]) == (3, 7)
        handle = await program.context.enqueue(5)
        assert await handle.result(timeout=WAIT) == [handle.id, 1, "deps", "extra", 5]

        # whatever a handler does is an outcome, and the next one runs
        for how, words in {
            "raise": "LookupError: in a child",
            "exit": "SystemExit: 3",
            "interrupt": "KeyboardInterrupt",
            "hard exit": "the handler's process ended by exit code 7",
            "kill": "the handler's process ended by signal 9",
            "result": "result: cannot be stored as JSON",
        }.items():
            run = await failed(program.fail, how)
            assert words in (run.error or ""), how
        assert await (await program.fail.enqueue("fine")).result(timeout=WAIT) == "fine"

        cancelled = await program.answer.enqueue("cancel")
        with pytest.raises(RunNotSuccessful, match="ended as cancelled: not wanted"):
            await cancelled.result(timeout=WAIT)


async def test_a_process_past_its_time_out_and_one_that_is_cancelled(program: ModuleType, tmp_path: Path) -> None:
    ms = program.ms
    async with ms.running():
        late = await program.forever.enqueue(str(tmp_path / "late"))
        asked = await program.forever.using(timeout="60s").enqueue(str(tmp_path / "asked"))
        with pytest.raises(RunNotSuccessful, match=r"ended as failed: timed out after 1\.5 s"):
            await late.result(timeout=WAIT)
        # `asked` was started with it, so it runs by now
        assert await asked.state() is State.RUNNING
        await ms.cancel(asked.id, reason="enough")
        with pytest.raises(RunNotSuccessful, match="ended as cancelled: enough"):
            await asked.result(timeout=WAIT)
        assert await (await program.fail.enqueue("fine")).result(timeout=WAIT) == "fine"
    for mark in ("late", "asked"):
        path = tmp_path / mark
        if path.exists() and path.read_text():
            with pytest.raises(ProcessLookupError):
                os.kill(int(path.read_text()), 0)


SCRIPT = """
    import os
    from mainspring import Mainspring

    print("loaded", flush=True)
    ms = Mainspring("sqlite:///{path}")

    @ms.task(executor="process")
    def cube(n: int) -> list[int]:
        return [n ** 3, os.getpid()]

    handle = cube.sync.enqueue(3)      # no `if __name__ == "__main__"` around it
    ms.run(until_idle=True)
    value, pid = handle.result(timeout="20s")
    print("result", value, pid != os.getpid(), len(ms.sync.runs()), flush=True)
"""


@pytest.mark.parametrize("how", ["script", "module"])
def test_a_main_program_without_a_guard(tmp_path: Path, how: str) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(SCRIPT).format(path=tmp_path / "x.db"))
    command = [sys.executable, "program.py"] if how == "script" else [sys.executable, "-m", "program"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    # the child loads the program to find its functions, and stops where the program begins to use the engine
    assert done.stdout.splitlines() == ["loaded", "loaded", "result 27 True 1"], done.stderr


# ── leases ─────────────────────────────────────────────────────────────────


async def test_a_blocked_handler_loop_keeps_its_leases() -> None:
    ms = Mainspring("memory://", lease_ttl="600ms", poll_interval="50ms")
    began = threading.Event()

    @ms.task(executor="loop")
    def block() -> str:
        began.set()
        time.sleep(1.5)  # the thing under test: more than two lease times on the handlers' loop
        return "kept"

    async with ms.running():
        handle = await block.enqueue()
        assert await handle.result(timeout=WAIT) == "kept"
        run = await handle.run()
        assert (run.attempt, run.crashes) == (1, 0)
        assert not await ms.events(types=[LeaseExpired])
    ms._engine.stop()


async def test_a_lost_lease_means_a_refused_result(caplog: pytest.LogCaptureFixture) -> None:
    ms = Mainspring("memory://", lease_ttl="30s")
    go_on = asyncio.Event()
    began: list[int] = []

    @ms.task
    async def work(ctx: Context) -> str:
        began.append(ctx.attempt)
        if ctx.attempt == 1:
            await go_on.wait()
        return f"attempt {ctx.attempt}"

    with caplog.at_level(logging.CRITICAL, "mainspring.engine"):
        async with manual(ms, "2026-03-02T08:00:00Z") as t:
            worker = t.runtime.worker
            assert worker is not None
            handle = await work.enqueue()
            await worker.run_once()
            await t.settle()
            assert began == [1]
            # this worker falls silent: no heartbeat for longer than the lease; another instance notices
            await t.advance("31s")
            await t.runtime.settler.rescue()
            assert await handle.state() is State.WAITING
            # the handler returns at last
            go_on.set()
            await t.settle()
            notes = await ms.events(run=handle.id, types=[StaleResultRejected])
            assert [(n.epoch, n.attempt, n.outcome) for n in notes if isinstance(n, StaleResultRejected)] == [
                (1, 1, "Succeeded")
            ]
            assert await handle.state() is State.WAITING
            # and the run is done once more, under a new lease
            await worker.run_once()
            await t.settle()
            assert await handle.result() == "attempt 2"
            assert (await handle.run()).crashes == 1


async def test_a_lease_lost_to_another_worker_stops_the_handler(caplog: pytest.LogCaptureFixture) -> None:
    ms = Mainspring("memory://", lease_ttl="30s")
    stopped = asyncio.Event()

    @ms.task
    async def work(ctx: Context) -> str:
        if ctx.attempt == 1:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
        return "second"

    with caplog.at_level(logging.CRITICAL, "mainspring.engine"):
        async with manual(ms, "2026-03-02T08:00:00Z") as t:
            worker = t.runtime.worker
            assert worker is not None
            handle = await work.enqueue()
            await worker.run_once()
            await t.settle()
            await t.advance("31s")
            await t.runtime.settler.rescue()
            await worker.heart.run_once()  # the heartbeat hears that the lease is gone
            await t.settle()
            assert stopped.is_set()
            await worker.run_once()
            await t.settle()
            assert await handle.result() == "second"


# ── shutting down ──────────────────────────────────────────────────────────


async def test_what_runs_finishes_before_the_engine_stops(ms: Mainspring) -> None:
    began, go_on = threading.Event(), threading.Event()

    @ms.task
    def work() -> str:
        began.set()
        assert go_on.wait(20)
        return "finished"

    async with ms.running():
        handle = await work.enqueue()
        await asyncio.to_thread(began.wait)
        threading.Timer(0.05, go_on.set).start()
    assert await handle.result(timeout=WAIT) == "finished"
    assert (await handle.run()).attempt == 1


@pytest.mark.parametrize("kind", ["coroutine", "thread", "process"])
async def test_what_does_not_finish_in_time_is_handed_back(
    kind: str, tmp_path: Path, program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    ms: Mainspring = program.ms
    ms.settings = type(ms.settings)(shutdown_timeout=0)
    began, release = threading.Event(), threading.Event()

    @ms.task
    async def coroutine() -> None:
        began.set()
        await asyncio.Event().wait()

    @ms.task
    def thread() -> None:
        began.set()
        release.wait(20)

    async with ms.running():
        if kind == "process":
            handle: Any = await program.forever.using(timeout="60s").enqueue(str(tmp_path / "mark"))
            async with asyncio.timeout(20):
                while not (tmp_path / "mark").exists():  # noqa: ASYNC110 - a fact of another process
                    await asyncio.sleep(0.01)
        else:
            handle = await {"coroutine": coroutine, "thread": thread}[kind].enqueue()
            await asyncio.to_thread(began.wait)
    release.set()
    run = await handle.run()
    assert (run.state, run.failures, run.crashes) == (State.WAITING, 0, 0)
    (back,) = await ms.events(run=run.id, types=[RunHandedBack])
    assert isinstance(back, RunHandedBack)
    assert (back.reason, back.began) == ("shutdown", True)


async def test_more_is_claimed_only_into_free_slots() -> None:
    ms = Mainspring("memory://", concurrency=2)
    running: list[int] = []
    most = 0
    gate = asyncio.Event()

    @ms.task
    async def work(n: int) -> None:
        nonlocal most
        running.append(n)
        most = max(most, len(running))
        if n == 0:
            await gate.wait()
        running.remove(n)

    async with ms.running():
        handles = await work.enqueue_many([(n,) for n in range(20)])
        for handle in handles[1:]:
            await handle.result(timeout=WAIT)
        assert len(await ms.runs(state="running")) == 1
        gate.set()
        await handles[0].result(timeout=WAIT)
        assert most == 2
        assert len(await ms.events(types=[RunStarted])) == 20
    ms._engine.stop()


Handlers = Callable[..., Any]


async def test_a_killed_child_is_not_the_parents_death(program: ModuleType, tmp_path: Path) -> None:
    ms = program.ms
    async with ms.running():
        mark = tmp_path / "victim"
        handle = await program.forever.using(timeout="60s").enqueue(str(mark))
        async with asyncio.timeout(20):
            while not (mark.exists() and mark.read_text()):  # noqa: ASYNC110 - a fact of another process
                await asyncio.sleep(0.01)
        os.kill(int(mark.read_text()), signal.SIGKILL)
        with pytest.raises(RunNotSuccessful, match="the handler's process ended by signal 9"):
            await handle.result(timeout=WAIT)
        assert await (await program.fail.enqueue("next")).result(timeout=WAIT) == "next"
