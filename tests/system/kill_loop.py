"""kill -9 and SIGSTOP at random moments on two processes that share one SQLite file.

python kill_loop.py --kills 200 --stops 20 [--seed N]          exit code 1 for any violation, with the reasons

Each process plans five schedules (together 28 fires a second), enqueues work of its own and logs every call. A killed
process is replaced at once. A stopped process sleeps 1.5 to 4 leases and then continues with the runs that it believes
to hold. Beside them a process that only enqueues, one run after the other, is killed as well.
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
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # a script finds the repository by itself

from mainspring import Context, Mainspring, Retry, StoreError
from mainspring.engine.commit.inline_writer import INLINE_AFTER_CHANGES
from mainspring.model.events import LeaseExpired, StaleResultRejected
from mainspring.ports.broker import Broker
from mainspring.ports.clock import SystemClock
from mainspring.ports.store import Events
from mainspring.runtime.store_url import open_store
from tests.system.nodes import CallLog, fork, judge, tell_where_it_hangs, wait, wait_until

LEASE_MS = 600
SCHEDULES = {"a": "125ms", "b": "125ms", "c": "200ms", "d": "250ms"}
QUEUED = "e"
MIN_FIRES_PER_SECOND = 20
ALL = (*SCHEDULES, QUEUED)


def node(folder: Path, url: str, lease: int, ending: bool = False, broker: Broker | None = None) -> int:
    """In a child: plan and work until stopped; with `ending`, pause the schedules and finish all remaining runs."""
    tell_where_it_hangs()
    log = CallLog(folder / "calls")
    ms = Mainspring(
        url,
        broker=broker,
        lease_ttl=f"{lease}ms",
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


def caller(folder: Path, url: str) -> int:
    """In a child: enqueue until killed; a process without a worker soon uses the inline writer."""
    tell_where_it_hangs()
    log = CallLog(folder / "calls")
    ms = Mainspring(url)

    @ms.task(max_crashes=1_000)
    async def quick(ctx: Context) -> None: ...

    async def main() -> None:
        while True:
            log.say("acknowledged", (await quick.enqueue()).id, os.getpid())
            await asyncio.sleep(0.02)

    asyncio.run(main())
    return 0


class Loop:
    """Some processes on one ledger, and the blows (kills, stops) that hit them."""

    #: True if there is also a process that only enqueues.
    calls = False

    def __init__(self, folder: Path, seed: int, urls: list[str], lease: int = LEASE_MS) -> None:
        self.folder = folder
        self.rng = random.Random(seed)
        self.log = CallLog(folder / "calls")
        self.lease = lease
        #: The URL of the store for each process; the checks use the first one.
        self.urls = urls
        self.url = urls[0]
        self.nodes: list[int] = []
        #: Process id of the process that only enqueues; 0 if there is none.
        self.caller = 0
        self.called = 0
        self.wrong: list[str] = []
        #: Seconds for which the schedules were planned.
        self.seconds = 0.0
        #: (process, stopped at, went on at), wall time in milliseconds
        self.pauses: list[tuple[int, int, int]] = []
        self.blows: dict[str, Callable[[int], None]] = {"kill": self.hit, "stop": self.hold}

    def start(self, place: int, ending: bool = False) -> int:
        url = self.urls[place]
        return fork(lambda: node(self.folder, url, self.lease, ending), self.folder / "nodes.txt")

    def call(self) -> None:
        """Kill the process that only enqueues, and start another one that runs until it uses the inline writer."""
        self.end_caller()
        self.caller = fork(lambda: caller(self.folder, self.url), self.folder / "nodes.txt")
        self.called += 1
        mark = f" {self.caller}\n".encode()
        self.until(lambda: self.log.path.read_bytes().count(mark) > INLINE_AFTER_CHANGES + 5, "a process enqueues")

    def end_caller(self) -> None:
        """Kill the process that only enqueues, in the middle of its work."""
        pid, self.caller = self.caller, 0
        if pid:
            os.kill(pid, signal.SIGKILL)
            if (code := wait(pid)) != -signal.SIGKILL:
                self.wrong.append(f"the process that only enqueues ended by itself with {code}")

    def run(self, counts: dict[str, int]) -> None:
        """Run the processes and deal blows: `counts` of each kind, in random order."""
        began = time.monotonic()
        self.nodes = [self.start(place) for place in range(len(self.urls))]
        self._progress(10)
        blows = [blow for blow, count in counts.items() for _ in range(count)]
        self.rng.shuffle(blows)
        for count, blow in enumerate(blows, 1):
            if self.calls and count % 5 == 1:
                self.call()
            self.blows[blow](self.rng.randrange(len(self.nodes)))
            if count % 20 == 0:
                print(f"{count}/{len(blows)} after {time.monotonic() - began:.0f} s", flush=True)
        for _ in range(10 if counts["stop"] else 0):  # a stop between two calls shows nothing
            if self.zombies(asyncio.run(taken_and_refused(self.url))[0]):
                break
            self.hold(self.rng.randrange(len(self.nodes)))
        self._progress(40)
        self.seconds = time.monotonic() - began
        self.end_caller()
        for pid in self.nodes:
            os.kill(pid, signal.SIGTERM)
        for pid in self.nodes:
            if (code := wait(pid, 30)) != 0:
                self.wrong.append(f"a process ended with {code} at SIGTERM")
        self.nodes = []
        # The schedule without overlap is far behind: after each kill of a gate's holder its lease had to end first.
        if (code := wait(self.start(0, ending=True), 60 + self.seconds)) != 0:
            self.wrong.append(f"the last process ended with {code}")

    def tell_why(self) -> None:
        """After a failed wait: print the output of the processes and their stacks."""
        for pid in self.nodes:
            os.kill(pid, signal.SIGABRT)
            wait(pid)
        self.nodes = []
        print(self.said(), flush=True)

    def said(self) -> str:
        """Return the end of the output of the processes, without the errors that are intended."""
        lines = (self.folder / "nodes.txt").read_text().splitlines()
        return "\n".join(line for line in lines if "every odd attempt fails" not in line)[-20_000:]

    def until(self, fact: Callable[[], object], what: str) -> None:
        """Wait until `fact()` is true; fail if a process ends by itself meanwhile."""

        def or_death() -> object:
            for pid in self.nodes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    self.nodes.remove(pid)
                    raise AssertionError(f"a process ended by itself with {os.waitstatus_to_exitcode(status)}")
            return fact()

        wait_until(or_death, 60, what)

    def hit(self, victim: int) -> None:
        """Kill a process at a random moment of the work."""
        self._progress(self.rng.randint(0, 14))
        self.kill(victim)

    def hold(self, victim: int) -> None:
        """Stop a process at a random moment of the work."""
        self._progress(self.rng.randint(4, 14))
        self.stop(victim)

    def end(self) -> None:
        """Kill all processes that are left."""
        self.end_caller()
        for pid in self.nodes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill(self, victim: int) -> None:
        os.kill(self.nodes[victim], signal.SIGKILL)
        if (code := wait(self.nodes[victim])) != -signal.SIGKILL:
            self.wrong.append(f"a process ended by itself with {code}")
        self.nodes[victim] = self.start(victim)

    def stop(self, victim: int) -> None:
        """Stop a process for longer than its leases; the others continue, and one is sometimes killed meanwhile."""
        pid = self.nodes[victim]
        os.kill(pid, signal.SIGSTOP)
        stopped = now()
        until = time.monotonic() + self.rng.uniform(1.5, 4.0) * self.lease / 1000
        if self.rng.random() < 0.3:
            # Not a moment of the work: a process stopped inside a transaction keeps SQLite's lock, and all wait.
            time.sleep(self.rng.uniform(0.0, 0.5) * self.lease / 1000)
            self.kill((victim + 1) % len(self.nodes))
        time.sleep(max(0.0, until - time.monotonic()))
        os.kill(pid, signal.SIGCONT)
        self.pauses.append((pid, stopped, now()))
        self.works_again([pid])

    def works_again(self, pids: list[int]) -> None:
        """Wait until each of the processes has begun five more calls."""
        goals = {pid: self._begun(pid) + 5 for pid in pids}
        what = "a process that was left in peace works again"
        self.until(lambda: all(self._begun(pid) >= goal for pid, goal in goals.items()), what)

    def _begun(self, pid: int) -> int:
        return self.log.path.read_bytes().count(f" {pid}\n".encode())

    def _progress(self, calls: int) -> None:
        """Wait until `calls` more calls have begun: blows fall at random moments of the work, not of the clock."""
        goal = self.log.count() + calls
        self.until(lambda: self.log.count() >= goal, f"{calls} more calls")

    def zombies(self, taken: dict[tuple[str, int], int]) -> set[tuple[str, int]]:
        """Return run and token of the calls in a stopped process whose leases were ended by another one meanwhile."""
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


async def taken_and_refused(url: str) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], str]]:
    """Return run and token → when the lease expired, and run and token → the outcome that was refused."""
    store = open_store(url, SystemClock())
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


def report(loop: Loop, counts: dict[str, int], took: float) -> int:
    """Check the store, print the figures and the violations; return 1 if there are any."""
    found, seen = judge(loop.url, loop.log, late=30_000, lease_ttl=loop.lease)
    wrong = loop.wrong + found
    taken, refused = asyncio.run(taken_and_refused(loop.url))
    zombies = loop.zombies(taken)
    if counts["stop"] and not zombies:
        wrong.append("no call was under way in a stopped process: the test shows nothing")
    if missing := zombies - set(refused):
        wrong.append(f"{len(missing)} of {len(zombies)} stale results left no StaleResultRejected: {missing}")
    rate = seen["planned"] / loop.seconds
    if rate < MIN_FIRES_PER_SECOND:
        wrong.append(f"only {rate:.1f} fires/s, {MIN_FIRES_PER_SECOND} wanted")
    print(
        f"{', '.join(f'{count} {blow}s' for blow, count in counts.items())}, "
        f"{loop.called} kills of one that only enqueues, {took:.0f} s, "
        f"{seen['planned']} fires ({rate:.0f}/s), "
        f"{seen['RunStarted']} attempts, {seen['calls']} calls, {seen['repeated']} repeated with their key, "
        f"{seen['LeaseExpired']} leases ended, "
        f"{len(zombies)} held across a stop, {len(zombies - missing)} of them refused; "
        f"{seen['StaleResultRejected']} stale results refused "
        f"({sum(kind == 'Succeeded' for kind in refused.values())} of them successes); {len(wrong)} violations"
    )
    for line in wrong:
        print(line)
    if wrong:
        print(loop.said())
    return 1 if wrong else 0


class SqliteLoop(Loop):
    """The kill loop on one SQLite file."""

    calls = True


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--stops", type=int, default=3)
    parser.add_argument("--seed", type=int, default=20261115)
    options = parser.parse_args()
    counts = {"kill": options.kills, "stop": options.stops}
    with tempfile.TemporaryDirectory(prefix="kill-") as name:
        loop = SqliteLoop(Path(name), options.seed, [f"sqlite:///{Path(name) / 'x.db'}"] * 2)
        began = time.monotonic()
        try:
            loop.run(counts)
        except AssertionError:
            loop.tell_why()
            raise
        finally:
            loop.end()
        return report(loop, counts, time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())
