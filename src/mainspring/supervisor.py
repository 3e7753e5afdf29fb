"""The supervisor: keeps a pool of worker processes alive, lets it grow and shrink, and ends it in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import subprocess
from collections.abc import Awaitable, Callable, Collection, Sequence

from mainspring.model.errors import StoreError
from mainspring.rules.pool import LIVED, Bounds, Demand, Pool, resize, restart_delay
from mainspring.signals import Stopper

log = logging.getLogger("mainspring.supervisor")

#: Seconds beyond the time a worker takes to stop, after which it is killed.
MERCY = 10.0


class Place:
    """One place in the pool: a process, and the next one when it dies, until it is told to leave."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._leave = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self.killed = False

    @property
    def pid(self) -> int | None:
        """The process that lives here now."""
        return None if self._process is None else self._process.pid

    async def keep(self) -> None:
        """Start, wait, start again; returns when told to leave and the process has ended."""
        loop, deaths = asyncio.get_running_loop(), 0
        while not self._leave.is_set():
            began = loop.time()
            end = await self._live()
            if self._leave.is_set():
                log.info("%s", end)
                return
            deaths = 1 if loop.time() - began >= LIVED else deaths + 1
            delay = restart_delay(deaths)
            log.error("%s; another is started in %g s", end, delay)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leave.wait(), delay)

    async def _live(self) -> str:
        """One process from its start to its end; how it ended."""
        try:
            # Its own session, so that Ctrl-C reaches it once, through us; and a pipe whose end says that we are gone.
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            return f"a worker could not be started ({error})"
        self._process = process
        if self._leave.is_set():
            self._signal(signal.SIGTERM)
        code = await process.wait()
        self._process = None
        return f"worker {process.pid} has ended" if code == 0 else f"worker {process.pid} died ({_said(code)})"

    def leave(self) -> None:
        """Drain and end; said twice, the worker hands everything back at once."""
        self._leave.set()
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it now; its leases will."""
        self._leave.set()
        if self._process is not None:
            self.killed = True
            log.error("worker %d did not end and is killed; its runs are taken again when their leases end", self.pid)
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


class Supervisor:
    """Lives on the loop it is run on; `demand` is asked at every look, and only where the size may change."""

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
        self._pool = Pool(bounds.start)
        #: In the order in which they came; those that leave are not in it any more.
        self._staying: list[Place] = []
        self._places: dict[asyncio.Task[None], Place] = {}

    async def run(self) -> int:
        """Until a signal. 0 when every worker ended in order; the second signal is passed on, the third kills."""
        stopper = Stopper()
        with stopper.on_signals(signal.SIGTERM, signal.SIGINT):
            self._fill()
            scaling = asyncio.ensure_future(self._scale()) if self._bounds.low < self._bounds.high else None
            try:
                await stopper.wait()
            finally:
                if scaling is not None:
                    scaling.cancel()
            log.info("stopping %d workers", len(self._places))
            self._each(Place.leave)
            stopper.on_second(lambda: self._each(Place.leave if stopper.requests == 2 else Place.kill))
            return await self._all_gone()

    async def _all_gone(self) -> int:
        places = list(self._places.values())
        if self._places:
            await asyncio.wait(self._places, timeout=self._shutdown + MERCY)
        self._each(Place.kill)
        if self._places:
            await asyncio.wait(self._places)
        return 1 if any(place.killed for place in places) else 0

    async def _scale(self) -> None:
        """Look how much waits, and have as many workers as that takes."""
        while True:
            await asyncio.sleep(self._poll)
            pids = {place.pid for place in self._staying if place.pid is not None}
            try:
                found = await self._demand(pids, self._bounds.high * self._slots)
            except StoreError as error:
                log.warning("the backlog is not known: %s", error)
                continue
            except Exception:  # whatever it is, the workers work on
                log.exception("the backlog is not known")
                continue
            before, self._pool = self._pool.size, resize(self._pool, found, self._slots, self._bounds)
            if self._pool.size != before:
                said = f"{found.backlog} runs wait, {found.running} run"
                log.info("from %d to %d workers: %s", before, self._pool.size, said)
                self._fill()

    def _fill(self) -> None:
        """Start or end workers, the newest first, until there are as many as there should be."""
        while len(self._staying) > self._pool.size:
            self._staying.pop().leave()
        while len(self._staying) < self._pool.size:
            place = Place(self._command)
            self._staying.append(place)
            task = asyncio.ensure_future(place.keep())
            self._places[task] = place
            task.add_done_callback(self._places.pop)

    def _each(self, do: Callable[[Place], None]) -> None:
        for place in list(self._places.values()):
            do(place)


def _said(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
