"""Expectations of a test about runs and fires, and the failure messages that show how the closest run differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from mainspring.app.internals import registry_of
from mainspring.app.task import BaseTask
from mainspring.model.errors import InvalidInput, UnknownSchedule, suggest_nearest
from mainspring.model.instant import Duration, Ms, duration_ms, format_duration, instant_ms, load_zone, to_datetime
from mainspring.model.run import Run
from mainspring.model.schedule import ScheduleSpec
from mainspring.ports.store import Query, Schedules
from mainspring.rules.lanes import lane_of
from mainspring.rules.planning import clip_to_schedule, is_fixed_delay, trigger_of
from mainspring.rules.triggers.base import LAST_MS, Trigger
from mainspring.rules.windows import is_open

if TYPE_CHECKING:
    from mainspring.app.mainspring import Mainspring

#: A failure message lists at most this number of runs, tasks or fires.
MAX_LISTED = 20


class ExpectedRun:
    """A run that a test expects. Pass every run to `see`; then `matching` returns those that fit the expectation.

    `now`: the time of the assertion. `args` and `kwargs`: the whole call; None for both: any call. `payload`: argument
    name → value, for some of the arguments. With `at`, the run is due at that time, at most `within` earlier or later.
    With `within` alone, it is due at most that long after `now`. `queue` None: any queue. Raises: InvalidInput or
    WrongArguments for arguments that the task does not have.
    """

    def __init__(
        self,
        task: BaseTask[Any, Any],
        now: Ms,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        payload: Mapping[str, Any] | None,
        at: datetime | str | None,
        within: Duration | None,
        queue: str | None,
    ) -> None:
        self.task = task
        self._parameters = list(task.signature._payload.parameters.values())
        self._now = now
        self._call: dict[str, Any] | None = None
        if isinstance(args, str | bytes):
            raise InvalidInput("args", f"{args!r} is one value, not a list of arguments", f"Write args=({args!r},)")
        if args is not None or kwargs is not None:
            self._call = self._whole(task.signature.encode(tuple(args or ()), dict(kwargs or {}), 1 << 30))
        self._some = dict(payload or {})
        self._check_argument_names(self._some)
        self._at = None if at is None else instant_ms(at, field="at")
        self._within = None if within is None else duration_ms(within, field="within")
        self._lane = None if queue is None else lane_of(task.app.settings.namespace, queue)
        self._queue = queue
        self._candidates: list[tuple[Run, dict[str, Any], list[str]]] = []
        self._other_tasks: Counter[str] = Counter()

    def _check_argument_names(self, given: Iterable[str]) -> None:
        """Raise InvalidInput for a name that is no argument of the handler; a handler with **kwargs takes any name."""
        names = [p.name for p in self._parameters if p.kind is not p.VAR_KEYWORD]
        if len(names) < len(self._parameters):
            return
        for name in given:
            if name not in names:
                fix = suggest_nearest(name, names) or f"Its arguments are: {', '.join(names) or 'none'}"
                raise InvalidInput("payload", f"{self.task.name!r} has no argument {name!r}", fix)

    def see(self, run: Run, body: str | None) -> None:
        """Compare a run with the expectation, and keep it with its differences. A run of another task is only counted.

        `body`: the run's payload as JSON text, None if it has none.
        """
        if run.task != self.task.name:
            self._other_tasks[run.task] += 1
            return
        values = self._values(body)
        self._candidates.append((run, values, self._differences(run, values)))

    def matching(self) -> list[tuple[Run, dict[str, Any]]]:
        """Return the runs without a difference, each with its arguments (name → value)."""
        return [(run, values) for run, values, differences in self._candidates if not differences]

    def _whole(self, body: Any) -> dict[str, Any]:
        """Return argument name → value, defaults included, given an encoded payload; `body` None: no arguments."""
        return self._values(None if body is None else body.data)

    def _values(self, body: str | None) -> dict[str, Any]:
        """Return argument name → value, defaults included, given a payload as JSON text; None: no arguments."""
        signature = self.task.signature._payload
        bound = signature.bind_partial()
        bound.arguments.update(self.task.signature.decode(body))
        bound.apply_defaults()
        values = dict(bound.arguments)
        for parameter in self._parameters:
            if parameter.kind is parameter.VAR_KEYWORD:
                values |= values.pop(parameter.name)
        return values

    def _differences(self, run: Run, values: dict[str, Any]) -> list[str]:
        """Describe how a run differs from the expectation; an empty list: it fits. `values`: argument name → value."""
        found = self._argument_differences(values)
        if self._at is not None and abs(run.due_at - self._at) > (self._within or 0):
            found.append(f"due {_time(run.due_at)}, expected {_time(self._at)}{self._tolerance()}")
        elif self._at is None and self._within is not None and run.due_at > self._now + self._within:
            found.append(f"due {_time(run.due_at)}, expected within {format_duration(self._within)} from now")
        if self._lane is not None and run.lane != self._lane:
            found.append(f"queue is {_queue(run)!r}, expected {self._queue!r}")
        return found

    def _argument_differences(self, values: dict[str, Any]) -> list[str]:
        """Describe each expected argument that `values` (argument name → value) lacks or has with another value."""
        found = []
        expected = self._some if self._call is None else {**self._call, **self._some}
        for name, value in expected.items():
            if name not in values:
                found.append(f"{name} is not given, expected {value!r}")
            elif values[name] != value:
                found.append(f"{name} is {values[name]!r}, expected {value!r}")
        return found

    def _tolerance(self) -> str:
        return f" ± {format_duration(self._within)}" if self._within else ""

    def __str__(self) -> str:
        expected = self._some if self._call is None else {**self._call, **self._some}
        parts = [f" with {_arguments(expected)}"] if expected else []
        if self._at is not None:
            parts.append(f" due {_time(self._at)}{self._tolerance()}")
        elif self._within is not None:
            parts.append(f" due within {format_duration(self._within)} from now")
        if self._queue is not None:
            parts.append(f" in queue {self._queue!r}")
        return f"{self.task.name!r}" + "".join(parts)


def format_mismatch(wanted: ExpectedRun, count: str, found: int) -> str:
    """Return the text of a failed assertion: the expectation, then the first `MAX_LISTED` runs of the task.

    If no run fits, the differences of the closest run are added, provided that it is listed. Other tasks' runs are only
    counted. `count`: how many runs were expected, as text ('no', '3', 'one or more'). `found`: how many fit.
    """
    noun = "run" if count in ("1", "no") else "runs"
    lines = [f"expected {count} {noun} of {wanted}, found {found}"]
    others = ", ".join(f"{task} × {number}" for task, number in wanted._other_tasks.most_common(MAX_LISTED))
    if wanted._candidates:
        lines += _candidate_lines(wanted, show_nearest=not found)
    elif others:
        lines.append(f"nothing was enqueued of {wanted.task.name!r}")
    else:
        lines.append("nothing was enqueued at all")
    if others:
        lines.append(f"enqueued of other tasks: {others}")
    return "\n".join(lines)


def _candidate_lines(wanted: ExpectedRun, *, show_nearest: bool) -> list[str]:
    """Return lines that list the first `MAX_LISTED` runs of the expected task.

    `show_nearest` True: below the run that differs least from the expectation, if it is listed, add its differences.
    """
    seen = wanted._candidates
    lines = [f"enqueued of {wanted.task.name!r}, at {_time(wanted._now)}:"]
    near = min((d for _, _, d in seen if d), key=len, default=None)
    for index, (run, values, differences) in enumerate(seen[:MAX_LISTED], 1):
        mark = " ← fits" if not differences else ""
        shown = f"({_arguments(values)})"
        lines.append(f"  {index}. {shown} due {_time(run.due_at)} in queue {_queue(run)!r}, {run.state}{mark}")
        if differences and differences is near and show_nearest:
            lines.append(f"     nearest: {'; '.join(differences)}")
    if len(seen) > MAX_LISTED:
        lines.append(f"  … and {len(seen) - MAX_LISTED} more")
    return lines


class FireSource:
    """The fires of one schedule or trigger, for `assert_fires`.

    `name`: its name in messages. `tz`: the zone in which fire times are shown. `spec`: the definition of the schedule;
    None for a trigger. `left`: the number of fires that `max_runs` still allows. It is 0 for a schedule that is not
    active, and `MAX_EXAMINED_FIRES` for a trigger and without `max_runs`.
    """

    def __init__(self, name: str, trigger: Trigger, tz: ZoneInfo, spec: ScheduleSpec | None, left: int) -> None:
        self.name = name
        self.zone = tz
        self._trigger = trigger
        self._spec = spec
        self._left = left

    def fires(self, after: Ms, through: Ms, limit: int) -> list[Ms]:
        """Return the first fires after `after` and up to `through`, at most `limit`.

        Fires that the start, end, window or `max_runs` of the schedule exclude are left out. With a window, at most
        `MAX_EXAMINED_FIRES` fires are examined.
        """
        if self._spec is None:
            return self._trigger.fires_ms(after, through, limit)
        after, through = clip_to_schedule(self._spec, after, through)
        window = self._spec.options.window if self._spec.options else None
        if window is None:
            return self._trigger.fires_ms(after, through, min(limit, self._left))
        found: list[Ms] = []
        planned = 0
        at = self._trigger.next_ms(after)
        while at is not None and at <= through and len(found) < limit and planned < min(self._left, MAX_EXAMINED_FIRES):
            planned += 1
            if is_open(window, at):
                found.append(at)
            at = self._trigger.next_ms(at)
        return found

    def describe_difference(self, expected: list[Ms], found: list[Ms]) -> str:
        """Return a failure message that lists expected and actual fires by time, and marks those in only one list."""
        lines = [f"{self.name} does not fire as expected ({self.zone.key})"]
        for at in sorted({*expected, *found}):
            mark = "  " if at in expected and at in found else "- " if at in expected else "+ "
            why = "" if mark == "  " else "   expected, does not fire" if mark == "- " else "   fires, not expected"
            lines.append(f"  {mark}{self._shown(at)}{why}")
        return "\n".join(lines)

    def describe_count(self, count: int, found: list[Ms]) -> str:
        """Return a failure message with the number of fires found, the expected `count`, and the first fires."""
        shown = "".join(f"\n    {self._shown(at)}" for at in found[:MAX_LISTED])
        more = f"\n    … and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
        return f"{self.name} fires {len(found)} times, expected {count} ({self.zone.key}){shown}{more}"

    def _shown(self, at: Ms) -> str:
        return to_datetime(at, self.zone).isoformat(" ", "milliseconds" if at % 1000 else "seconds")


#: `assert_fires` examines at most this number of fires between two instants.
MAX_EXAMINED_FIRES = 100_000


def fire_source(
    app: Mainspring,
    schedule: str | BaseTask[Any, Any] | Trigger,
    found: Callable[[Query[Any]], list[Any]],
) -> FireSource:
    """Return the source of fires of `schedule`: a name, the task on which one schedule is declared, or a trigger.

    `found`: a function that returns the rows of a query of the store. Raises: UnknownSchedule for a name without a
    schedule; InvalidInput for a fixed delay, whose fire times cannot be computed, or a task without exactly one
    schedule.
    """
    if isinstance(schedule, Trigger):
        return FireSource(repr(schedule), schedule, schedule._zone() or load_zone("UTC"), None, MAX_EXAMINED_FIRES)
    name = schedule if isinstance(schedule, str) else _schedule_declared_on(app, schedule)
    spec, anchor, left = _named_schedule(app, name, found)
    if is_fixed_delay(spec):
        raise InvalidInput(
            "schedule",
            f"{name!r} fires a fixed delay after the end of its last run",
            "Its fire times cannot be computed: move the clock and check its runs",
        )
    return FireSource(repr(name), trigger_of(spec, anchor), load_zone(spec.tz), spec, left)


def _named_schedule(
    app: Mainspring, name: str, found: Callable[[Query[Any]], list[Any]]
) -> tuple[ScheduleSpec, Ms, int]:
    """Return three values of a schedule, as stored or, if it is not stored, as declared.

    They are its definition, its anchor (the instant from which intervals are counted), and the number of fires left:
    0 if it is not active, `MAX_EXAMINED_FIRES` without `max_runs`. `found`: a function that returns the rows of a query
    of the store. Raises: UnknownSchedule if it is neither stored nor declared.
    """
    stored = found(Schedules(ns=app.settings.namespace, name=name))
    if stored:
        row = stored[0]
        left = MAX_EXAMINED_FIRES if row.spec.max_runs is None else row.spec.max_runs - row.fired
        return row.spec, row.anchor, left if row.state == "active" else 0
    declared = registry_of(app).declared
    if name in declared:
        spec = registry_of(app).make_request(name, origin="code", **declared[name]).spec
        return spec, app.clock.now(), MAX_EXAMINED_FIRES if spec.max_runs is None else spec.max_runs
    known = {*declared, *(row.name for row in found(Schedules(ns=app.settings.namespace, limit=1_000)))}
    fix = suggest_nearest(name, known) or f"There are: {', '.join(sorted(known)) or 'none'}"
    raise UnknownSchedule(f"no schedule is called {name!r}. {fix}")


def _schedule_declared_on(app: Mainspring, task: Any) -> str:
    """Return the name of the schedule that is declared on a task. Raises: InvalidInput unless there is exactly one."""
    if not isinstance(task, BaseTask):
        raise InvalidInput("schedule", f"{task!r} is no schedule", "Give its name, its task or a trigger")
    names = [name for name, wanted in registry_of(app).declared.items() if wanted["task"] is task]
    if len(names) != 1:
        raise InvalidInput(
            "schedule", f"{len(names)} schedules are declared on task {task.name!r}", "Give the schedule's name"
        )
    return names[0]


def next_fires(source: FireSource, after: Ms, count: int) -> list[Ms]:
    """Return the first `count` fires after the instant `after`, or fewer if there are no more."""
    return source.fires(after, LAST_MS, count)


def fires_between(source: FireSource, low: Ms, high: Ms) -> list[Ms]:
    """Return the fires from `low` to `high`, both included. Raises: InvalidInput for `MAX_EXAMINED_FIRES` or more.

    If the schedule has a window, fires after the first `MAX_EXAMINED_FIRES` of its trigger are left out.
    """
    found = source.fires(low - 1, high, MAX_EXAMINED_FIRES)
    if len(found) == MAX_EXAMINED_FIRES:
        raise InvalidInput(
            "between", f"{source.name} fires more than {MAX_EXAMINED_FIRES} times in it", "Give a shorter period"
        )
    return found


def parse_times(times: Iterable[datetime | str]) -> list[Ms]:
    """Return instants, parsed and sorted. Raises: InvalidInput for a wrong text, or one instant in place of a list."""
    if isinstance(times, str | datetime):
        raise InvalidInput("times", f"{times!r} is one instant, not a list", f"Write times=[{times!r}]")
    return sorted(instant_ms(when, field=f"times[{index}]") for index, when in enumerate(times))


def _arguments(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _queue(run: Run) -> str:
    return run.lane.partition("/")[2]


def _time(at: Ms) -> str:
    return to_datetime(at).isoformat(" ", "milliseconds" if at % 1000 else "seconds").replace("+00:00", "Z")
