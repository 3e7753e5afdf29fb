"""What a broker adds to an instance: hints out after commit, hints in by name, answers after the outcome."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mainspring import Mainspring, Retry, RunScheduled, RunSucceeded
from mainspring.app.internals import host_of, registry_of, runtime_of
from mainspring.backends.memory.broker import MemoryBroker
from mainspring.engine.broker.availability import BrokerAvailability, cancel_and_wait
from mainspring.engine.broker.dispatcher import MAX_EVENT_BYTES, MAX_OUTBOX_MESSAGES, Dispatcher, Outbox, event_text
from mainspring.engine.broker.link import HintResender
from mainspring.engine.work.hint_inbox import HintInbox
from mainspring.model.errors import BrokerUnavailable, InvalidInput, MissingExtra
from mainspring.ports.broker import Broker, BrokerLimits, Depth, Message
from mainspring.ports.clock import SystemClock
from mainspring.ports.store import Claim, Claimed
from mainspring.runtime.broker_url import open_broker
from mainspring.testing import travel
from mainspring.testing.contract.factories import Ids, make_run
from mainspring.testing.kit import Kit
from tests.engine.support import WAIT, beside

GROUP, TOPIC = "workers", "work:default/default"


@asynccontextmanager
async def meanwhile(fact: Callable[[], object]) -> AsyncIterator[None]:
    yield
    async with asyncio.timeout(10):
        while not fact():  # noqa: ASYNC110 - another thread makes it true
            await asyncio.sleep(0.005)


async def depth(broker: Broker) -> Depth:
    return await broker.depth(TOPIC, group=GROUP)


async def settled(broker: Broker, wanted: Depth) -> None:
    async with asyncio.timeout(10):
        while await depth(broker) != wanted:  # noqa: ASYNC110 - another thread makes it so
            await asyncio.sleep(0.005)


# ── work by messages ───────────────────────────────────────────────────────


async def test_a_message_is_answered_after_the_outcome_is_stored(tmp_path: Path) -> None:
    broker = MemoryBroker("answered")
    asks, works = (Mainspring(f"sqlite:///{tmp_path}/x.db", broker=MemoryBroker("answered")) for _ in range(2))
    began, go = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        began.set()
        await go.wait()
        return "done"

    for ms in (asks, works):
        ms.task(name="work")(work)
    async with beside(works):
        handle = await asks.tasks["work"].enqueue()  # type: ignore[attr-defined]  # it takes nothing
        async with asyncio.timeout(10):
            await began.wait()
        await settled(broker, Depth(0, 1))
        go.set()
        assert await handle.result(timeout=WAIT) == "done"
        await settled(broker, Depth(0, 0))
        assert works.metrics()["broker_messages_heard_total"] == 1
    await asks.close()


async def test_what_the_instance_takes_itself_needs_no_message() -> None:
    ms = Mainspring("memory://", broker="memory://")

    @ms.task
    async def work() -> None: ...

    async with beside(ms):
        await (await work.enqueue()).result(timeout=WAIT)
        assert ms.metrics()["broker_messages_published_total"] == 0


async def test_retries_and_their_messages_come_to_an_end(tmp_path: Path) -> None:
    broker = MemoryBroker("retries")
    ms = Mainspring(f"sqlite:///{tmp_path}/x.db", broker=broker, concurrency=2, poll_interval="50ms")

    @ms.task(retry=Retry(max_attempts=3, backoff="fixed", initial="1ms", jitter=0))
    async def work(n: int) -> int:
        if n % 2:
            raise ValueError("odd")
        return n

    async with beside(ms):
        handles = await work.enqueue_many((n,) for n in range(50))
        for handle in handles[::2]:
            await handle.result(timeout=WAIT)
        await settled(broker, Depth(0, 0))
    assert await MemoryBroker("retries").dead_letters() == []


async def test_a_message_that_cannot_be_read_is_a_dead_letter_and_the_next_one_counts() -> None:
    broker = MemoryBroker("unreadable")
    ms = Mainspring("memory://", broker="memory://unreadable")
    async with beside(ms):
        for bad in ("", "{", '{"run": 7}', "[]", '{"task":"x"}'):
            await broker.publish(TOPIC, [bad])
        await broker.publish(TOPIC, ['{"run":"nobody","task":"nothing"}'])
        await settled(broker, Depth(0, 0))
        letters = await broker.dead_letters()
        assert [letter.body for letter in letters] == ["", "{", '{"run": 7}', "[]", '{"task":"x"}']
        assert {letter.reason for letter in letters} == {"not a message of work"}
        assert ms.metrics()["broker_messages_unreadable_total"] == 5
        assert ms.health().ok


async def test_messages_of_runs_that_are_not_there_are_answered() -> None:
    broker = MemoryBroker("gone")
    ms = Mainspring("memory://", broker="memory://gone", poll_interval="50ms")

    @ms.task(name="work")
    async def work() -> None: ...

    async with beside(ms):
        await broker.publish(TOPIC, [f'{{"run":"no-{n}","task":"work"}}' for n in range(500)])
        await settled(broker, Depth(0, 0))
    assert await broker.dead_letters() == []


async def test_what_was_lost_on_the_way_is_found_in_the_store(tmp_path: Path) -> None:
    class Deaf(MemoryBroker):
        async def publish(self, topic: str, bodies: object) -> None:
            return

    url = f"sqlite:///{tmp_path}/x.db"
    asks, works = (Mainspring(url, broker=Deaf(), poll_interval="50ms") for _ in range(2))
    for ms in (asks, works):

        @ms.task(name="work")
        async def work() -> str:
            return "found"

    async with beside(works):
        handle = await asks.tasks["work"].enqueue()  # type: ignore[attr-defined]  # it takes nothing
        assert await handle.result(timeout=WAIT) == "found"
    await asks.close()


async def test_runs_whose_message_was_lost_are_announced_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    quiet = Mainspring(url)
    broker = MemoryBroker()
    ms = Mainspring(url, broker=broker, poll_interval="10ms")
    for one in (quiet, ms):

        @one.task(name="work")
        async def work() -> None: ...

    handle = await quiet.tasks["work"].enqueue()  # type: ignore[attr-defined]  # it takes nothing
    await quiet.close()

    async def sweep(runtime: object) -> list[int]:
        link = runtime_of(ms).broker_link  # type: ignore[union-attr]  # it is open
        assert link is not None
        service = link.make_resender(runtime_of(ms).leader, registry_of(ms).handlers)  # type: ignore[union-attr]  # likewise
        assert isinstance(service, HintResender)
        async with asyncio.timeout(5):
            while not await service.resend():  # noqa: ASYNC110 - when it has waited for longer than a poll
                await asyncio.sleep(0.005)
        return [await service.resend() for _ in range(3)]

    assert await host_of(ms).call(sweep) == [0, 0, 0]  # once is enough
    async for batch in broker.consume(TOPIC, group=GROUP, consumer="test"):
        if batch:
            assert json.loads(batch[0].body) == {"run": handle.id, "task": "work"}
            break
    await ms.close()


async def test_two_apps_of_one_process_meet_by_the_brokers_name() -> None:
    one, two = MemoryBroker("here"), MemoryBroker("here")
    other, alone = MemoryBroker("there"), MemoryBroker()
    await one.publish(TOPIC, ["x"])
    assert [(await depth(broker)).waiting for broker in (two, other, alone)] == [1, 0, 0]


# ── the inbox ──────────────────────────────────────────────────────────────


def message(number: int, deliveries: int = 1) -> Message:
    return Message(TOPIC, str(number), "", deliveries)


class Box:
    """An inbox, what it was done with, and what its worker holds."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.running: set[str] = set()
        self.inbox = HintInbox({"work"}, self.running, set(), 1.0, lambda one: self.done.append(one.id), lambda: None)

    def claimed(self, *names: str, crashes: int = 0) -> Claimed:
        ids = Ids()
        self.running.update(names)
        return Claimed(0, [Claim(make_run(ids, id=name, crashes=crashes), None) for name in names])


def test_named_runs_are_asked_for_between_two_ordinary_claims() -> None:
    box = Box()
    assert box.inbox.add("a", message(1), 0.0)
    assert box.inbox.names_to_claim(0.0) == []  # the first look is an ordinary one
    assert box.inbox.names_to_claim(0.5) == ["a"]
    assert box.inbox.names_to_claim(1.0) == []
    assert box.inbox.names_to_claim(1.5) == ["a"]


def test_what_is_not_claimed_is_done_with_unless_slots_were_the_reason() -> None:
    box = Box()
    for number, name in enumerate("abc"):
        box.inbox.add(name, message(number), 0.0)
    assert box.inbox.claim_answered(["a", "b", "c"], box.claimed("a"), wanted=1)
    assert box.done == []
    assert not box.inbox.claim_answered(["b", "c"], box.claimed("b"), wanted=5)
    assert box.done == ["2"]
    box.inbox.stored("a", ended=True)
    box.inbox.stored("b", ended=False)
    assert box.done == ["2", "0", "1"]


def test_a_run_that_crashed_before_comes_alone_so_the_others_are_asked_for_again() -> None:
    box = Box()
    for number, name in enumerate("ab"):
        box.inbox.add(name, message(number), 0.0)
    assert box.inbox.claim_answered(["a", "b"], box.claimed("a", crashes=1), wanted=5)
    assert box.done == []
    assert list(box.inbox.named) == ["b"]


def test_messages_that_come_late_twice_or_again_are_done_with() -> None:
    box = Box()
    box.inbox.stored("ended", ended=True)
    assert not box.inbox.add("ended", message(1), 0.0)
    box.inbox.stored("ended", ended=False)  # it was opened again
    assert box.inbox.add("ended", message(2), 0.0)
    assert box.inbox.add("ended", message(3), 0.0)
    box.running.add("under way")
    assert not box.inbox.add("under way", message(4), 0.0)
    assert not box.inbox.add("under way", message(5, deliveries=2), 0.0)
    assert box.done == ["1", "2", "5"]


def test_messages_without_a_slot_are_answered_once_every_worker_has_polled() -> None:
    box = Box()
    box.inbox.add("old", message(1), 0.0)
    box.inbox.add("new", message(2), 5.0)
    assert box.inbox.answer_older(2.0) == 1
    assert box.done == ["1"]
    assert box.inbox.remove_all() == [message(2)]


# ── buffers ────────────────────────────────────────────────────────────────


async def test_a_full_topic_never_makes_a_commit_wait() -> None:
    broker = MemoryBroker(limits=BrokerLimits(capacity=10))
    reading = broker.consume(TOPIC, group=GROUP, consumer="slow")
    await anext(reading)
    line = BrokerAvailability()
    outbox = Outbox(TOPIC, broker, line)
    for n in range(MAX_OUTBOX_MESSAGES + 50):
        outbox.put(str(n))
    assert outbox.dropped == 50
    got: list[str] = []
    while len(got) < 30:
        batch = await anext(reading)
        got += [one.body for one in batch]
        await broker.ack(batch, group=GROUP)
    assert got[0] == "50"  # the oldest are left out
    assert got == sorted(got, key=int)
    await reading.aclose()
    await broker.close()
    await outbox.close()
    assert line.trouble is not None


async def test_an_outage_is_said_once_and_ends_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    class Away(MemoryBroker):
        away = True

        async def publish(self, topic: str, bodies: object) -> None:
            if self.away:
                raise BrokerUnavailable("no route")

    broker, line = Away(), BrokerAvailability()
    outbox = Outbox(TOPIC, broker, line)
    outbox.put("x")
    async with meanwhile(lambda: line.trouble == "no route"):
        pass
    broker.away = False
    async with meanwhile(lambda: line.trouble is None):
        pass
    assert outbox.sent == 1
    assert [record.message for record in caplog.records] == [
        "the broker fails, runs go on by the store alone: no route",
        "the broker answers again",
    ]


def test_an_event_travels_as_data_and_a_large_one_without_it() -> None:
    told = json.loads(event_text(RunSucceeded(at=7, run_id="r", n=3, began_at=5, ms=2, result='{"x":1}')))
    assert told == {"type": "RunSucceeded", "at": 7, "run_id": "r", "n": 3, "began_at": 5, "ms": 2, "result": '{"x":1}'}
    large = event_text(RunSucceeded(at=7, run_id="r", n=3, began_at=5, ms=2, result="x" * MAX_EVENT_BYTES))
    assert len(large) < 1_000
    assert json.loads(large)["cut"] is True


# ── events of every instance ───────────────────────────────────────────────


@pytest.mark.parametrize("broker", [None, "memory://everywhere"])
async def test_a_subscriber_gets_the_events_of_every_instance(broker: str | None, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    one, two = (Mainspring(url, broker=broker) for _ in range(2))
    here: list[str | None] = []
    everywhere: list[str | None] = []
    one.on_event(RunScheduled, lambda event: here.append(event.run_id))
    one.on_event(RunScheduled, lambda event: everywhere.append(event.run_id), everywhere=True)
    for ms in (one, two):

        @ms.task(name="work")
        async def work() -> None: ...

    async with beside(one):
        ids = [(await ms.tasks["work"].enqueue()).id for ms in (one, two, two)]  # type: ignore[attr-defined]
        async with meanwhile(lambda: len(everywhere) >= 3):
            pass
        late: list[str | None] = []
        one.on_event(RunSucceeded, lambda event: late.append(event.run_id), everywhere=True)
        more = await two.tasks["work"].enqueue()  # type: ignore[attr-defined]
        async with meanwhile(lambda: more.id in late):
            pass
    assert everywhere[:3] == ids
    assert here == ids[:1]
    await two.close()


async def test_events_are_published_while_a_program_reads_them() -> None:
    broker = MemoryBroker("told")
    ms = Mainspring("memory://", broker="memory://told")

    @ms.task
    async def work() -> None: ...

    async with beside(ms):
        await (await work.enqueue()).result(timeout=WAIT)
        reading = broker.consume("events", group=None, consumer="test")
        assert await anext(reading) == []
        assert host_of(ms).runtime is not None
        dispatcher = runtime_of(ms).broker_link.dispatcher  # type: ignore[union-attr]  # it has one
        async with meanwhile(lambda: dispatcher.has_readers):
            pass
        handle = await work.enqueue()
        told: list[dict[str, object]] = []
        async with asyncio.timeout(10):
            while not any(one["type"] == "RunSucceeded" for one in told):
                told += [json.loads(one.body) for one in await anext(reading)]
        await reading.aclose()
    assert [one["type"] for one in told if one.get("run_id") == handle.id] == [
        "RunScheduled",
        "RunStarted",
        "RunSucceeded",
    ]


async def test_a_task_that_swallows_a_cancellation_is_cancelled_again() -> None:
    async def stubborn() -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await cancel_and_wait(task)
    assert task.done()


# ── bad input ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "problem", "fix"),
    [
        ("rabbit://x", "'rabbit://' is not the scheme of a broker", "Known are memory, redis"),
        ("rediss", "is not a broker URL", "Write memory://"),
        ("redsi://x", "'redsi://' is not the scheme of a broker", "Did you mean 'redis'?"),
        ("redis://h:99999/0", "'h:99999' is no host and port", "redis://user"),
        ("redis://a,b/0", "names several servers", "is a cluster"),
        ("redis://h/abc", "'abc' is no number of a database", "redis://user"),
        ("redis+sentinel://h", "the Sentinels' name of the primary", "/service/0"),
        ("redis://h?perfix=x", "'perfix' is not an option", "Did you mean 'prefix'?"),
        ("redis://h?prefix=", "prefix='' is not allowed", "letters"),
        ("redis://h?capacity=0", "capacity='0' is not a whole number", "Use 1 to"),
        ("redis://h?redeliver_after=1ms", "redeliver_after=1ms is out of range", "10ms to 24h"),
        ("redis://h?events=never", "events='never' is not known", "asked or always"),
        ("memory://x/y", "has a path", "memory://NAME"),
    ],
)
def test_a_wrong_url_is_refused_with_the_fix(url: str, problem: str, fix: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Mainspring("memory://", broker=url)
    assert refused.value.field == "broker"
    assert problem in refused.value.problem
    assert fix in refused.value.fix


def test_the_broker_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_BROKER", "memory://shop")
    assert Mainspring("memory://").broker == "memory://shop"
    assert Mainspring("memory://", broker="memory://mine").broker == "memory://mine"


def test_a_missing_extra_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("redis", "mainspring.backends.redis"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mainspring\[redis\]'"):
        open_broker("redis://localhost", SystemClock())


async def test_in_virtual_time_there_is_no_broker() -> None:
    ms = Mainspring("memory://", broker="redis://nowhere.invalid")

    @ms.task
    async def work() -> int:
        return 7

    async with travel(ms) as time:
        handle = await work.enqueue()
        await time.advance("1s")
        assert await handle.result(timeout="1s") == 7
    assert ms.broker == "redis://nowhere.invalid"
    with Kit() as kit:
        assert kit.use(ms).app.broker is None
    assert ms.broker == "redis://nowhere.invalid"


async def test_without_a_broker_nothing_is_different() -> None:
    ms = Mainspring("memory://")
    async with beside(ms):
        assert host_of(ms).runtime is not None
        assert runtime_of(ms).broker_link is None
        assert runtime_of(ms).worker is not None
        assert runtime_of(ms).worker._hints is None
        assert not runtime_of(ms).publisher.has_listeners
        assert not any(name.startswith("broker") for name in ms.metrics())


def test_the_dispatcher_is_quiet_about_what_is_not_due() -> None:
    dispatcher = Dispatcher(MemoryBroker(), BrokerAvailability(), lambda: 1_000, lambda run_id: False)
    dispatcher.committed([])
    assert dispatcher.sent == 0
