"""Deterministic simulation: several nodes of the real engine run in virtual time on one store, determined by one seed.

Nodes crash at any await, and are stopped and continued. Their clocks step and drift. Their store is slow, fails and
loses answers. Then the faults end, all work must end, too, and the history checker examines the result. A seed always
gives the same world: `python -m proof.simulation 1234` replays it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hashlib
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from mainspring.app.context import Context
from mainspring.app.internals import host_of, runner_of
from mainspring.app.mainspring import Mainspring
from mainspring.app.shutdown import Stopper
from mainspring.ledger.account import ledger
from mainspring.ledger.verify import verify
from mainspring.model.errors import MainspringError
from mainspring.model.events import Event
from mainspring.model.instant import Ms, instant_ms, to_datetime
from mainspring.model.run import OPEN, State
from mainspring.ports.store import Runs, Store
from mainspring.runtime.engine_thread import SameLoop
from mainspring.testing.history import Call, Report, check, read_history
from proof.simulated_loop import WORLD_START_MS, NodeClock, Process, SimulatedLoop, WorldStuck, current_process
from proof.simulated_plan import ALL_NODES, Fault, Plan, draw_plan
from proof.simulated_provider import MakeProvider, MemoryProvider
from proof.simulated_store import FaultyStore, StoreFaults
from proof.simulated_workload import AT_MOST_ONCE, TASKS, Client, register_tasks, schedule_options

#: Virtual seconds within which all due work of a world must end after its faults have ended.
MAX_REST_SECONDS = 90.0
#: In the worlds of these seeds, the client renames schedules, too. The other worlds are as before this command.
RENAMING_SEEDS_MODULO_5 = 2
#: Longest time that a handler of a world takes, in milliseconds.
MAX_HANDLER_MS: Ms = 10_000

Connect = Callable[[Store, random.Random, StoreFaults, float], FaultyStore]


class Outcome(Struct, kw_only=True):
    """The result of one world: the report of the checker, unexpected errors (`problems`), and figures about the world.

    `digest`: a hash of its events and calls. `seconds`: its virtual time. `stale`: the number of results that were
    refused because the worker no longer held the lease. `log`: its events, if they were asked for.
    """

    seed: int
    plan: Plan
    report: Report
    problems: list[str] = field(default_factory=list)
    digest: str = ""
    seconds: float = 0.0
    steps: int = 0
    crashes: int = 0
    stale: int = 0
    log: list[Event] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if the checker found no violation and the engine logged no unexpected error."""
        return self.report.ok and not self.problems

    def __str__(self) -> str:
        lines = [f"world {self.seed}: {'ok' if self.ok else 'WRONG'}", str(self.plan), str(self.report)]
        lines += [f"problem: {problem}" for problem in self.problems]
        lines.append(f"replay it with: python -m proof.simulation {self.seed}")
        return "\n".join(lines)


class Node:
    """A machine with its clocks, which outlive the processes that are started on it."""

    def __init__(self, index: int, clock: NodeClock) -> None:
        self.index = index
        self.clock = clock
        self.store_faults = StoreFaults()
        #: Number of processes started on this machine.
        self.births = 0
        #: The process that runs now and its app; None from its end until the start of the next.
        self.process: Process | None = None
        self.app: Mainspring | None = None


class World:
    """The world of one seed: nodes, client, faults, and the handlers' own log.

    `provider` makes the shared store. `connect` wraps the store of a process into one with faults. `small`: as for
    `draw_plan`.
    """

    def __init__(
        self, seed: int, connect: Connect = FaultyStore, provider: MakeProvider = MemoryProvider, *, small: bool = False
    ) -> None:
        self.seed = seed
        self.connect = connect
        self.rng = random.Random(seed)  # noqa: S311 - no secret
        self.plan = draw_plan(self.rng, small=small)
        self.lease = self.plan.lease_ttl / 1000
        self.loop = SimulatedLoop()
        self.outside = contextvars.Context()
        self.provider = provider(self.loop, seed, self.plan.hints_lost)
        self.store = self.provider.store
        self.calls: list[Call] = []
        self.problems: list[str] = []
        self.crashes = 0
        self.healed = False
        self.processes: list[Process] = []
        clocks = [
            NodeClock(self.loop, skew=skew, ppm=ppm, booted=self.rng.randrange(10**9))
            for skew, ppm in zip(self.plan.skews, self.plan.ppms, strict=True)
        ]
        self.nodes = [Node(index, clock) for index, clock in enumerate(clocks[:-1])]
        self.client_clock = clocks[-1]
        # A worker that knows a task which must run at most once claims nothing ahead: half of the worlds have none.
        self.tasks = tuple(task for task in TASKS if task not in AT_MOST_ONCE or self.rng.random() < 0.5)
        self.declared: dict[str, dict[str, Any]] = {}
        for index in range(self.rng.randint(1, 3)):
            options = schedule_options(self.rng, to_datetime(WORLD_START_MS), self.plan.chaos)
            self.declared[f"declared{index}"] = {"task": self.rng.choice(self.tasks), **options}

    # ── the handlers' own log ──────────────────────────────────────────────

    def called(self, ctx: Context) -> int:
        """Log that a handler begins, and return the number of its call."""
        process = current_process()
        call = Call(
            run_id=ctx.run_id,
            key=ctx.idempotency_key,
            schedule=ctx.schedule_id,
            fire_time=instant_ms(ctx.fire_time),
            attempt=ctx.attempt,
            token=ctx.epoch,
            began=self.loop.now(),
            node=process.name if process is not None else "",
        )
        self.calls.append(call)
        return len(self.calls) - 1

    def returned(self, call: int) -> None:
        """Log that the handler of this call has ended by itself."""
        self.calls[call] = replace(self.calls[call], ended=self.loop.now())

    # ── nodes ──────────────────────────────────────────────────────────────

    def start(self, node: Node) -> None:
        """Start a new process on a machine, under a name that no process had before."""
        node.births += 1
        node.process = self._process(f"n{node.index}.{node.births}")
        node.app = self._app(node.clock, node.store_faults, node.process.name)
        register_tasks(node.app, self, self.declared)
        node.process.start(self._run(node, node.process, node.app))

    def _process(self, name: str) -> Process:
        process = Process(self.loop, name)
        process.on_end = lambda: self.provider.close_connections(name)
        self.processes.append(process)
        return process

    def _app(self, clock: NodeClock, store_faults: StoreFaults, name: str) -> Mainspring:
        rng = random.Random(f"{self.seed}:{name}")  # noqa: S311 - no secret
        own = self.provider.connect(name, store_faults)
        app = Mainspring(
            store=self.connect(own, random.Random(f"{self.seed}:{name}:weather"), store_faults, self.provider.on_wire),  # noqa: S311
            name="simulated",
            clock=clock,
            rng=rng,
            lease_ttl=self.plan.lease_ttl / 1000,
            poll_interval=self.plan.poll / 1000,
            concurrency=rng.randint(2, 6),
            shutdown_timeout="1s",
        )
        host_of(app).move_to(replace(host_of(app).environment, engine=SameLoop(self.loop)))
        return app

    async def _run(self, node: Node, process: Process, app: Mainspring) -> None:
        """Start the engine of a process; if that fails, end the process, and start another half a second later."""
        try:
            await runner_of(app).start()
        except MainspringError:
            self._process_ended(node, process, 0.5)

    async def _drain(self, node: Node, process: Process, app: Mainspring, back: float) -> None:
        """Stop a process as SIGTERM does, and start another on its node `back` seconds later.

        An error that is no failure of the store is a problem of the world.
        """
        try:
            await runner_of(app).stop(Stopper())
        except MainspringError as error:
            self.problems += [] if "store" in str(error).lower() else [f"drain: {error!r}"]
        self._process_ended(node, process, back)

    def _process_ended(self, node: Node, process: Process, back: float) -> None:
        """Mark a process as dead; if it was the node's current one, start another `back` seconds later."""
        process.kill()
        if node.process is process:
            node.process = node.app = None
            self.loop.call_later(back, self._restart, node, context=self.outside)

    def _restart(self, node: Node) -> None:
        if node.process is None:
            self.start(node)

    # ── faults ─────────────────────────────────────────────────────────────

    def begin_fault(self, fault: Fault) -> None:
        """Begin a fault on its nodes now, and set a timer for its end."""
        for node in self.nodes if fault.node == ALL_NODES else [self.nodes[fault.node]]:
            self._begin_fault(fault, node)

    def _begin_fault(self, fault: Fault, node: Node) -> None:
        process, app = node.process, node.app
        match fault.kind:
            case "crash" if process is not None:
                process.kill_after_steps(fault.steps, lambda: self._crashed(node, process, fault.length))
            case "drain" if process is not None and app is not None and host_of(app).runtime is not None:
                process.start(self._drain(node, process, app, fault.length))
            case "pause" if process is not None:
                process.stop()
                self._call_later(fault.length, process.resume)
            case "step":
                node.clock.skew += fault.jump
            case "slow":
                node.store_faults.slow = fault.slow
                self._call_later(fault.length, lambda: self._set(node, slow=StoreFaults().slow))
            case "fail":
                self._set(node, before=fault.odds, verbs=fault.verbs)
                self._call_later(fault.length, lambda: self._set(node, before=0.0))
            case "lose":
                self._set(node, after=fault.odds, verbs=fault.verbs)
                self._call_later(fault.length, lambda: self._set(node, after=0.0))
            case _:
                pass

    def _crashed(self, node: Node, process: Process, back: float) -> None:
        self.crashes += 1
        self._process_ended(node, process, back)

    def _set(self, node: Node, **values: Any) -> None:
        for name, value in values.items():
            setattr(node.store_faults, name, value)

    def _call_later(self, seconds: float, call: Callable[[], object]) -> None:
        self.loop.call_later(seconds, call, context=self.outside)

    def end_faults(self) -> None:
        """End all faults: continue stopped processes, and start one on each node without. Clocks keep their errors."""
        self.healed = True
        for node in self.nodes:
            self._set(node, slow=StoreFaults().slow, before=0.0, after=0.0)
            if node.process is None:
                self.start(node)
            else:
                node.process.kill_after_steps(10**9)
                node.process.resume()

    # ── the course of a world ──────────────────────────────────────────────

    async def live(self) -> tuple[Ms, Ms]:
        """Run the world; return the instants at which its faults ended and at which all due work had ended.

        If work is still open about `MAX_REST_SECONDS` after the faults, the second instant is the end of that time.
        """
        await self.store.open()
        for node in self.nodes:
            self.loop.call_later(self.rng.uniform(0, 0.5), self._restart, node, context=self.outside)
        renames = self.seed % 5 == RENAMING_SEEDS_MODULO_5
        client = Client(self._client_app(), self.rng, self.plan.chaos, renames=renames)
        self.client = client
        asking = self._process("client")
        happenings: list[tuple[float, int, Callable[[], object]]] = []
        for number, fault in enumerate(self.plan.faults):
            happenings.append((fault.at, number, lambda fault=fault: self.begin_fault(fault)))  # type: ignore[misc]
        for number in range(self.plan.operations):
            at = self.rng.uniform(0, self.plan.chaos)
            happenings.append((at, 1_000 + number, lambda: asking.start(client.send_command())))
        for at, _, happen in sorted(happenings, key=lambda one: one[:2]):
            await asyncio.sleep(max(0.0, at - self.loop.time()))
            happen()
        await asyncio.sleep(max(0.0, self.plan.chaos - self.loop.time()))
        self.end_faults()
        healed = self.loop.now()
        await asyncio.sleep(self.plan.calm + 2)
        person = self._app(self.client_clock, StoreFaults(), "person")
        for second in range(round(MAX_REST_SECONDS)):
            if await self._is_at_rest():
                break
            if second % 4 == 0:
                await self._stop_overload(person)
            await asyncio.sleep(1)
        return healed, self.loop.now()

    def _client_app(self) -> Mainspring:
        store_faults = StoreFaults(before=0.03, after=0.03)
        app = self._app(self.client_clock, store_faults, "client")
        register_tasks(app, self, {})
        return app

    async def _stop_overload(self, person: Mainspring) -> None:
        """Pause each schedule with several waiting runs, and cancel all but two of those runs, as an operator would.

        `person`: the app that makes these calls. Why: the work of an overloaded schedule would never end.
        """
        waiting: dict[str, list[str]] = {}
        for run in await self.store.find(Runs(states=tuple(sorted(OPEN)), limit=10_000, oldest_first=True)):
            if run.schedule_id is not None and run.state is not State.RUNNING:
                waiting.setdefault(run.schedule_id, []).append(run.id)
        for schedule, runs in waiting.items():
            if len(runs) > 1:
                with contextlib.suppress(MainspringError):  # the schedule may be finished or deleted
                    await person.pause(schedule)
                for run_id in runs[2:]:
                    await person.cancel(run_id)

    async def _is_at_rest(self) -> bool:
        """Return True if all work has ended that was due more than a poll interval and 2 s ago.

        A run that started less than MAX_HANDLER_MS before that may still be running.
        """
        old = self.loop.now() - self.plan.poll - 2_000
        due = await self.store.find(Runs(states=tuple(sorted(OPEN)), due_before=old, limit=100))
        return all(run.state is State.RUNNING and (run.started_at or 0) > old - MAX_HANDLER_MS for run in due)


@contextlib.contextmanager
def _capture_errors(world: World) -> Iterator[None]:
    """Silence the engine's log, and collect its unexpected errors as problems of the world."""

    class ErrorCollector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1] is not None:
                world.problems.append(f"{record.getMessage()}: {record.exc_info[1]!r}")

    def unhandled(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        harmless = ("never retrieved", "destroyed but it is pending")  # tasks of crashed processes
        if not any(words in context["message"] for words in harmless):
            world.problems.append(f"{context['message']}: {context.get('exception')!r}")

    logger, collector = logging.getLogger("mainspring"), ErrorCollector(logging.ERROR)
    before = (logger.level, logger.propagate)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    logger.addHandler(collector)
    world.loop.set_exception_handler(unhandled)
    try:
        yield
    finally:
        logger.removeHandler(collector)
        logger.level, logger.propagate = before
        logger.setLevel(before[0])


def run_world(
    seed: int,
    *,
    connect: Connect = FaultyStore,
    provider: MakeProvider = MemoryProvider,
    small: bool = False,
    keep_log: bool = False,
) -> Outcome:
    """Run the world of a seed, check it with the history checker, `verify` and the ledger, and return the outcome.

    `connect`, `provider` and `small`: as for `World`. `keep_log`: the outcome contains all events.
    """
    world = World(seed, connect, provider, small=small)
    loop = world.loop
    try:
        with _capture_errors(world):
            healed, rest = loop.run_until_complete(world.live())
            for process in world.processes:  # the checker reads with several statements, which must see one state
                process.stop()
            outcome = loop.run_until_complete(_judge(world, healed, rest, keep_log=keep_log))
    except WorldStuck as error:
        outcome = Outcome(seed=seed, plan=world.plan, report=Report(seed=seed), problems=[str(error)], steps=loop.steps)
    finally:
        for process in world.processes:
            process.dispose()
        world.provider.close()
        loop.close()
    return outcome


async def _judge(world: World, healed: Ms, rest: Ms, *, keep_log: bool) -> Outcome:
    """Check the store and the handlers' log, and return the outcome; `healed` and `rest` are what `live` returned."""
    history = await read_history(world.store)
    plan = world.plan
    report = check(
        history,
        world.calls,
        until=rest - plan.poll - 2_000,
        late=plan.poll + 1_000,
        late_since=healed + round(plan.calm * 1000),
        lease_ttl=plan.lease_ttl,
        healed=True,
        longest=MAX_HANDLER_MS,
        at_most_once=AT_MOST_ONCE,
        acknowledged=world.client.acknowledged,
        seed=world.seed,
    )
    verified = await verify(world.store)
    if not report.counts["I8"]:
        for difference in verified.differences:
            report.add("I8", f"verify: {difference.kind} {difference.id}: {difference.what}")
    book = await ledger(world.store, rest)
    if book.unexplained and report.ok:
        report.add("I2", f"ledger: {[difference.text for difference in book.differences[:5]]}", kind="lost")
    return Outcome(
        seed=world.seed,
        plan=plan,
        report=report,
        problems=world.problems,
        digest=_digest(history.events, world.calls),
        seconds=world.loop.time(),
        steps=world.loop.steps,
        crashes=world.crashes,
        stale=sum(type(event).__name__ == "StaleResultRejected" for event in history.events),
        log=history.events if keep_log else [],
    )


def _digest(events: list[Event], calls: list[Call]) -> str:
    """Return a digest of the world's events and calls that is equal on every machine.

    Owners are replaced by numbers, and stack traces are left out: both differ from process to process.
    """
    owners: dict[str | None, str] = {None: ""}
    digest = hashlib.blake2b(digest_size=16)
    for event in events:
        said = msgspec.to_builtins(event)
        said.pop("trace", None)
        for name in ("owner", "instance"):
            if name in said:
                said[name] = owners.setdefault(said[name], f"owner {len(owners)}")
        digest.update(type(event).__name__.encode() + msgspec.json.encode(said))
    digest.update(msgspec.json.encode(calls))
    return digest.hexdigest()


if __name__ == "__main__":
    from proof.simulation_main import main

    main()
