"""Supervisor of a pool of worker processes: restarts dead workers, resizes the pool, and stops it cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import subprocess
from collections.abc import Awaitable, Callable, Collection, Sequence

from mainspring.app.shutdown import Stopper
from mainspring.model.errors import StoreError
from mainspring.model.plural import plural
from mainspring.rules.autoscale import STABLE_AFTER_SECONDS, Bounds, Demand, PoolState, resize, restart_delay

log = logging.getLogger("mainspring.supervisor")

#: A worker process that still runs this long after its own shutdown time-out is killed.
KILL_GRACE_SECONDS = 10.0


class WorkerPlace:
    """One place in the pool, with a worker process. Until the place is closed, a process that dies is replaced.

    `command` starts a process.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._closing = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        #: True once a process of this place did not end and was killed.
        self.killed = False

    @property
    def pid(self) -> int | None:
        """Id of the present process; None while there is none."""
        return None if self._process is None else self._process.pid

    async def keep_running(self) -> None:
        """Start a process and replace it when it dies; return when the place is closed and its process has ended.

        The delay before a restart grows with each death that follows soon after a start (`restart_delay`).
        """
        loop, deaths = asyncio.get_running_loop(), 0
        while not self._closing.is_set():
            began = loop.time()
            end = await self._run_process()
            if self._closing.is_set():
                log.info("%s", end)
                return
            deaths = 1 if loop.time() - began >= STABLE_AFTER_SECONDS else deaths + 1
            delay = restart_delay(deaths)
            log.error("%s; another is started in %g s", end, delay)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), delay)

    async def _run_process(self) -> str:
        """Start one process, wait for its end, and return a line for the log: how it ended, or why it did not start."""
        try:
            # The worker has a session of its own, so that Ctrl-C reaches it only once, through the supervisor. Its
            # standard input is a pipe, which closes when the supervisor dies; the worker then stops.
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            return f"a worker could not be started ({error})"
        self._process = process
        if self._closing.is_set():
            self._signal(signal.SIGTERM)
        code = await process.wait()
        self._process = None
        return f"worker {process.pid} has ended" if code == 0 else f"worker {process.pid} died ({_format_exit(code)})"

    def close(self) -> None:
        """Send the worker SIGTERM, so that it lets its runs end and exits, and do not replace it.

        A second call sends a second SIGTERM: the worker then hands back its runs at once.
        """
        self._closing.set()
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the worker and do not replace it. Other workers claim its runs when the leases of the runs end."""
        self._closing.set()
        if self._process is not None:
            self.killed = True
            log.error(
                "worker %d did not end and is killed; other workers take its runs when their leases end", self.pid
            )
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if there is one."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


class Supervisor:
    """A pool of worker processes. Dead workers are restarted. The number of workers follows the backlog, in `bounds`.

    `command` starts one worker, which executes up to `slots` runs at a time, and lets them end within
    `shutdown_timeout` seconds when it stops. `demand(pids, enough)` returns the backlog, counted up to `enough` runs,
    and the number of runs that the workers with these process ids hold. It is called every `poll` seconds, if `bounds`
    allow more than one size.
    """

    def __init__(
        self,
        command: Sequence[str],
        bounds: Bounds,
        *,
        slots: int,
        poll: float,
        shutdown_timeout: float,
        demand: Callable[[Collection[int], int], Awaitable[Demand]],
    ) -> None:
        self._command = command
        self._bounds = bounds
        self._slots = slots
        self._poll = poll
        self._shutdown = shutdown_timeout
        self._demand = demand
        self._pool = PoolState(bounds.start)
        #: Open places, oldest first.
        self._open: list[WorkerPlace] = []
        #: Task of `keep_running` → its place, for every open place, and every closed one whose process runs.
        self._places: dict[asyncio.Task[None], WorkerPlace] = {}

    async def run(self) -> int:
        """Run the pool until SIGTERM or SIGINT, then stop it. Return the exit code: 1 if it killed a worker, else 0.

        After the first signal the workers let their runs end. If a second signal comes, they hand back their runs at
        once. If a third comes, they are killed.
        """
        stopper = Stopper()
        with stopper.on_signals(signal.SIGTERM, signal.SIGINT):
            self._resize()
            scaling = asyncio.ensure_future(self._scale()) if self._bounds.low < self._bounds.high else None
            try:
                await stopper.wait()
            finally:
                if scaling is not None:
                    scaling.cancel()
            log.info("stopping %s", plural(len(self._places), "worker"))
            self._for_each(WorkerPlace.close)
            stopper.on_second(lambda: self._for_each(WorkerPlace.close if stopper.requests == 2 else WorkerPlace.kill))
            return await self._wait_for_all()

    async def _wait_for_all(self) -> int:
        """Wait until every worker has ended. Return the exit code: 1 if this supervisor killed one, else 0.

        Workers that still run `KILL_GRACE_SECONDS` after their shutdown time-out are killed.
        """
        places = list(self._places.values())
        if self._places:
            await asyncio.wait(self._places, timeout=self._shutdown + KILL_GRACE_SECONDS)
        self._for_each(WorkerPlace.kill)
        if self._places:
            await asyncio.wait(self._places)
        return 1 if any(place.killed for place in places) else 0

    async def _scale(self) -> None:
        """Read the backlog every `poll` seconds and resize the pool, until cancelled.

        If the backlog cannot be read, log that and keep the size.
        """
        while True:
            await asyncio.sleep(self._poll)
            pids = {place.pid for place in self._open if place.pid is not None}
            try:
                found = await self._demand(pids, self._bounds.high * self._slots)
            except StoreError as error:
                log.warning("cannot read the backlog, the pool keeps its size: %s", error)
                continue
            except Exception:  # an error in reading the backlog must not stop the workers
                log.exception("cannot read the backlog, the pool keeps its size")
                continue
            before, self._pool = self._pool.size, resize(self._pool, found, self._slots, self._bounds)
            if self._pool.size != before:
                log.info("pool resized from %d to %s (%s)", before, plural(self._pool.size, "worker"), _describe(found))
                self._resize()

    def _resize(self) -> None:
        """Open places, or close the newest ones, until the pool has the size in `_pool`."""
        while len(self._open) > self._pool.size:
            self._open.pop().close()
        while len(self._open) < self._pool.size:
            place = WorkerPlace(self._command)
            self._open.append(place)
            task = asyncio.ensure_future(place.keep_running())
            self._places[task] = place
            task.add_done_callback(self._places.pop)

    def _for_each(self, action: Callable[[WorkerPlace], None]) -> None:
        """Call `action` with each open place, and with each closed place whose process has not ended yet."""
        for place in list(self._places.values()):
            action(place)


def _describe(demand: Demand) -> str:
    """Return a demand in words. Counting stops at the runs that the largest pool can take, so more may wait."""
    at_least = "at least " if demand.at_least else ""
    wait = "waits" if demand.backlog == 1 else "wait"
    running = "is" if demand.running == 1 else "are"
    return f"{at_least}{plural(demand.backlog, 'run')} {wait}, {demand.running} {running} running"


def _format_exit(code: int) -> str:
    """Return an exit code in words. `code` is negative if a signal ended the process: minus the signal's number."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
