"""Real processes for the proof, forked from a process without threads, and the handlers' own log in a plain file."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec.structs import replace

from mainspring import Context
from mainspring.ledger.account import ledger
from mainspring.ledger.verify import verify
from mainspring.ports.clock import SystemClock
from mainspring.runtime.store_url import open_store
from mainspring.testing.history import Call, check, read_history


class CallLog:
    """Log of handler calls: one line when a call begins and one when it ends, appended to a file without any lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @contextlib.contextmanager
    def call(self, ctx: Context) -> Iterator[None]:
        """Log that a call of this attempt begins and, unless it raises, that it ends."""
        self.begin(ctx)
        yield
        self.end(ctx)

    def begin(self, ctx: Context) -> None:
        run = ctx._held.attempt.run
        fire = "-" if run.fire_time is None else run.fire_time
        words = (ctx.run_id, ctx.idempotency_key, run.schedule_id or "-", fire, ctx.attempt, ctx.epoch, os.getpid())
        self._write("begin", *words)

    def end(self, ctx: Context) -> None:
        self._write("end", ctx.run_id, ctx.epoch)

    def say(self, *words: object) -> None:
        """Log a line of the driver's own, apart from calls."""
        self._write("said", *words)

    def _write(self, kind: str, *words: object) -> None:
        os.write(self._file, f"{kind} {time.time_ns() // 1_000_000} {' '.join(map(str, words))}\n".encode())

    def said(self) -> list[list[str]]:
        """Return the driver's lines as words, without kind and time."""
        return [words[2:] for words in self._lines() if words[0] == "said"]

    def count(self, kind: str = "begin") -> int:
        """Return the number of calls that began (or ended) until now."""
        return self.path.read_bytes().count(f"{kind} ".encode())

    def calls(self) -> list[Call]:
        """Return every call in the order of their beginnings."""
        found: dict[tuple[str, int], Call] = {}
        repeated: list[Call] = []
        for kind, at, *words in self._lines():
            if kind == "begin":
                run_id, key, schedule, fire, attempt, token, node = words
                fire_time = None if fire == "-" else int(fire)
                owner = None if schedule == "-" else schedule
                entry = Call(
                    run_id=run_id,
                    key=key,
                    schedule=owner,
                    fire_time=fire_time,
                    attempt=int(attempt),
                    token=int(token),
                    began=int(at),
                    node=node,
                )
                if (run_id, int(token)) in found:
                    repeated.append(entry)  # one lease, two calls: the checker must see both
                found.setdefault((run_id, int(token)), entry)
            elif kind == "end":
                run_id, token = words
                found[run_id, int(token)] = replace(found[run_id, int(token)], ended=int(at))
        return [*found.values(), *repeated]

    def _lines(self) -> list[list[str]]:
        return [line.split() for line in self.path.read_text().splitlines()]


def fork(work: Callable[[], int | None], said: Path | None = None) -> int:
    """Fork a child that runs `work` and exits with its result; its output goes to a file. Return the process id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if said is not None:
            file = os.open(said, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.dup2(file, 1)
            os.dup2(file, 2)
        logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
        code = work() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int, seconds: float = 60.0) -> int:
    """Return the exit code of a child, negative for a signal; kill and report a child that does not end in time."""
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(pid, signal.SIGABRT)  # makes the child print its stacks
            os.waitpid(pid, 0)
            return -signal.SIGALRM
        time.sleep(0.005)


def tell_where_it_hangs() -> None:
    """In a child: SIGABRT prints the stacks."""
    faulthandler.enable()


def wait_until(fact: Callable[[], object], seconds: float = 60.0, what: str = "") -> None:
    """Wait until `fact()` is true; fail after a time-out."""
    end = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < end, f"not within {seconds} s: {what or fact}"
        time.sleep(0.005)


async def violations(url: str, log: CallLog, late: int, lease_ttl: int | None) -> tuple[list[str], Counter[str]]:
    """Check a store after its processes have ended; return the violations and the counts of what was checked.

    Three checks share no code: `events verify` folds the log, the ledger adds up, the history checker compares with
    the fires that were owed and with the handlers' own log.
    """
    store = open_store(url, SystemClock())
    await store.open()
    try:
        report = await verify(store)
        found = [f"events verify: {difference}" for difference in report.differences]
        book = await ledger(store, SystemClock().now())
        if book.unexplained:
            found.append(f"ledger: {book.unexplained} unexplained: {book.differences[:3]}")
        if book.open or book.ad_hoc.open:
            found.append(f"ledger: {book.open + book.ad_hoc.open} runs are still open")
        history = await read_history(store)
    finally:
        await store.close()
    calls = log.calls()
    acknowledged = [words[1] for words in log.said() if words[0] == "acknowledged"]
    until = max((row.cursor for row in history.schedules), default=0)
    judged = check(history, calls, until=until, late=late, lease_ttl=lease_ttl, healed=True, acknowledged=acknowledged)
    if not judged.ok:
        found.append(str(judged))
    counts: Counter[str] = Counter(type(event).__name__ for event in history.events)
    counts.update(planned=book.planned, calls=len(calls), repeated=len(calls) - len({call.run_id for call in calls}))
    return found, counts


def judge(
    url: str, log: CallLog, *, late: int = 60_000, lease_ttl: int | None = None
) -> tuple[list[str], Counter[str]]:
    """Blocking variant of `violations`."""
    return asyncio.run(violations(url, log, late, lease_ttl))
