"""A gate: what restricts *when* runs may start, as a number in one row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from mainspring.model.instant import Ms
from mainspring.model.run import Run

#: The gate that keeps a schedule's runs apart begins like this.
OWN = "schedule:"


def may_be_early(gates: Sequence[str] | None, crashes: int) -> bool:
    """True when a run may be claimed ahead of its time: it keeps nobody out but other runs of its own schedule."""
    return crashes == 0 and all(gate.startswith(OWN) for gate in gates or ())


class Gate(Struct, frozen=True, omit_defaults=True, gc=False):
    """At most `max` runs hold it at once; closed until an instant it admits none."""

    name: str
    max: int
    held: int = 0
    closed_until: Ms = 0

    def room(self, now: Ms) -> int:
        """How many more runs may pass now."""
        return 0 if self.closed_until > now else max(0, self.max - self.held)


class Admission(Struct, frozen=True):
    """The runs that pass all their gates, and those parked behind the first gate that refused them."""

    taken: list[Run]
    parked: list[tuple[Run, str]]
    slots: dict[str, int]


def admit(
    candidates: Iterable[Run],
    gates: Mapping[str, Gate],
    limit: int,
    now: Ms,
    first: Mapping[str, tuple[int, Ms, str]],
) -> Admission:
    """Take runs in the given order, a slot in each of a run's gates or none. A gate nobody made admits all.

    A run that crashed before is taken alone, so that a worker it kills takes few others with it.
    `first` is the place (priority, ready_at, id) of the first run parked at a gate: nobody behind it overtakes it,
    or replays would lose their order whenever a claim comes between a release and the un-parking.
    """
    room: dict[str, int] = {}
    taken: list[Run] = []
    parked: list[tuple[Run, str]] = []
    slots: dict[str, int] = {}
    for run in candidates:
        if len(taken) >= limit or (taken and (run.crashes or taken[0].crashes)):
            break
        refused = None
        for name in run.gates:
            if name not in room and name in gates:
                room[name] = gates[name].room(now)
            if room.get(name, 1) <= 0 or (name in first and first[name] < (run.priority, run.ready_at, run.id)):
                refused = name
                break
        if refused is not None:
            parked.append((run, refused))
            continue
        for name in run.gates:
            if name in room:
                room[name] -= 1
                slots[name] = slots.get(name, 0) + 1
        taken.append(run)
    return Admission(taken, parked, slots)
