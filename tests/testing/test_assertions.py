"""The assertions of the test kit: the arguments that they accept, and their failure messages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import At, Cron, Every, InvalidInput, Mainspring, MainspringError, UnknownSchedule, UnknownTask, Window
from mainspring.testing import Kit

START = datetime(2026, 3, 28, 22, tzinfo=UTC)


@pytest.fixture
def kit() -> Iterator[Kit]:
    with Kit(START) as kit:
        app = kit.app

        @app.task
        def send(customer: str, copies: int = 1) -> None: ...

        @app.task(queue="mail")
        async def remind(*who: str, **how: str) -> None: ...

        @app.cron("30 2 * * *", tz="Europe/Berlin")
        async def nightly() -> None: ...

        yield kit


def put(kit: Kit, task: str, *args: Any, using: dict[str, Any] | None = None, **kwargs: Any) -> None:
    kit.app.tasks[task].using(**(using or {})).sync.enqueue(*args, **kwargs)


@pytest.mark.parametrize(
    "fits",
    [
        {},
        {"count": None},
        {"args": ("acme",)},
        {"args": ("acme", 1)},
        {"kwargs": {"customer": "acme", "copies": 1}},
        {"payload": {"customer": "acme"}},
        {"payload": {"copies": 1}},
        {"at": START + timedelta(hours=1)},
        {"at": "2026-03-29T00:59:59+02:00", "within": "1s"},
        {"within": "1h"},
        {"queue": "default"},
    ],
)
def test_enqueued(kit: Kit, fits: dict[str, Any]) -> None:
    put(kit, "send", "acme", using={"delay": "1h"})
    (run,) = kit.assert_enqueued("send", **fits)
    assert run.task == "send"
    with pytest.raises(AssertionError, match="expected no run of 'send'"):
        kit.assert_not_enqueued("send", **{key: value for key, value in fits.items() if key != "count"})


@pytest.mark.parametrize(
    ("differs", "said"),
    [
        ({"args": ("globex",)}, "customer is 'acme', expected 'globex'"),
        ({"payload": {"copies": 2}}, "copies is 1, expected 2"),
        ({"at": START}, "due 2026-03-28 23:00:00Z, expected 2026-03-28 22:00:00Z"),
        ({"at": START, "within": "59m"}, "due 2026-03-28 23:00:00Z, expected 2026-03-28 22:00:00Z ± 59m"),
        ({"within": "59m"}, "due 2026-03-28 23:00:00Z, expected within 59m from now"),
        ({"queue": "mail"}, "queue is 'default', expected 'mail'"),
    ],
)
def test_the_nearest_difference_is_reported(kit: Kit, differs: dict[str, Any], said: str) -> None:
    put(kit, "send", "acme", using={"delay": "1h"})
    put(kit, "remind", "x")
    kit.assert_not_enqueued("send", **differs)
    with pytest.raises(AssertionError) as failure:
        kit.assert_enqueued("send", **differs)
    assert f"nearest: {said}" in str(failure.value)


def test_the_complete_message_of_assert_enqueued(kit: Kit) -> None:
    put(kit, "send", "globex")
    put(kit, "send", "acme", copies=3)
    put(kit, "remind", "x")
    with pytest.raises(AssertionError) as failure:
        kit.assert_enqueued("send", args=("acme", 2), queue="mail", within="5m")
    assert str(failure.value).splitlines() == [
        "expected 1 run of 'send' with customer='acme', copies=2 due within 5m from now in queue 'mail', found 0",
        "enqueued of 'send', at 2026-03-28 22:00:00Z:",
        "  1. (customer='globex', copies=1) due 2026-03-28 22:00:00Z in queue 'default', waiting",
        "  2. (customer='acme', copies=3) due 2026-03-28 22:00:00Z in queue 'default', waiting",
        "     nearest: copies is 3, expected 2; queue is 'default', expected 'mail'",
        "enqueued of other tasks: remind × 1",
    ]


def test_messages_for_too_many_runs_and_for_none(kit: Kit) -> None:
    with pytest.raises(AssertionError, match=r"found 0\nnothing was enqueued at all$"):
        kit.assert_enqueued("send", count=None)
    put(kit, "remind", "x")
    with pytest.raises(AssertionError, match=r"nothing was enqueued of 'send'\nenqueued of other tasks: remind × 1$"):
        kit.assert_enqueued("send", count=None)
    put(kit, "send", "acme")
    put(kit, "send", "acme")
    with pytest.raises(AssertionError, match=r"(?s)expected 1 run of 'send', found 2.*1\. .* ← fits.*2\. .* ← fits"):
        kit.assert_enqueued("send")
    kit.assert_enqueued("send", count=2)
    kit.assert_enqueued("remind", count=1, args=("x",))


def test_any_arguments(kit: Kit) -> None:
    put(kit, "remind", "a", "b", by="mail")
    kit.assert_enqueued("remind", args=("a", "b"), kwargs={"by": "mail"})
    kit.assert_enqueued("remind", payload={"by": "mail"})
    kit.assert_enqueued("remind", payload={"who": ("a", "b")})
    kit.assert_not_enqueued("remind", payload={"by": "post"})
    kit.assert_not_enqueued("remind", payload={"when": "now"})


def test_triggered_runs_count_as_enqueued_and_planned_runs_do_not(kit: Kit) -> None:
    kit.advance("1d")
    assert len(kit.runs("nightly")) == 1
    kit.assert_not_enqueued("nightly")
    kit.app.sync.trigger("nightly")
    kit.assert_enqueued("nightly")


def test_ended_runs_count(kit: Kit) -> None:
    put(kit, "send", "acme")
    kit.run_due()
    kit.advance("60d")  # longer than history is kept
    (run,) = kit.assert_enqueued("send")
    assert run.state == "succeeded"


def test_fires_across_the_clock_change(kit: Kit) -> None:
    nightly = kit.app.tasks["nightly"]
    found = kit.assert_fires("nightly", ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"])
    assert [str(at) for at in found] == ["2026-03-29 03:00:00+02:00", "2026-03-30 02:30:00+02:00"]
    kit.assert_fires(nightly, between=("2026-10-24T00:00Z", "2026-10-26T00:00Z"), count=2)
    kit.assert_fires(nightly, ["2026-10-25T02:30+02:00"], between=("2026-10-25T00:00Z", "2026-10-25T12:00Z"))
    kit.assert_fires(Cron("0 9 * * Mon", "Asia/Tokyo"), ["2026-03-30T09:00+09:00"])
    kit.assert_fires("nightly", ["2026-03-29T01:00Z"], between=("2026-03-29T01:00Z", "2026-03-29T01:00Z"))
    kit.advance("6h")  # stored by now
    kit.assert_fires("nightly", ["2026-03-30T02:30+02:00"])


def test_assert_fires_respects_the_limits_of_the_schedule(kit: Kit) -> None:
    app = kit.app
    common = {"cron": "0 * * * *"}
    app.sync.schedule("open", "send", args=("a",), window=Window("09:00-11:00"), **common)
    app.sync.schedule("short", "send", args=("a",), end=START + timedelta(hours=2), **common)
    app.sync.schedule("twice", "send", args=("a",), max_runs=2, **common)
    app.sync.schedule("paused", "send", args=("a",), **common)
    app.sync.pause("paused")
    day = (START + timedelta(seconds=1), START + timedelta(days=1))
    kit.assert_fires("open", ["2026-03-29T09:00Z", "2026-03-29T10:00Z"], between=day)
    kit.assert_fires("short", ["2026-03-28T23:00Z", "2026-03-29T00:00Z"], between=day)
    kit.assert_fires("twice", ["2026-03-28T23:00Z", "2026-03-29T00:00Z"], between=day)
    kit.assert_fires("paused", between=day, count=0)


def test_the_complete_message_of_assert_fires(kit: Kit) -> None:
    with pytest.raises(AssertionError) as failure:
        kit.assert_fires("nightly", ["2026-03-29T02:00+02:00", "2026-03-30T02:30+02:00"])
    assert str(failure.value).splitlines() == [
        "'nightly' does not fire as expected (Europe/Berlin)",
        "  - 2026-03-29 01:00:00+01:00   expected, does not fire",
        "  + 2026-03-29 03:00:00+02:00   fires, not expected",
        "    2026-03-30 02:30:00+02:00",
    ]
    with pytest.raises(AssertionError) as failure:
        kit.assert_fires("nightly", between=("2026-03-29T00:00Z", "2026-03-31T00:00Z"), count=3)
    assert str(failure.value).splitlines() == [
        "'nightly' fires 2 times, expected 3 (Europe/Berlin)",
        "    2026-03-29 03:00:00+02:00",
        "    2026-03-30 02:30:00+02:00",
    ]


@pytest.mark.parametrize(
    ("ask", "error", "said"),
    [
        (lambda kit: kit.assert_enqueued("sned"), UnknownTask, "no task is called 'sned'. Did you mean 'send'?"),
        (lambda kit: kit.assert_not_enqueued("sned"), UnknownTask, "Did you mean 'send'?"),
        (lambda kit: kit.fail_next("sned", OSError), UnknownTask, "Did you mean 'send'?"),
        (lambda kit: kit.runs("sned"), UnknownTask, "Did you mean 'send'?"),
        (lambda kit: kit.assert_enqueued("send", args=(1,)), InvalidInput, "customer: Expected `str`"),
        (lambda kit: kit.assert_enqueued("send", args="acme"), InvalidInput, "Write args=('acme',)"),
        (lambda kit: kit.assert_enqueued("send", args=()), InvalidInput, "send(customer: 'str', copies: 'int' = 1)"),
        (
            lambda kit: kit.assert_enqueued("send", payload={"custmer": "acme"}),
            InvalidInput,
            "payload: 'send' has no argument 'custmer'. Did you mean 'customer'?",
        ),
        (lambda kit: kit.assert_enqueued("send", at="tomorrow"), InvalidInput, "at: 'tomorrow' is not a time"),
        (lambda kit: kit.assert_enqueued("send", within="soon"), InvalidInput, "within: 'soon' is not a duration"),
        (lambda kit: kit.assert_enqueued("send", count=-1), InvalidInput, "count: -1 is not a count"),
        (lambda kit: kit.assert_fires("nigthly", []), UnknownSchedule, "Did you mean 'nightly'?"),
        (lambda kit: kit.assert_fires("x", []), UnknownSchedule, "There are: nightly"),
        (lambda kit: kit.assert_fires("nightly"), InvalidInput, "Give times, or between and count"),
        (lambda kit: kit.assert_fires("nightly", "2026-03-29T03:00Z"), InvalidInput, "is one instant, not a list"),
        (lambda kit: kit.assert_fires("nightly", ["2026-03-29T03:00"]), InvalidInput, "times[0]: 2026-03-29T03:00"),
        (
            lambda kit: kit.assert_fires("nightly", between=(START, "2026-01-01T00:00Z"), count=1),
            InvalidInput,
            "between",
        ),
        (lambda kit: kit.assert_fires(kit.app.tasks["send"], []), InvalidInput, "0 schedules are declared on task"),
        (lambda kit: kit.assert_fires(3, []), InvalidInput, "schedule: 3 is no schedule"),
        (
            lambda kit: kit.assert_fires(Cron("* * * * * *"), between=(START, START + timedelta(days=9)), count=1),
            InvalidInput,
            "fires more than 100000 times",
        ),
        (lambda kit: kit.fail_next("send", "refused"), InvalidInput, "error: 'refused' is not an exception"),
        (lambda kit: kit.fail_next("send", OSError, times=0), InvalidInput, "times: 0 is not a count"),
        (lambda kit: kit.advance("-1h"), InvalidInput, "by: '-1h' is negative"),
        (lambda kit: kit.travel_to("yesterday"), InvalidInput, "when: 'yesterday' is not a time"),
        (lambda kit: kit.drain(within="x"), InvalidInput, "within: 'x' is not a duration"),
        (lambda kit: kit.use("app"), InvalidInput, "app: 'app' is not a Mainspring"),
        (lambda kit: kit.use(Mainspring("memory://")), MainspringError, "this test has an app already"),
    ],
)
def test_bad_input(kit: Kit, ask: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error) as failure:
        ask(kit)
    assert said in str(failure.value)
    assert kit.runs() == []


def test_time_cannot_go_back_after_the_first_step(kit: Kit) -> None:
    kit.travel_to("2020-01-01T00:00Z")
    kit.run_due()
    with pytest.raises(InvalidInput, match="2019-12-31T00:00:00Z is before now, 2020-01-01T00:00:00Z"):
        kit.travel_to("2019-12-31T00:00Z")
    kit.travel_to("2020-01-02T00:00Z")
    assert len(kit.runs("nightly")) == 1


def test_a_task_of_another_app_is_refused(kit: Kit) -> None:
    other = Mainspring("memory://")

    @other.task
    async def theirs() -> None: ...

    with pytest.raises(MainspringError, match=r"'theirs' belongs to another Mainspring: call mainspring.use"):
        kit.assert_enqueued(theirs)


async def test_an_app_in_use_is_refused() -> None:
    app = Mainspring("memory://")
    await app.runs()
    with Kit() as kit, pytest.raises(MainspringError, match="in use already"):
        kit.use(app)
    await app.close()


def test_a_fixed_delay_has_no_times() -> None:
    with Kit() as kit:

        @kit.app.every(Every("1h", fixed_delay=True))
        async def poll() -> None: ...

        with pytest.raises(InvalidInput, match="after the end of its last run"):
            kit.assert_fires("poll", [])


def test_triggers_have_no_zone_of_their_own(kit: Kit) -> None:
    kit.assert_fires(At([START + timedelta(hours=1)]), [START + timedelta(hours=1)])
