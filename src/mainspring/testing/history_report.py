"""What the history checker reads and what it says: calls, histories, violations, the report."""

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

#: What people ask first; every violation of a fire or a call falls into one of them.
KINDS = ("lost", "doubled", "late", "extra", "incomplete")
#: reliability's invariants, in the words of this model.
INVARIANTS = {
    "I1": "at most one run or span for each fire",
    "I2": "every fire that was owed has a run or a span",
    "I3": "no run and no span beyond what was owed",
    "I4": "every run that ended by its handler was called; at most once where that was asked for",
    "I5": "an accepted outcome bears the newest token",
    "I6": "never given out early by the store's clock, never planned later than the bound",
    "I7": "leases of one run do not overlap and are not cut short",
    "I8": "legal moves, contiguous numbers, rows equal to the folded log",
    "I9": "every event is handed out once and in order",
    "I10": "one idempotency key for all attempts of a run",
    "I11": "valid leases never break an overlap policy or a limit",
}
#: So many violations are kept; the rest are counted.
MAX_KEPT = 200
#: So many of them are printed.
MAX_PRINTED = 8
#: A slice longer than this is cut in the middle when printed.
MAX_SHOWN = 16


class Call(Struct, frozen=True, kw_only=True):
    """One line of the handlers' own log, written by the handler itself, independent of our store."""

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
    """Everything a store holds that the checker looks at; `tailed` is what `tail` handed out, in its order."""

    schedules: list[Schedule] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    gates: list[Gate] = field(default_factory=list)
    tailed: list[int] = field(default_factory=list)

    def run_streams(self) -> dict[str, list[RunEvent]]:
        """The moves of each run, in the order of the log."""
        streams: dict[str, list[RunEvent]] = defaultdict(list)
        for event in self.events:
            if isinstance(event, RunEvent) and event.run_id is not None:
                streams[event.run_id].append(event)
        return dict(streams)

    def schedule_streams(self) -> dict[str, list[ScheduleEvent]]:
        """The moves of each schedule, in the order of the log."""
        streams: dict[str, list[ScheduleEvent]] = defaultdict(list)
        for event in self.events:
            if isinstance(event, ScheduleEvent) and event.schedule_id is not None:
                streams[event.schedule_id].append(event)
        return dict(streams)


class Violation(Struct, frozen=True, kw_only=True):
    """What is wrong, how many fires or calls it concerns, and the smallest slice of the log that shows it."""

    invariant: str
    what: str
    count: int = 1
    kind: str = ""
    slice: list[Event] = field(default_factory=list)


class Report(Struct, kw_only=True):
    """The verdict on one history."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*KINDS, *INVARIANTS), 0))
    violations: list[Violation] = field(default_factory=list)
    fires: int = 0
    runs: int = 0
    events: int = 0
    calls: int = 0
    seed: int | None = None

    @property
    def ok(self) -> bool:
        """True when nothing is wrong."""
        return not any(self.counts.values())

    def add(self, invariant: str, what: str, events: Iterable[Event] = (), *, kind: str = "", count: int = 1) -> None:
        """Count a violation, and keep it while there is room; `kind` says which question it answers, if one does."""
        for key in filter(None, (invariant, kind)):
            self.counts[key] += count
        if len(self.violations) < MAX_KEPT:
            found = Violation(invariant=invariant, what=what, count=count, kind=kind, slice=list(events))
            self.violations.append(found)

    def __str__(self) -> str:
        head = f"{self.fires} fires owed, {self.runs} runs, {self.events} events, {self.calls} calls"
        lines = [head + ("" if self.seed is None else f"; seed {self.seed}")]
        lines.append("   ".join(f"{kind} {self.counts[kind]}" for kind in KINDS))
        for name, meaning in INVARIANTS.items():
            mark = "ok" if not self.counts[name] else f"{self.counts[name]} WRONG"
            lines.append(f"  {name:<4} {meaning:<88} {mark}")
        for violation in self.violations[:MAX_PRINTED]:
            seed = "" if self.seed is None else f" (seed {self.seed})"
            name = " ".join(filter(None, (violation.invariant, violation.kind)))
            lines.append(f"\n{name}: {violation.what}{seed}")
            lines.extend(f"    {shown(event)}" for event in _cut(violation.slice))
        if len(self.violations) > MAX_PRINTED:
            lines.append(f"\n… and {len(self.violations) - MAX_PRINTED} more")
        return "\n".join(lines)


def _cut(events: list[Event]) -> list[Event]:
    return events if len(events) <= MAX_SHOWN else [*events[: MAX_SHOWN // 2], *events[-MAX_SHOWN // 2 :]]


def shown(event: Event) -> str:
    """One line of a slice: where it stands, whose it is, what it says."""
    stream = event.run_id if isinstance(event, RunEvent) else event.schedule_id
    said = msgspec.to_builtins(event)
    hidden = ("seq", "at", "ns", "schedule_id", "run_id", "n", "v", "change", "spec", "trace", "digest", "lane", "type")
    data = " ".join(f"{name}={value}" for name, value in said.items() if name not in hidden)
    return f"{event.seq:>6} {isoformat(event.at)} {stream or '-'} #{event.n or '-'} {type(event).__name__} {data}"[:220]
