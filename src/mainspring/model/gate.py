"""Gates: what restricts when runs may start. A gate is a row with a maximum and the number of slots held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from mainspring.model.instant import Ms
from mainspring.model.run import Run

#: The prefix of the name of the gate that keeps a schedule's own runs apart.
SCHEDULE_GATE_PREFIX = "schedule:"

#: The place of a run in the order in which runs pass a gate: priority, then ready_at, then id.
Place = tuple[int, Ms, str]


def can_claim_ahead(gates: Sequence[str] | None, crashes: int) -> bool:
    """Return True if a run with these gates and this number of crashes may be claimed ahead of its time.

    Claiming ahead takes the run's slots early. So only the gate of the run's own schedule is allowed: a slot of any
    other gate would be kept from other work. A run that crashed before is claimed alone and never ahead (ADR 17).
    """
    return crashes == 0 and all(gate.startswith(SCHEDULE_GATE_PREFIX) for gate in gates or ())


class Gate(Struct, frozen=True, omit_defaults=True, gc=False):
    """A gate: at most `max` runs hold a slot at once, and none may pass before the instant `closed_until`.

    `held` is the number of slots held now.
    """

    name: str
    max: int
    held: int = 0
    closed_until: Ms = 0

    def room(self, now: Ms) -> int:
        """Return the number of further runs that may pass at the instant `now`: the free slots, 0 while closed."""
        return 0 if self.closed_until > now else max(0, self.max - self.held)


class Admission(Struct, frozen=True):
    """Which runs `admit` lets start, and which it parks.

    `taken` are the runs that pass all their gates, `parked` those that do not, each with the name of the first gate
    that refused it. `slots` counts the slots that the taken runs hold, by gate.
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
    """Return up to `limit` of the candidate runs, in the given order, that may start now, and those to park.

    A run needs a slot of each of its gates, or it takes none. A gate that is not in `gates` does not restrict. A run
    that crashed before is taken alone, so that if it kills its worker, few others are charged with the crash (ADR 9).

    `first` holds the place of the first run parked at each gate. A candidate behind that place is parked as well:
    otherwise it would overtake the parked runs whenever a claim comes between the release of a slot and their
    unparking, and replayed fires would run out of order (ADR 8).
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
    """Add the free slots of the run's gates to `room`, for the gates that are not in it yet."""
    for name in run.gates:
        if name not in room and name in gates:
            room[name] = gates[name].room(now)


def _find_refusing_gate(run: Run, room: Mapping[str, int], first: Mapping[str, Place]) -> str | None:
    """Return the run's first gate that has no room, or at which a run is parked that comes first; None: it may pass."""
    for name in run.gates:
        if room.get(name, 1) <= 0 or (name in first and first[name] < (run.priority, run.ready_at, run.id)):
            return name
    return None


def _take_slots(run: Run, room: dict[str, int], slots: dict[str, int]) -> None:
    """Take a slot of each of the run's gates: one less in `room`, one more in `slots`."""
    for name in run.gates:
        if name in room:
            room[name] -= 1
            slots[name] = slots.get(name, 0) + 1
