"""`copy`: the same content, the same answers and the same account on both sides, wherever it was interrupted."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from mainspring.backends.memory.store import MemoryStore
from mainspring.backends.postgres import PostgresStore
from mainspring.backends.redis import RedisStore
from mainspring.backends.sqlite.store import SqliteStore
from mainspring.ledger.compare import compare, hash_content
from mainspring.ledger.copy import Mark, Step, copy
from mainspring.ledger.verify import verify
from mainspring.model.change import Change
from mainspring.model.errors import CopyRefused
from mainspring.model.events import InstanceJoined, LeaseExpired
from mainspring.model.gate import Gate
from mainspring.model.instant import Ms
from mainspring.model.keyvalue import IDEMPOTENCY_KIND, KeyValue
from mainspring.model.retention import Retention
from mainspring.model.run import State
from mainspring.model.schedule import ScheduleSpec
from mainspring.model.trigger import CronSpec
from mainspring.ports.paging import find_log_end
from mainspring.ports.store import (
    Agenda,
    Bodies,
    Claimed,
    Due,
    Events,
    KeyValues,
    Leases,
    Offer,
    Page,
    Runs,
    Schedules,
    Store,
    Tallies,
)
from mainspring.rules import run_commands
from mainspring.testing.contract.factories import T0
from proof.scenario import Scenario
from servers.for_tests import fresh_store
from servers.for_tests_redis import fresh_url
from tests.ledger.copy_history import MINUTE, THEN, Walk, make_history

Maker = Callable[[Path], Store]
KINDS: dict[str, Maker] = {
    "memory": lambda path: MemoryStore(),
    "sqlite": lambda path: SqliteStore(path, synchronous="NORMAL"),
    "postgres": lambda path: fresh_store(),
    "redis": lambda path: RedisStore(fresh_url()),
}
PAIRS = [
    ("sqlite", "sqlite"),
    ("sqlite", "postgres"),
    ("postgres", "sqlite"),
    ("postgres", "postgres"),
    ("memory", "sqlite"),
    ("memory", "memory"),
    ("postgres", "memory"),
    ("sqlite", "redis"),
    ("redis", "postgres"),
    ("redis", "redis"),
]


async def on_both(source: Store, target: Store, work: Callable[[], Awaitable[None]]) -> None:
    await source.open()
    await target.open()
    try:
        await work()
    finally:
        await target.close()
        await source.close()


def resting(claimed: Claimed) -> list[Any]:
    return [(claim.body, replace(claim.run, lease_until=None)) for claim in claimed.claims]


async def expired(store: Store) -> set[str]:
    """What a rescuer finds long after every lease."""
    return {run.id for run in (await store.due(Agenda.EXPIRED, 99, hold=0, now=4 * THEN)).runs}


async def planned(store: Store, agenda: Agenda) -> Due:
    found = await store.due(agenda, 99, hold=0, now=THEN)
    schedules = sorted(found.schedules, key=lambda due: due.schedule.id)  # a store may return them in any order
    return replace(found, next_at=None, schedules=tuple(schedules))


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
async def test_both_sides_give_the_same_answers(tmp_path: Path, a: str, b: str) -> None:
    source, target = KINDS[a](tmp_path / "a.db"), KINDS[b](tmp_path / "b.db")
    steps: list[Step] = []

    async def work() -> None:
        await make_history(source)
        copied = await copy(source, target, name="the source", page=7, progress=steps.append, now=THEN)
        assert (copied.resumed, copied.running) == (0, 2)
        comparison = await compare(source, target, THEN)
        assert comparison.ok, (comparison, (await verify(target)).differences)
        sums = comparison.source
        assert all(
            sums[name] for name in ("events", "runs", "schedules", "spans", "bodies", "gates", "tallies", "kept")
        ), sums
        some = ("planned", "ended", "open", "missed", "behind", "ad hoc open")
        assert all(sums[name] for name in some), {name: sums[name] for name in some}
        assert sums["unexplained"] == sums["unproven"] == 0
        assert await target.tail(0, 10_000) == await source.tail(0, 10_000)
        assert await target.find(Tallies()) == await source.find(Tallies())
        assert await target.find(KeyValues(kind="key")) == await source.find(KeyValues(kind="key"))
        assert await target.find(KeyValues(kind=IDEMPOTENCY_KIND)) == []
        states = Counter(run.state for run in await target.find(Runs(limit=1_000)))
        assert {State.RUNNING, State.WAITING, State.RETRYING, State.FAILED, State.CANCELLED} < set(states), states
        await check_answers(source, target)

    await on_both(source, target, work)
    assert steps[-1] == Step("rows", steps[-1].end, steps[-1].end)
    assert [step.seq for step in steps] == sorted(step.seq for step in steps)


async def check_answers(source: Store, target: Store) -> None:
    """What the engine asks: due, expired, touched, claimable."""
    for agenda in (Agenda.SCHEDULES, Agenda.TOUCHED):
        mine = await planned(source, agenda)
        assert mine.schedules
        assert await planned(target, agenda) == mine
    assert await expired(target) == await expired(source)
    old = {body for run in await source.find(Runs(limit=1_000)) if (body := run.body)}
    bodies = Bodies(ids=tuple(sorted(old)), limit=1_000)
    assert Counter(await target.find(bodies)) == Counter(await source.find(bodies))
    offer = Offer("w9", ("default/default",), ("t",), 30_000)
    for limit in (1, 99):
        theirs = await target.claim(offer, limit, now=THEN)
        mine_ = await source.claim(offer, limit, now=THEN)
        assert resting(theirs) == resting(mine_)
        assert mine_.claims
        assert max(theirs.next_at or 0, THEN) == max(mine_.next_at or 0, THEN)  # what is due already counts as now
    # Numbers go on after those that came over, so nothing that is written now stands before them.
    assert [event.seq for event in await target.tail(0, 10_000)][-1] > await find_log_end(source) - 10


async def test_runs_that_were_running_are_rescued_and_never_lost(tmp_path: Path) -> None:
    source, target = (
        SqliteStore(tmp_path / "a.db", synchronous="NORMAL"),
        SqliteStore(tmp_path / "b.db", synchronous="NORMAL"),
    )

    async def work() -> None:
        s = await make_history(source)
        before = {run.id: run for run in await source.find(Runs(states=(State.RUNNING,)))}
        await copy(source, target)
        rows = await target.find(Runs(states=(State.RUNNING,)))
        assert {run.id: run.owner for run in rows} == {run.id: "worker-1" for run in before.values()}
        # At once: no instance waits for a lease of another store.
        found = (await target.due(Agenda.EXPIRED, 99)).runs
        assert {run.id for run in found} == set(before)
        moved = Scenario(target)
        moved.ids = s.ids
        for run in found:
            await moved.finish(run, run_commands.Expire(3, "retry"), THEN)
        assert not await target.find(Runs(states=(State.RUNNING,)))
        assert len(await target.find(Events(types=(LeaseExpired.__name__,)))) == len(before)
        assert (await verify(target)).ok

    await on_both(source, target, work)


# ── interrupted ─────────────────────────────────────────────────────────────


class Cut(Exception):
    """The power goes."""


class CountDown:
    """Cuts at the nth commit, before or after it."""

    def __init__(self) -> None:
        self.left = 0

    def __call__(self, point: str) -> None:
        if point.startswith(("restore:", "lease:")):
            self.left -= 1
            if self.left == 0:
                raise Cut(point)


async def test_cut_at_every_point_and_called_again(tmp_path: Path) -> None:
    """Before and after each commit in turn; the next call ends with the same content."""
    source = SqliteStore(tmp_path / "a.db", synchronous="NORMAL")
    await source.open()
    await make_history(source)
    expected = await hash_content(source)
    cut = CountDown()
    for nth in range(1, 1_000):
        path = tmp_path / f"{nth}.db"
        target = SqliteStore(path, failpoint=cut, synchronous="NORMAL")
        await target.open()
        cut.left = nth
        try:
            await copy(source, target, page=40, now=THEN)
            break
        except Cut:
            await target.close()
        target = SqliteStore(path)
        await target.open()
        await copy(source, target, page=40, now=THEN)
        assert await hash_content(target) == expected, f"cut at point {nth}"
        await target.close()
    await target.close()
    await source.close()
    assert nth > 20


async def test_cut_again_and_again_on_a_server(tmp_path: Path) -> None:
    """Each call gets a little further than the one before; nothing is doubled, nothing is missing."""
    source = SqliteStore(tmp_path / "a.db", synchronous="NORMAL")
    settings = fresh_store().settings
    await source.open()
    await make_history(source)
    cut = CountDown()
    ends = [0]
    for left in range(1, 1_000):
        target = PostgresStore(settings, failpoint=cut)
        await target.open()
        cut.left = left
        try:
            await copy(source, target, page=40, now=THEN)
            break
        except Cut:
            cut.left = 0
            ends.append(await find_log_end(target))
            await target.close()
    cut.left = 0
    comparison = await compare(source, target, THEN)
    assert comparison.ok, comparison
    assert (await copy(source, target, now=THEN)).events == 0
    assert await compare(source, target, THEN) == comparison
    await target.close()
    await source.close()
    assert left > 10
    assert ends == sorted(ends)


@pytest.mark.parametrize("seed", range(8))
async def test_a_source_that_moved_on_is_followed(tmp_path: Path, seed: int) -> None:
    """Random histories; the copy is cut at random commits and the source works on between two tries."""
    rng = random.Random(seed)
    source: Store = MemoryStore() if seed % 2 else SqliteStore(tmp_path / "a.db", synchronous="NORMAL")
    cut = CountDown()
    target = SqliteStore(tmp_path / "b.db", failpoint=cut, synchronous="NORMAL")

    async def work() -> None:
        walk = Walk(source, rng)
        await walk.go(60)
        await source.purge(Retention(ended_before=walk.now - 30 * MINUTE), 1_000, now=walk.now)
        await walk.go(20)
        cuts = 0
        while cuts < 4:
            cut.left = rng.randint(2, 9)
            with contextlib.suppress(Cut):
                await copy(source, target, page=rng.randint(1, 30), now=walk.now)
            cuts += 1
            await walk.go(rng.randint(0, 15))
        cut.left = 0
        await copy(source, target, now=walk.now)
        comparison = await compare(source, target, walk.now)
        assert comparison.ok, (comparison.differences, comparison)
        assert comparison.target["events"] != 0

    await on_both(source, target, work)


@pytest.mark.parametrize("numbers", [(), (1,), (7,), (1, 2), (3, 900), (1, 2, 3, 50, 51, 1_000_000)])
async def test_the_end_of_a_log_is_found_whatever_retention_left(numbers: tuple[int, ...]) -> None:
    store = MemoryStore()
    events = tuple(InstanceJoined(seq=seq, instance="w") for seq in numbers)
    assert await store.restore(Page(after=0, events=events))
    assert await find_log_end(store) == (numbers[-1] if numbers else 0)


# ── refused ─────────────────────────────────────────────────────────────────


async def refused(source: Store, target: Store, words: str, **options: Any) -> None:
    """The copy is refused in these words, and neither side has changed."""
    before = (await hash_content(source), await hash_content(target))
    with pytest.raises(CopyRefused, match=words):
        await copy(source, target, **options)
    assert (await hash_content(source), await hash_content(target)) == before


async def some(*, runs: int = 3, at: Ms = T0) -> MemoryStore:
    store = MemoryStore()
    await store.open()
    s = Scenario(store)
    for _ in range(runs):
        await s.enqueue(at)
    return store


async def test_a_target_with_anything_in_it_is_refused() -> None:
    await refused(await some(), await some(), "the target is not empty: its log has events up to 3")
    gated = MemoryStore()
    await gated.apply([Change(id="c", gates=(Gate("g", 1),))])
    await refused(await some(), gated, "the target is not empty: it has rows")


async def test_an_unfinished_copy_of_another_store_is_refused() -> None:
    target = MemoryStore()
    await copy(await some(), target, name="the first")
    await refused(await some(at=T0 + 1), target, "holds a copy of the first, and its log .to event 3. differs")


async def test_a_copy_that_was_worked_on_is_refused() -> None:
    source, target = await some(), MemoryStore()
    await copy(source, target)
    await Scenario(target).claim(T0)
    await refused(source, target, "differs from the source.s: .* was written to")


async def test_a_finished_copy_may_be_copied_again_and_takes_what_is_new() -> None:
    source, target = await some(), MemoryStore()
    await copy(source, target)
    await Scenario(source).work(T0)
    copied = await copy(source, target)
    assert (copied.resumed, copied.events) == (3, 6)
    assert (await compare(source, target, T0)).ok


async def test_retention_between_two_tries_is_refused() -> None:
    source, target = await some(runs=0), MemoryStore()
    s = Scenario(source)
    await s.enqueue(T0)
    (run,) = await s.claim(T0, ids=(await s.enqueue(T0),))
    await s.enqueue(T0)
    await copy(source, target)
    await s.finish(run, run_commands.Complete(T0, 1, None), T0)
    # The first and the last event that were copied stay: only the word of the compaction tells.
    assert (await source.purge(Retention(ended_before=T0 + 1), 9, now=T0 + 1)).runs == 1
    await refused(source, target, "retention removed history from the source")


async def test_a_run_that_was_let_go_without_an_event(tmp_path: Path) -> None:
    source, target = await some(runs=0), SqliteStore(tmp_path / "b.db")
    await target.open()
    s = Scenario(source)
    for _ in range(2):
        await s.enqueue(T0, gates=(Gate("g", 1),))
    (run,) = await s.claim(T0)
    await copy(source, target)
    assert [row.parked_on for row in await target.find(Runs(states=(State.WAITING,)))] == ["g"]
    await s.finish(run, run_commands.Complete(T0, 1, None), T0)
    assert (await source.due(Agenda.GATES, 9, now=T0)).unparked == 1
    await copy(source, target)
    assert [row.parked_on for row in await target.find(Runs(states=(State.WAITING,)))] == [None]
    assert (await compare(source, target, T0)).ok
    await target.close()


async def test_a_name_that_changed_hands(tmp_path: Path) -> None:
    source, target = await some(), SqliteStore(tmp_path / "b.db")
    await target.open()
    s = Scenario(source)
    spec = ScheduleSpec(CronSpec("0 0 * * *"), "t")
    first = await s.create(spec, T0)
    await copy(source, target)
    await s.delete(first, T0)
    second = await s.create(spec, T0)
    await copy(source, target)
    assert [row.id for row in await target.find(Schedules(name="nightly"))] == [second]
    assert (await compare(source, target, T0)).ok
    await target.close()


async def test_a_copied_log_names_its_runs_without_their_rows(tmp_path: Path) -> None:
    source, target = SqliteStore(tmp_path / "a.db", synchronous="NORMAL"), SqliteStore(tmp_path / "b.db")

    async def work() -> None:
        await make_history(source)
        await copy(source, target)

    await on_both(source, target, work)
    names = []
    for path in ("a.db", "b.db"):
        with contextlib.closing(sqlite3.connect(tmp_path / path)) as connection:
            names.append(connection.execute("SELECT seq, run_ref FROM event WHERE run_ref IS NOT NULL").fetchall())
    assert names[0]
    assert names[1] == names[0]


async def test_a_writer_on_the_target_is_noticed() -> None:
    source = await some()

    class Meddled(MemoryStore):
        async def restore(self, page: Page) -> bool:
            if page.after == 1:
                await super().restore(Page(after=1, events=(InstanceJoined(seq=99, instance="w"),)))
            return await super().restore(page)

    with pytest.raises(CopyRefused, match="another process writes to the target"):
        await copy(source, Meddled(), page=1)


@pytest.mark.parametrize("side", ["source", "target"])
async def test_a_live_instance_is_refused(side: str) -> None:
    source, target = await some(), MemoryStore()
    busy = source if side == "source" else target
    for k in range(1_200):  # instances that were: more than any page of them
        gone = await busy.lease(f"instance:a{k}", "a", 60_000)
        assert gone is not None
        await busy.release(gone.name, "a", gone.epoch)
    lease = await busy.lease("instance:w1", "w1", 60_000)
    assert lease is not None
    await refused(source, target, f"instance w1 works on the {side}")
    if side == "target":
        await refused(source, target, "instance w1 works on the target", force=True)
    else:
        assert (await copy(source, target, force=True)).events == 3
        assert [lease.name for lease in await target.find(Leases())] == ["copy"]
        return
    await busy.release("instance:w1", "w1", lease.epoch)
    assert (await copy(source, target)).events == 3


async def test_the_target_remembers_whose_copy_it_is() -> None:
    source, target = await some(), MemoryStore()
    await copy(source, target, name="/data/a.db")
    (row,) = await target.find(Leases())
    assert (row.name, row.live) == ("copy", False)
    assert msgspec.json.decode(row.data or "", type=Mark) == Mark("/data/a.db", 3)


async def test_a_difference_is_named() -> None:
    source, target = await some(), MemoryStore()
    await copy(source, target)
    await target.restore(Page(after=3, gates=(Gate("g", 1),)))
    comparison = await compare(source, target, T0)
    assert (comparison.ok, comparison.differences) == (False, ["gates", "content"])


async def test_a_later_call_brings_and_takes_keys_too() -> None:
    source, target = await some(), MemoryStore()
    await source.put([KeyValue(kind="key", id="old", data="1"), KeyValue(kind="key", id="same", data="1")])
    await copy(source, target)
    await source.remove("key", ["old"])
    await source.put(
        [KeyValue(kind="key", id="same", data="2"), KeyValue(kind="key", id="new", data="1")], replace=True
    )
    assert not (await compare(source, target, T0)).ok
    await copy(source, target)
    assert (await compare(source, target, T0)).ok
    assert [(row.id, row.data) for row in await target.find(KeyValues(kind="key"))] == [("new", "1"), ("same", "2")]


async def test_a_target_with_a_key_of_its_own_is_not_empty() -> None:
    target = MemoryStore()
    await target.put([KeyValue(kind="key", id="mine", data="1")])
    await refused(await some(), target, "the target is not empty")
