"""The `mainspring` fixture: an app in virtual time on a store in memory, and assertions about its runs.

`Kit` is the value of the pytest fixture; without pytest, use it as a context manager. Its methods `advance`,
`travel_to`, `run_due` and `drain` do their work before they return in a plain test. In an async test they must be
awaited. Between two of these calls no run starts and no time passes, unless the test waits for a run's result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from msgspec.structs import replace

from mainspring.app.blocking import runs_loop
from mainspring.app.internals import registry_of
from mainspring.app.mainspring import Mainspring
from mainspring.app.run_view import Run, view_run
from mainspring.app.task import BaseTask
from mainspring.model.errors import InvalidInput, MainspringError
from mainspring.model.instant import Duration, Ms, duration_ms, instant_ms, isoformat, to_datetime
from mainspring.model.run import Run as RunRow
from mainspring.ports.executor import Handler, HeldRun
from mainspring.ports.store import Query, Runs, Schedules
from mainspring.rules.triggers.base import Trigger
from mainspring.testing.app_harness import AppHarness
from mainspring.testing.assertions import (
    ExpectedRun,
    FireSource,
    fire_source,
    fires_between,
    format_mismatch,
    next_fires,
    parse_times,
)
from mainspring.testing.virtual_time import VirtualClock

T = TypeVar("T")

#: Start of every test, a Monday. If it were the real time, the result of a test could depend on the hour.
DEFAULT_START = "2025-01-06T12:00:00Z"
#: A task, or its name.
TaskLike = BaseTask[Any, Any] | str
When = datetime | str


class Step(Awaitable[None]):
    """Result of `advance`, `travel_to`, `run_due` and `drain`, which an async test must await; a plain test need not.

    `call`: the text of the call, for errors. `work`: what await carries out; None: it is done already.
    """

    def __init__(self, call: str, work: Coroutine[Any, Any, None] | None) -> None:
        self.call = call
        self._work = work

    def __await__(self) -> Generator[Any, Any, None]:
        work, self._work = self._work, None
        if work is not None:
            yield from work.__await__()

    def close_if_unawaited(self) -> bool:
        """Drop the work of this step if it was not awaited, and return True; return False if no work is left."""
        if self._work is None:
            return False
        self._work.close()
        self._work = None
        return True


class Kit:
    """The app, clock, store and worker of one test, whose time begins at `start`. At the end the app is restored."""

    def __init__(self, start: When = DEFAULT_START) -> None:
        self._clock = VirtualClock(instant_ms(start, field="start"))
        self._harness: AppHarness | None = None
        self._step = Step("", None)

    def __enter__(self) -> Kit:
        return self

    def __exit__(self, *_: object) -> None:
        home, self._harness = self._harness, None
        if home is not None:
            home.leave()
        self._check_awaited()

    # ── the app ────────────────────────────────────────────────────────────

    @property
    def app(self) -> Mainspring:
        """The app under test: the one passed to `use`, else a new one."""
        return self._open_harness().app

    def use(self, app: Mainspring) -> Kit:
        """Test an existing app with its tasks and declared schedules, and return this kit.

        After the test the app is restored as it was. Raises: MainspringError if this kit has another app already, or
        the app is in use; InvalidInput if `app` is no Mainspring.
        """
        if not isinstance(app, Mainspring):
            raise InvalidInput("app", f"{app!r} is not a Mainspring", "Give the object that declares your tasks")
        if self._harness is not None and self._harness.app is not app:
            raise MainspringError("this test has an app already: call use(…) only once, before any other method")
        if self._harness is None:
            home = AppHarness(app, self._clock)
            home.enter()
            self._harness = home
        return self

    def _open_harness(self) -> AppHarness:
        """Return the harness of the app under test; if there is none, make a new app first."""
        if self._harness is None:
            self.use(Mainspring("memory://"))
        assert self._harness is not None
        return self._harness

    # ── time ───────────────────────────────────────────────────────────────

    @property
    def now(self) -> datetime:
        """The current virtual time, in UTC."""
        return to_datetime(self._clock.now())

    def advance(self, by: Duration) -> Step:
        """Move time forward by a duration; fires and runs that fall due meanwhile are carried out at their time."""
        ms = duration_ms(by, field="by")
        return self._do(f"advance({by!r})", lambda home: home.advance(ms))

    def travel_to(self, when: When) -> Step:
        """Move time forward to an instant, and carry out the fires and runs that fall due meanwhile.

        If the test has not used the engine yet, its time begins at that instant, which may also be an earlier one.
        Raises: InvalidInput if the engine was used and the instant has passed.
        """
        to = instant_ms(when, field="when")
        if not self._open_harness().begun:
            self._clock.__init__(to)  # type: ignore[misc]  # the same clock, as if made there
            return Step("", None)
        left = to - self._clock.now()
        if left < 0:
            raise InvalidInput(
                "when",
                f"{isoformat(to)} is before now, {isoformat(self._clock.now())}",
                "Time cannot go back after the app was used: begin the test with travel_to the earliest instant",
            )
        return self._do(f"travel_to({when!r})", lambda home: home.advance(left))

    def run_due(self) -> Step:
        """Carry out what is due now and what follows from it at once, without moving time."""
        return self._do("run_due()", lambda home: home.settle())

    def drain(self, within: Duration = "1d") -> Step:
        """Move time forward until no run is open, delays and retries included.

        Raises: AssertionError if runs are still open after `within`.
        """
        ms = duration_ms(within, field="within")
        return self._do("drain()", lambda home: home.drain(ms))

    def _do(self, call: str, work: Callable[[AppHarness], Coroutine[Any, Any, None]]) -> Step:
        """Do `work` now in a plain test; in an async test, return a step that does it when it is awaited.

        `call`: the text of the caller's call, for errors.
        """
        self._check_awaited()
        home = self._open_harness()
        if runs_loop():
            self._step = Step(call, work(home))
            return self._step
        home.run(work(home))
        return Step(call, None)

    def _check_awaited(self) -> None:
        """Raise AssertionError if the last step has work that was not awaited."""
        if self._step.close_if_unawaited():
            raise AssertionError(f"nothing happened: write await mainspring.{self._step.call} in an async test")

    # ── what happened ──────────────────────────────────────────────────────

    def runs(self, task: TaskLike | None = None) -> list[Run]:
        """Return the runs of a task, or all runs, oldest first."""
        self._check_awaited()
        name = None if task is None else self._task(task).name
        return self._views(self._found(Runs(task=name, limit=1_000_000, oldest_first=True)))

    def assert_enqueued(
        self,
        task: TaskLike,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        payload: Mapping[str, Any] | None = None,
        at: When | None = None,
        within: Duration | None = None,
        queue: str | None = None,
        count: int | None = 1,
    ) -> list[Run]:
        """Assert that `count` matching runs of a task were enqueued or triggered, and return them, ended ones too.

        `args` and `kwargs`: the whole call. `payload`: argument name → value, for some of its arguments. With `at`, the
        run is due at that time, at most `within` earlier or later. With `within` alone, it is due at most that long
        after now. `count` None: one or more. Runs of planned fires do not count. Raises: AssertionError, whose text
        lists the first runs of the task and, if none fits, how the closest run differs.
        """
        __tracebackhide__ = True
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
            raise InvalidInput("count", f"{count!r} is not a count", "Give a whole number, or None for one or more")
        wanted, matching = self._match_runs(task, args, kwargs, payload, at, within, queue)
        if len(matching) != count if count is not None else not matching:
            raise AssertionError(format_mismatch(wanted, "one or more" if count is None else str(count), len(matching)))
        return self._views([run for run, _ in matching])

    def assert_not_enqueued(
        self,
        task: TaskLike,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        payload: Mapping[str, Any] | None = None,
        at: When | None = None,
        within: Duration | None = None,
        queue: str | None = None,
    ) -> None:
        """Assert that no run of a task that matches was enqueued or triggered.

        The arguments mean what they mean for `assert_enqueued`. Raises: AssertionError.
        """
        __tracebackhide__ = True
        wanted, matching = self._match_runs(task, args, kwargs, payload, at, within, queue)
        if matching:
            raise AssertionError(format_mismatch(wanted, "no", len(matching)))

    def _match_runs(
        self,
        task: TaskLike,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        payload: Mapping[str, Any] | None,
        at: When | None,
        within: Duration | None,
        queue: str | None,
    ) -> tuple[ExpectedRun, list[tuple[RunRow, dict[str, Any]]]]:
        """Return the expectation, and the runs that fit it, each with its arguments (name → value).

        Runs of planned fires are left out.
        """
        self._check_awaited()
        wanted = ExpectedRun(self._task(task), self._clock.now(), args, kwargs, payload, at, within, queue)
        for run in self._found(Runs(limit=1_000_000, oldest_first=True)):
            if run.origin != "fire":
                wanted.see(run, self._open_harness().store._bodies.get(run.body or ""))
        return wanted, wanted.matching()

    def assert_fires(
        self,
        schedule: str | BaseTask[Any, Any] | Trigger,
        times: Iterable[When] | None = None,
        *,
        between: tuple[When, When] | None = None,
        count: int | None = None,
    ) -> list[datetime]:
        """Assert when a schedule fires, and return the fire times.

        `schedule`: a name, the task on which it is declared, or a trigger. Without `between`, the next fires must be
        `times`. With `between`, a start and an end (both included), the fires in that period must be exactly `times`,
        or their number `count`. The fires are computed; nothing is planned. Raises: AssertionError; InvalidInput if the
        arguments do not say what to expect.
        """
        __tracebackhide__ = True
        self._check_awaited()
        source = fire_source(self.app, schedule, self._found)
        if times is None and (between is None or count is None):
            raise InvalidInput("times", "the expected fire times are missing", "Give times, or between and count")
        expected = None if times is None else parse_times(times)
        if between is not None:
            found = _fires_in(source, between)
        else:
            assert expected is not None
            found = next_fires(source, self._clock.now(), len(expected))
        if expected is not None and found != expected:
            raise AssertionError(source.describe_difference(expected, found))
        if count is not None and len(found) != count:
            raise AssertionError(source.describe_count(count, found))
        return [to_datetime(at, source.zone) for at in found]

    # ── making things go wrong ─────────────────────────────────────────────

    def fail_next(self, task: TaskLike, error: BaseException | type[BaseException], *, times: int = 1) -> None:
        """Let the next `times` attempts of a task raise `error`, without calling its handler.

        `error`: an exception or its class.
        """
        target = self._task(task)
        is_class = isinstance(error, type) and issubclass(error, BaseException)
        if not is_class and not isinstance(error, BaseException):
            raise InvalidInput("error", f"{error!r} is not an exception", 'Give for example ConnectionError("refused")')
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise InvalidInput("times", f"{times!r} is not a count", "Give a whole number of at least 1")
        handlers = registry_of(self.app).handlers
        handlers[target.name] = failing_handler(handlers[target.name], error, times)

    # ── looking ────────────────────────────────────────────────────────────

    def _task(self, task: TaskLike) -> BaseTask[Any, Any]:
        """Return the task that `task` is or names. Raises: UnknownTask; MainspringError for a task of another app."""
        found = registry_of(self.app).find_task(task)
        if found.app is not self.app:
            raise MainspringError(
                f"task {found.name!r} belongs to another Mainspring: call mainspring.use(…) with that one first"
            )
        return found

    def _views(self, rows: list[RunRow]) -> list[Run]:
        """Return the views of stored runs."""
        ids = tuple({row.schedule_id for row in rows if row.schedule_id is not None})
        names = {one.id: one.name for one in self._found(Schedules(ids=ids, limit=len(ids)))}
        bodies = self._open_harness().store._bodies
        return [view_run(row, bodies.get(row.body or ""), names.get(row.schedule_id or "")) for row in rows]

    def _found(self, query: Query[T]) -> list[T]:
        """Return the rows of a query of the memory store, which answers without waiting, so no loop is needed."""
        looking = self._open_harness().store.find(query)
        with contextlib.closing(looking):
            try:
                looking.send(None)
            except StopIteration as answer:
                found: list[T] = answer.value
                return found
        raise AssertionError("the memory store answers at once")


def _fires_in(source: FireSource, between: tuple[When, When]) -> list[Ms]:
    """Return the fires from the first to the second instant in `between`. Raises: InvalidInput for a wrong order."""
    low, high = (instant_ms(when, field="between") for when in between)
    if high < low:
        raise InvalidInput("between", "the second instant is before the first", "Give the earlier instant first")
    return fires_between(source, low, high)


def failing_handler(handler: Handler, error: BaseException | type[BaseException], times: int) -> Handler:
    """Return a copy of the handler whose first `times` calls raise `error`; later calls reach the handler."""
    left = times

    def fails() -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    async def call(held: HeldRun) -> Any:
        if fails():
            raise error
        return await handler.call(held)

    def call_blocking(held: HeldRun) -> Any:
        if fails():
            raise error
        return handler.call_blocking(held)

    return replace(handler, call=call, call_blocking=call_blocking)


__all__ = ["Kit", "Ms", "Step"]
