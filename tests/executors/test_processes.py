"""Handlers in child processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from mainspring import Mainspring, RunNotSuccessful, RunRetrying, State
from tests.engine.support import WAIT, failed


@pytest.fixture
def ms(plain_ms: Mainspring) -> Mainspring:
    return plain_ms


# ── processes ──────────────────────────────────────────────────────────────


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
        }.items():
            run = await failed(program.fail, how)
            assert words in (run.error or ""), how
        assert await (await program.fail.enqueue("fine")).result(timeout=WAIT) == "fine"
        kept = await (await program.fail.enqueue("result")).result(timeout=WAIT)
        assert kept["$repr"].startswith("<object object at")

        cancelled = await program.answer.enqueue("cancel")
        with pytest.raises(RunNotSuccessful, match="ended as cancelled: not wanted"):
            await cancelled.result(timeout=WAIT)


async def test_a_handler_in_a_process_chooses_its_outcome(program: ModuleType) -> None:
    ms = program.ms
    async with ms.running():
        cancelled = await program.answer.enqueue("raise cancel")
        with pytest.raises(RunNotSuccessful, match="ended as cancelled: not wanted"):
            await cancelled.result(timeout=WAIT)
        failed_run = await program.answer.enqueue("raise fail")
        with pytest.raises(RunNotSuccessful, match="no address"):
            await failed_run.result(timeout=WAIT)

        # the filter of the task is judged in the child
        refused = [await program.pick.enqueue(error) for error in ("permission", "value")]
        for handle in refused:
            with pytest.raises(RunNotSuccessful):
                await handle.result(timeout=WAIT)
        retrying = asyncio.Event()
        ms.on_event(RunRetrying, lambda event: retrying.set())
        retried = await program.pick.enqueue("connection")
        await asyncio.wait_for(retrying.wait(), 60)
        assert [(await handle.run()).failures for handle in [*refused, retried]] == [1, 1, 1]


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
        kept = await (await program.fail.enqueue("result")).result(timeout=WAIT)
        assert kept["$repr"].startswith("<object object at")
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
