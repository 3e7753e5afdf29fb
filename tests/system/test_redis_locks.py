"""Locks on Valkey and Redis between real processes: a holder that slept past its TTL can do no harm."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.model.lease import Lease
from mainspring.ports.clock import SystemClock
from mainspring.runtime.store_url import open_store
from servers.for_tests_redis import fresh_url, server_url
from servers.redis import Kind

APP = Path(__file__).with_name("fenced_app.py")


class Holder:
    """A process that acquires the lock and takes its next step when the test writes a line to it."""

    def __init__(self, url: str, place: Path, name: str) -> None:
        words = [sys.executable, str(APP), url, str(place), name]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def hear(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def go_on(self) -> list[str]:
        """Let the process take its next step; return the words that it prints."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.hear()

    def end(self) -> None:
        with self.process:
            self.process.kill()


@pytest.fixture(params=["valkey", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    kind: Kind = request.param
    return fresh_url(server_url(kind))


@pytest.fixture
def thing(tmp_path: Path) -> Path:
    place = tmp_path / "thing.db"
    with sqlite3.connect(place) as db:
        db.execute("CREATE TABLE thing (token INTEGER, words TEXT)")
        db.execute("INSERT INTO thing VALUES (0, 'nobody')")
    return place


@pytest.fixture
def holders(url: str, thing: Path) -> Iterator[list[Holder]]:
    found = [Holder(url, thing, "first")]
    yield found
    for one in found:
        one.end()


@pytest.mark.timeout(120)
def test_a_holder_paused_beyond_its_ttl_is_refused_by_the_fenced_resource(
    url: str, thing: Path, holders: list[Holder]
) -> None:
    (first,) = holders
    word, earlier = first.hear()
    os.kill(first.process.pid, signal.SIGSTOP)
    second = Holder(url, thing, "second")
    holders.append(second)
    begun, later = second.hear()  # when the first one's TTL has ended, and not before
    assert (word, begun) == ("begin", "begin")
    assert int(later) > int(earlier)
    assert second.go_on() == ["wrote"]
    os.kill(first.process.pid, signal.SIGCONT)
    assert first.go_on() == ["refused"], "it still believes that the lock is its own"
    assert first.go_on() == ["lost", earlier]
    assert second.go_on() == ["kept"]
    with sqlite3.connect(thing) as db:
        assert db.execute("SELECT token, words FROM thing").fetchone() == (int(later), "second")


async def test_only_the_owner_renews_or_releases(url: str) -> None:
    store = open_store(url, SystemClock())
    await store.open()
    try:
        held = await store.lease("lock:thing", "owner", 60_000)
        assert isinstance(held, Lease)
        for owner, epoch in (("other", held.epoch), ("owner", held.epoch + 1), ("owner", held.epoch - 1)):
            assert await store.lease("lock:thing", owner, 60_000, epoch=epoch) is None
            assert not await store.release("lock:thing", owner, epoch)
        assert await store.lease("lock:thing", "other", 60_000) is None, "none of that freed it"
        again = await store.lease("lock:thing", "owner", 60_000, epoch=held.epoch)
        assert again is not None
        assert again.epoch == held.epoch
        assert await store.release("lock:thing", "owner", held.epoch)
        after = await store.lease("lock:thing", "other", 60_000)
        assert after is not None
        assert after.epoch == held.epoch + 1, "a token is never given twice"
    finally:
        await store.close()
