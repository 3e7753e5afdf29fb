"""A handle on a run: its id, its state, its result."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mainspring.model.errors import ResultTimeout, RunNotSuccessful
from mainspring.model.instant import Duration, duration_ms
from mainspring.model.run import ENDED, Run, State

if TYPE_CHECKING:
    from mainspring.engine.runtime import Runtime

R = TypeVar("R")


class RunHandle(Generic[R]):
    """What `enqueue` returns; works from any loop."""

    __slots__ = ("_call", "_decode", "created", "id")

    def __init__(
        self,
        run_id: str,
        call: Callable[[Callable[[Runtime], Coroutine[Any, Any, Any]]], Coroutine[Any, Any, Any]],
        decode: Callable[[str | None], Any],
        *,
        created: bool = True,
    ) -> None:
        self.id = run_id
        #: False when a run with the same unique key was open already; the handle is of that run.
        self.created = created
        self._call = call
        self._decode = decode

    async def run(self) -> Run:
        """The ledger row."""
        run: Run = await self._call(lambda runtime: runtime.commands.run(self.id))
        return run

    async def state(self) -> State:
        """Where the run is in its life."""
        return (await self.run()).state

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the end; the handler's return value, or RunNotSuccessful, or ResultTimeout."""
        seconds = None if timeout is None else duration_ms(timeout, field="timeout") / 1000
        run: Run | None = await self._call(lambda runtime: _ended(runtime, self.id, seconds))
        if run is None:
            raise ResultTimeout(f"run {self.id} did not end within {timeout}")
        if run.state is not State.SUCCEEDED:
            raise RunNotSuccessful(run.id, run.state, run.error or run.reason)
        value: R = self._decode(run.result)
        return value

    def __repr__(self) -> str:
        return f"RunHandle({self.id!r})"


async def _ended(runtime: Runtime, run_id: str, seconds: float | None) -> Run | None:
    """The ended run; woken when it ends here, looked up when it may have ended elsewhere."""
    deadline = None if seconds is None else runtime.clock.monotonic() + seconds
    pause = 0.02
    while True:
        run = await runtime.commands.run(run_id)
        if run.state in ENDED:
            return run
        left = pause if deadline is None else min(pause, deadline - runtime.clock.monotonic())
        if left <= 0:
            return None
        await runtime.wait_for_end(run_id, left)
        pause = min(pause * 1.5, runtime.settings.poll / 1000)
