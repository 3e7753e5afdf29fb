"""Small worlds of leaders and locks: processes that pause, die and come back, drifting clocks, a store in bad weather.

The real `Leader`, `Hold` and `Term` run in them. After every step of the world each process is asked, by its own clock,
what it believes to hold: never two the same, whether they are running, stopped, or about to die.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from mainspring.engine.hold import Hold, Lines
from mainspring.engine.leader import Leader
from mainspring.engine.term import LeaseRows, Term
from mainspring.model.errors import StoreError
from mainspring.model.events import Event, LeaderElected
from mainspring.model.instant import Ms
from mainspring.model.settings import Settings
from mainspring.stores.memory import MemoryStore
from mainspring.testing.simulated_loop import NodeClock, Process, SimulatedLoop, TrueClock
from mainspring.testing.simulated_store import StormyStore, Weather

TTL: Ms = 1_000
SECONDS = TTL / 1000
CHAOS = 15 * SECONDS
#: Parts per million: twenty times what a broken quartz does, half of what the trust margin allows.
DRIFT = 50_000
SETTINGS = Settings(lease_ttl=TTL, heartbeat=TTL // 3)


class TwoBelieve(AssertionError):
    """More than one process trusts its term."""


class WatchedLoop(SimulatedLoop):
    """Asks after every round of steps."""

    watch: Callable[[], None] = staticmethod(lambda: None)

    def _run_once(self) -> None:
        super()._run_once()
        self.watch()


class Machine:
    """A clock and a way to the store, and one process after the other."""

    def __init__(self, world: Elections, index: int) -> None:
        self.world = world
        self.index = index
        rng = world.rng
        ppm = rng.uniform(-DRIFT, DRIFT)
        self.clock = NodeClock(world.loop, skew=rng.randrange(-60_000, 60_000), ppm=ppm, booted=rng.randrange(10**9))
        self.weather = Weather()
        self.births = 0
        self.start()

    def start(self) -> None:
        self.births += 1
        self.name = f"m{self.index}.{self.births}"
        self.process = Process(self.world.loop, self.name)
        self.world.processes.append(self.process)
        rng = random.Random(f"{self.world.seed}:{self.name}")
        self.rng = rng
        store = StormyStore(self.world.store, rng, self.weather)
        self.leader = Leader(store, self.clock, SETTINGS, self.name, self.world.notes.append)
        self.rows = LeaseRows(store)
        self.lines = Lines()
        self.holds: list[Hold] = []
        self.process.start(self._live())

    async def _live(self) -> None:
        self.leader.start()
        await asyncio.gather(self._work(), self._work())

    async def _work(self) -> None:
        """Hold the lock for a while, again and again; sometimes for much longer than a lease, sometimes in vain."""
        while True:
            term = Term(self.rows, self.clock, "lock", f"{self.name}/{self.rng.getrandbits(40)}", TTL)
            hold = Hold(term, self.lines, self.rng, lambda _why: None)
            self.holds = [hold, *[other for other in self.holds if other.term.token is not None][:8]]
            try:
                got = await hold.acquire(self.rng.choice((None, 0.0, SECONDS, 3 * SECONDS)))
            except StoreError:
                await asyncio.sleep(self.rng.uniform(0, SECONDS))
                continue
            if got:
                self.world.tokens.append(hold.token)
                await asyncio.sleep(self.rng.choice((0.1, 0.5, 2.5)) * self.rng.random() * SECONDS)
                await hold.let_go()
            await asyncio.sleep(self.rng.random() * SECONDS / 4)

    def crash(self, back: float) -> None:
        self.process.kill()
        self.world.loop.call_later(back, self.start)

    def pause(self, length: float) -> None:
        process = self.process
        process.stop()
        self.world.loop.call_later(length, process.proceed)


class Elections:
    """One seed's world."""

    def __init__(self, seed: int, store: Callable[..., MemoryStore] = MemoryStore) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.loop = WatchedLoop()
        self.store = store(TrueClock(self.loop))
        self.processes: list[Process] = []
        self.notes: list[Event] = []
        self.tokens: list[int] = []
        self.machines: list[Machine] = []

    def leaders(self) -> list[str]:
        """Who trusts its term at this very moment; a stopped process would, if it went on now."""
        return [one.name for one in self.machines if one.process.alive and one.leader.leads]

    def watch(self) -> None:
        """Called after every step of the world."""
        for what, found in (
            ("lead", self.leaders()),
            ("hold the lock", [one.name for one in self.machines for hold in one.holds if _trusts(one, hold)]),
        ):
            if len(found) > 1:
                raise TwoBelieve(f"world {self.seed} at {self.loop.time():.3f} s: {found} all believe to {what}")

    async def live(self) -> None:
        """Fifteen TTL of faults, then calm: there is a leader, and another within two TTL of its crash."""
        await self.store.open()
        self.machines = [Machine(self, index) for index in range(self.rng.randint(2, 4))]
        self.loop.watch = self.watch  # type: ignore[method-assign]
        while self.loop.time() < CHAOS:
            await asyncio.sleep(self.rng.uniform(0, 1.5) * SECONDS)
            self._harm(self.rng.choice(self.machines))
        for machine in self.machines:
            machine.weather.slow, machine.weather.before, machine.weather.after = Weather().slow, 0.0, 0.0
        await asyncio.sleep(5 * SECONDS)  # the last pause and the last restart are over
        for _ in range(3):
            assert self.leaders(), f"world {self.seed}: nobody leads in calm weather"
            (leading,) = [one for one in self.machines if one.name in self.leaders()]
            leading.crash(back=60.0)
            crashed = self.loop.time()
            while not self.leaders():
                assert self.loop.time() - crashed <= 2 * SECONDS, f"world {self.seed}: nobody leads after a crash"
                await asyncio.sleep(0.01)
            if len([one for one in self.machines if one.process.alive]) < 2:
                break

    def _harm(self, machine: Machine) -> None:
        rng, weather = self.rng, machine.weather
        if not machine.process.alive or machine.process.stopped:
            return
        match rng.choice(("pause", "pause", "crash", "slow", "fail", "lose", "fair")):
            case "pause":
                machine.pause(rng.uniform(0.2, 4) * SECONDS)
            case "crash":
                machine.crash(rng.uniform(0, 2) * SECONDS)
            case "slow":
                weather.slow = rng.uniform(0, 1.2) * SECONDS
            case "fail":
                weather.before = rng.random()
            case "lose":
                weather.after = rng.random()
            case _:
                weather.slow, weather.before, weather.after = Weather().slow, 0.0, 0.0


def _trusts(machine: Machine, hold: Hold) -> bool:
    return machine.process.alive and hold.term.trusted


def hold_elections(seed: int, store: Callable[..., MemoryStore] = MemoryStore) -> Elections:
    """Live through a world; an error tells what was wrong with it."""
    world = Elections(seed, store)
    logger = logging.getLogger("mainspring")
    before, logger.disabled = logger.disabled, True
    engine = logging.getLogger("mainspring.engine")
    engine_before, engine.disabled = engine.disabled, True
    world.loop.set_exception_handler(lambda _loop, _context: None)  # what dies in a crash says nothing
    try:
        world.loop.run_until_complete(world.live())
    finally:
        logger.disabled, engine.disabled = before, engine_before
        for process in world.processes:
            process.dispose()
        world.loop.close()
    terms = [note.term for note in world.notes if isinstance(note, LeaderElected)]
    assert terms == sorted(set(terms)), f"world {seed}: a term was won twice, or out of order: {terms}"
    assert world.tokens == sorted(set(world.tokens)), f"world {seed}: tokens do not grow: {world.tokens}"
    return world
