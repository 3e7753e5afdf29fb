"""The history checker's input (calls of handlers, histories of stores) and its output (violations, the report)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec
from msgspec import Struct, field

from mainspring.model.events import Event, RunEvent, ScheduleEvent
from mainspring.model.gate import Gate
from mainspring.model.instant import Ms, isoformat
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule, Span

#: The kinds of violations about a fire or a call; a report begins with the number of each.
VIOLATION_KINDS = ("lost", "doubled", "late", "extra", "incomplete")
#: The invariants of docs/proof.md.
INVARIANTS = {
    "I1": "at most one run or span for each fire",
    "I2": "every fire that was owed has a run or a span",
    "I3": "no run and no span beyond what was owed",
    "I4": "every run that ended by its handler was called; at most once where asked for; never beside itself",
    "I5": "an accepted outcome bears the newest token",
    "I6": "no run is claimed early by the store's clock, no fire is planned later than the bound",
    "I7": "leases of one run do not overlap and are not cut short",
    "I8": "legal moves, contiguous numbers, rows equal to the folded log",
    "I9": "every event is handed out once and in order",
    "I10": "one idempotency key for all attempts of a run",
    "I11": "valid leases never break an overlap policy or a limit",
    "I12": "no instance starts a run of a task whose name another program holds",
}
#: A report keeps at most this number of violations; it counts the rest.
MAX_KEPT_VIOLATIONS = 200
#: A printed report shows at most this number of violations.
MAX_PRINTED_VIOLATIONS = 8
#: If a violation has more events than this, the ones in the middle are not printed.
MAX_SLICE_EVENTS = 16


class Call(Struct, frozen=True, kw_only=True):
    """One call of a handler, as the handler itself logged it, independent of the store.

    `key`: the idempotency key that the handler saw. `token`: the epoch of its lease. `began` and `ended` are in ms
    since 1970; `ended` None: the handler did not return. `node`: a name for the process that called it.
    """

    run_id: str
    key: str
    schedule: str | None = None
    fire_time: Ms | None = None
    attempt: int = 1
    token: int = 1
    began: Ms = 0
    ended: Ms | None = None
    node: str = ""


class History(Struct, kw_only=True):
    """The rows and events of a store, as `read_history` returns them.

    `tailed`: the numbers of the events that the store's `tail` returned, in that order.
    """

    schedules: list[Schedule] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    gates: list[Gate] = field(default_factory=list)
    tailed: list[int] = field(default_factory=list)

    def run_streams(self) -> dict[str, list[RunEvent]]:
        """Return run id → the events of that run, in the order of the log."""
        streams: dict[str, list[RunEvent]] = defaultdict(list)
        for event in self.events:
            if isinstance(event, RunEvent) and event.run_id is not None:
                streams[event.run_id].append(event)
        return dict(streams)

    def schedule_streams(self) -> dict[str, list[ScheduleEvent]]:
        """Return schedule id → the events of that schedule, in the order of the log."""
        streams: dict[str, list[ScheduleEvent]] = defaultdict(list)
        for event in self.events:
            if isinstance(event, ScheduleEvent) and event.schedule_id is not None:
                streams[event.schedule_id].append(event)
        return dict(streams)


class Violation(Struct, frozen=True, kw_only=True):
    """One violation: the invariant, what is wrong, the number of fires or calls concerned, and the events that show it.

    `invariant`: a key of `INVARIANTS`, or "" for a run that is still open. `kind`: one of `VIOLATION_KINDS` for a
    violation about a fire or a call, else "".
    """

    invariant: str
    what: str
    count: int = 1
    kind: str = ""
    slice: list[Event] = field(default_factory=list)


class Report(Struct, kw_only=True):
    """The result of checking one history: its violations, and the number of fires or calls that they concern.

    `counts`: invariant or kind → number of fires or calls that its violations concern. `fires`, `runs`, `events` and
    `calls` are the numbers of what was examined; `fires` counts the fires that were owed. `seed`: the seed of the
    simulated world, None for other histories.
    """

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*VIOLATION_KINDS, *INVARIANTS), 0))
    violations: list[Violation] = field(default_factory=list)
    fires: int = 0
    runs: int = 0
    events: int = 0
    calls: int = 0
    seed: int | None = None

    @property
    def ok(self) -> bool:
        """True if no violation was found."""
        return not any(self.counts.values())

    def add(self, invariant: str, what: str, events: Iterable[Event] = (), *, kind: str = "", count: int = 1) -> None:
        """Add a violation that concerns `count` fires or calls.

        `count` is added to the counts of the invariant and of the `kind`; "" has no count. `events`: the events that
        show the violation. Only the first `MAX_KEPT_VIOLATIONS` violations are kept in `violations`.
        """
        for key in filter(None, (invariant, kind)):
            self.counts[key] += count
        if len(self.violations) < MAX_KEPT_VIOLATIONS:
            found = Violation(invariant=invariant, what=what, count=count, kind=kind, slice=list(events))
            self.violations.append(found)

    def __str__(self) -> str:
        head = f"{self.fires} fires owed, {self.runs} runs, {self.events} events, {self.calls} calls"
        lines = [head + ("" if self.seed is None else f"; seed {self.seed}")]
        lines.append("   ".join(f"{kind} {self.counts[kind]}" for kind in VIOLATION_KINDS))
        for name, meaning in INVARIANTS.items():
            mark = "ok" if not self.counts[name] else f"{self.counts[name]} WRONG"
            lines.append(f"  {name:<4} {meaning:<88} {mark}")
        for violation in self.violations[:MAX_PRINTED_VIOLATIONS]:
            seed = "" if self.seed is None else f" (seed {self.seed})"
            name = " ".join(filter(None, (violation.invariant, violation.kind)))
            lines.append(f"\n{name}: {violation.what}{seed}")
            lines.extend(f"    {format_event(event)}" for event in _cut(violation.slice))
        if len(self.violations) > MAX_PRINTED_VIOLATIONS:
            lines.append(f"\n… and {len(self.violations) - MAX_PRINTED_VIOLATIONS} more")
        return "\n".join(lines)


def _cut(events: list[Event]) -> list[Event]:
    return (
        events
        if len(events) <= MAX_SLICE_EVENTS
        else [*events[: MAX_SLICE_EVENTS // 2], *events[-MAX_SLICE_EVENTS // 2 :]]
    )


def format_event(event: Event) -> str:
    """Return one event as a line of at most 220 characters.

    The line has its number in the log, its time, the id of its run or schedule, its number `n`, its type and its own
    fields.
    """
    stream = event.run_id if isinstance(event, RunEvent) else event.schedule_id
    said = msgspec.to_builtins(event)
    hidden = ("seq", "at", "ns", "schedule_id", "run_id", "n", "v", "change", "spec", "trace", "digest", "lane", "type")
    data = " ".join(f"{name}={value}" for name, value in said.items() if name not in hidden)
    return f"{event.seq:>6} {isoformat(event.at)} {stream or '-'} #{event.n or '-'} {type(event).__name__} {data}"[:220]
