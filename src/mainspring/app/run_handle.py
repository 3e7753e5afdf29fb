"""Run handle: the id of an enqueued run, its state, and its result once it has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mainspring.app.read_models import ReadModels
from mainspring.app.run_view import Run
from mainspring.model.errors import ResultTimeout, RunNotSuccessful
from mainspring.model.instant import Duration, duration_ms
from mainspring.model.run import ENDED, State
from mainspring.model.run import Run as RunRow

if TYPE_CHECKING:
    from mainspring.app.engine_host import EngineHost
    from mainspring.runtime.runtime import Runtime

R = TypeVar("R")

#: A caller that waits for the end of a run reads the run again after this time, or after a poll interval if that is
#: longer. Why: the notification of the end can be lost.
REREAD_SECONDS = 60.0


class RunHandle(Generic[R]):
    """A run that was enqueued or triggered: `handle = await send.enqueue("acme")`, `await handle.result()`.

    `id` is the run's. `created` is False if an open run had the unique key of the call: the handle is then of that run.
    The methods can be awaited on any event loop.
    """

    __slots__ = ("_decode", "_host", "created", "id")

    def __init__(
        self, run_id: str, host: EngineHost, decode: Callable[[str | None], Any], *, created: bool = True
    ) -> None:
        """`decode` turns the stored JSON result, or None, into the task's return value."""
        self.id = run_id
        #: False if an open run had the same unique key: the handle is of that run.
        self.created = created
        self._host = host
        self._decode = decode

    async def run(self) -> Run:
        """Return the run as it is stored now. Raises: UnknownRun if retention has removed the run."""
        return await ReadModels(self._host).run(await self._read())

    async def state(self) -> State:
        """Return the state of the run. Raises: UnknownRun, as `run` does."""
        return (await self._read()).state

    async def _read(self) -> RunRow:
        return await self._host.call(lambda runtime: runtime.commands.run(self.id))

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait until the run has ended, and return the return value of its task's function.

        `timeout` None: wait without limit. Raises: RunNotSuccessful if the run failed, was cancelled, skipped or lost;
        ResultTimeout if it did not end within `timeout`, which does not stop it.
        """
        seconds = None if timeout is None else duration_ms(timeout, field="timeout") / 1000
        run = await self._host.call(lambda runtime: _wait_for_end(runtime, self.id, seconds))
        if run is None:
            raise ResultTimeout(f"run {self.id} did not end within {timeout}")
        if run.state is not State.SUCCEEDED:
            raise RunNotSuccessful(run.id, run.state, run.error or run.reason)
        value: R = self._decode(run.result)
        return value

    def __repr__(self) -> str:
        return f"RunHandle({self.id!r})"


async def _wait_for_end(runtime: Runtime, run_id: str, seconds: float | None) -> RunRow | None:
    """Wait until the run has ended and return it; return None after `seconds`. Thread: engine loop.

    `seconds` None: no limit. Raises: UnknownRun. The engine wakes this wait when it learns that the run has ended; in
    case it does not, the run is read again from time to time.
    """
    deadline = None if seconds is None else runtime.clock.monotonic() + seconds
    reread = max(REREAD_SECONDS, runtime.settings.poll / 1000)
    while True:
        run = await runtime.commands.run(run_id)
        if run.state in ENDED:
            return run
        left = reread if deadline is None else min(reread, deadline - runtime.clock.monotonic())
        if left <= 0:
            return None
        await runtime.wait_for_end(run_id, left)
