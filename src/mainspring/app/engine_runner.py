"""Engine runner: starts and stops the engine of an app, for `ms.run()`, `ms.running()` and the service."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable
from typing import Literal, TypeVar

from mainspring.app.engine_host import EngineHost
from mainspring.app.registry import Registry
from mainspring.app.shutdown import Stopper, describe_wait
from mainspring.config.redaction import show_store
from mainspring.engine.work.watchdog import OWN_LOOP_ADVICE
from mainspring.model.errors import RunsAlready
from mainspring.model.policies import ROLES, Role, check_choice
from mainspring.runtime.engine_thread import SameLoop
from mainspring.runtime.idle import until_idle as wait_until_idle
from mainspring.runtime.runtime import Runtime
from mainspring.service.declarations import Program

T = TypeVar("T")

log = logging.getLogger("mainspring.engine")


class EngineRunner:
    """Runs the engine in this process: stores the declared schedules, starts the engine's loops and stops them."""

    def __init__(self, host: EngineHost, registry: Registry, on_drift: Literal["keep", "code"]) -> None:
        """`on_drift`: what the start does with a declared schedule that a person has edited.

        "keep": the edit stays. "code": the definition in the code replaces it.
        """
        self._host = host
        self._registry = registry
        self._on_drift: Literal["keep", "code"] = on_drift
        self.forget()

    def forget(self) -> None:
        """Return to the state before the first start. A forked child needs this: its parent runs the engine."""
        #: Receives requests to stop while `run` is under way; None at other times.
        self.stopper: Stopper | None = None
        self._sharers = 0
        self._share_lock = asyncio.Lock()
        self._started_for_sharers = False
        self._aborting: asyncio.Task[None] | None = None
        self._host.bus.forget_loop()

    @property
    def is_managed(self) -> bool:
        """True if the environment (a test kit) starts and stops the engine itself."""
        return self._host.is_engine_managed

    @property
    def is_running(self) -> bool:
        """True from the start of the engine in this process until it has stopped."""
        runtime = self._host.runtime
        return runtime is not None and runtime.worker is not None

    async def run(
        self,
        *,
        until_idle: bool,
        signals: bool,
        role: Role,
        by_ctrl_c: bool = False,
        on_start: Callable[[], object] = lambda: None,
    ) -> None:
        """Run the engine until a stop is requested or, with `until_idle`, until nothing is due; then close the store.

        With `signals`, the first SIGTERM or SIGINT lets running runs end, and the second hands them back to the store
        at once. Role "worker" stores and plans no schedules; role "planner" claims no runs. `by_ctrl_c`: the caller
        requests a stop at Ctrl-C. `on_start` is called once the engine runs. Raises: RunsAlready if this app's engine
        runs; InvalidInput for an unknown role.
        """
        check_choice(role, ROLES, field="role")
        if self.stopper is not None:
            raise RunsAlready
        stopper = Stopper(by_ctrl_c=signals or by_ctrl_c)
        self.stopper = stopper
        try:
            stopper.call_in_signal_handler(self.stop_claiming)
            with stopper.on_signals(signal.SIGTERM, signal.SIGINT) if signals else contextlib.nullcontext():
                await stopper.first_of(self._open())
                if stopper.requests:  # a stop was requested while the process waited for a server that does not answer
                    await self._host.close()
                    return
                await self.start(role)
                try:
                    on_start()
                    if until_idle:
                        await stopper.first_of(self._host.call(wait_until_idle))
                    else:
                        await stopper.wait()
                finally:
                    await self.stop(stopper)
        finally:
            self.stopper = None

    async def _open(self) -> None:
        await self._host.open_runtime()

    async def start(self, role: Role = "all") -> None:
        """Store the declared schedules and start the engine. The caller later calls `stop`, or `drain`.

        Role "worker" stores and plans no schedules; role "planner" claims no runs. If the environment (a test kit)
        starts the engine itself, only the store is opened. Raises: RunsAlready if this app's engine runs.
        """
        host = self._host
        if host.is_engine_managed:
            await host.open_runtime()
            return
        loop, plans = asyncio.get_running_loop(), role != "worker"
        inline = isinstance(host.engine, SameLoop)

        async def start(runtime: Runtime) -> None:
            if runtime.worker is not None:
                raise RunsAlready
            await self.declare(runtime, write=plans)
            await runtime.start(loop, inline=inline, plans=plans, agents=None if role == "planner" else host.agents)
            if role == "planner":
                await runtime.become_planner()

        try:
            await host.call(start)
        except RunsAlready:
            raise
        except BaseException:  # nothing else would stop the engine's loops that have started
            await self.stop(Stopper())
            raise
        if host.store is None:
            log.info("the engine runs on %s", show_store(host.url))

    @contextlib.asynccontextmanager
    async def run_in_block(self, value: T) -> AsyncIterator[T]:
        """Run the engine while the block runs other code on this loop; then let runs end, and close the store.

        Yield `value`.
        """
        await self.start()
        try:
            yield value
        except GeneratorExit:  # the loop ends, or the context manager was dropped
            log.warning("the event loop ended while the engine ran, so the engine stops. %s", OWN_LOOP_ADVICE)
            raise
        finally:
            await self.stop(Stopper())

    async def drain(self, stopper: Stopper) -> None:
        """Stop claiming, let attempts end within `shutdown_timeout`, and stop the engine's loops. The store stays open.

        Attempts that have not ended by then are handed back to the store. A second request to `stopper` hands all of
        them back at once. Return when subscribers have handled the events that are queued for them.
        """
        timeout = self._host.settings.shutdown_timeout / 1000
        draining = asyncio.ensure_future(self._host.call(lambda runtime: self._stop_loops(runtime, timeout, stopper)))
        stopper.on_second(lambda: self._host.engine.post(self._abort))
        await draining
        await self._host.bus.settle()

    async def stop(self, stopper: Stopper) -> None:
        """Let attempts end within `shutdown_timeout`, stop the engine's loops and close the store.

        Attempts that have not ended by then are handed back to the store. A second request to `stopper` hands all of
        them back at once. Do nothing if the environment (a test kit) stops the engine itself.
        """
        if self._host.is_engine_managed:
            return
        await self.drain(stopper)
        await self._host.close()

    async def _stop_loops(self, runtime: Runtime, timeout: float, stopper: Stopper) -> None:
        """Log which runs the stop waits for, and stop the engine's loops. Thread: engine loop."""
        if names := runtime.workers.tasks_under_way:
            log.warning("%s", describe_wait(names, timeout, by_ctrl_c=stopper.by_ctrl_c))
        await runtime.stop(timeout)

    def _abort(self) -> None:
        """Hand every running attempt back to the store, in a task. Thread: engine loop."""
        runtime = self._host.runtime
        if runtime is not None:  # the attribute keeps a reference until the task is done
            self._aborting = asyncio.get_running_loop().create_task(runtime.stop_now())

    def stop_claiming(self) -> None:
        """Tell the engine's loop to claim and begin no more runs; do not wait. Thread: any, also signal handlers."""
        self._host.engine.post(self._stop_claiming)

    def _stop_claiming(self) -> None:
        """Claim and begin no more runs, if the store is open. Thread: engine loop."""
        if self._host.runtime is not None:
            self._host.runtime.stop_claiming()

    def request_stop(self, *, again: bool = True) -> None:
        """Tell `run`, if it is under way, to claim no more, let running runs end, and return. Thread: any.

        A second request hands running runs back at once. With `again` False, a second request changes nothing.
        """
        stopper = self.stopper
        if stopper is not None:
            stopper.request(again=again)

    @contextlib.asynccontextmanager
    async def sharing(self) -> AsyncIterator[Callable[[], bool]]:
        """Keep the engine running in the block: use one that runs, or start one, which stops with the last such block.

        Yield a function that returns True if leaving the block now would stop the engine.
        """
        if self._sharers == 0:
            self._share_lock = asyncio.Lock()
        self._sharers += 1
        try:
            async with self._share_lock:
                if not self.is_running:
                    await self.start()
                    self._started_for_sharers = True
            yield lambda: self._started_for_sharers and self._sharers == 1
        finally:
            try:
                async with self._share_lock:
                    if self._started_for_sharers and self._sharers == 1:
                        self._started_for_sharers = False
                        await self.stop(Stopper())
            finally:
                self._sharers -= 1

    async def declare(self, runtime: Runtime, *, write: bool = True) -> None:
        """Store the schedules that the code declares, and announce its tasks and schedules to other instances.

        With `write` False, store only the secrets of the schedules' HTTP agents. A schedule that a live instance
        of a newer version of the program declares differently stays as it is. Names that another program holds are left
        alone (`Declarations`).
        """
        requests = {
            name: await runtime.commands.with_stored_secrets(request)
            for name, request in self._registry.declared_requests().items()
        }
        tasks = self._registry.origins
        schedules = {name: tasks[one.spec.task] for name, one in requests.items() if one.spec.task in tasks}
        await runtime.declarations.declare(Program(requests, tasks, schedules, self._on_drift), write=write)
