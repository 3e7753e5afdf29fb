"""Mistakes of Python users: each is refused at once, with the field and the fix, and nothing is stored."""
# ruff: noqa: E501 - one mistake a line

from __future__ import annotations

import asyncio
import functools
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.background import BackgroundTask

import mainspring
from mainspring import At, Context, Cron, Depends, Every, Http, Mainspring, Retry, Snooze, Window
from mainspring.model.errors import InvalidInput, ScheduleConflict, SyncOnLoop, UnknownTask, WrongArguments

WHEN = datetime(2030, 1, 1, 9, tzinfo=UTC)


def nothing() -> None:
    """Do nothing, as the function of a task with wrong options."""


def of_no_number() -> None: ...
def late_context(n: int, context: Context) -> None: ...
def of_callback(done: Callable[[], None]) -> None: ...
def of_text_or_date(day: str | date) -> None: ...
def of_generator() -> Any:
    yield 1


async def of_async_generator() -> Any:
    yield 1


async def coroutine(n: int) -> None: ...


class Job:
    """A class with methods."""

    def run(self) -> None: ...

    def __call__(self) -> None: ...


def closure() -> Callable[[], None]:
    def inner() -> None: ...

    return inner


def wrapped_above(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that a user puts above `@ms.task`: the result is a plain function, not a task."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


async def call_in_loop(ms: Mainspring) -> None:
    ms.run()


Mistake = tuple[str, Callable[[Any], Any], type[Exception], str]

#: What is written → the error, and a pattern of its text: the field, the problem and the fix. `ms` has a task `send`.
MISTAKES: list[Mistake] = [
    # ── what is decorated, and how ──
    ("a lambda", lambda ms: ms.task(lambda: 1), InvalidInput, r"task name: a lambda has no name. Give it one: ms.task\("),
    ("a class", lambda ms: ms.task(Job), InvalidInput, "task: Job is a class. Decorate a def that makes the object"),
    ("an object", lambda ms: ms.task(Job()), InvalidInput, "task name: an object of Job has no name. Give it one"),
    ("a method of a class", lambda ms: ms.task(Job.run), InvalidInput, "task: Job.run is a method without its object"),
    ("a generator", lambda ms: ms.task(of_generator), InvalidInput, "task: of_generator is a generator.*in a list"),
    ("an async generator", lambda ms: ms.task(of_async_generator), InvalidInput, "task: of_async_generator is a gen"),
    ("a called function", lambda ms: ms.task(nothing()), InvalidInput, "task: None is not a function. Decorate a def"),
    ("a coroutine", lambda ms: closed(ms.task, coroutine(1)), InvalidInput, "task: <coroutine.* is not a function"),
    ("a text", lambda ms: ms.task("send"), InvalidInput, "task: 'send' is not a function. Decorate a def"),
    ("a name as position", lambda ms: ms.cron("0 9 * * *")("x"), InvalidInput, "task: 'x' is not a function"),
    ("every without brackets", lambda ms: ms.every(nothing), InvalidInput, r'every: is used without a value. Write @ms'),
    ("cron without brackets", lambda ms: ms.cron(nothing), InvalidInput, r'cron: is used without a value. Write @ms.cron'),
    ("at without brackets", lambda ms: ms.at(nothing), InvalidInput, "at: is used without a value. Write @ms.at"),
    ("cron in parts", lambda ms: ms.cron(hour=2, minute=30)(nothing), InvalidInput,
     r'hour: is not an option of @ms.cron\(…\). Write @ms.cron\("30 2 \* \* \*"\)'),
    ("cron of a weekday", lambda ms: ms.cron(day_of_week="mon-fri", hour=9), InvalidInput, r'Write @ms.cron\("0 9 \* \* mon-fri"\)'),
    ("cron of a weekday's number", lambda ms: ms.cron(day_of_week=1), InvalidInput, r'day_of_week: .*Write @ms.cron\("0 9 \* \* Mon-Fri"\)'),
    ("every in parts", lambda ms: ms.every(seconds=10)(nothing), InvalidInput,
     r'seconds: is not an option of @ms.every\(…\). Write @ms.every\("10s"\)'),
    ("every in two parts", lambda ms: ms.every(minutes=30, hours=1, name="x"), InvalidInput, r'minutes: .*@ms.every\("1h30m"\)'),
    ("at by another name", lambda ms: ms.at(run_date=WHEN), InvalidInput, r"run_date: .*Write @ms.at\(datetime\(2030"),
    ("every without a value", lambda ms: ms.every(name="x"), InvalidInput, 'every: is used without a value. Write @ms'),
    ("a decorator above", lambda ms: ms.schedule("x", wrapped_above(nothing), every="1h"), UnknownTask, "Register it"),
    ("a lambda in a process", lambda ms: ms.task(name="x", executor="process")(lambda: 1), InvalidInput,
     "executor: a child process cannot import .*<lambda>. Define the function at the top level"),
    ("a closure in a process", lambda ms: ms.task(executor="process")(closure()), InvalidInput,
     "executor: a child process cannot import closure.<locals>.inner. Define the function at the top level"),
    ("async in a process", lambda ms: ms.task(executor="process")(coroutine), InvalidInput,
     "executor: an async def cannot run in a process. Write a plain def"),
    ("async in a thread", lambda ms: ms.every("1h", executor="thread")(coroutine), InvalidInput, "executor: an async def"),
    ("the context last", lambda ms: ms.task(late_context), InvalidInput, "context: the Context parameter must be the first"),
    ("a parameter of no type", lambda ms: ms.task(of_callback), InvalidInput, "done: .* cannot be stored as JSON and read"),
    ("a parameter of two", lambda ms: ms.task(of_text_or_date), InvalidInput, "day: JSON cannot be read back as .*one of"),
    ("one name twice", lambda ms: (ms.task(nothing), ms.task(nothing)), InvalidInput, "name: a task called 'nothing' is"),
    ("two schedules, one name", lambda ms: (ms.every("1h", name="a")(nothing), ms.every("2h", name="a")(of_no_number)),
     InvalidInput, "name: a schedule called 'a' is declared already. Give one a name"),
    # ── options of other schedulers ──
    ("max_retries", lambda ms: ms.task(max_retries=3), InvalidInput, r"max_retries: is not an option of a task. Write retry="),
    ("autoretry_for", lambda ms: ms.task(autoretry_for=(OSError,)), InvalidInput, r"autoretry_for: .*Retry\(on=\(Conn"),
    ("bind", lambda ms: ms.task(bind=True), InvalidInput, "bind: .*Leave it out: a first parameter ctx: Context"),
    ("max_instances", lambda ms: ms.every("1h", max_instances=1)(nothing), InvalidInput, "max_instances: .*overlap="),
    ("misfire_grace_time", lambda ms: ms.cron("0 9 * * *", misfire_grace_time=60)(nothing), InvalidInput, ".*Write grace="),
    ("coalesce", lambda ms: ms.every("1h", coalesce=True)(nothing), InvalidInput, 'coalesce: .*missed="catch_up_once"'),
    ("run_now", lambda ms: ms.every("1h", run_now=True)(nothing), InvalidInput, 'run_now: .*Write first="now"'),
    ("next_run_time", lambda ms: ms.every("1h", next_run_time=WHEN)(nothing), InvalidInput, "next_run_time: .*first="),
    ("timezone of a schedule", lambda ms: ms.cron("0 9 * * *", timezone="UTC")(nothing), InvalidInput, "Write tz="),
    ("dst_overlap", lambda ms: ms.cron("0 9 * * *", dst_overlap="both")(nothing), InvalidInput, r"Cron\(.*overlap="),
    ("replace_existing", lambda ms: ms.schedule("x", "send", every="1h", replace_existing=True), InvalidInput,
     'replace_existing: .*on_conflict="replace"'),
    ("jobstore", lambda ms: ms.schedule("x", "send", every="1h", jobstore="default"), InvalidInput, "jobstore: .*Mainsp"),
    ("minutes", lambda ms: ms.schedule("x", "send", minutes=5), InvalidInput, 'minutes: .*Write every="10m"'),
    ("id", lambda ms: ms.every("1h", id="x")(nothing), InvalidInput, "id: .*Write name="),
    ("countdown of using", lambda ms: ms.tasks["send"].using(countdown=5), InvalidInput, r"countdown: .*using\(delay="),
    ("eta of a call", lambda ms: ms.tasks["send"].enqueue("a", eta=WHEN), WrongArguments, r"'eta'. Write send.using\(at="),
    ("delay of a call", lambda ms: ms.tasks["send"].enqueue("a", delay="5m"), WrongArguments, r"send.using\(delay=…\)"),
    ("retries of Retry", lambda ms: Retry(retries=3), InvalidInput, r"retries: is not an option of Retry.*max_attempts="),
    ("timezone of Cron", lambda ms: Cron("0 9 * * *", timezone="UTC"), InvalidInput, r"timezone: is not an option of Cron\(…\). Write tz="),
    ("seconds of Every", lambda ms: Every(seconds=5), InvalidInput, r'seconds: is not an option of Every\(…\). Write Every\("10m"\)'),
    ("a slip in Every", lambda ms: Every("1h", ancor=WHEN), InvalidInput, "ancor: .*Did you mean 'anchor'?"),
    ("times of At", lambda ms: At(run_at=WHEN), InvalidInput, r"run_at: is not an option of At\(…\). Write At\("),
    ("days of a Window", lambda ms: Window("09:00-17:00", days="mon-fri"), InvalidInput, r"days: is not an option of Window\(.*weekdays="),
    ("segments of a Window", lambda ms: Window(segments=["09:00-17:00"]), InvalidInput, r'segments: .*Write Window\("09'),
    ("json of Http", lambda ms: Http("https://example.com", json={}), InvalidInput, r"json: is not an option of Http\(…\). Write payload="),
    ("a slip in Http", lambda ms: Http("https://example.com", header={}), InvalidInput, "header: .*Did you mean 'headers'?"),
    ("timezone of an app", lambda ms: Mainspring("memory://", timezone="UTC"), InvalidInput, r"timezone: .*Mainspring\(…\). W"),
    ("a slip in an app", lambda ms: Mainspring("memory://", concurency=2), InvalidInput, "Did you mean 'concurrency'?"),
    ("max_workers of an app", lambda ms: Mainspring("memory://", max_workers=4), InvalidInput, "max_workers: .*Write concurrency="),
    ("job_defaults of an app", lambda ms: Mainspring("memory://", job_defaults={}), InvalidInput, "job_defaults: .*Give such options"),
    ("an unknown option", lambda ms: ms.task(zzz=1), InvalidInput, "zzz: is not an option of a task. Known are capture, executor,"),
    # ── methods of other schedulers ──
    ("delay", lambda ms: ms.tasks["send"].delay("a"), AttributeError, r"'delay': write await send.enqueue\(…\), or send.sync"),
    ("apply_async", lambda ms: ms.tasks["send"].apply_async(("a",)), AttributeError, r"apply_async.*send.using\(delay=…\)"),
    ("enqueue of the app", lambda ms: ms.enqueue(nothing, 1, 2), AttributeError, r"await add.enqueue\(1, 2\), or add.sync.enqueue\(1, 2\) in"),
    ("add_job", lambda ms: ms.add_job(nothing, "interval"), AttributeError, r"'add_job': write await ms.schedule\("),
    ("remove_job", lambda ms: ms.remove_job("x"), AttributeError, r"write await ms.delete\("),
    ("pause_job", lambda ms: ms.pause_job("x"), AttributeError,
     r"""'pause_job': write await ms.pause\("name"\), or ms.sync.pause\("name"\) in code without an event loop$"""),
    ("add_listener", lambda ms: ms.add_listener(print), AttributeError, r"'add_listener': write ms.on_event\("),
    ("print_jobs", lambda ms: ms.print_jobs(), AttributeError, r"'print_jobs': write await ms.schedules\(\)"),
    ("remove_all_jobs", lambda ms: ms.remove_all_jobs(), AttributeError, r"'remove_all_jobs': .*ms.delete\("),
    ("conf", lambda ms: ms.conf.update(timezone="UTC"), AttributeError, r"'conf': give the options to Mainspring\(…\)"),
    ("pause_job of the sync door", lambda ms: ms.sync.pause_job("x"), AttributeError,
     r"""Mainspring.sync has no 'pause_job': write ms.sync.pause\("name"\)$"""),
    ("reschedule_job of the sync door", lambda ms: ms.sync.reschedule_job("x"), AttributeError, r'write ms.sync.update\("name", every'),
    ("enqueue of the sync door", lambda ms: ms.sync.enqueue(nothing), AttributeError, r"write add.sync.enqueue\(1, 2\), where"),
    ("a slip in a method", lambda ms: ms.pauze("x"), AttributeError, "'pauze': Did you mean 'pause'?"),
    ("a slip in the sync door", lambda ms: ms.sync.pauze("x"), AttributeError, "sync has no 'pauze': Did you mean 'pause'?"),
    ("a scheduler of another library", lambda ms: mainspring.BackgroundScheduler, ImportError,  # type: ignore[attr-defined]  # the mistake
     r"no 'BackgroundScheduler': write Mainspring\(…\) and call ms.start_background\(\)"),
    ("crontab", lambda ms: mainspring.crontab, ImportError, r"no 'crontab': write Cron\("),  # type: ignore[attr-defined]  # the mistake
    ("a slip in a module", lambda ms: mainspring.Retrry, AttributeError, "no attribute 'Retrry'"),  # type: ignore[attr-defined]  # the mistake
    # ── values of the wrong type ──
    ("retry as a number", lambda ms: ms.task(retry=3)(nothing), InvalidInput, r"retry: 3 is not a retry policy. Write .*Retry\(max_"),
    ("retry of a text", lambda ms: Retry(on="ValueError"), InvalidInput, "retry.on: 'ValueError' is not an exception cla"),
    ("retry of an object", lambda ms: Retry(never=ValueError("x")), InvalidInput, "retry.never: .*Write for example never="),
    ("a filter in a schedule", lambda ms: ms.schedule("x", "send", every="1h", args=("a",), retry=Retry(on=OSError)), InvalidInput,
     r"retry.on: .*Give it to the task: @ms.task\("),
    ("timeout in words", lambda ms: ms.task(timeout="five minutes")(nothing), InvalidInput, "timeout: 'five minutes'"),
    ("limit as text", lambda ms: ms.task(limit="1")(nothing), InvalidInput, "limit: '1' is out of range. Use at least 1"),
    ("priority in words", lambda ms: ms.task(priority="urgent")(nothing), InvalidInput, "priority: 'urgent' is not one of"),
    ("a window of hours", lambda ms: Window("8-18"), InvalidInput, "window.segments: '8' in '8-18' is not a time of day. "),
    ("a window of numbers", lambda ms: Window(8, 18), InvalidInput, "window.segments: 8 is not a segment. Write for exa"),
    ("a window of times", lambda ms: Window(time(8), time(18)), InvalidInput, r"window.segments: .*\(time\(9\), time\(17"),
    ("a window as text", lambda ms: ms.every("1h", window="08:00-18:00")(nothing), InvalidInput, r'window: .*Window\("09'),
    ("every as an object", lambda ms: ms.every(object())(nothing), InvalidInput, "interval: .*is not a duration"),
    ("every as cron", lambda ms: ms.every("0 9 * * *")(nothing), InvalidInput, r"interval: '0 9 \* \* \*' is not a dur"),
    ("every in long units", lambda ms: ms.every("10 minutes")(nothing), InvalidInput, "'10 minutes' is not a .*Did you mean '10m'?"),
    ("timeout of a spaced unit", lambda ms: ms.task(timeout="1 hr 30 min")(nothing), InvalidInput, "timeout: .*Did you mean '1h30m'?"),
    ("cron as interval", lambda ms: ms.cron("10m")(nothing), InvalidInput, """'10m'.*An interval goes to every: every="10m"$"""),
    ("cron as a long interval", lambda ms: ms.cron("10 minutes")(nothing), InvalidInput, """An interval goes to every: every="10m"$"""),
    ("cron at start", lambda ms: ms.cron("@reboot")(nothing), InvalidInput, "'@reboot' is not known.*first=\"now\""),
    ("a zone's abbreviation", lambda ms: ms.cron("0 9 * * *", tz="CEST")(nothing), InvalidInput, "tz: 'CEST' is not .*Use .*Europe/Berlin"),
    ("cron as a number", lambda ms: ms.cron(9)(nothing), InvalidInput, "trigger: int is not a trigger. Give a Cron"),
    ("at without a zone", lambda ms: ms.at(datetime(2030, 1, 1))(nothing), InvalidInput, "times: .*has no time zone. Add"),
    ("at as a duration", lambda ms: ms.at(timedelta(hours=1))(nothing), InvalidInput, "times"),
    ("at as text", lambda ms: ms.at("2027-01-01 09:00")(nothing), InvalidInput,
     r'times: .*is text. Write datetime\(2027, 1, 1, 9, 0, tzinfo=ZoneInfo\("Europe/Berlin"\)\), with your zone'),
    ("at as words", lambda ms: ms.at("tomorrow")(nothing), InvalidInput, "times: 'tomorrow' is not a list of times"),
    ("first as a flag", lambda ms: ms.every("1h", first=True)(nothing), InvalidInput, 'first: True is not one of now. Write "now"$'),
    ("args that are missing", lambda ms: ms.schedule("x", "send", every="1h"), WrongArguments,
     r"arguments: missing a required argument: 'customer'. The signature is send.*Give args=\(…,\) or kwargs="),
    ("first of cron", lambda ms: ms.schedule("x", "send", cron="0 9 * * *", first="now", args=("a",)), InvalidInput,
     "first: belongs to an interval. Give it with every="),
    ("first in words", lambda ms: ms.every("1h", first="soon")(nothing), InvalidInput, "first: 'soon' is not one of now"),
    ("expires in words", lambda ms: ms.tasks["send"].using(expires="soon"), InvalidInput, "expires: 'soon'"),
    ("args as one text", lambda ms: ms.schedule("x", "send", every="1h", args="a"), InvalidInput, r"Write args=\('a',\)"),
    ("payload of a task", lambda ms: ms.schedule("x", "send", every="1h", payload={}), InvalidInput, r"Write args=\(…\)"),
    ("args of an agent", lambda ms: ms.schedule("x", Http("https://example.com"), every="1h", args=(1,)), InvalidInput,
     "args: an HTTP agent takes no arguments. Give a payload"),
    ("Depends of a value", lambda ms: Depends(5), InvalidInput, "Depends: 5 cannot be called. Give a function"),  # type: ignore[call-overload]  # the mistake
    ("a snooze in words", lambda ms: Snooze("a while"), InvalidInput, "Snooze.delay: 'a while'"),
    ("a task called http", lambda ms: ms.task(name="http")(nothing), InvalidInput, "name: 'http' is the built-in task"),
    ("another definition", lambda ms: ms.schedule("nightly", "send", every="1h", args=("a",)), ScheduleConflict, "nightly"),
    # ── event loops ──
    ("run inside a loop", call_in_loop, SyncOnLoop, r"write await ms.run_async\(\), or async with ms.running\(\):"),
    ("sync inside a loop", lambda ms: ms.sync.schedules(), SyncOnLoop, r"write: await ms.schedules\(…\)"),
    ("sync enqueue inside a loop", lambda ms: ms.tasks["send"].sync.enqueue("a"), SyncOnLoop, "await send.enqueue"),
]  # fmt: skip


def closed(decorate: Callable[[Any], Any], unused: Any) -> Any:
    try:
        return decorate(unused)
    finally:
        unused.close()


@pytest.fixture
async def ms(tmp_path: Path) -> AsyncIterator[Mainspring]:
    app = Mainspring(f"sqlite:///{tmp_path}/x.db")

    @app.task
    def send(customer: str) -> None: ...

    await app.schedule("nightly", send, cron="0 2 * * *", args=("acme",))
    yield app
    await app.close()


@pytest.mark.parametrize(("wrong", "error", "words"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES])
async def test_a_mistake_is_refused_with_its_fix_and_nothing_is_stored(
    ms: Any, wrong: Callable[[Any], Any], error: type[Exception], words: str
) -> None:
    before = (await ms.events(), await ms.schedules(), await ms.runs())
    with pytest.raises(error, match=f"(?s){words}") as caught:
        answer = wrong(ms)
        if isinstance(answer, Awaitable):
            await answer
    assert (await ms.events(), await ms.schedules(), await ms.runs()) == before
    if isinstance(caught.value, InvalidInput):
        assert str(caught.value).startswith(f"{caught.value.field}: ")
        assert caught.value.problem
    assert set(ms.tasks) <= {"send", "nothing"}  # "nothing": the first of two that were registered


def test_there_are_fifty_mistakes_and_each_names_a_fix() -> None:
    assert len(MISTAKES) >= 50
    assert len({row[0] for row in MISTAKES}) == len(MISTAKES)


# ── a call that is not awaited ─────────────────────────────────────────────


def dropped(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "nothing was enqueued" in record.getMessage()]


async def test_a_call_that_is_not_awaited_says_so_at_error(ms: Any, caplog: pytest.LogCaptureFixture) -> None:
    send = ms.tasks["send"]

    def view() -> str:
        send.enqueue("acme")
        return "ok"

    assert view() == "ok"
    assert dropped(caplog) == [
        (
            "nothing was enqueued: send.enqueue(…) was not awaited. Write `await send.enqueue(…)`, "
            "or in code without an event loop `send.sync.enqueue(…)`"
        )
    ]
    (record,) = caplog.records
    assert (record.levelno, record.name, record.funcName) == (logging.ERROR, "mainspring", "view")
    caplog.clear()
    send.using(delay="1m").enqueue_many([("a",), ("b",)])
    assert re.search(r"send.enqueue_many\(…\) was not awaited. Write `await send.enqueue_many", dropped(caplog)[0])
    assert await ms.runs() == []


async def test_every_way_to_use_the_call_of_enqueue_works(ms: Any, caplog: pytest.LogCaptureFixture) -> None:
    send = ms.tasks["send"]
    handles = [
        await send.enqueue("awaited"),
        await asyncio.create_task(send.enqueue("as a task")),
        await asyncio.ensure_future(send.enqueue("as a future")),
        *await asyncio.gather(send.enqueue("gathered"), send.enqueue("gathered, too")),
        await asyncio.wait_for(send.enqueue("with a limit"), 10),
        await asyncio.shield(send.enqueue("shielded")),
        *await send.enqueue_many([("many",)]),
    ]
    async with asyncio.TaskGroup() as group:
        grouped = group.create_task(send.enqueue("grouped"))
    handles.append(grouped.result())
    other_loop = await asyncio.to_thread(lambda: asyncio.run(send.enqueue("on another loop")))
    there = await asyncio.to_thread(
        lambda loop: asyncio.run_coroutine_threadsafe(send.enqueue("from a thread"), loop).result(10),
        asyncio.get_running_loop(),
    )
    await BackgroundTask(send.enqueue, "in the background")()  # a framework asks whether it is a coroutine function
    pending = send.enqueue("closed")
    assert asyncio.iscoroutine(pending)
    assert repr(pending) == "<call of send.enqueue(…)>"
    pending.close()
    del pending
    assert {handle.id for handle in (*handles, other_loop, there)} < {run.id for run in await ms.runs()}
    assert len(await ms.runs()) == len(handles) + 3
    assert dropped(caplog) == []


def test_an_import_of_a_name_of_another_library_says_what_to_write() -> None:
    with pytest.raises(ImportError, match=r"'crontab': write Cron\("):
        from mainspring import crontab  # type: ignore[attr-defined]  # noqa: F401 - the mistake


@pytest.mark.parametrize(
    ("parts", "expression"),
    [
        ({"hour": 2, "minute": 30}, "30 2 * * *"),
        ({"minute": "*/5"}, "*/5 * * * *"),
        ({"hour": 2}, "0 2 * * *"),
        ({"day": 1}, "0 0 1 * *"),
        ({"month": 1}, "0 0 1 1 *"),
        ({"day_of_week": "sun"}, "0 0 * * sun"),
        ({"second": 5}, "5 * * * * *"),
        ({"hour": "99"}, "0 9 * * Mon-Fri"),
    ],
)
def test_the_parts_of_a_time_become_an_expression(parts: dict[str, Any], expression: str) -> None:
    wrong: Any = Mainspring("memory://")
    with pytest.raises(InvalidInput) as caught:
        wrong.cron(**parts)
    assert caught.value.fix == f'Write @ms.cron("{expression}")'
    Cron(expression)


def test_names_can_be_completed() -> None:
    ms = Mainspring("memory://")
    assert {"Retry", "Fail", "Mainspring", "Window"} <= set(dir(mainspring))
    assert {"pause", "schedule", "runs"} <= set(dir(ms.sync))
    assert not hasattr(ms, "add_job")
    assert hasattr(ms, "pause")


def test_a_cron_object_is_an_expression() -> None:
    ms = Mainspring("memory://")
    ms.cron(Cron("0 9 * * *", "Europe/Berlin"))(nothing)
    ms.every(Every("1h"), name="other")(of_no_number)
    assert ms.declared == ("nothing", "other")
