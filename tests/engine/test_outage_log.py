"""The log while the store cannot be written: a line when that begins, more and more rarely after it, and at the end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pytest

from mainspring import Mainspring
from mainspring.backends.memory.store import MemoryStore
from mainspring.model.change import Change
from mainspring.model.errors import StoreUnavailable
from mainspring.model.run import Run
from mainspring.ports.store import Agenda, Applied, ClaimRequest, Due, Offer
from mainspring.testing import manual, travel


class FullDisk(MemoryStore):
    """While `full`, every commit of changes fails, and all else works."""

    full = False

    async def apply(
        self, changes: Sequence[Change], *, claim_request: ClaimRequest | None = None, now: int | None = None
    ) -> Applied:
        if self.full and changes:
            raise StoreUnavailable("the disk is full")
        return await super().apply(changes, claim_request=claim_request, now=now)


async def test_a_full_disk_is_logged_when_it_begins_then_rarely_and_once_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "mainspring.engine")
    store = FullDisk()
    ms = Mainspring(store=store)

    @ms.every("1s")
    async def tick() -> None: ...

    async with travel(ms, "2026-01-01T00:00Z") as t:
        await t.advance("3s")
        store.full = True
        await t.advance("10m")
        fails = [line for line in caplog.messages if line.startswith("settler: the store fails")]
        assert 3 <= len(fails) <= 8, fails
        assert "(1 time)" in fails[0]
        assert not [line for line in caplog.messages if "answers again" in line]
        assert ms.health().status == "degraded"
        store.full = False
        await t.advance("10s")
        assert [line for line in caplog.messages if "answers again" in line] == ["settler: the store answers again"]
        assert ms.health().status == "ok"
        await t.advance("10m")
        assert len([line for line in caplog.messages if "answers again" in line]) == 1


async def test_after_a_calm_time_without_writes_the_store_counts_as_working_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "mainspring.engine")
    store = FullDisk()
    ms = Mainspring(store=store)

    @ms.task
    async def work() -> None: ...

    async with travel(ms, "2026-01-01T00:00Z") as t:
        store.full = True
        with pytest.raises(StoreUnavailable):
            await work.enqueue()
        with monkeypatch.context() as patch:
            patch.setattr(store, "due", _fail)
            await t.advance("5s")
        assert ms.health().status == "degraded"
        await t.advance("60s")  # nothing is written meanwhile
        assert ms.health().status == "ok"


async def _fail(*_: object, **__: object) -> Due:
    raise StoreUnavailable("away")


class Raced(MemoryStore):
    """After it has listed the runs whose leases ended, another instance rescues them first."""

    def __init__(self) -> None:
        super().__init__()
        self.rescue_first: Callable[[Run, int], Change] | None = None

    async def due(
        self, agenda: Agenda, limit: int, *, hold: int = 1_000, ahead: int = 0, now: int | None = None
    ) -> Due:
        found = await super().due(agenda, limit, hold=hold, ahead=ahead, now=now)
        if self.rescue_first is not None and found.runs:
            await self.apply([self.rescue_first(run, found.now) for run in found.runs])
        return found


@pytest.mark.parametrize("raced", [False, True])
async def test_only_the_instance_whose_change_is_accepted_logs_the_rescue_of_a_run(
    raced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mainspring.engine")
    store = Raced()
    ms = Mainspring(store=store)

    @ms.task
    async def work() -> None: ...

    async with manual(ms, "2026-01-01T00:00Z") as t:
        handle = await work.enqueue()
        await store.claim(Offer("dead", ("default/default",), ("work",), 30_000), 1)
        await t.advance("31s")
        settler = t.runtime.settler
        store.rescue_first = settler._expire if raced else None
        await settler.rescue()
        assert (await handle.run()).crashes == 1
    assert caplog.text.count("stopped renewing its lease") == (0 if raced else 1)
