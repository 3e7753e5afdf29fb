"""Every test that touched a store ends with `events verify`: the log must rebuild what the store holds."""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mainspring.ports.store import Store
from mainspring.stores.memory import MemoryStore
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.settings import PostgresSettings
from mainspring.stores.redis import RedisStore
from mainspring.stores.redis.settings import RedisSettings
from mainspring.stores.sqlite import SqliteStore
from mainspring.verify import verify


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "tampers: breaks a store on purpose, so it is not verified afterwards")
    config.addinivalue_line("markers", "alone: measures time or memory, so it runs with nothing beside it")
    config.addinivalue_line("markers", "chaos: kill loops; `make chaos` runs them with larger counts")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many tests of a contract ran on which backend, and which pairs of them; a class of tests/contract is one."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            place, _, rest = report.nodeid.partition("::Test")
            if "contract/" in place and rest:
                kind = "broker" if "test_brokers" in place else "store"
                counts[f"{kind} {rest.partition('::')[0]}"][outcome] += 1
            _, _, pair = report.nodeid.partition("test_one_program_on_every_pair[")
            if pair:
                counts[f"pair {pair.rstrip(']').replace('-', ' + ')}"][outcome] += 1
    if counts:
        terminalreporter.section("contracts by backend")
    for backend, found in sorted(counts.items()):
        terminalreporter.line(f"{backend}: " + ", ".join(f"{count} {outcome}" for outcome, count in found.items()))


@pytest.fixture(autouse=True)
def _verified(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remember every store a test opens; replay each one's log when the test is over."""
    memories: dict[int, MemoryStore] = {}
    files: dict[str, None] = {}
    schemas: dict[PostgresSettings, None] = {}
    prefixes: dict[RedisSettings, None] = {}

    def remember(cls: type[Any], note: Callable[[Any], None]) -> None:
        original = cls.open

        async def opened(self: Any) -> None:
            await original(self)
            note(self)

        monkeypatch.setattr(cls, "open", opened)

    remember(MemoryStore, lambda store: memories.setdefault(id(store), store))
    remember(SqliteStore, lambda store: files.setdefault(str(store.path)))
    remember(PostgresStore, lambda store: schemas.setdefault(store.settings))
    remember(RedisStore, lambda store: prefixes.setdefault(store.settings))
    yield
    if request.node.get_closest_marker("tampers"):
        return
    monkeypatch.undo()
    for memory in memories.values():
        _check(memory)
    for path in files:
        if os.path.exists(path):
            _check(SqliteStore(path))
    for settings in schemas:
        _check(PostgresStore(settings))
    for place in prefixes:
        _check(RedisStore(place))


def _check(store: Store) -> None:
    async def replay() -> None:
        await store.open()
        try:
            report = await verify(store)
        finally:
            await store.close()
        assert report.ok, f"events verify: {report.found} differences, first {report.differences[:5]}"

    asyncio.run(replay())
