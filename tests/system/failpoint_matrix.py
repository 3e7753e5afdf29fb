"""All failpoints × {crash, crash_after, raise}: a process meets the point, another one recovers, the ledger adds up.

python failpoint_matrix.py [--jobs N] [--nth 1,2] [point:mode ...]    exit code 1 if a case fails, with its reasons
python failpoint_matrix.py --reach                                    print the points that one process reaches, as JSON
python failpoint_matrix.py --postgres ...                             run on PostgreSQL
python failpoint_matrix.py --redis ...                                run on Valkey or Redis

A case is two processes, one after the other, on a copy of one small ledger. The first meets the point; the second, with
no fault, works until no run is open. Then `events verify`, the ledger, the history checker and the handlers' log must
agree.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

sys.path.append(str(Path(__file__).parents[2]))  # a script finds the repository by itself

from mainspring import Context, Mainspring, Retry, StoreError
from mainspring.backends.sqlite import SqliteStore
from mainspring.model.run import State
from mainspring.ports.clock import SystemClock
from mainspring.ports.store import Offer, Store
from mainspring.runtime.store_url import open_store
from mainspring.testing.virtual_time import VirtualClock
from proof.failpoints import (
    FAILPOINT_EXIT_CODE,
    FAILPOINT_MODES,
    FAILPOINT_VARIABLE,
    FAILPOINTS,
    FailingStore,
    FailpointTrigger,
)
from tests.system.nodes import CallLog, fork, judge, tell_where_it_hangs, wait, wait_until

LEASE_MS = 500
FIRES = {"free": 4, "queued": 4}
CASE_SECONDS = 60


class Ledgers(Protocol):
    """Provides the ledgers of the cases on one kind of store."""

    #: True if a store method is one step of the server, with no points inside.
    whole_steps: bool

    def make(self, url: str, failpoint: Callable[[str], None]) -> Store:
        """Return the store at a URL, with its failpoint hook."""
        ...

    def url(self, root: Path, name: str) -> str:
        """Return the URL of a ledger."""
        ...

    def copy(self, root: Path, name: str) -> None:
        """Create a ledger as a copy of the template."""
        ...


class Files:
    """One SQLite file for each case."""

    whole_steps = False

    def make(self, url: str, failpoint: Callable[[str], None]) -> Store:
        return SqliteStore(url.removeprefix("sqlite:///"), failpoint=failpoint)

    def url(self, root: Path, name: str) -> str:
        return f"sqlite:///{root / name}.db"

    def copy(self, root: Path, name: str) -> None:
        shutil.copy(root / f"{TEMPLATE}.db", root / f"{name}.db")


TEMPLATE = "template"


def template(ledgers: Ledgers, root: Path) -> None:
    """Create the template: it has an old run to purge and a run whose worker died, which a case has no time to make."""
    url = ledgers.url(root, TEMPLATE)

    async def fill() -> int:
        ms = Mainspring(url, clock=VirtualClock(1_700_000_000_000))
        old = await ms.task(name="once")(_nothing).enqueue()
        await ms.cancel(old.id)
        await ms.close()
        ms = Mainspring(url)
        ghost = await ms.task(name="ghost")(_nothing).enqueue()
        await ms.close()
        store = open_store(url, SystemClock())
        await store.open()
        (claim,) = (await store.claim(Offer("dead", ("default/default",), ("ghost",), LEASE_MS), 1)).claims
        assert claim.run.id == ghost.id
        await store.close()
        return claim.run.lease_until or 0

    silent_until = asyncio.run(fill())
    own = open_store(url, SystemClock()).capabilities.own_clock
    wait_until(lambda: (SystemClock().now() if own else SystemClock().boot()) > silent_until)


def _nothing() -> None: ...


class Program:
    """The process under test: two schedules that come to an end, ad-hoc work, and one run held at the stop."""

    def __init__(
        self,
        folder: Path,
        make: Callable[[Callable[[str], None]], Store],
        trigger: FailpointTrigger,
        healing: bool,
    ) -> None:
        self.log = CallLog(folder / "calls")
        self.trigger = trigger
        self.healing = healing
        self.store = FailingStore(make, trigger)
        self.ms = Mainspring(
            store=self.store,
            lease_ttl=f"{LEASE_MS}ms",
            poll_interval="100ms",
            concurrency=8,
            shutdown_timeout="10s" if healing else "50ms",
            history="1d",
            rng=random.Random(os.getpid()),
        )
        quick = Retry(max_attempts=4, initial="20ms", jitter=0)
        ms = self.ms
        once, _, hold, tick, slow = (
            ms.task(name=function.__name__.strip("_"), retry=quick)(self._logged(function))
            for function in (self._once, self._ghost, self._hold, self._tick, self._slow)
        )
        self.once, self.hold = once, hold
        ms.every("40ms", name="free", max_runs=FIRES["free"], missed="replay_all", overlap="allow_parallel")(tick)
        ms.every("20ms", name="queued", max_runs=FIRES["queued"], missed="replay_all", overlap="queue_all")(slow)

    def _logged(self, function: Any) -> Any:
        """Wrap a handler in its two lines of the log, with the failpoints between those."""
        inner = self.trigger.wrap_handler(function)

        @functools.wraps(function)
        async def call(ctx: Context, *args: Any) -> Any:
            with self.log.call(ctx):
                return await inner(ctx, *args)

        return call

    async def _once(self, ctx: Context, number: int) -> int:
        ctx.log("number %d", number)
        if number == 1 and ctx.attempt == 1:
            raise ValueError("the first attempt fails")
        return number

    async def _ghost(self, ctx: Context) -> None: ...

    async def _tick(self, ctx: Context) -> None: ...

    async def _slow(self, ctx: Context) -> None:
        await asyncio.sleep(0.03)

    async def _hold(self, ctx: Context) -> None:
        if not self.healing:
            await asyncio.Event().wait()

    async def main(self) -> None:
        running = asyncio.ensure_future(self.ms.run_async())
        try:
            if not self.healing:
                await self._enqueue()
            while not running.done() and not await self._done():
                await asyncio.wait([running], timeout=0.02)
        finally:
            self.ms.stop()
            await running

    async def _enqueue(self) -> None:
        for number in (0, 1, 2):
            with contextlib.suppress(StoreError):
                handle = await self.once.enqueue(number)
                self.log.say("acknowledged", handle.id)
        with contextlib.suppress(StoreError):
            handle = await self.hold.enqueue()
            self.log.say("acknowledged", handle.id)

    async def _done(self) -> bool:
        """Return True if every fire is planned and no run is open, except the held run of the first process."""
        try:
            schedules = await self.ms.schedules()
            runs = await self.ms.runs(limit=1_000)
        except StoreError:
            return False
        open_tasks = {run.task for run in runs if run.ended_at is None}
        held = not self.healing and any(run.task == "hold" and run.state is State.RUNNING for run in runs)
        if held:
            open_tasks.discard("hold")
        return not open_tasks and len(schedules) == 2 and {schedule.state for schedule in schedules} == {"finished"}


def work(ledgers: Ledgers, folder: Path, spec: str | None, healing: bool) -> int:
    """In a child: run the program to its end; return 0 also if the store failed at the start."""
    tell_where_it_hangs()
    os.environ.pop(FAILPOINT_VARIABLE, None)
    if spec is not None:
        os.environ[FAILPOINT_VARIABLE] = spec
    trigger = FailpointTrigger.from_environment()
    url = ledgers.url(folder.parent, folder.name)
    program = Program(folder, lambda point: ledgers.make(url, point), trigger, healing)
    try:
        asyncio.run(program.main())
    except StoreError as error:
        print("the store failed at the start:", error)
    if trigger.has_fired:
        program.log.say("blown")
    (folder / "reached").write_text(json.dumps({"named": trigger.reached, "raw": sorted(program.store.raw)}))
    trigger.over()
    return 0


def case(ledgers: Ledgers, folder: Path, spec: str) -> list[str]:
    """Run one case and return what is wrong."""
    wrong: list[str] = []
    log = CallLog(folder / "calls")
    code = wait(fork(lambda: work(ledgers, folder, spec, False), folder / "first.txt"), CASE_SECONDS)
    expected = 0 if ":raise" in spec else FAILPOINT_EXIT_CODE
    if code != expected:
        wrong.append(f"the first process ended with {code}, not {expected}")
    if expected == 0 and ["blown"] not in log.said():
        wrong.append("the point was not reached")
    code = wait(fork(lambda: work(ledgers, folder, None, True), folder / "second.txt"), CASE_SECONDS)
    if code:
        wrong.append(f"the healing process ended with {code}")
    found, counts = judge(ledgers.url(folder.parent, folder.name), log, lease_ttl=LEASE_MS)
    wrong += found
    if counts["planned"] != sum(FIRES.values()):
        wrong.append(f"planned {counts['planned']}, not {sum(FIRES.values())}")
    return wrong


def run_case(ledgers: Ledgers, root: Path, spec: str) -> int:
    """In a child: run a case in a folder of its own, and print the output of its processes if it fails."""
    folder = root / spec.replace(":", "-")
    folder.mkdir()
    ledgers.copy(root, folder.name)
    began = time.monotonic()
    wrong = case(ledgers, folder, spec)
    for line in wrong:
        print(f"{spec}: {line}")
    if wrong:
        for name in ("first.txt", "second.txt"):
            path = folder / name
            print(f"--- {name}\n{path.read_text()[-3000:] if path.exists() else ''}")
    print(f"{spec} {time.monotonic() - began:.2f} s", flush=True)
    return 1 if wrong else 0


def matrix(ledgers: Ledgers, root: Path, specs: list[str], jobs: int) -> int:
    """Run the cases, `jobs` at a time, and return the number of failures."""
    running: dict[int, str] = {}
    left = list(reversed(specs))
    failed = 0
    while left or running:
        while left and len(running) < jobs:
            spec = left.pop()
            running[fork(lambda spec=spec: run_case(ledgers, root, spec), root / f"{spec}.out")] = spec  # type: ignore[misc]
        pid, status = os.wait()
        spec = running.pop(pid)
        if os.waitstatus_to_exitcode(status):
            failed += 1
            print((root / f"{spec}.out").read_text(), flush=True)
    return failed


def reach(ledgers: Ledgers, root: Path) -> Any:
    """Return the points that one process without a fault reaches."""
    folder = root / "reach"
    folder.mkdir()
    ledgers.copy(root, folder.name)
    code = wait(fork(lambda: work(ledgers, folder, None, False), folder / "first.txt"), CASE_SECONDS)
    assert code == 0, (folder / "first.txt").read_text()
    return json.loads((folder / "reached").read_text())


def cases(ledgers: Ledgers, root: Path, counts: list[int]) -> list[str]:
    """Return every point in every mode, at each of `counts`.

    A count above 1 needs a point that a process without a fault reaches at least twice that number of times. A Redis
    script is one step without points inside, so only the points that are reached there are tried.
    """
    few = ledgers.whole_steps
    reached = reach(ledgers, root)["named"] if few or max(counts) > 1 else {}
    return [
        f"{point}:{mode}@{nth}"
        for nth in counts
        for point in FAILPOINTS
        for mode in FAILPOINT_MODES
        if (nth == 1 and not few) or reached.get(point, 0) >= (1 if nth == 1 else 2 * nth)
    ]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--nth", default="1")
    parser.add_argument("--reach", action="store_true")
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--redis", action="store_true")
    parser.add_argument("specs", nargs="*")
    options = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with tempfile.TemporaryDirectory(prefix="failpoints-") as name, contextlib.ExitStack() as stack:
        root = Path(name)
        ledgers: Ledgers = Files()
        if options.postgres:
            from tests.system.pg_server import NO_SERVER, Databases, PowerCut, Unavailable

            try:
                server = PowerCut(root, durable=False)
            except Unavailable as error:
                print(error)
                return NO_SERVER
            stack.callback(server.stop)
            ledgers = Databases(server)
        elif options.redis:
            from tests.system.redis_power import NO_SERVER, Prefixes, RedisPower, Unavailable

            try:
                power = RedisPower()
            except Unavailable as error:
                print(error)
                return NO_SERVER
            stack.callback(power.stop)
            ledgers = Prefixes(power.server)
        assert wait(fork(lambda: template(ledgers, root))) == 0
        if options.reach:
            print(json.dumps(reach(ledgers, root)))
            return 0
        specs = options.specs or cases(ledgers, root, [int(nth) for nth in options.nth.split(",")])
        began = time.monotonic()
        failed = matrix(ledgers, root, specs, options.jobs)
        print(f"{len(specs)} cases, {failed} with violations, {time.monotonic() - began:.1f} s")
        return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
