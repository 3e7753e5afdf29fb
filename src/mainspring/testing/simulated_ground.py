"""What a simulated world stands on: the store that its processes share."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from mainspring.ports.store import Store
from mainspring.stores.memory import MemoryStore
from mainspring.testing.simulated_loop import SimulatedLoop, TrueClock
from mainspring.testing.simulated_store import SimulatedHints, Weather


class Ground(Protocol):
    """The shared store, and each process's way to it."""

    @property
    def store(self) -> Store:
        """For whoever judges the world: no weather there."""
        ...

    @property
    def on_wire(self) -> float:
        """Odds that a verb takes effect although its sender dies while it is sent."""
        ...

    def connect(self, process: str, weather: Weather) -> Store:
        """The store as a process of this name has it."""
        ...

    def gone(self, process: str) -> None:
        """The process is dead."""
        ...

    def close(self) -> None:
        """The world is over."""
        ...


#: Loop, seed and the share of hints that get lost.
MakeGround = Callable[[SimulatedLoop, int, float], Ground]


class MemoryGround:
    """One memory store for all."""

    on_wire = 0.3

    def __init__(self, loop: SimulatedLoop, seed: int, hints_lost: float) -> None:
        self.store = MemoryStore(TrueClock(loop))
        self.store._hints = SimulatedHints(loop, random.Random(f"{seed}:hints"), hints_lost)  # type: ignore[assignment]  # noqa: S311 - the same two verbs, in an order that a seed repeats

    def connect(self, process: str, weather: Weather) -> Store:
        return self.store

    def gone(self, process: str) -> None:
        """The store stays."""

    def close(self) -> None:
        """Nothing is open."""
