"""An executor that is made when the first attempt needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mainspring.ports.executor import Attempt, Executor


class Lazily:
    """Stands for an executor that most programs never use."""

    def __init__(self, make: Callable[[], Executor]) -> None:
        self._make = make
        self._made: Executor | None = None

    def start(self, attempts: Sequence[Attempt]) -> None:
        if self._made is None:
            self._made = self._make()
        self._made.start(attempts)

    def stop(self, attempt: Attempt) -> None:
        if self._made is not None:
            self._made.stop(attempt)

    async def close(self) -> None:
        if self._made is not None:
            await self._made.close()
