"""What a test expects of runs and fires, held against what there is, and the difference in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from mainspring.model.errors import InvalidInput, UnknownSchedule, nearest
from mainspring.model.instant import Duration, Ms, duration_ms, format_duration, instant_ms, to_datetime, zone
from mainspring.model.run import Run
from mainspring.model.schedule import ScheduleSpec
from mainspring.ports.store import Query, Schedules
from mainspring.rules.lanes import lane_of
from mainspring.rules.planning import bounds, is_fixed_delay, trigger_of
from mainspring.rules.triggers.base import LAST_MS, Trigger
from mainspring.rules.windows import is_open
from mainspring.task import BaseTask

if TYPE_CHECKING:
    from mainspring.app import Mainspring

MAX_SHOWN = 20


class Wanted:
    """A run that should be there; `see` every run, then ask which fit and how the others differ."""

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
        names = [p.name for p in self._parameters if p.kind is not p.VAR_KEYWORD]
        for name in self._some:
            if name not in names and len(names) == len(self._parameters):
                fix = nearest(name, names) or f"Its arguments are: {', '.join(names) or 'none'}"
                raise InvalidInput("payload", f"{task.name!r} has no argument {name!r}", fix)
        self._at = None if at is None else instant_ms(at, field="at")
        self._within = None if within is None else duration_ms(within, field="within")
        self._lane = None if queue is None else lane_of(task.app.settings.namespace, queue)
        self._queue = queue
        self._seen: list[tuple[Run, dict[str, Any], list[str]]] = []
        self._others: Counter[str] = Counter()

    def see(self, run: Run, body: str | None) -> None:
        """Note a run and how it differs."""
        if run.task != self.task.name:
            self._others[run.task] += 1
            return
        values = self._values(body)
        self._seen.append((run, values, self._differences(run, values)))

    def fitting(self) -> list[tuple[Run, dict[str, Any]]]:
        """The runs without a difference."""
        return [(run, values) for run, values, differences in self._seen if not differences]

    def _whole(self, body: Any) -> dict[str, Any]:
        return self._values(None if body is None else body.data)

    def _values(self, body: str | None) -> dict[str, Any]:
        """The arguments by name, defaults included."""
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
        found = []
        expected = self._some if self._call is None else {**self._call, **self._some}
        for name, value in expected.items():
            if name not in values:
                found.append(f"{name} is not given, expected {value!r}")
            elif values[name] != value:
                found.append(f"{name} is {values[name]!r}, expected {value!r}")
        if self._at is not None and abs(run.due_at - self._at) > (self._within or 0):
            found.append(f"due {_time(run.due_at)}, expected {_time(self._at)}{self._tolerance()}")
        elif self._at is None and self._within is not None and run.due_at > self._now + self._within:
            found.append(f"due {_time(run.due_at)}, expected within {format_duration(self._within)} from now")
        if self._lane is not None and run.lane != self._lane:
            found.append(f"queue is {_queue(run)!r}, expected {self._queue!r}")
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


def told(wanted: Wanted, count: str, found: int) -> str:
    """What was expected, what was enqueued, and the nearest difference."""
    noun = "run" if count in ("1", "no") else "runs"
    lines = [f"expected {count} {noun} of {wanted}, found {found}"]
    seen = wanted._seen
    if seen:
        lines.append(f"enqueued of {wanted.task.name!r}, at {_time(wanted._now)}:")
    near = min((d for _, _, d in seen if d), key=len, default=None)
    for index, (run, values, differences) in enumerate(seen[:MAX_SHOWN], 1):
        mark = " ← fits" if not differences else ""
        shown = f"({_arguments(values)})"
        lines.append(f"  {index}. {shown} due {_time(run.due_at)} in queue {_queue(run)!r}, {run.state}{mark}")
        if differences and differences is near and not found:
            lines.append(f"     nearest: {'; '.join(differences)}")
    if len(seen) > MAX_SHOWN:
        lines.append(f"  … and {len(seen) - MAX_SHOWN} more")
    others = ", ".join(f"{task} × {number}" for task, number in wanted._others.most_common(MAX_SHOWN))
    if not seen:
        lines.append(f"nothing was enqueued of {wanted.task.name!r}")
    if others:
        lines.append(f"enqueued of other tasks: {others}")
    elif not seen:
        lines[-1] = "nothing was enqueued at all"
    return "\n".join(lines)


class Source:
    """A schedule's fires."""

    def __init__(self, name: str, trigger: Trigger, tz: ZoneInfo, spec: ScheduleSpec | None, left: int) -> None:
        self.name = name
        self.zone = tz
        self._trigger = trigger
        self._spec = spec
        self._left = left

    def fires(self, after: Ms, through: Ms, limit: int) -> list[Ms]:
        """Fires in (after, through] that would run: inside start, end, window and the runs that are left."""
        if self._spec is None:
            return self._trigger.fires_ms(after, through, limit)
        after, through = bounds(self._spec, after, through)
        window = self._spec.options.window if self._spec.options else None
        if window is None:
            return self._trigger.fires_ms(after, through, min(limit, self._left))
        found: list[Ms] = []
        planned = 0
        at = self._trigger.next_ms(after)
        while at is not None and at <= through and len(found) < limit and planned < min(self._left, LOOKS):
            planned += 1
            if is_open(window, at):
                found.append(at)
            at = self._trigger.next_ms(at)
        return found

    def difference(self, expected: list[Ms], found: list[Ms]) -> str:
        """Both lists, side by side in time."""
        lines = [f"{self.name} does not fire as expected ({self.zone.key})"]
        for at in sorted({*expected, *found}):
            mark = "  " if at in expected and at in found else "- " if at in expected else "+ "
            why = "" if mark == "  " else "   expected, does not fire" if mark == "- " else "   fires, not expected"
            lines.append(f"  {mark}{self._shown(at)}{why}")
        return "\n".join(lines)

    def counted(self, count: int, found: list[Ms]) -> str:
        """How often it fires, and when first."""
        shown = "".join(f"\n    {self._shown(at)}" for at in found[:MAX_SHOWN])
        more = f"\n    … and {len(found) - MAX_SHOWN} more" if len(found) > MAX_SHOWN else ""
        return f"{self.name} fires {len(found)} times, expected {count} ({self.zone.key}){shown}{more}"

    def _shown(self, at: Ms) -> str:
        return to_datetime(at, self.zone).isoformat(" ", "milliseconds" if at % 1000 else "seconds")


#: Between two instants no more fires than this are looked at.
LOOKS = 100_000


def source_of(
    app: Mainspring,
    schedule: str | BaseTask[Any, Any] | Trigger,
    found: Callable[[Query[Any]], list[Any]],
) -> Source:
    """The fires of a stored schedule, a declared one, or a trigger."""
    if isinstance(schedule, Trigger):
        return Source(repr(schedule), schedule, schedule._zone() or zone("UTC"), None, LOOKS)
    name = schedule if isinstance(schedule, str) else _declared_on(app, schedule)
    stored = found(Schedules(ns=app.settings.namespace, name=name))
    if stored:
        row = stored[0]
        spec, anchor = row.spec, row.anchor
        left = LOOKS if spec.max_runs is None else spec.max_runs - row.fired
        left = left if row.state == "active" else 0
    elif name in app._declared:
        spec = app._definition(name, origin="code", **app._declared[name]).spec
        anchor, left = app.clock.now(), LOOKS if spec.max_runs is None else spec.max_runs
    else:
        known = {*app._declared, *(row.name for row in found(Schedules(ns=app.settings.namespace, limit=1_000)))}
        fix = nearest(name, known) or f"There are: {', '.join(sorted(known)) or 'none'}"
        raise UnknownSchedule(f"no schedule is called {name!r}. {fix}")
    if is_fixed_delay(spec):
        raise InvalidInput("schedule", f"{name!r} fires after the end of its last run", "It has no times of its own")
    return Source(repr(name), trigger_of(spec, anchor), zone(spec.tz), spec, left)


def _declared_on(app: Mainspring, task: Any) -> str:
    if not isinstance(task, BaseTask):
        raise InvalidInput("schedule", f"{task!r} is no schedule", "Give its name, its task or a trigger")
    names = [name for name, wanted in app._declared.items() if wanted["task"] is task]
    if len(names) != 1:
        raise InvalidInput("schedule", f"{len(names)} schedules are declared on task {task.name!r}", "Give the name")
    return names[0]


def next_fires(source: Source, after: Ms, count: int) -> list[Ms]:
    """The next fires after an instant."""
    return source.fires(after, LAST_MS, count)


def fires_between(source: Source, low: Ms, high: Ms) -> list[Ms]:
    """Every fire between two instants, both included."""
    found = source.fires(low - 1, high, LOOKS)
    if len(found) == LOOKS:
        raise InvalidInput("between", f"{source.name} fires more than {LOOKS} times there", "Give a shorter stretch")
    return found


def same_times(times: Iterable[datetime | str]) -> list[Ms]:
    """Instants in order."""
    if isinstance(times, str | datetime):
        raise InvalidInput("times", f"{times!r} is one time, not a list", "Write it in brackets")
    return sorted(instant_ms(when, field=f"times[{index}]") for index, when in enumerate(times))


def _arguments(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _queue(run: Run) -> str:
    return run.lane.partition("/")[2]


def _time(at: Ms) -> str:
    return to_datetime(at).isoformat(" ", "milliseconds" if at % 1000 else "seconds").replace("+00:00", "Z")
