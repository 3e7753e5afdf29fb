"""Deterministic simulation: several nodes of the real engine on one virtual loop, one store, one seed.

Nodes crash at any await, are stopped and continued, their clocks step and drift, their store is slow, fails and loses
answers. Then the world heals, comes to rest, and the history checker judges it. The same seed is the same world:
`python -m mainspring.testing.simulation 1234` replays it.
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

from mainspring.app import Mainspring
from mainspring.context import Context
from mainspring.engine.loop import SameLoop
from mainspring.ledger import ledger
from mainspring.model.errors import MainspringError
from mainspring.model.events import Event
from mainspring.model.instant import Ms, instant_ms, to_datetime
from mainspring.model.run import OPEN, State
from mainspring.ports.store import Runs, Store
from mainspring.signals import Stopper
from mainspring.testing.history import Call, Report, check, read_history
from mainspring.testing.simulated_ground import MakeGround, MemoryGround
from mainspring.testing.simulated_loop import EPOCH, NodeClock, NoRest, Process, SimulatedLoop, current_process
from mainspring.testing.simulated_plan import EVERYBODY, Fault, Plan, draw
from mainspring.testing.simulated_store import StormyStore, Weather
from mainspring.testing.simulated_work import AT_MOST_ONCE, TASKS, Client, furnish, schedule_options
from mainspring.verify import verify

#: A healed world must come to rest within so many seconds.
PATIENCE = 90.0
#: No handler of a world takes longer, in milliseconds.
LONGEST: Ms = 10_000

Connect = Callable[[Store, random.Random, Weather, float], StormyStore]


class Outcome(Struct, kw_only=True):
    """What became of a world."""

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
        """True when the checker and the engine's own log have nothing to say."""
        return self.report.ok and not self.problems

    def __str__(self) -> str:
        lines = [f"world {self.seed}: {'ok' if self.ok else 'WRONG'}", str(self.plan), str(self.report)]
        lines += [f"problem: {problem}" for problem in self.problems]
        lines.append(f"replay it with: python -m mainspring.testing.simulation {self.seed}")
        return "\n".join(lines)


class Node:
    """A machine: its clocks outlive the processes that are started on it."""

    def __init__(self, index: int, clock: NodeClock) -> None:
        self.index = index
        self.clock = clock
        self.weather = Weather()
        self.births = 0
        self.process: Process | None = None
        self.app: Mainspring | None = None


class World:
    """One seed's world; also the handlers' own log."""

    def __init__(
        self, seed: int, connect: Connect = StormyStore, ground: MakeGround = MemoryGround, *, small: bool = False
    ) -> None:
        self.seed = seed
        self.connect = connect
        self.rng = random.Random(seed)  # noqa: S311 - no secret
        self.plan = draw(self.rng, small=small)
        self.lease = self.plan.lease_ttl / 1000
        self.loop = SimulatedLoop()
        self.outside = contextvars.Context()
        self.ground = ground(self.loop, seed, self.plan.hints_lost)
        self.store = self.ground.store
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
            options = schedule_options(self.rng, to_datetime(EPOCH), self.plan.chaos)
            self.declared[f"declared{index}"] = {"task": self.rng.choice(self.tasks), **options}

    # ── the handlers' own log ──────────────────────────────────────────────

    def called(self, ctx: Context) -> int:
        """A handler begins."""
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
        """It ends by itself."""
        self.calls[call] = replace(self.calls[call], ended=self.loop.now())

    # ── nodes ──────────────────────────────────────────────────────────────

    def start(self, node: Node) -> None:
        """Start a process on a machine: another identity each time."""
        node.births += 1
        node.process = self._process(f"n{node.index}.{node.births}")
        node.app = self._app(node.clock, node.weather, node.process.name)
        furnish(node.app, self, self.declared)
        node.process.start(self._run(node, node.process, node.app))

    def _process(self, name: str) -> Process:
        process = Process(self.loop, name)
        process.on_end = lambda: self.ground.gone(name)
        self.processes.append(process)
        return process

    def _app(self, clock: NodeClock, weather: Weather, name: str) -> Mainspring:
        rng = random.Random(f"{self.seed}:{name}")  # noqa: S311 - no secret
        own = self.ground.connect(name, weather)
        app = Mainspring(
            store=self.connect(own, random.Random(f"{self.seed}:{name}:weather"), weather, self.ground.on_wire),  # noqa: S311
            name="simulated",
            clock=clock,
            rng=rng,
            lease_ttl=self.plan.lease_ttl / 1000,
            poll_interval=self.plan.poll / 1000,
            concurrency=rng.randint(2, 6),
            shutdown_timeout="1s",
        )
        app._engine = SameLoop(self.loop)
        return app

    async def _run(self, node: Node, process: Process, app: Mainspring) -> None:
        try:
            await app._start()
        except MainspringError:  # whoever supervises it starts it again
            self._gone(node, process, 0.5)

    async def _drain(self, node: Node, process: Process, app: Mainspring, back: float) -> None:
        try:
            await app._stop(Stopper())
        except MainspringError as error:
            self.problems += [] if "store" in str(error).lower() else [f"drain: {error!r}"]
        self._gone(node, process, back)

    def _gone(self, node: Node, process: Process, back: float) -> None:
        """A process ended, one way or another; another one follows."""
        process.kill()
        if node.process is process:
            node.process = node.app = None
            self.loop.call_later(back, self._again, node, context=self.outside)

    def _again(self, node: Node) -> None:
        if node.process is None:
            self.start(node)

    # ── faults ─────────────────────────────────────────────────────────────

    def inflict(self, fault: Fault) -> None:
        """Make one thing go wrong, and plan its end."""
        for node in self.nodes if fault.node == EVERYBODY else [self.nodes[fault.node]]:
            self._inflict(fault, node)

    def _inflict(self, fault: Fault, node: Node) -> None:
        process, app = node.process, node.app
        match fault.kind:
            case "crash" if process is not None:
                process.dies_after(fault.steps, lambda: self._crashed(node, process, fault.length))
            case "drain" if process is not None and app is not None and app._runtime is not None:
                process.start(self._drain(node, process, app, fault.length))
            case "pause" if process is not None:
                process.stop()
                self._later(fault.length, process.proceed)
            case "step":
                node.clock.skew += fault.jump
            case "slow":
                node.weather.slow = fault.slow
                self._later(fault.length, lambda: self._set(node, slow=Weather().slow))
            case "fail":
                self._set(node, before=fault.odds, verbs=fault.verbs)
                self._later(fault.length, lambda: self._set(node, before=0.0))
            case "lose":
                self._set(node, after=fault.odds, verbs=fault.verbs)
                self._later(fault.length, lambda: self._set(node, after=0.0))
            case _:
                pass

    def _crashed(self, node: Node, process: Process, back: float) -> None:
        self.crashes += 1
        self._gone(node, process, back)

    def _set(self, node: Node, **values: Any) -> None:
        for name, value in values.items():
            setattr(node.weather, name, value)

    def _later(self, seconds: float, call: Callable[[], object]) -> None:
        self.loop.call_later(seconds, call, context=self.outside)

    def heal(self) -> None:
        """Everything works from here on; clocks stay as wrong as they are."""
        self.healed = True
        for node in self.nodes:
            self._set(node, slow=Weather().slow, before=0.0, after=0.0)
            if node.process is None:
                self.start(node)
            else:
                node.process.dies_after(10**9)
                node.process.proceed()

    # ── the course of a world ──────────────────────────────────────────────

    async def live(self) -> tuple[Ms, Ms]:
        """Run it all; the instants at which it was healed and at which it had come to rest."""
        await self.store.open()
        for node in self.nodes:
            self.loop.call_later(self.rng.uniform(0, 0.5), self._again, node, context=self.outside)
        client = Client(self._client_app(), self.rng, self.plan.chaos)
        self.client = client
        asking = self._process("client")
        happenings: list[tuple[float, int, Callable[[], object]]] = []
        for number, fault in enumerate(self.plan.faults):
            happenings.append((fault.at, number, lambda fault=fault: self.inflict(fault)))  # type: ignore[misc]
        for number in range(self.plan.operations):
            at = self.rng.uniform(0, self.plan.chaos)
            happenings.append((at, 1_000 + number, lambda: asking.start(client.ask())))
        for at, _, happen in sorted(happenings, key=lambda one: one[:2]):
            await asyncio.sleep(max(0.0, at - self.loop.time()))
            happen()
        await asyncio.sleep(max(0.0, self.plan.chaos - self.loop.time()))
        self.heal()
        healed = self.loop.now()
        await asyncio.sleep(self.plan.calm + 2)
        person = self._app(self.client_clock, Weather(), "person")
        for second in range(round(PATIENCE)):
            if await self._at_rest():
                break
            if second % 4 == 0:
                await self._relieve(person)
            await asyncio.sleep(1)
        return healed, self.loop.now()

    def _client_app(self) -> Mainspring:
        weather = Weather(before=0.03, after=0.03)
        app = self._app(self.client_clock, weather, "client")
        furnish(app, self, {})
        return app

    async def _relieve(self, person: Mainspring) -> None:
        """A schedule that asks for more than can be done would never come to rest: a person stops it."""
        waiting: dict[str, list[str]] = {}
        for run in await self.store.find(Runs(states=tuple(sorted(OPEN)), limit=10_000, oldest_first=True)):
            if run.schedule_id is not None and run.state is not State.RUNNING:
                waiting.setdefault(run.schedule_id, []).append(run.id)
        for schedule, runs in waiting.items():
            if len(runs) > 1:
                with contextlib.suppress(MainspringError):  # it may be finished or gone
                    await person.pause(schedule)
                for run_id in runs[2:]:
                    await person.cancel(run_id)

    async def _at_rest(self) -> bool:
        """Nothing that was due a while ago is open, except what runs."""
        old = self.loop.now() - self.plan.poll - 2_000
        due = await self.store.find(Runs(states=tuple(sorted(OPEN)), due_before=old, limit=100))
        return all(run.state is State.RUNNING and (run.started_at or 0) > old - LONGEST for run in due)


@contextlib.contextmanager
def _listening(world: World) -> Iterator[None]:
    """Silence the engine's own words, and keep those that tell of an error nobody expected."""

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1] is not None:
                world.problems.append(f"{record.getMessage()}: {record.exc_info[1]!r}")

    def unhandled(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        harmless = ("never retrieved", "destroyed but it is pending")  # what a crash leaves behind
        if not any(words in context["message"] for words in harmless):
            world.problems.append(f"{context['message']}: {context.get('exception')!r}")

    logger, ear = logging.getLogger("mainspring"), Ear(logging.ERROR)
    before = (logger.level, logger.propagate)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    logger.addHandler(ear)
    world.loop.set_exception_handler(unhandled)
    try:
        yield
    finally:
        logger.removeHandler(ear)
        logger.level, logger.propagate = before
        logger.setLevel(before[0])


def run_world(
    seed: int,
    *,
    connect: Connect = StormyStore,
    ground: MakeGround = MemoryGround,
    small: bool = False,
    keep_log: bool = False,
) -> Outcome:
    """Live through a world and judge it."""
    world = World(seed, connect, ground, small=small)
    loop = world.loop
    try:
        with _listening(world):
            healed, rest = loop.run_until_complete(world.live())
            for process in world.processes:  # what is read with several statements must not move in between
                process.stop()
            outcome = loop.run_until_complete(_judge(world, healed, rest, keep_log=keep_log))
    except NoRest as error:
        outcome = Outcome(seed=seed, plan=world.plan, report=Report(seed=seed), problems=[str(error)], steps=loop.steps)
    finally:
        for process in world.processes:
            process.dispose()
        world.ground.close()
        loop.close()
    return outcome


async def _judge(world: World, healed: Ms, rest: Ms, *, keep_log: bool) -> Outcome:
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
        longest=LONGEST,
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
    """The same for the same world on any machine: owners are named by their order, traces are left out."""
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
    from mainspring.testing.simulation_main import main

    main()
