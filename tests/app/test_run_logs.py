"""Logs of runs: what handlers write is stored with the attempt, readable while it runs, and limited."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mainspring import Context, InvalidInput, LogLine, Mainspring, Retry, UnknownRun
from mainspring.backends.memory.store import MemoryStore
from mainspring.backends.sqlite.store import SqliteStore
from mainspring.engine.work import log_writer
from mainspring.model.errors import StoreError, StoreUnavailable
from mainspring.model.run_log import CUT_TEXT, MAX_RUN_LOG_BYTES
from mainspring.testing import travel
from tests.engine.support import WAIT


def texts(lines: list[LogLine]) -> list[str]:
    return [str(line) for line in lines]


async def test_lines_of_every_attempt_are_stored_with_their_times() -> None:
    ms = Mainspring("memory://")

    @ms.task(retry=Retry(max_attempts=2, initial="10s", jitter=0))
    async def work(ctx: Context) -> None:
        ctx.log("try %d of %s", ctx.attempt, "two")
        raise ValueError

    async with travel(ms, "2026-01-01T00:00Z") as t:
        run = await work.enqueue()
        await t.advance("1m")
        lines = await ms.logs(run.id)
        assert [(line.attempt, line.at, line.level, line.source, line.text) for line in lines] == [
            (1, datetime(2026, 1, 1, tzinfo=UTC), "info", "log", "try 1 of two"),
            (2, datetime(2026, 1, 1, 0, 0, 10, tzinfo=UTC), "info", "log", "try 2 of two"),
        ]
        assert lines[0].to_dict() == {
            "number": lines[0].number,
            "attempt": 1,
            "at": "2026-01-01T00:00:00Z",
            "level": "info",
            "source": "log",
            "text": "try 1 of two",
        }
        assert texts(await ms.logs(run.id, attempt=2)) == ["try 2 of two"]
        assert texts(await ms.logs(run.id, limit=1)) == ["try 1 of two"]
        assert texts(await ms.logs(run.id, after=lines[0].number)) == ["try 2 of two"]
        with pytest.raises(UnknownRun):
            await ms.logs("none")


async def test_a_line_is_stored_while_the_handler_runs_without_being_asked_for(tmp_path: Path) -> None:
    ms = Mainspring(f"sqlite:///{tmp_path / 'jobs.db'}")
    go_on = asyncio.Event()

    @ms.task
    async def work(ctx: Context) -> None:
        ctx.log("begun")
        await go_on.wait()

    other = Mainspring(f"sqlite:///{tmp_path / 'jobs.db'}")  # as another process would
    async with ms.running():
        run = await work.enqueue()
        async with asyncio.timeout(20):
            while texts(await other.logs(run.id)) != ["begun"]:  # noqa: ASYNC110 - another process cannot tell
                await asyncio.sleep(0.02)
        assert (await other.find_by_id(run.id)).state == "running"
        go_on.set()
        await run.result(timeout=WAIT)
    await other.close()


async def test_the_last_lines_are_stored_when_the_engine_stops(tmp_path: Path) -> None:
    ms = Mainspring(f"sqlite:///{tmp_path / 'jobs.db'}")

    @ms.task
    def work(ctx: Context) -> None:
        ctx.log("done")

    run = await work.enqueue()
    async with ms.running():
        await run.result(timeout=WAIT)
    assert texts(await ms.logs(run.id)) == ["done"]
    await ms.close()


async def test_a_program_whose_handlers_write_no_lines_never_writes_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    original = SqliteStore.append_log

    async def append_log(self: SqliteStore, entries: Any, limit: int) -> None:
        calls.extend(entry.text for entry in entries)
        await original(self, entries, limit)

    monkeypatch.setattr(SqliteStore, "append_log", append_log)
    statements: list[str] = []
    ms = Mainspring(f"sqlite:///{tmp_path / 'jobs.db'}")

    @ms.task
    async def quiet(ctx: Context) -> None:
        ctx.progress(0.5)

    @ms.task
    async def loud(ctx: Context) -> None:
        ctx.log("hello")

    async with ms.running():
        runtime = await ms._host.open_runtime()
        store: Any = runtime.store
        await ms._host.call(lambda _: _trace(store, statements))
        for _ in range(20):
            await (await quiet.enqueue()).result(timeout=WAIT)
        assert calls == []
        assert not [sql for sql in statements if "log_line" in sql or "run_log" in sql or "log_total" in sql]
        assert len(statements) > 20, "the statements are counted"
        for _ in range(20):
            await (await loud.enqueue()).result(timeout=WAIT)
    assert calls == ["hello"] * 20
    begun = [sql for sql in statements if "SELECT n, bytes FROM log_total" in sql]
    assert 1 <= len(begun) < 20, "lines of several runs share a transaction"


async def _trace(store: Any, statements: list[str]) -> None:
    store._db.connection.set_trace_callback(statements.append)


@pytest.mark.parametrize("executor", ["auto", "loop", "thread"])
async def test_printed_and_logged_lines_are_captured_by_choice(
    executor: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ms = Mainspring("memory://")
    mine = logging.getLogger("my.program")

    def speak(name: str) -> None:
        print("printed", name)
        print("in", end=" ")
        print("two parts")
        mine.warning("logged %s", name)
        try:
            raise ValueError(name)
        except ValueError:
            mine.exception("it failed")
        print("no line break", end="")

    @ms.task(executor=executor, capture=("print", "logging"))
    def both(name: str) -> None:
        speak(name)

    @ms.task(executor=executor, capture="print")
    def only_print(name: str) -> None:
        speak(name)

    @ms.task(executor=executor)
    def neither(name: str) -> None:
        speak(name)

    async with ms.running():
        found: dict[str, list[LogLine]] = {}
        for task in (both, only_print, neither):
            run = await task.enqueue("x")
            await run.result(timeout=WAIT)
            found[task.name] = await ms.logs(run.id)
    printed = [("info", "print", line) for line in ("printed x", "in two parts", "no line break")]
    assert [(line.level, line.source, line.text) for line in found["only_print"]] == printed
    lines = [(line.level, line.source, line.text.partition("\n")[0]) for line in found["both"]]
    assert [line for line in lines if line[1] == "print"] == printed
    assert [line for line in lines if line[1] != "print"] == [
        ("warning", "my.program", "logged x"),
        ("error", "my.program", "it failed"),
    ]
    assert "ValueError: x" in found["both"][3].text
    assert found["neither"] == []
    assert capsys.readouterr().out.count("in two parts\n") == 3, "the output goes where it went before, too"


async def test_output_of_runs_that_execute_at_the_same_time_is_not_mixed() -> None:
    ms = Mainspring("memory://")
    meet = asyncio.Barrier(2)
    both_there = threading.Barrier(2)

    @ms.task(capture="print")
    async def coroutine(name: str) -> None:
        await meet.wait()
        print("first", name)
        await meet.wait()
        await asyncio.gather(asyncio.to_thread(print, "inner", name), asyncio.create_task(inner(name)))

    async def inner(name: str) -> None:
        print("task", name)

    @ms.task(capture="print")
    def thread(name: str) -> None:
        both_there.wait(20)
        print("thread", name)

    async with ms.running():
        for task, own in ((coroutine, {"first", "inner", "task"}), (thread, {"thread"})):
            runs = {name: await task.enqueue(name) for name in "ab"}
            for name, run in runs.items():
                await run.result(timeout=WAIT)
                assert set(texts(await ms.logs(run.id))) == {f"{word} {name}" for word in own}


def test_a_wrong_capture_is_refused() -> None:
    ms = Mainspring("memory://")

    def work() -> None: ...

    for wrong in ("stdout", ("print", "stderr"), 5, [["print"]]):
        with pytest.raises(InvalidInput, match=r'capture: .* Use "print", "logging" or'):
            ms.task(capture=wrong)(work)  # type: ignore[call-overload]  # that is what is tested
    assert ms.tasks == {}


async def test_a_process_passes_its_lines_to_the_parent(program: ModuleType) -> None:
    """Lines of a child arrive while it runs, also those that it captures, and the next run gets none of them."""
    ms = program.ms
    async with ms.running():
        handle = await program.chatty.enqueue()
        async with asyncio.timeout(20):
            while texts(await ms.logs(handle.id)) != ["from the child, attempt 1"]:  # noqa: ASYNC110 - a child
                await asyncio.sleep(0.02)
        await ms.cancel(handle.id)
        with pytest.raises(Exception, match="cancelled"):
            await handle.result(timeout=WAIT)
        handle = await program.captured.enqueue()
        assert await handle.result(timeout=WAIT) == "value"
        lines = [(line.source, line.text) for line in await ms.logs(handle.id)]
        assert lines == [("print", "printed in the child"), ("child", "logged in the child")]
        after = await program.context.enqueue(5)
        await after.result(timeout=WAIT)
        assert await ms.logs(after.id) == []


async def test_a_handler_that_writes_without_end_fills_neither_memory_nor_the_store() -> None:
    ms = Mainspring("memory://")

    @ms.task(timeout="60s")
    def flood(ctx: Context) -> None:
        for _ in range(20_000):
            ctx.log("x" * 1_000)

    @ms.task
    def modest(ctx: Context) -> None:
        ctx.log("y" * 100_000)

    async with ms.running():
        run = await flood.enqueue()
        await run.result(timeout=WAIT)
        lines = await ms.logs(run.id, limit=10_000)
        assert lines[-1].text == CUT_TEXT
        assert MAX_RUN_LOG_BYTES - 2_000 < sum(len(line.text) + 67 for line in lines[:-1]) <= MAX_RUN_LOG_BYTES
        run = await modest.enqueue()
        await run.result(timeout=WAIT)
        (line,) = await ms.logs(run.id)
        assert line.text == "y" * log_writer.MAX_LINE_CHARS + "… 83616 characters left out"


async def test_text_that_no_store_can_hold_is_escaped_and_a_wrong_format_fails_no_run(tmp_path: Path) -> None:
    ms = Mainspring(f"sqlite:///{tmp_path / 'jobs.db'}")

    @ms.task
    def work(ctx: Context) -> None:
        ctx.log("a\0b\ud800 %")
        ctx.log("%d rows", "many")
        ctx.log("%s")

    async with ms.running():
        run = await work.enqueue()
        await run.result(timeout=WAIT)
        assert texts(await ms.logs(run.id)) == ["a\N{SYMBOL FOR NULL}b\\ud800 %", "%d rows ('many',)", "%s"]
    await ms.close()


@pytest.mark.parametrize(("limit", "stored"), [(0, []), (1 << 20, ["hello"])])
async def test_logs_limit_is_the_most_that_the_store_keeps(limit: int, stored: list[str]) -> None:
    ms = Mainspring("memory://", logs_limit=limit)

    @ms.task
    def work(ctx: Context) -> None:
        ctx.log("hello")

    async with ms.running():
        run = await work.enqueue()
        await run.result(timeout=WAIT)
        assert texts(await ms.logs(run.id)) == stored


def test_a_wrong_logs_limit_is_refused() -> None:
    for wrong in (-1, 1.5, True, "1GiB"):
        with pytest.raises(InvalidInput, match="logs_limit"):
            Mainspring("memory://", logs_limit=wrong)  # type: ignore[arg-type]  # that is what is tested


class _Failing(MemoryStore):
    """A store whose `append_log` fails as the test says."""

    error: StoreError | None = None

    async def append_log(self, entries: Any, limit: int) -> None:
        if self.error is not None:
            raise self.error
        await super().append_log(entries, limit)


async def test_lines_that_the_store_refuses_are_dropped_and_that_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    store = _Failing()
    ms = Mainspring(store=store)

    @ms.task
    def work(ctx: Context, text: str) -> None:
        ctx.log(text)

    async with ms.running():
        store.error = StoreError("full")
        run = await work.enqueue("lost")
        await run.result(timeout=WAIT)
        assert await ms.logs(run.id) == []
        store.error = None
        assert await ms.logs(run.id) == []
    assert "1 lines of run logs are lost: the store refused them: full" in caplog.text


async def test_lines_wait_while_the_store_is_away() -> None:
    store = _Failing()
    ms = Mainspring(store=store)

    @ms.task
    def work(ctx: Context, text: str) -> None:
        ctx.log(text)

    async with ms.running():
        store.error = StoreUnavailable("away")
        run = await work.enqueue("late")
        await run.result(timeout=WAIT)
        assert await ms.logs(run.id) == []
        store.error = None
        assert texts(await ms.logs(run.id)) == ["late"]
