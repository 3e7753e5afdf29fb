"""The plan of a simulated world: which faults happen, when and for how long, drawn from the seed before it begins."""

from __future__ import annotations

import random

from msgspec import Struct

from mainspring.model.instant import Ms
from proof.simulated_store import VERBS

FAULT_KINDS = ("crash", "crash", "pause", "pause", "step", "slow", "fail", "fail", "lose", "drain")
ALL_NODES = -1
#: Seconds after the last fault during which planning may still be late: an engine whose clock stepped waits before it
#: plans again.
CALM_SECONDS = 8.0


class Fault(Struct, frozen=True, kw_only=True):
    """One fault: when it begins (`at`), its kind, its node (ALL_NODES: all), and how long it lasts (`length`).

    Times are in seconds. For a crash and a drain, `length` is the time until the next process starts. `steps`: how many
    steps a process makes before it crashes. `jump`: by how many milliseconds a wall clock steps. `odds`: the
    probability with which a call of `verbs` fails (kind "fail") or loses its answer ("lose"). `slow`: the longest delay
    of a call, each way.
    """

    at: float
    kind: str
    node: int
    length: float = 0.0
    steps: int = 0
    jump: Ms = 0
    odds: float = 0.0
    slow: float = 0.0
    verbs: tuple[str, ...] = VERBS

    def __str__(self) -> str:
        who = "all" if self.node == ALL_NODES else f"n{self.node}"
        said = {
            "crash": f"after {self.steps} steps, back after {self.length:.2f} s",
            "drain": f"back after {self.length:.2f} s",
            "pause": f"for {self.length:.2f} s",
            "step": f"by {self.jump} ms",
            "slow": f"up to {self.slow:.2f} s each way for {self.length:.2f} s",
        }.get(self.kind, f"{self.odds:.0%} of {', '.join(self.verbs)} for {self.length:.2f} s")
        return f"{self.at:7.2f} {who:<4} {self.kind:<6} {said}"


class Plan(Struct, frozen=True, kw_only=True):
    """The size of a world and its faults.

    `chaos`: seconds with faults. `calm`: seconds after them in which fires may still be late. `hints_lost`: the
    fraction of hints that is lost. `skews` (ms) and `ppms` (millionths): errors of the clocks, one for each node and
    the last one for the client. `operations`: the number of commands of the client.
    """

    nodes: int
    chaos: float
    lease_ttl: Ms
    poll: Ms
    hints_lost: float
    skews: tuple[Ms, ...]
    ppms: tuple[float, ...]
    operations: int
    faults: tuple[Fault, ...]
    calm: float = CALM_SECONDS

    def __str__(self) -> str:
        head = (
            f"{self.nodes} nodes, {self.chaos:.0f} s of faults, lease {self.lease_ttl} ms, poll {self.poll} ms, "
            f"skew {list(self.skews)} ms, drift {[round(ppm) for ppm in self.ppms]} ppm, "
            f"{self.hints_lost:.0%} of hints lost, {self.operations} commands"
        )
        return "\n".join([head, *map(str, self.faults)])


def draw_plan(rng: random.Random, *, small: bool = False) -> Plan:
    """Draw the plan of a world; `small`: a short world with few nodes, for a store on a real server."""
    nodes = rng.randint(2, 3 if small else 4)
    chaos = rng.uniform(2, 4) if small else rng.uniform(8, 25)
    ttl = 1_500 if small else rng.choice((1_500, 3_000))
    count = rng.randint(2, 6 if small else 10)
    faults = sorted((_fault(rng, nodes, chaos, ttl / 1000) for _ in range(count)), key=lambda fault: fault.at)
    return Plan(
        nodes=nodes,
        chaos=chaos,
        lease_ttl=ttl,
        poll=rng.choice((700, 1_000) if small else (300, 700, 1_000)),
        hints_lost=rng.choice((0.0, 0.1, 1.0)),
        skews=tuple(rng.choice((0, rng.randint(-60_000, 60_000))) for _ in range(nodes + 1)),
        ppms=tuple(rng.uniform(-500, 500) for _ in range(nodes + 1)),
        operations=rng.randint(5, 12 if small else 25),
        faults=tuple(faults),
        calm=CALM_SECONDS if not small or any(fault.kind == "step" for fault in faults) else 2.0,
    )


def _fault(rng: random.Random, nodes: int, chaos: float, ttl: float) -> Fault:
    kind = rng.choice(FAULT_KINDS)
    at, node = rng.uniform(0.1, chaos), rng.randrange(nodes)
    match kind:
        case "crash":
            length = rng.choice((rng.uniform(0.05, 0.5), rng.uniform(0.5, 2.5) * ttl))
            return Fault(at=at, kind=kind, node=node, length=length, steps=int(10 ** rng.uniform(0, 2.3)) - 1)
        case "drain":
            return Fault(at=at, kind=kind, node=node, length=rng.uniform(0.05, ttl))
        case "pause":
            return Fault(at=at, kind=kind, node=node, length=rng.uniform(0.2, 4) * ttl)
        case "step":
            jump = int(1_000 * 10 ** rng.uniform(0, 4.9365)) * rng.choice((-1, 1))  # 1 s to 1 day
            return Fault(at=at, kind=kind, node=node, jump=jump)
    node = rng.choice((ALL_NODES, node))
    length = rng.uniform(0.2, 3) * ttl
    if kind == "slow":
        return Fault(at=at, kind=kind, node=node, length=length, slow=rng.choice((0.05, 0.3, ttl / 2)))
    verbs = tuple(rng.sample(VERBS, rng.randint(1, 4))) if rng.random() < 0.6 else VERBS
    return Fault(at=at, kind=kind, node=node, length=length, odds=rng.choice((0.1, 0.5, 1.0)), verbs=verbs)
