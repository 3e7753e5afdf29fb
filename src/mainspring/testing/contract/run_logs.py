"""The contract of run logs: lines beside the event log, limited for each run and for all runs, removed with the run."""

from __future__ import annotations

from msgspec.structs import replace

from mainspring.model.retention import Retention
from mainspring.model.run import State
from mainspring.model.run_log import CUT_TEXT, MAX_RUN_LOG_BYTES, LogEntry
from mainspring.ports.store import LoggedRuns, RunLogs
from mainspring.testing.contract.bench import ContractBase, StoreBench, on_store
from mainspring.testing.contract.factories import T0

#: More bytes than any test writes.
NO_LIMIT = 1 << 40


def make_line(run_id: str, text: str, *, attempt: int = 1) -> LogEntry:
    """Return a line of a run's log, written at T0."""
    return LogEntry(run_id=run_id, attempt=attempt, at=T0, level="info", source="log", text=text)


async def texts(b: StoreBench, run_id: str) -> list[str]:
    """Return the texts of all lines of a run's log."""
    return [line.text for line in await b.store.find(RunLogs(run_id=run_id, limit=100_000))]


class LogsOfRuns(ContractBase):
    """Tests of the lines that handlers write."""

    @on_store
    async def test_lines_are_read_back_in_order_with_growing_numbers(self, b: StoreBench) -> None:
        one, other = await b.enqueue(), await b.enqueue()
        odd = LogEntry(
            run_id=one.id, attempt=2, at=T0 + 1, level="error", source="my.logger", text='é "\\ \n\u2028 😀 {} [] \t'
        )
        await b.store.append_log([make_line(one.id, "a"), make_line(other.id, "b"), odd], NO_LIMIT)
        await b.store.append_log([make_line(one.id, "")], NO_LIMIT)
        lines = await b.store.find(RunLogs(run_id=one.id))
        assert [replace(line, n=0) for line in lines] == [make_line(one.id, "a"), odd, make_line(one.id, "")]
        assert 0 < lines[0].n < lines[1].n < lines[2].n
        assert await texts(b, other.id) == ["b"]
        assert await b.names() == ["RunScheduled", "RunScheduled"]

    @on_store
    async def test_lines_are_found_by_attempt_and_in_pages(self, b: StoreBench) -> None:
        run = await b.enqueue()
        await b.store.append_log([make_line(run.id, str(i), attempt=1 + i % 2) for i in range(7)], NO_LIMIT)
        first = await b.store.find(RunLogs(run_id=run.id, limit=3))
        rest = await b.store.find(RunLogs(run_id=run.id, after=str(first[-1].n)))
        assert [line.text for line in (*first, *rest)] == list("0123456")
        odd = await b.store.find(RunLogs(run_id=run.id, attempt=2, limit=2))
        assert [line.text for line in odd] == ["1", "3"]
        more = await b.store.find(RunLogs(run_id=run.id, attempt=2, after=str(odd[-1].n)))
        assert [line.text for line in more] == ["5"]
        assert await b.store.find(RunLogs(run_id=run.id, after=str(rest[-1].n))) == []
        assert await b.store.find(RunLogs(run_id="none")) == []

    @on_store
    async def test_lines_of_a_run_that_does_not_exist_are_dropped(self, b: StoreBench) -> None:
        run = await b.enqueue()
        await b.store.append_log([make_line("gone", "x"), make_line(run.id, "y"), make_line("gone", "z")], NO_LIMIT)
        await b.store.append_log([make_line("gone", "x")], 0)
        await b.store.append_log([], NO_LIMIT)
        assert (await texts(b, "gone"), await texts(b, run.id)) == ([], ["y"])
        assert await b.store.find(LoggedRuns()) == [run.id]

    @on_store
    async def test_a_log_ends_with_a_line_that_says_that_the_rest_was_cut(self, b: StoreBench) -> None:
        one, other = await b.enqueue(), await b.enqueue()
        big = make_line(one.id, "x" * 100_000)
        await b.store.append_log([big, big], NO_LIMIT)
        space = MAX_RUN_LOG_BYTES - 2 * big.size - make_line("", "").size
        await b.store.append_log([make_line(one.id, "y" * space), make_line(other.id, "z")], NO_LIMIT)
        assert [len(text) for text in await texts(b, one.id)] == [100_000, 100_000, space]
        await b.store.append_log(
            [make_line(one.id, "over", attempt=3), make_line(one.id, "over"), make_line(other.id, "z")], NO_LIMIT
        )
        await b.store.append_log([make_line(one.id, "over")], NO_LIMIT)
        lines = await b.store.find(RunLogs(run_id=one.id))
        assert [len(line.text) for line in lines] == [100_000, 100_000, space, len(CUT_TEXT)]
        last = lines[-1]
        assert (last.text, last.attempt, last.level, last.source) == (CUT_TEXT, 3, "warning", "mainspring")
        assert await texts(b, other.id) == ["z", "z"]

    @on_store
    async def test_beyond_the_limit_of_all_logs_those_of_the_oldest_runs_are_removed(self, b: StoreBench) -> None:
        runs = sorted([(await b.enqueue()).id for _ in range(5)])
        size = make_line(runs[0], "x" * 100).size
        for run_id in reversed(runs):  # the age of the run counts, not that of its lines
            await b.store.append_log([make_line(run_id, "x" * 100)] * 2, 10 * size)
        assert await b.store.find(LoggedRuns()) == runs
        await b.store.append_log([make_line(runs[4], "x" * 100)], 10 * size)
        assert await b.store.find(LoggedRuns()) == runs[1:]
        assert await texts(b, runs[0]) == []
        await b.store.append_log([make_line(runs[1], "x" * 100)], 9 * size)
        assert await b.store.find(LoggedRuns()) == runs[2:], "9 + 1 are one too many, also if the oldest run grows"
        await b.store.append_log([make_line(runs[0], "x" * 100)], 9 * size)
        assert await b.store.find(LoggedRuns()) == [runs[0], *runs[2:]], "its old lines count no more"
        await b.store.append_log([make_line(runs[4], "x")], 0)
        assert await b.store.find(LoggedRuns()) == []

    @on_store
    async def test_a_log_is_removed_with_its_run(self, b: StoreBench) -> None:
        ended, stays = await b.enqueue(), await b.enqueue()
        await b.store.append_log([make_line(ended.id, "x" * 100), make_line(stays.id, "x" * 100)], NO_LIMIT)
        await b.end(await b.start(ids=(ended.id,)), State.SUCCEEDED)
        assert (await b.store.purge(Retention(ended_before=T0 + 1), 100, now=T0)).runs == 1
        assert await b.store.find(LoggedRuns()) == [stays.id]
        assert await texts(b, ended.id) == []
        size = make_line(ended.id, "x" * 100).size
        await b.store.append_log([make_line(stays.id, "x" * 100)], 2 * size)
        assert len(await texts(b, stays.id)) == 2, "the removed lines count no more"

    @on_store
    async def test_runs_with_a_log_are_found_in_pages(self, b: StoreBench) -> None:
        runs = sorted([(await b.enqueue()).id for _ in range(5)])
        await b.enqueue()
        await b.store.append_log([make_line(run_id, "x") for run_id in runs], NO_LIMIT)
        assert await b.store.find(LoggedRuns(limit=2)) == runs[:2]
        assert await b.store.find(LoggedRuns(limit=2, after=runs[1])) == runs[2:4]
        assert await b.store.find(LoggedRuns(after=runs[3])) == runs[4:]
