"""kill -9 and SIGSTOP at random moments on two processes that share one SQLite file.

python kill_loop.py --kills 200 --stops 20 [--seed N]          exit code 1 and the reasons when something is not right

Each process plans five schedules (together 28 fires a second), enqueues work of its own and writes every call down. A
killed one is replaced at once; a stopped one sleeps 1.5 to 4 leases and then goes on with what it believes to hold.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from nodes import CallLog, fork, judge, tell_where_it_hangs, wait, wait_until

from mainspring import Context, Mainspring, Retry, StoreError
from mainspring.model.events import LeaseExpired, StaleResultRejected
from mainspring.ports.store import Events
from mainspring.stores.sqlite import SqliteStore

LEASE = 600
SCHEDULES = {"a": "125ms", "b": "125ms", "c": "200ms", "d": "250ms"}
QUEUED = "e"
RATE = 20
ALL = (*SCHEDULES, QUEUED)


def node(folder: Path, ending: bool = False) -> int:
    """In a child: plan and work until told to stop; the last one pauses the schedules and works off the rest."""
    tell_where_it_hangs()
    log = CallLog(folder / "calls")
    ms = Mainspring(
        f"sqlite:///{folder / 'x.db'}",
        lease_ttl=f"{LEASE}ms",
        poll_interval="200ms",
        concurrency=20,
        shutdown_timeout="5s",
        rng=random.Random(os.getpid()),
    )
    often = Retry(max_attempts=5, initial="50ms", jitter=0)

    @ms.task(max_crashes=1_000, retry=often)
    async def quick(ctx: Context) -> None:
        with log.call(ctx):
            pass

    @ms.task(max_crashes=1_000, retry=often)
    async def coroutine(ctx: Context) -> None:
        with log.call(ctx):
            await asyncio.sleep(0.2)

    @ms.task(max_crashes=1_000, retry=often)
    def thread(ctx: Context) -> None:
        with log.call(ctx):
            threading.Event().wait(0.3)

    @ms.task(max_crashes=1_000, retry=often)
    async def failing(ctx: Context) -> None:
        with log.call(ctx):
            if ctx.attempt % 2:
                raise ValueError("every odd attempt fails")

    work = {"a": quick, "b": coroutine, "c": thread, "d": failing}
    for name, interval in SCHEDULES.items():
        ms.every(interval, name=name, missed="replay_all", overlap="allow_parallel")(work[name])
    ms.every("250ms", name=QUEUED, missed="replay_all", overlap="queue_all")(quick)

    async def main() -> None:
        running = asyncio.ensure_future(ms.run_async(until_idle=ending))
        try:
            while not running.done():
                try:
                    handle = await quick.enqueue()
                    log.say("acknowledged", handle.id)
                except StoreError as error:
                    print("not enqueued:", error)
                if ending:
                    break
                await asyncio.wait([running], timeout=0.1)
        finally:
            await running

    async def pause() -> None:
        for name in ALL:
            await ms.pause(name, reason="the loop is over")
        await ms.close()

    if ending:
        asyncio.run(pause())
    asyncio.run(main())
    return 0


class Loop:
    """Two processes, and what happens to them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.rng = random.Random(seed)
        self.log = CallLog(folder / "calls")
        self.nodes: list[int] = []
        self.wrong: list[str] = []
        #: (process, stopped at, went on at), wall time in milliseconds
        self.pauses: list[tuple[int, int, int]] = []
        self.repeats: list[float] = []

    def start(self) -> int:
        return fork(lambda: node(self.folder), self.folder / "nodes.txt")

    def run(self, kills: int, stops: int) -> None:
        self.nodes = [self.start(), self.start()]
        self._progress(10)
        began = time.monotonic()
        blows = ["kill"] * kills + ["stop"] * stops
        self.rng.shuffle(blows)
        for count, blow in enumerate(blows, 1):
            victim = self.rng.randrange(2)
            if blow == "kill":
                self._progress(self.rng.randint(0, 14))
                self.kill(victim)
            else:
                self._progress(self.rng.randint(4, 14))
                self.stop(victim)
            if count % 20 == 0:
                print(f"{count}/{len(blows)} after {time.monotonic() - began:.0f} s", flush=True)
        for _ in range(10 if stops else 0):  # a stop between two calls shows nothing
            if self.zombies(asyncio.run(taken_and_refused(self.folder / "x.db"))[0]):
                break
            self._progress(self.rng.randint(4, 14))
            self.stop(self.rng.randrange(2))
        self._progress(40)
        for pid in self.nodes:
            os.kill(pid, signal.SIGTERM)
        for pid in self.nodes:
            if (code := wait(pid, 30)) != 0:
                self.wrong.append(f"a process ended with {code} at SIGTERM")
        self.nodes = []
        if (code := wait(fork(lambda: node(self.folder, True), self.folder / "nodes.txt"), 60)) != 0:
            self.wrong.append(f"the last process ended with {code}")

    def end(self) -> None:
        """Leave no process behind, whatever happened."""
        for pid in self.nodes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill(self, victim: int) -> None:
        os.kill(self.nodes[victim], signal.SIGKILL)
        if (code := wait(self.nodes[victim])) != -signal.SIGKILL:
            self.wrong.append(f"a process ended by itself with {code}")
        self.nodes[victim] = self.start()

    def stop(self, victim: int) -> None:
        """Longer than its leases; the other goes on, and is sometimes killed meanwhile."""
        pid = self.nodes[victim]
        os.kill(pid, signal.SIGSTOP)
        stopped = now()
        until = time.monotonic() + self.rng.uniform(1.5, 4.0) * LEASE / 1000
        if self.rng.random() < 0.3:
            # Not a moment of the work: a process stopped inside a transaction keeps SQLite's lock, and all wait.
            time.sleep(self.rng.uniform(0.0, 0.5) * LEASE / 1000)
            self.kill(1 - victim)
        time.sleep(max(0.0, until - time.monotonic()))
        os.kill(pid, signal.SIGCONT)
        self.pauses.append((pid, stopped, now()))
        mine = f" {pid}\n".encode()
        before = self.log.path.read_bytes().count(mine)
        wait_until(lambda: self.log.path.read_bytes().count(mine) >= before + 5, 60, "a continued process works again")

    def _progress(self, calls: int) -> None:
        """Wait until so many more calls began: random moments of the work, not of the clock."""
        goal = self.log.count() + calls
        wait_until(lambda: self.log.count() >= goal, 60, f"{calls} more calls")

    def zombies(self, taken: dict[tuple[str, int], int]) -> set[tuple[str, int]]:
        """Calls under way in a stopped process whose lease another ended meanwhile: run and token."""
        return {
            (call.run_id, call.token)
            for call in self.log.calls()
            for pid, stopped, went_on in self.pauses
            if call.node == str(pid)
            and call.began < stopped
            and (call.ended is None or call.ended >= went_on)
            and stopped <= taken.get((call.run_id, call.token), 0) < went_on
        }


def now() -> int:
    return time.time_ns() // 1_000_000


async def taken_and_refused(db: Path) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], str]]:
    """Leases that ended and when, and results that were refused, by run and token."""
    store = SqliteStore(db)
    await store.open()
    try:
        events = await store.find(Events(types=("LeaseExpired", "StaleResultRejected"), limit=1_000_000))
    finally:
        await store.close()
    taken = {(event.run_id or "", event.epoch or 0): event.at for event in events if isinstance(event, LeaseExpired)}
    refused = {
        (event.run_id or "", event.epoch or 0): event.outcome
        for event in events
        if isinstance(event, StaleResultRejected)
    }
    return taken, refused


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--stops", type=int, default=3)
    parser.add_argument("--seed", type=int, default=20261115)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kill-") as name:
        loop = Loop(Path(name), options.seed)
        began = time.monotonic()
        try:
            loop.run(options.kills, options.stops)
        finally:
            loop.end()
        took = time.monotonic() - began
        found, counts = judge(loop.folder / "x.db", loop.log, late=30_000, lease_ttl=LEASE)
        wrong = loop.wrong + found
        taken, refused = asyncio.run(taken_and_refused(loop.folder / "x.db"))
        zombies = loop.zombies(taken)
        if options.stops and not zombies:
            wrong.append("no call was under way in a stopped process: the test shows nothing")
        if missing := zombies - set(refused):
            wrong.append(f"{len(missing)} of {len(zombies)} stale results left no StaleResultRejected: {missing}")
        rate = counts["planned"] / took
        if rate < RATE:
            wrong.append(f"only {rate:.1f} fires/s, {RATE} wanted")
        print(
            f"{options.kills} kills, {options.stops} stops, {took:.0f} s, {counts['planned']} fires ({rate:.0f}/s), "
            f"{counts['RunStarted']} attempts, {counts['calls']} calls, {counts['repeated']} repeated with their key, "
            f"{counts['LeaseExpired']} leases ended, "
            f"{len(zombies)} held across a stop, {len(zombies - missing)} of them refused; "
            f"{counts['StaleResultRejected']} stale results refused "
            f"({sum(kind == 'Succeeded' for kind in refused.values())} of them successes); {len(wrong)} violations"
        )
        for line in wrong:
            print(line)
        if wrong:
            print((loop.folder / "nodes.txt").read_text()[-8_000:])
        return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
