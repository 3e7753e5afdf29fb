"""Providers of the store that the processes of a simulated world share: their protocol, and the one for memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from mainspring.backends.memory.store import MemoryStore
from mainspring.ports.store import Store
from proof.simulated_loop import SimulatedLoop, TrueClock
from proof.simulated_store import SimulatedHints, StoreFaults


class StoreProvider(Protocol):
    """Provides the shared store of a world and a connection to it for each process."""

    @property
    def store(self) -> Store:
        """The store as the checker reads it, without any faults."""
        ...

    @property
    def on_wire(self) -> float:
        """Probability that a request takes effect although its sender dies after sending it."""
        ...

    def connect(self, process: str, store_faults: StoreFaults) -> Store:
        """Return the store object that the process of this name uses; `store_faults` are its faults."""
        ...

    def close_connections(self, process: str) -> None:
        """Close the connections of the process of this name, which died."""
        ...

    def close(self) -> None:
        """Close all connections at the end of the world."""
        ...


#: Makes a provider. Its arguments: the loop, the seed, and the fraction of hints that are lost.
MakeProvider = Callable[[SimulatedLoop, int, float], StoreProvider]


class MemoryProvider:
    """Provides one memory store, which all processes use; `FaultyStore` adds the faults."""

    on_wire = 0.3

    def __init__(self, loop: SimulatedLoop, seed: int, hints_lost: float) -> None:
        self.store = MemoryStore(TrueClock(loop))
        self.store._hints = SimulatedHints(loop, random.Random(f"{seed}:hints"), hints_lost)  # type: ignore[assignment]  # noqa: S311 - the same two verbs, in an order that a seed repeats

    def connect(self, process: str, store_faults: StoreFaults) -> Store:
        return self.store

    def close_connections(self, process: str) -> None:
        """Do nothing: there is no connection."""

    def close(self) -> None:
        """Do nothing: there is no connection."""
