"""A copy contains the logs of runs, also when it is called again."""

from __future__ import annotations

from msgspec.structs import replace

from mainspring.backends.memory.store import MemoryStore
from mainspring.ledger.copy import copy
from mainspring.model.run_log import LogEntry
from mainspring.ports.store import LoggedRuns, RunLogs, Store
from mainspring.testing.contract.bench import StoreBench
from mainspring.testing.contract.run_logs import NO_LIMIT, make_line


async def lines(store: Store) -> dict[str, list[LogEntry]]:
    """Return run id → lines without their numbers, which a store gives itself."""
    runs = await store.find(LoggedRuns(limit=100))
    return {one: [replace(x, n=0) for x in await store.find(RunLogs(run_id=one, limit=9_999))] for one in runs}


async def test_logs_are_copied_and_a_further_copy_adds_what_is_new() -> None:
    source, target = MemoryStore(), MemoryStore()
    b = StoreBench(source)
    quiet, one, other = [(await b.enqueue()).id for _ in range(3)]
    big = [make_line(other, "x" * 10_000, attempt=1 + i % 2) for i in range(30)]  # more than the limit: it is cut
    await source.append_log([make_line(one, "a"), *big, make_line(one, "b")], NO_LIMIT)
    await copy(source, target)
    assert await lines(target) == await lines(source)
    assert quiet not in await lines(target)
    await source.append_log([make_line(one, "c"), make_line(quiet, "d")], NO_LIMIT)
    await copy(source, target)
    assert await lines(target) == await lines(source)
    assert [line.text for line in (await lines(target))[one]] == ["a", "b", "c"]
