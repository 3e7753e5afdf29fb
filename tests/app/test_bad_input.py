"""Bad input: what is wrong, where, and what would be right; nothing is stored and nothing is lost."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import Context, Cron, Depends, Every, Mainspring, Retry, State, Window
from mainspring.app.internals import registry_of
from mainspring.model.errors import (
    EmptyName,
    InvalidCron,
    InvalidDuration,
    InvalidInput,
    LeaseTooShort,
    MainspringError,
    NaiveDatetime,
    PayloadNotSerialisable,
    PayloadTooLarge,
    ScheduleConflict,
    UnknownTask,
    UnknownZone,
    WrongArguments,
)
from mainspring.model.events import ScheduleUpdated
from mainspring.testing import travel

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForTypeCheckers

NAIVE = datetime(2026, 3, 2, 9, 0)
START = "2026-03-02T08:00:00Z"


def nothing() -> None:
    """Do nothing, as the function of a task with wrong options."""


@pytest.fixture(params=["memory", "sqlite"])
async def ms(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Mainspring]:
    app = Mainspring("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/x.db")

    @app.task
    async def send(customer: str, copies: int = 1, on: date | None = None) -> str:
        return customer

    await app.schedule("nightly", send, cron="0 2 * * *", args=("acme",))
    yield app
    await app.close()


@asynccontextmanager
async def unchanged(app: Mainspring) -> AsyncIterator[None]:
    """Everything in the store is the same afterwards."""
    before = (await app.events(), await app.schedules(), await app.runs())
    yield
    assert (await app.events(), await app.schedules(), await app.runs()) == before


Case = tuple[str, Callable[[Mainspring], Any], type[MainspringError], str]

CASES: list[Case] = [
    # ── zones: the nearest is named ──
    (
        "zone of a schedule",
        lambda ms: ms.schedule("x", "send", cron="0 9 * * *", args=("a",), tz="Europe/Berlni"),
        UnknownZone,
        r"tz: 'Europe/Berlni' is not a time zone\. Did you mean 'Europe/Berlin'\?",
    ),
    ("zone of an edit", lambda ms: ms.update("nightly", tz="Mars/Phobos"), UnknownZone, r"tz: 'Mars/Phobos'.*Europe/B"),
    ("zone of a decorator", lambda ms: ms.cron("0 9 * * *", tz="utcc")(nothing), UnknownZone, "tz: 'utcc' is not"),
    ("zone of a trigger", lambda ms: Cron("0 9 * * *", tz="Asia/Tokio"), UnknownZone, r"Did you mean 'Asia/Tokyo'\?"),
    ("zone of a window", lambda ms: Window("09:00-10:00", tz="Berlin"), UnknownZone, "window.tz: 'Berlin' is not"),
    ("zone of an app", lambda ms: Mainspring("memory://", tz="Europe/Pariss"), UnknownZone, "'Europe/Paris'"),
    # ── cron ──
    (
        "cron out of range",
        lambda ms: ms.schedule("x", "send", cron="61 * * * *", args=("a",)),
        InvalidCron,
        r"minute: .*61.*in '61 \* \* \* \*' at position 0",
    ),
    ("cron with too few fields", lambda ms: ms.update("nightly", cron="* *"), InvalidCron, r"'\* \*'"),
    ("cron of a decorator", lambda ms: ms.cron("0 9 * * Mox")(nothing), InvalidCron, "weekday.*|.*Mox"),
    # ── durations ──
    (
        "negative delay",
        lambda ms: ms.tasks["send"].using(delay="-5m"),
        InvalidDuration,
        "delay: '-5m' is negative. A duration must not be negative",
    ),
    ("negative timedelta", lambda ms: ms.tasks["send"].using(timeout=timedelta(-1)), InvalidDuration, "timeout: .*neg"),
    ("negative number", lambda ms: ms.update("nightly", grace=-1), InvalidDuration, "grace: -1 is negative"),
    ("negative interval", lambda ms: ms.schedule("x", "send", every="-1s", args=("a",)), InvalidDuration, "'-1s'"),
    ("interval of nothing", lambda ms: Every(0), InvalidInput, "0"),
    (
        "unreadable",
        lambda ms: ms.tasks["send"].using(delay="5 minutes"),
        InvalidDuration,
        "'5 minutes'.*Did you mean '5m'?",
    ),
    ("not finite", lambda ms: ms.tasks["send"].using(delay=math.inf), InvalidDuration, "delay: inf is not a finite"),
    ("task time-out", lambda ms: ms.task(name="y", timeout=0)(nothing), InvalidDuration, "timeout: 0 is too"),
    ("retry", lambda ms: Retry(initial="-1s"), InvalidDuration, "retry.initial: '-1s' is negative"),
    # ── datetimes ──
    (
        "naive at of a call",
        lambda ms: ms.tasks["send"].using(at=NAIVE),
        NaiveDatetime,
        r"at: 2026-03-02T09:00:00 has no time zone\. Add one: tzinfo=",
    ),
    ("naive at of a schedule", lambda ms: ms.schedule("x", "send", at=NAIVE, args=("a",)), NaiveDatetime, "times: 20"),
    ("naive until", lambda ms: ms.pause("nightly", until=NAIVE), NaiveDatetime, "until: 2026"),
    ("naive start", lambda ms: ms.update("nightly", start=NAIVE), NaiveDatetime, "start: 2026"),
    ("naive since", lambda ms: ms.runs(since=NAIVE), NaiveDatetime, "since: 2026"),
    ("naive argument of events", lambda ms: ms.events(until=NAIVE), NaiveDatetime, "until: 2026"),
    (
        "until in the past",
        lambda ms: ms.pause("nightly", until=datetime(2020, 1, 1, tzinfo=UTC)),
        InvalidInput,
        "until: lies in the past. Give an instant in the future",
    ),
    (
        "end before start",
        lambda ms: ms.update("nightly", start=datetime(2026, 2, 1, tzinfo=UTC), end=datetime(2026, 1, 1, tzinfo=UTC)),
        InvalidInput,
        "end: lies before start",
    ),
    # ── arguments ──
    (
        "wrong type",
        lambda ms: ms.tasks["send"].enqueue("acme", copies="two"),
        WrongArguments,
        "copies: Expected `int`, got `str`. Got 'two'",
    ),
    (
        "missing",
        lambda ms: ms.tasks["send"].enqueue(),
        WrongArguments,
        r"arguments: missing a required argument: 'customer'\. The signature is send\(customer: 'str', copies",
    ),
    ("unknown", lambda ms: ms.tasks["send"].enqueue("a", colour=1), WrongArguments, "unexpected keyword.*'colour'"),
    ("too many", lambda ms: ms.tasks["send"].enqueue("a", 1, None, 4), WrongArguments, "too many positional"),
    (
        "one of many",
        lambda ms: ms.tasks["send"].enqueue_many([("a",), ("b", "x"), ("c",)]),
        WrongArguments,
        "copies: Expected `int`",
    ),
    ("of a schedule", lambda ms: ms.schedule("x", "send", cron="0 9 * * *"), WrongArguments, "'customer'"),
    ("of an edit", lambda ms: ms.update("nightly", args=(1,)), WrongArguments, "customer: Expected `str`, got `int`"),
    ("of a trigger", lambda ms: ms.trigger("nightly", kwargs={"copies": 1}), WrongArguments, "'customer'"),
    # ── payloads ──
    (
        "unserialisable",
        lambda ms: ms.tasks["send"].enqueue(object()),
        PayloadNotSerialisable,
        r"customer: cannot be stored as JSON: <object object.*is of type object\. Pass numbers, text, lists",
    ),
    (
        "unserialisable within",
        lambda ms: ms.tasks["send"].enqueue({"a": [1, {"b": lambda: 1}]}),
        PayloadNotSerialisable,
        r"customer\.a\[1\]\.b: cannot be stored as JSON: <function",
    ),
    ("not a number", lambda ms: ms.tasks["send"].enqueue(math.nan), PayloadNotSerialisable, "customer: nan is not"),
    (
        "oversized",
        lambda ms: ms.tasks["send"].enqueue("x" * 70_000),
        PayloadTooLarge,
        "arguments: 700.. bytes are more than the limit of 65536. Store the data elsewhere",
    ),
    ("oversized limit", lambda ms: Mainspring("memory://", payload_limit=2**20 + 1), InvalidInput, "payload_limit"),
    # ── names ──
    ("empty task name", lambda ms: ms.task(name="")(nothing), EmptyName, "task name: '' is empty. Give a name"),
    ("empty schedule name", lambda ms: ms.schedule(" ", "send", every="1m", args=("a",)), EmptyName, "name: ' ' is e"),
    ("control characters", lambda ms: ms.schedule("a\n", "send", every="1m", args=("a",)), EmptyName, "control char"),
    ("long name", lambda ms: ms.schedule("a" * 256, "send", every="1m", args=("a",)), EmptyName, "256 characters"),
    ("queue of a call", lambda ms: ms.tasks["send"].using(queue=""), EmptyName, "queue: '' is empty"),
    ("queue of a schedule", lambda ms: ms.update("nightly", queue="\0"), EmptyName, "queue: .* control characters"),
    ("queue of an app", lambda ms: Mainspring("memory://", queues=[""]), EmptyName, "queues: '' is empty"),
    ("queues as text", lambda ms: Mainspring("memory://", queues=()), InvalidInput, "queues: .*Write for example"),
    # ── tasks ──
    (
        "unknown task",
        lambda ms: ms.schedule("x", "sned", cron="0 9 * * *"),
        UnknownTask,
        r"no task is called 'sned'\. Did you mean 'send'\?",
    ),
    ("unregistered function", lambda ms: ms.schedule("x", len, cron="0 9 * * *"), UnknownTask, "Register it with @ms"),
    ("unknown task of an edit", lambda ms: ms.update("nightly", task="zzz"), UnknownTask, "'zzz'.*@ms.task"),
    ("not a function", lambda ms: ms.task(42), InvalidInput, "task: 42 is not a function. Decorate a def"),
    # ── policies: the nearest word is named ──
    (
        "missed",
        lambda ms: ms.update("nightly", missed="catchup_once"),
        InvalidInput,
        r"missed: 'catchup_once' is not one of skip, catch_up_once, replay_all\. Did you mean 'catch_up_once'\?",
    ),
    ("overlap", lambda ms: ms.update("nightly", overlap="forbidden"), InvalidInput, r"overlap: .*mean 'forbid'\?"),
    ("on_exhausted", lambda ms: ms.update("nightly", on_exhausted="stop"), InvalidInput, "on_exhausted: 'stop' is not"),
    ("recovery", lambda ms: ms.tasks["send"].using(recovery="fails"), InvalidInput, r"recovery: .*mean 'fail'\?"),
    ("priority", lambda ms: ms.tasks["send"].using(priority="hihg"), InvalidInput, r"priority: .*you mean 'high'\?"),
    ("priority number", lambda ms: ms.tasks["send"].using(priority=9), InvalidInput, "priority: 9 is not .*0 to 3"),
    ("executor", lambda ms: ms.task(executor="treads")(nothing), InvalidInput, "executor: 'treads' is not one of"),
    ("retry of a task", lambda ms: ms.task(name="y", retry=3)(nothing), InvalidInput, r"retry: 3 is.*Retry\(max_"),
    ("retry of a call", lambda ms: ms.tasks["send"].using(retry=3), InvalidInput, "retry: 3 is not a retry policy"),
    ("retry of a schedule", lambda ms: ms.update("nightly", retry={}), InvalidInput, "retry: {} is not a retry policy"),
    ("attempts", lambda ms: Retry(max_attempts=0), InvalidInput, "retry.max_attempts: 0 is not .* 1 means no retry"),
    ("backoff", lambda ms: Retry(backoff="exponental"), InvalidInput, r"retry.backoff.*mean 'exponential'\?"),
    ("jitter", lambda ms: Retry(jitter=1.5), InvalidInput, "retry.jitter: 1.5 is out of range. Use a number from 0"),
    ("crashes", lambda ms: ms.task(name="y", max_crashes=0)(nothing), InvalidInput, "max_crashes: 0 is out of"),
    ("window", lambda ms: ms.update("nightly", window="9-17"), InvalidInput, "window: '9-17' is not a window"),
    ("max_runs", lambda ms: ms.update("nightly", max_runs=-1), InvalidInput, "max_runs: -1 is not"),
    ("limit", lambda ms: ms.task(name="y", limit=0)(nothing), InvalidInput, "limit: 0 is out of range. Use at"),
    ("state", lambda ms: ms.runs(state="suceeded"), InvalidInput, r"state: .*Did you mean 'succeeded'\?"),
    ("event type", lambda ms: ms.events(types=["RunFaild"]), InvalidInput, r"types: .*Did you mean 'RunFailed'\?"),
    ("conflict policy", lambda ms: ms.schedule("x", "send", on_conflict="keeep"), InvalidInput, "on_conflict.*'keep'"),
    ("unknown option", lambda ms: ms.update("nightly", mised="skip"), InvalidInput, r"mised: .*you mean 'missed'\?"),
    (
        "unknown option of a schedule",
        lambda ms: ms.schedule("x", "send", cron="0 9 * * *", args=("a",), overlp="forbid"),
        InvalidInput,
        r"overlp: .*Did you mean 'overlap'\?",
    ),
    (
        "two triggers",
        lambda ms: ms.schedule("x", "send", cron="0 9 * * *", every="1m", args=("a",)),
        InvalidInput,
        "trigger: cron and every are given. Give exactly one of",
    ),
    ("no trigger", lambda ms: ms.schedule("x", "send", args=("a",)), InvalidInput, "trigger: the schedule has no trig"),
    (
        "delay and at",
        lambda ms: ms.tasks["send"].using(delay="1s", at=datetime(2026, 1, 1, tzinfo=UTC)),
        InvalidInput,
        "delay and at are both given",
    ),
    # ── settings ──
    (
        "lease below three heartbeats",
        lambda ms: Mainspring("memory://", lease_ttl="10s", heartbeat="4s"),
        LeaseTooShort,
        "lease_ttl: 10s is less than 3 heartbeats of 4s. Use lease_ttl of at least 12s",
    ),
    ("lease too short", lambda ms: Mainspring("memory://", lease_ttl="299ms"), LeaseTooShort, "299ms.*at least 300ms"),
    ("concurrency", lambda ms: Mainspring("memory://", concurrency=0), InvalidInput, "concurrency: 0 is out of range"),
    ("poll interval", lambda ms: Mainspring("memory://", poll_interval=0), InvalidDuration, "poll_interval: 0 is too"),
]


@pytest.mark.parametrize(("what", "act", "error", "words"), CASES, ids=[case[0] for case in CASES])
async def test_bad_input(
    ms: Mainspring, what: str, act: Callable[[Mainspring], Any], error: type[MainspringError], words: str
) -> None:
    async with unchanged(ms):
        tasks = dict(ms.tasks)
        with pytest.raises(error, match=words) as caught:
            answer = act(ms)
            if isinstance(answer, Awaitable):
                await answer
        assert ms.tasks == tasks  # nothing half registered
        if isinstance(caught.value, InvalidInput):
            assert caught.value.field
            assert caught.value.problem


async def test_the_error_says_where_in_fields(ms: Mainspring) -> None:
    with pytest.raises(InvalidCron) as caught:
        await ms.schedule("x", "send", cron="0 25 * * *", args=("a",))
    error = caught.value
    assert (error.field, error.expression, error.position) == ("hour", "0 25 * * *", 2)
    assert isinstance(error, ValueError)


async def test_a_duplicate_name_and_its_three_policies(ms: Mainspring) -> None:
    async with unchanged(ms):
        # the same definition again changes nothing
        same = await ms.schedule("nightly", "send", cron="0 2 * * *", args=("acme",))
        assert same.revision == 1
        words = r"name: a schedule called 'nightly' exists with another definition \(different: .*missed.*\)\. Choose"
        with pytest.raises(ScheduleConflict, match=words):
            await ms.schedule("nightly", "send", cron="0 2 * * *", args=("acme",), missed="skip")
        kept = await ms.schedule("nightly", "send", cron="0 3 * * *", args=("globex",), on_conflict="keep")
        assert kept == same
    replaced = await ms.schedule("nightly", "send", cron="0 3 * * *", args=("globex",), on_conflict="replace")
    assert (replaced.id, replaced.revision) == (same.id, 2)
    (event,) = await ms.events(types=[ScheduleUpdated])
    assert isinstance(event, ScheduleUpdated)
    assert set(event.changed) == {"trigger", "body"}


def test_wrong_declarations_fail_at_the_decorator() -> None:
    ms = Mainspring("memory://")
    with pytest.raises(InvalidInput, match=r"the Context parameter must be the first, or be called ctx. Make it"):

        @ms.task
        def misplaced(n: int, context: Context) -> None: ...

    with pytest.raises(InvalidInput, match="an async def cannot run in a process"):

        @ms.task(executor="process")
        async def coroutine() -> None: ...

    with pytest.raises(InvalidInput, match=r"Depends: 5 cannot be called. Give a function"):
        Depends(5)  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="url: 'sqlight://' is not the scheme of a store"):
        Mainspring("sqlight:///x").sync.schedules()
    assert "misplaced" not in ms.tasks


def test_a_schedule_that_cannot_be_declared_registers_no_task() -> None:
    ms = Mainspring("memory://")

    def nightly() -> None: ...

    with pytest.raises(InvalidCron):
        ms.cron("61 * * * *")(nightly)
    ms.cron("59 * * * *")(nightly)  # corrected in a notebook: no "registered already"
    assert list(ms.tasks) == ["nightly"]


async def test_one_unresolvable_annotation_does_not_cost_the_others() -> None:
    ms = Mainspring("memory://")

    @ms.task
    def work(context: Context, n: int, price: OnlyForTypeCheckers | None = None) -> None: ...

    assert work.signature.context == "context"
    with pytest.raises(WrongArguments, match="n: Expected `int`, got `str`"):
        await work.enqueue("1")  # type: ignore[arg-type]


async def test_stored_arguments_that_no_longer_fit_fail_the_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    old = Mainspring(url)

    @old.task(name="send")
    def before(customer: str) -> None: ...

    handle = await before.enqueue("acme")
    await old.close()
    new = Mainspring(url)

    @new.task(name="send", retry=Retry(max_attempts=1))
    def after(customer_id: int) -> None: ...

    async with travel(new) as t:
        await t.settle()
        run = await new.find_by_id(handle.id)
        assert run.state is State.FAILED
        assert "the stored arguments do not fit: missing a required argument: 'customer_id'" in (run.error or "")


async def test_an_unknown_task_is_kept_and_shown(ms: Mainspring, tmp_path: Path) -> None:
    ran: list[str] = []
    forgotten = [await ms.tasks["send"].enqueue(f"customer {n}") for n in range(3)]
    triggered = await ms.trigger("nightly")
    del ms.tasks["send"], registry_of(ms).handlers["send"]  # the next deploy no longer has it

    @ms.task
    async def known(what: str) -> None:
        ran.append(what)

    behind = await known.enqueue("behind")
    await ms.close()
    async with travel(ms) as t:
        await t.advance("1m")
        assert ran == ["behind"]
        assert await behind.state() is State.SUCCEEDED
        shown = await ms.unresolved()
        assert [run.id for run in shown if run.id != triggered.id] == [handle.id for handle in forgotten]
        assert {run.task for run in shown} == {"send"}
        assert {run.state for run in shown} == {State.WAITING}
        assert await ms.unresolved(limit=1) == shown[:1]

    # a later deploy knows it again: nothing was lost
    @ms.task
    async def send(customer: str) -> None:
        ran.append(customer)

    async with travel(ms, t.now) as t:
        await t.settle()
        assert await ms.unresolved() == []
        assert set(ran) >= {"behind", "customer 0", "customer 1", "customer 2", "acme"}
