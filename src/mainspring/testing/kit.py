"""What a test holds: an app at a time of your choice, on a store in memory, and questions about it.

`Kit` is the `mainspring` fixture of the pytest plugin; without pytest it is a context manager. Its verbs that let
something happen (`advance`, `travel_to`, `run_due`, `drain`) are done when they return in a plain test, and awaited in
an async one. Between them nothing happens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from msgspec.structs import replace

from mainspring.app import Mainspring
from mainspring.model.errors import InvalidInput, MainspringError
from mainspring.model.instant import Duration, Ms, duration_ms, instant_ms, isoformat, to_datetime
from mainspring.model.run import Run
from mainspring.ports.executor import Attempt, Handler
from mainspring.ports.store import Query, Runs
from mainspring.rules.triggers.base import Trigger
from mainspring.task import BaseTask
from mainspring.testing.expecting import Wanted, fires_between, next_fires, same_times, source_of, told
from mainspring.testing.home import Home, on_a_loop
from mainspring.testing.virtual import VirtualClock

T = TypeVar("T")

#: A Monday. Every test begins at the same time of day, or it would pass or fail with the hour it is run at.
NOON = "2025-01-06T12:00:00Z"
#: A task, or its name.
TaskLike = BaseTask[Any, Any] | str
When = datetime | str


class Step(Awaitable[None]):
    """What a verb returns: nothing more to do in a plain test, to be awaited in an async one."""

    def __init__(self, said: str, work: Coroutine[Any, Any, None] | None) -> None:
        self.said = said
        self._work = work

    def __await__(self) -> Generator[Any, Any, None]:
        work, self._work = self._work, None
        if work is not None:
            yield from work.__await__()

    def forgotten(self) -> bool:
        """True when it should have been awaited and was not."""
        if self._work is None:
            return False
        self._work.close()
        self._work = None
        return True


class Kit:
    """One test's app, clock, store and worker."""

    def __init__(self, start: When = NOON) -> None:
        self._clock = VirtualClock(instant_ms(start, field="start"))
        self._home: Home | None = None
        self._step = Step("", None)

    def __enter__(self) -> Kit:
        return self

    def __exit__(self, *_: object) -> None:
        home, self._home = self._home, None
        if home is not None:
            home.leave()
        self._check_awaited()

    # ── the app ────────────────────────────────────────────────────────────

    @property
    def app(self) -> Mainspring:
        """The app under test: the one given to `use`, else a fresh one."""
        return self._at_home().app

    def use(self, app: Mainspring) -> Kit:
        """Test an app of yours, with its tasks and declared schedules; it is given back as it was."""
        if not isinstance(app, Mainspring):
            raise InvalidInput("app", f"{app!r} is not a Mainspring", "Give the object your tasks are declared on")
        if self._home is not None and self._home.app is not app:
            raise MainspringError("this test has an app already: call use(…) once, before .app and everything else")
        if self._home is None:
            home = Home(app, self._clock)
            home.enter()
            self._home = home
        return self

    def _at_home(self) -> Home:
        if self._home is None:
            self.use(Mainspring("memory://"))
        assert self._home is not None
        return self._home

    # ── time ───────────────────────────────────────────────────────────────

    @property
    def now(self) -> datetime:
        """The virtual time; it stands still between two steps."""
        return to_datetime(self._clock.now())

    def advance(self, by: Duration) -> Step:
        """Let time pass; everything that falls due happens on the way."""
        ms = duration_ms(by, field="by")
        return self._do(f"advance({by!r})", lambda home: home.advance(ms))

    def travel_to(self, when: When) -> Step:
        """Let time pass until an instant. Before anything has happened the test simply begins there."""
        to = instant_ms(when, field="when")
        if not self._at_home().begun:
            self._clock.__init__(to)  # type: ignore[misc]  # the same clock, as if made there
            return Step("", None)
        left = to - self._clock.now()
        if left < 0:
            raise InvalidInput(
                "when",
                f"{isoformat(to)} is before now, {isoformat(self._clock.now())}",
                "Time goes forwards once something has happened: travel to the earliest instant first",
            )
        return self._do(f"travel_to({when!r})", lambda home: home.advance(left))

    def run_due(self) -> Step:
        """Let everything happen that is due now, and what follows from it at once."""
        return self._do("run_due()", lambda home: home.settle())

    def drain(self, within: Duration = "1d") -> Step:
        """Let time pass until no run is open: delays and retries included; AssertionError when some are left."""
        ms = duration_ms(within, field="within")
        return self._do("drain()", lambda home: home.drain(ms))

    def _do(self, said: str, work: Callable[[Home], Coroutine[Any, Any, None]]) -> Step:
        self._check_awaited()
        home = self._at_home()
        if on_a_loop():
            self._step = Step(said, work(home))
            return self._step
        home.run(work(home))
        return Step(said, None)

    def _check_awaited(self) -> None:
        if self._step.forgotten():
            raise AssertionError(f"nothing happened: write await mainspring.{self._step.said} in an async test")

    # ── what happened ──────────────────────────────────────────────────────

    def runs(self, task: TaskLike | None = None) -> list[Run]:
        """Runs of a task, or all; oldest first."""
        self._check_awaited()
        name = None if task is None else self._task(task).name
        return self._found(Runs(task=name, limit=1_000_000, oldest_first=True))

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
        """Code has enqueued (or triggered) so many runs of a task that fit; those are returned, ended ones too.

        `args` and `kwargs` are the whole call, `payload` some of its arguments by name; `at` is when it is due,
        `within` how far from that, or from now, it may be; `count=None` means one or more.
        """
        __tracebackhide__ = True
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
            raise InvalidInput("count", f"{count!r} is not a count", "Give a whole number, or None for one or more")
        wanted, fitting = self._fitting(task, args, kwargs, payload, at, within, queue)
        if len(fitting) != count if count is not None else not fitting:
            raise AssertionError(told(wanted, "one or more" if count is None else str(count), len(fitting)))
        return [run for run, _ in fitting]

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
        """Code has enqueued no run of a task that fits."""
        __tracebackhide__ = True
        wanted, fitting = self._fitting(task, args, kwargs, payload, at, within, queue)
        if fitting:
            raise AssertionError(told(wanted, "no", len(fitting)))

    def _fitting(
        self,
        task: TaskLike,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        payload: Mapping[str, Any] | None,
        at: When | None,
        within: Duration | None,
        queue: str | None,
    ) -> tuple[Wanted, list[tuple[Run, dict[str, Any]]]]:
        self._check_awaited()
        wanted = Wanted(self._task(task), self._clock.now(), args, kwargs, payload, at, within, queue)
        for run in self._found(Runs(limit=1_000_000, oldest_first=True)):
            if run.origin != "fire":
                wanted.see(run, self._at_home().store._bodies.get(run.body or ""))
        return wanted, wanted.fitting()

    def assert_fires(
        self,
        schedule: str | BaseTask[Any, Any] | Trigger,
        times: Iterable[When] | None = None,
        *,
        between: tuple[When, When] | None = None,
        count: int | None = None,
    ) -> list[datetime]:
        """A schedule fires at these times next, or at these times, or so often, between two instants (both included).

        A schedule is given by its name, by the task it is declared on, or as a trigger. What fires is returned.
        """
        __tracebackhide__ = True
        self._check_awaited()
        source = source_of(self.app, schedule, self._found)
        if times is None and (between is None or count is None):
            raise InvalidInput("times", "nothing is expected", "Give times, or between and count")
        expected = None if times is None else same_times(times)
        if between is None:
            assert expected is not None
            found = next_fires(source, self._clock.now(), len(expected))
        else:
            low, high = (instant_ms(when, field="between") for when in between)
            if high < low:
                raise InvalidInput("between", "the second instant is before the first", "Give the earlier one first")
            found = fires_between(source, low, high)
        if expected is not None and found != expected:
            raise AssertionError(source.difference(expected, found))
        if count is not None and len(found) != count:
            raise AssertionError(source.counted(count, found))
        return [to_datetime(at, source.zone) for at in found]

    # ── making things go wrong ─────────────────────────────────────────────

    def fail_next(self, task: TaskLike, error: BaseException | type[BaseException], *, times: int = 1) -> None:
        """The next attempts of a task end with this error; its handler is not called for them."""
        target = self._task(task)
        is_class = isinstance(error, type) and issubclass(error, BaseException)
        if not is_class and not isinstance(error, BaseException):
            raise InvalidInput("error", f"{error!r} is not an exception", 'Give for example ConnectionError("refused")')
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise InvalidInput("times", f"{times!r} is not a count", "Give a whole number of at least 1")
        handlers = self.app._handlers
        handlers[target.name] = failing(handlers[target.name], error, times)

    # ── looking ────────────────────────────────────────────────────────────

    def _task(self, task: TaskLike) -> BaseTask[Any, Any]:
        found = self.app._task(task)
        if found.app is not self.app:
            raise MainspringError(
                f"task {found.name!r} belongs to another Mainspring: call mainspring.use(…) with that one first"
            )
        return found

    def _found(self, query: Query[T]) -> list[T]:
        """What the memory store answers at once."""
        looking = self._at_home().store.find(query)
        with contextlib.closing(looking):
            try:
                looking.send(None)
            except StopIteration as answer:
                found: list[T] = answer.value
                return found
        raise AssertionError("the memory store answers at once")


def failing(handler: Handler, error: BaseException | type[BaseException], times: int) -> Handler:
    """The handler, but its next calls raise."""
    left = times

    def fails() -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    async def call(attempt: Attempt) -> Any:
        if fails():
            raise error
        return await handler.call(attempt)

    def call_blocking(attempt: Attempt) -> Any:
        if fails():
            raise error
        return handler.call_blocking(attempt)

    return replace(handler, call=call, call_blocking=call_blocking)


__all__ = ["Kit", "Ms", "Step"]
