"""Markers, a summary by backend, and two rules for every test: verify its stores, and keep garbage collections short.

After each test, every store that the test opened is replayed (`events verify`): its log must rebuild its rows.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from mainspring.backends.memory.store import MemoryStore
from mainspring.backends.postgres import PostgresStore
from mainspring.backends.postgres.settings import PostgresSettings
from mainspring.backends.redis import RedisStore
from mainspring.backends.redis.settings import RedisSettings
from mainspring.backends.sqlite import SqliteStore
from mainspring.ledger.verify import verify
from mainspring.model.change import Change
from mainspring.ports.store import Store
from mainspring.rules.change_shape import fits_kind

#: Where the Makefile looks for tests marked `alone`: collecting all folders again would take seconds.
ALONE_FOLDERS = ("tests/engine/", "tests/system/")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "tampers: breaks a store on purpose, so it is not verified afterwards")
    config.addinivalue_line("markers", "alone: measures time or memory, so it runs with nothing beside it")
    config.addinivalue_line("markers", "chaos: kill loops; `make chaos` runs them with larger counts")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse tests marked `alone` in folders where `make test` does not look for them."""
    for item in items:
        if item.get_closest_marker("alone") and not item.nodeid.startswith(ALONE_FOLDERS):
            raise pytest.UsageError(f"{item.nodeid}: `make test` looks for tests marked alone in {ALONE_FOLDERS} only")


def pytest_collection_finish() -> None:
    """Take the modules and the collected tests out of garbage collection: each full collection would walk them."""
    freeze_heap()


def freeze_heap() -> None:
    """Make later `gc.collect()` calls and forked processes look only at objects made from here on."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def frozen_heap() -> None:
    """For tests that collect garbage or fork: what earlier tests left behind must not cost them seconds."""
    freeze_heap()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many contract tests ran on each backend and on each pair of store and broker.

    A backend is a test class of tests/backends.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            place, _, rest = report.nodeid.partition("::Test")
            if "backends/" in place and rest:
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
    """Record every store that the test opens; after the test, open each again and verify it."""
    memories: dict[int, MemoryStore] = {}
    files: dict[str, None] = {}
    schemas: dict[PostgresSettings, None] = {}
    prefixes: dict[RedisSettings, None] = {}

    def remember(cls: type[Any], note: Callable[[Any], None]) -> None:
        original, apply = cls.open, cls.apply

        async def applied(self: Any, changes: Sequence[Change], **options: Any) -> Any:
            wrong = [change for change in changes if not fits_kind(change)]
            assert not wrong, f"changes whose parts are not those of their kind: {wrong}"
            return await apply(self, changes, **options)

        monkeypatch.setattr(cls, "apply", applied)

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
