"""Small simulated worlds of leaders and locks: processes that pause, die and restart, drifting clocks, a faulty store.

The real `Leader`, `HeldLock` and `LeaseTerm` run in them. After every step of the world each process states, by its own
clock, which terms it trusts: at most one process may trust the same lease, running, stopped or about to die.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from mainspring.backends.memory.store import MemoryStore
from mainspring.engine.leader import Leader
from mainspring.engine.locks.held_lock import HeldLock, LocalWaitQueues
from mainspring.engine.locks.lease_term import LeaseRows, LeaseTerm
from mainspring.model.errors import StoreError
from mainspring.model.events import Event, LeaderElected
from mainspring.model.instant import Ms
from mainspring.model.settings import Settings
from proof.simulated_loop import NodeClock, Process, SimulatedLoop, TrueClock
from proof.simulated_store import FaultyStore, StoreFaults

ELECTION_TTL_MS: Ms = 1_000
TTL_SECONDS = ELECTION_TTL_MS / 1000
CHAOS_SECONDS = 15 * TTL_SECONDS
#: Drift of a clock in parts per million: twenty times that of a broken quartz, half of what the trust margin allows.
DRIFT_PPM = 50_000
SETTINGS = Settings(lease_ttl=ELECTION_TTL_MS, heartbeat=ELECTION_TTL_MS // 3)


class TwoTrustOneLease(AssertionError):
    """More than one process trusts its term."""


class WatchedLoop(SimulatedLoop):
    """Calls `watch` after every round of steps."""

    watch: Callable[[], None] = staticmethod(lambda: None)

    def _run_once(self) -> None:
        super()._run_once()
        self.watch()


class Machine:
    """A machine with its clock, the faults of its store connection, and one process after the other."""

    def __init__(self, world: Elections, index: int) -> None:
        self.world = world
        self.index = index
        rng = world.rng
        ppm = rng.uniform(-DRIFT_PPM, DRIFT_PPM)
        self.clock = NodeClock(world.loop, skew=rng.randrange(-60_000, 60_000), ppm=ppm, booted=rng.randrange(10**9))
        self.store_faults = StoreFaults()
        self.births = 0
        self.start()

    def start(self) -> None:
        self.births += 1
        self.name = f"m{self.index}.{self.births}"
        self.process = Process(self.world.loop, self.name)
        self.world.processes.append(self.process)
        rng = random.Random(f"{self.world.seed}:{self.name}")
        self.rng = rng
        store = FaultyStore(self.world.store, rng, self.store_faults)
        self.leader = Leader(store, self.clock, SETTINGS, self.name, self.world.notes.append)
        self.rows = LeaseRows(store)
        self.lines = LocalWaitQueues()
        self.holds: list[HeldLock] = []
        self.process.start(self._live())

    async def _live(self) -> None:
        self.leader.start()
        await asyncio.gather(self._work(), self._work())

    async def _work(self) -> None:
        """Acquire and release the lock repeatedly; some attempts time out, some hold it for longer than a lease."""
        while True:
            term = LeaseTerm(self.rows, self.clock, "lock", f"{self.name}/{self.rng.getrandbits(40)}", ELECTION_TTL_MS)
            hold = HeldLock(term, self.lines, self.rng, lambda _why: None)
            self.holds = [hold, *[other for other in self.holds if other.term.token is not None][:8]]
            try:
                got = await hold.acquire(self.rng.choice((None, 0.0, TTL_SECONDS, 3 * TTL_SECONDS)))
            except StoreError:
                await asyncio.sleep(self.rng.uniform(0, TTL_SECONDS))
                continue
            if got:
                self.world.tokens.append(hold.token)
                await asyncio.sleep(self.rng.choice((0.1, 0.5, 2.5)) * self.rng.random() * TTL_SECONDS)
                await hold.release()
            await asyncio.sleep(self.rng.random() * TTL_SECONDS / 4)

    def end_faults(self) -> None:
        """Let every request to the store succeed from now on."""
        self.store_faults.slow, self.store_faults.before, self.store_faults.after = StoreFaults().slow, 0.0, 0.0

    def crash(self, back: float) -> None:
        self.process.kill()
        self.world.loop.call_later(back, self.start)

    def pause(self, length: float) -> None:
        process = self.process
        process.stop()
        self.world.loop.call_later(length, process.resume)


class Elections:
    """The world of one seed."""

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
        """Return the processes that trust their term as leader; a stopped one counts, for it may continue any time."""
        return [one.name for one in self.machines if one.process.alive and one.leader.leads]

    def watch(self) -> None:
        """Check, after every step of the world, that at most one process trusts each lease."""
        for what, found in (
            ("lead", self.leaders()),
            ("hold the lock", [one.name for one in self.machines for hold in one.holds if _trusts(one, hold)]),
        ):
            if len(found) > 1:
                raise TwoTrustOneLease(f"world {self.seed} at {self.loop.time():.3f} s: {found} all believe to {what}")

    async def live(self) -> None:
        """Run 15 TTL with faults, then check without faults that a crashed leader is replaced within 2 TTL."""
        await self.store.open()
        self.machines = [Machine(self, index) for index in range(self.rng.randint(2, 4))]
        self.loop.watch = self.watch  # type: ignore[method-assign]
        while self.loop.time() < CHAOS_SECONDS:
            await asyncio.sleep(self.rng.uniform(0, 1.5) * TTL_SECONDS)
            self._harm(self.rng.choice(self.machines))
        for machine in self.machines:
            machine.end_faults()
        await asyncio.sleep(5 * TTL_SECONDS)  # the last pause and the last restart are over
        for _ in range(3):
            assert self.leaders(), f"world {self.seed}: there is no leader without faults"
            (leading,) = [one for one in self.machines if one.name in self.leaders()]
            leading.crash(back=60.0)
            crashed = self.loop.time()
            while not self.leaders():
                assert self.loop.time() - crashed <= 2 * TTL_SECONDS, f"world {self.seed}: no leader after a crash"
                await asyncio.sleep(0.01)
            if len([one for one in self.machines if one.process.alive]) < 2:
                break

    def _harm(self, machine: Machine) -> None:
        rng, store_faults = self.rng, machine.store_faults
        if not machine.process.alive or machine.process.stopped:
            return
        match rng.choice(("pause", "pause", "crash", "slow", "fail", "lose", "fair")):
            case "pause":
                machine.pause(rng.uniform(0.2, 4) * TTL_SECONDS)
            case "crash":
                machine.crash(rng.uniform(0, 2) * TTL_SECONDS)
            case "slow":
                store_faults.slow = rng.uniform(0, 1.2) * TTL_SECONDS
            case "fail":
                store_faults.before = rng.random()
            case "lose":
                store_faults.after = rng.random()
            case _:
                machine.end_faults()


def _trusts(machine: Machine, hold: HeldLock) -> bool:
    return machine.process.alive and hold.term.trusted


def hold_elections(seed: int, store: Callable[..., MemoryStore] = MemoryStore) -> Elections:
    """Run the world of a seed; fail if two processes trusted one lease, or if terms or tokens did not grow."""
    world = Elections(seed, store)
    logger = logging.getLogger("mainspring")
    before, logger.disabled = logger.disabled, True
    engine = logging.getLogger("mainspring.engine")
    engine_before, engine.disabled = engine.disabled, True
    world.loop.set_exception_handler(lambda _loop, _context: None)  # tasks of crashed processes report nothing
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
