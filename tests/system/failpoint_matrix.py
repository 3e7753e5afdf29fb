"""All failpoints × {crash, crash_after, raise}: each time a process meets it, another heals, and the books are right.

python failpoint_matrix.py [--jobs N] [--nth 1,2] [point:mode ...]    exit code 1 and the cases when one is not right
python failpoint_matrix.py --reach                                    the points one process reaches, as JSON
python failpoint_matrix.py --postgres ...                             the same on PostgreSQL
python failpoint_matrix.py --redis ...                                the same on Valkey or Redis

A case is two processes after each other on a copy of one small ledger: the first meets the point, the second, with no
point armed, works until nothing is open. Then `events verify`, the ledger, the history checker and the handlers' log
must agree.
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

from nodes import CallLog, fork, judge, tell_where_it_hangs, wait, wait_until

from mainspring import Context, Mainspring, Retry, StoreError
from mainspring.model.run import State
from mainspring.ports.clock import SystemClock
from mainspring.ports.store import Offer, Store
from mainspring.stores.sqlite import SqliteStore
from mainspring.stores.url import open_store
from mainspring.testing.failpoints import EXIT, FAILPOINTS, MODES, VARIABLE, FailingStore, Fuse
from mainspring.testing.virtual import VirtualClock

LEASE = 500
FIRES = {"free": 4, "queued": 4}
PATIENCE = 60


class Ledgers(Protocol):
    """Where the ledgers of the cases live."""

    #: True when a verb is one step of the store, with no points inside.
    whole_steps: bool

    def make(self, url: str, failpoint: Callable[[str], None]) -> Store:
        """The store at a URL, with points in it."""
        ...

    def url(self, root: Path, name: str) -> str:
        """Where a ledger of this name is."""
        ...

    def copy(self, root: Path, name: str) -> None:
        """A new ledger with what is in the template."""
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
    """A ledger with what only time or a dead process leaves: an old run to purge, and one whose worker fell silent."""
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
        (claim,) = (await store.claim(Offer("dead", ("default/default",), ("ghost",), LEASE), 1)).claims
        assert claim.run.id == ghost.id
        await store.close()
        return claim.run.lease_until or 0

    silent_until = asyncio.run(fill())
    own = open_store(url, SystemClock()).capabilities.own_clock
    wait_until(lambda: (SystemClock().now() if own else SystemClock().boot()) > silent_until)


def _nothing() -> None: ...


class Program:
    """The process under test: two schedules that come to an end, ad-hoc work, and one run held at the stop."""

    def __init__(self, folder: Path, make: Callable[[Callable[[str], None]], Store], fuse: Fuse, healing: bool) -> None:
        self.log = CallLog(folder / "calls")
        self.fuse = fuse
        self.healing = healing
        self.store = FailingStore(make, fuse)
        self.ms = Mainspring(
            store=self.store,
            lease_ttl=f"{LEASE}ms",
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
        """The handler between its lines in the log, with the points between those."""
        inner = self.fuse.around(function)

        @functools.wraps(function)
        async def call(ctx: Context, *args: Any) -> Any:
            with self.log.call(ctx):
                return await inner(ctx, *args)

        return call

    async def _once(self, ctx: Context, number: int) -> int:
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
        """Every fire was planned and, but for the held run of the first process, nothing is open."""
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
    """In a child: run the program to its end; 0 also when the store failed at the start, as a supervisor would see."""
    tell_where_it_hangs()
    os.environ.pop(VARIABLE, None)
    if spec is not None:
        os.environ[VARIABLE] = spec
    fuse = Fuse.from_environment()
    url = ledgers.url(folder.parent, folder.name)
    program = Program(folder, lambda point: ledgers.make(url, point), fuse, healing)
    try:
        asyncio.run(program.main())
    except StoreError as error:
        print("the store failed at the start:", error)
    if fuse.blown:
        program.log.say("blown")
    (folder / "reached").write_text(json.dumps({"named": fuse.reached, "raw": sorted(program.store.raw)}))
    fuse.over()
    return 0


def case(ledgers: Ledgers, folder: Path, spec: str) -> list[str]:
    """One case; what is wrong with it."""
    wrong: list[str] = []
    log = CallLog(folder / "calls")
    code = wait(fork(lambda: work(ledgers, folder, spec, False), folder / "first.txt"), PATIENCE)
    expected = 0 if ":raise" in spec else EXIT
    if code != expected:
        wrong.append(f"the first process ended with {code}, not {expected}")
    if expected == 0 and ["blown"] not in log.said():
        wrong.append("the point was not reached")
    code = wait(fork(lambda: work(ledgers, folder, None, True), folder / "second.txt"), PATIENCE)
    if code:
        wrong.append(f"the healing process ended with {code}")
    found, counts = judge(ledgers.url(folder.parent, folder.name), log, lease_ttl=LEASE)
    wrong += found
    if counts["planned"] != sum(FIRES.values()):
        wrong.append(f"planned {counts['planned']}, not {sum(FIRES.values())}")
    return wrong


def run_case(ledgers: Ledgers, root: Path, spec: str) -> int:
    """In a child: a case in a folder of its own; its words are kept only when something is wrong."""
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
    """Run the cases, several at a time; the number that went wrong."""
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
    """The points that one undisturbed process reaches."""
    folder = root / "reach"
    folder.mkdir()
    ledgers.copy(root, folder.name)
    code = wait(fork(lambda: work(ledgers, folder, None, False), folder / "first.txt"), PATIENCE)
    assert code == 0, (folder / "first.txt").read_text()
    return json.loads((folder / "reached").read_text())


def cases(ledgers: Ledgers, root: Path, counts: list[int]) -> list[str]:
    """Every point in every mode; beyond the first time only where an undisturbed process comes by twice as often.

    A script of Redis is one step: it has no points inside, so there only those that are reached are met.
    """
    few = ledgers.whole_steps
    reached = reach(ledgers, root)["named"] if few or max(counts) > 1 else {}
    return [
        f"{point}:{mode}@{nth}"
        for nth in counts
        for point in FAILPOINTS
        for mode in MODES
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
            from pg_server import NO_SERVER, Databases, PowerCut, Unavailable

            try:
                server = PowerCut(root, durable=False)
            except Unavailable as error:
                print(error)
                return NO_SERVER
            stack.callback(server.stop)
            ledgers = Databases(server)
        elif options.redis:
            from redis_power import NO_SERVER, Prefixes, RedisPower, Unavailable

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
