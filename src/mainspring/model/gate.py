"""Gates: rows that restrict how many runs may execute at once, and the rule that decides which runs may start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from mainspring.model.instant import Ms
from mainspring.model.run import Run

#: The prefix of the name of the gate that keeps a schedule's own runs apart.
SCHEDULE_GATE_PREFIX = "schedule:"

#: A run's sort key in the order in which runs pass a gate: priority, ready_at, id.
Place = tuple[int, Ms, str]


def can_claim_ahead(gates: Sequence[str] | None, crashes: int) -> bool:
    """Return True if a run with these gates and this number of crashes may be claimed ahead of its time (ADR 17).

    A claim takes a slot at each of the run's gates. Ahead of time, only a slot of its own schedule's gate may be taken:
    a slot of any other gate would be withheld from runs that could use it now. A run that crashed before is never
    claimed ahead: it must be claimed alone (`admit`).
    """
    return crashes == 0 and all(gate.startswith(SCHEDULE_GATE_PREFIX) for gate in gates or ())


class Gate(Struct, frozen=True, omit_defaults=True, gc=False):
    """A gate: at most `max` runs hold a slot at once, and no run may pass before the instant `closed_until`.

    `held` is the number of slots that are held now.
    """

    name: str
    max: int
    held: int = 0
    closed_until: Ms = 0

    def room(self, now: Ms) -> int:
        """Return the number of further runs that may pass at `now`: the free slots, or 0 while the gate is closed."""
        return 0 if self.closed_until > now else max(0, self.max - self.held)


class Admission(Struct, frozen=True):
    """The result of `admit`: which runs may start, and which must be parked.

    `taken` are the runs that pass all their gates. `parked` are the runs that do not, each with the name of the first
    gate that refuses it. `slots`: gate name → number of slots that the taken runs take there.
    """

    taken: list[Run]
    parked: list[tuple[Run, str]]
    slots: dict[str, int]


def admit(
    candidates: Iterable[Run],
    gates: Mapping[str, Gate],
    limit: int,
    now: Ms,
    first: Mapping[str, Place],
) -> Admission:
    """Return which of the candidate runs may start at `now`, at most `limit` in the given order, and which to park.

    A run takes a slot of each of its gates, or none at all. `gates`: name → gate; a gate that is not in it restricts
    nothing. A run that crashed before is taken alone: if it kills its worker again, fewer other runs are charged
    with a crash (ADR 9).

    `first`: gate name → place of the first run that is parked there. A candidate behind that place is parked, too.
    Why: a claim can come after a slot is released and before the parked runs are unparked. The candidate would then
    overtake them, and replayed fires would run out of order (ADR 8).
    """
    room: dict[str, int] = {}
    taken: list[Run] = []
    parked: list[tuple[Run, str]] = []
    slots: dict[str, int] = {}
    for run in candidates:
        if len(taken) >= limit or (taken and (run.crashes or taken[0].crashes)):
            break
        if run.gates:
            _read_room(run, gates, now, room)
            refusing = _find_refusing_gate(run, room, first)
            if refusing is not None:
                parked.append((run, refusing))
                continue
            _take_slots(run, room, slots)
        taken.append(run)
    return Admission(taken, parked, slots)


def _read_room(run: Run, gates: Mapping[str, Gate], now: Ms, room: dict[str, int]) -> None:
    """Add to `room` (gate name → free slots at `now`) the run's gates that are in `gates` and not in `room` yet."""
    for name in run.gates:
        if name not in room and name in gates:
            room[name] = gates[name].room(now)


def _find_refusing_gate(run: Run, room: Mapping[str, int], first: Mapping[str, Place]) -> str | None:
    """Return the name of the first gate that refuses the run; None if the run may pass all its gates.

    A gate refuses it if it has no room, or if a run that comes before it is parked there. `room`: gate name
    → free slots. `first`: gate name → place of the first run that is parked there.
    """
    for name in run.gates:
        if room.get(name, 1) <= 0 or (name in first and first[name] < (run.priority, run.ready_at, run.id)):
            return name
    return None


def _take_slots(run: Run, room: dict[str, int], slots: dict[str, int]) -> None:
    """Take a slot of each of the run's gates: count one free slot less in `room`, one taken slot more in `slots`."""
    for name in run.gates:
        if name in room:
            room[name] -= 1
            slots[name] = slots.get(name, 0) + 1
