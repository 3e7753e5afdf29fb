"""The lazy executor: delegates to an executor that it makes when the first attempt needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mainspring.ports.executor import Executor, HeldRun


class LazyExecutor:
    """Delegates to the executor that `make` returns, and calls `make` only at the first `start`.

    Why: most programs never use that executor, and need not import its module.
    """

    def __init__(self, make: Callable[[], Executor]) -> None:
        self._make = make
        self._made: Executor | None = None

    def start(self, held_runs: Sequence[HeldRun]) -> None:
        if self._made is None:
            self._made = self._make()
        self._made.start(held_runs)

    def stop(self, held: HeldRun) -> None:
        if self._made is not None:
            self._made.stop(held)

    async def close(self) -> None:
        if self._made is not None:
            await self._made.close()
