"""A schedule of the service calls a real agent every second, while instances are killed and replaced.

python agent_loop.py --store sqlite|postgres --seconds 60 [--kill-every 3] [--seed N]

The agent's own log must contain exactly one idempotency key for each second, and no second may be missing. On
PostgreSQL two instances share the server; on SQLite there is one. Exit code 1, with the reasons, for any violation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
import urllib.request
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))  # a script finds the repository by itself

from mainspring.engine.presence import list_instances
from mainspring.ledger.account import ledger
from mainspring.ledger.verify import verify
from mainspring.model.run import ENDED, Run, State
from mainspring.ports.clock import SystemClock
from mainspring.ports.store import Runs
from mainspring.runtime.store_url import open_store
from tests.agents.agent_process import AgentProcess
from tests.system.nodes import fork, wait, wait_until
from tests.system.pg_server import NO_SERVER, PowerCut, Unavailable

LEASE_DURATION = "1500ms"
NAME = "beat"


def node(url: str, folder: Path) -> int:
    """In a child: `mainspring serve`, until it is killed or told to stop."""
    os.chdir(folder)  # it contains no configuration file
    os.environ.update(
        MAINSPRING_SCHEDULER__LEASE_TTL=LEASE_DURATION,
        MAINSPRING_SCHEDULER__POLL_INTERVAL="200ms",
        MAINSPRING_SCHEDULER__SHUTDOWN_TIMEOUT="5s",
        MAINSPRING_SERVER__ACCESS_LOG="false",
    )
    command = str(Path(sys.executable).with_name("mainspring"))
    os.execv(command, [command, "serve", "--store", url, "--port", "0"])


def serving(said: Path) -> str | None:
    """Return the URL of the first instance, as soon as it has logged it."""
    found = re.search(r"serves at (http://\S+)", said.read_text()) if said.exists() else None
    return None if found is None else found[1]


def create(service: str, agent: str, start: datetime, end: datetime) -> None:
    """Create the schedule over REST."""
    wanted = {
        "name": NAME,
        "cronExpression": "* * * * * *",
        "agentId": "beat",
        "agentUrl": agent,
        "payload": {"beat": True},
        "startAt": start.isoformat(),
        "endAt": end.isoformat(),
        "timeoutMs": 5_000,
        "retryPolicy": {"maxAttempts": 20, "initialDelayMs": 50, "backoffMultiplier": 2, "maxDelayMs": 5_000},
    }
    request = urllib.request.Request(
        f"{service}/api/schedules", json.dumps(wanted).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 201, answer.read()


async def runs(url: str) -> list[Run]:
    store = open_store(url, SystemClock())
    await store.open()
    try:
        return await store.find(Runs(limit=100_000))
    finally:
        await store.close()


async def joined(url: str) -> set[int]:
    """Return the process ids of the instances that have joined."""
    store = open_store(url, SystemClock())
    await store.open()
    try:
        return {instance.pid for _, instance in await list_instances(store)}
    finally:
        await store.close()


async def account(url: str, seconds: int) -> list[str]:
    """Check the store: event log, ledger and states of the runs; return what is wrong."""
    store = open_store(url, SystemClock())
    await store.open()
    try:
        wrong = [f"events verify: {report.differences[:3]}" for report in [await verify(store)] if not report.ok]
        book = await ledger(store, SystemClock().now())
        if book.unexplained:
            wrong.append(f"{book.unexplained} fires are unexplained")
        states = Counter(run.state for run in await store.find(Runs(limit=100_000)))
        if states != {State.SUCCEEDED: seconds}:
            wrong.append(f"runs ended as {dict(states)} instead of {seconds} times succeeded")
        return wrong
    finally:
        await store.close()


def judge(calls: list[dict[str, Any]], start: datetime, seconds: int) -> list[str]:
    """Check the agent's own log; return what is wrong."""
    planned = {start + timedelta(seconds=number) for number in range(1, seconds + 1)}
    keys: dict[datetime, set[str]] = defaultdict(set)
    for call in calls:
        keys[datetime.fromisoformat(call["headers"]["X-Fire-Time"])].add(call["key"])
    wrong = [f"{at:%H:%M:%S} was never called" for at in sorted(planned - keys.keys())]
    wrong += [f"{at:%H:%M:%S} was called but never planned" for at in sorted(keys.keys() - planned)]
    wrong += [f"{at:%H:%M:%S} has {len(found)} keys" for at, found in sorted(keys.items()) if len(found) != 1]
    fires = defaultdict(set)
    for at, found in keys.items():
        for key in found:
            fires[key].add(at)
    return wrong + [f"the key {key} stands for {len(ats)} fires" for key, ats in fires.items() if len(ats) != 1]


def loop(url: str, size: int, seconds: int, every: float, rng: random.Random, folder: Path) -> int:
    agent = AgentProcess(folder)
    said = folder / "said.txt"

    def start() -> int:
        return fork(lambda: node(url, folder), said)

    nodes = [start()]
    wait_until(lambda: serving(said), 60, "the service listens")
    begin = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
    end = begin + timedelta(seconds=seconds)
    create(serving(said) or "", agent.url("/slow/0.3"), begin + timedelta(seconds=1), end)
    wait_until(lambda: agent.calls(), 60, "the first call is made")  # one instance alone creates the schema
    nodes += [start() for _ in range(size - 1)]
    kills = 0
    try:
        while datetime.now(UTC) < end:
            time.sleep(rng.uniform(0.5, 1.5) * every)
            victim = rng.randrange(len(nodes))
            os.kill(nodes[victim], signal.SIGKILL)
            wait(nodes[victim])
            nodes[victim] = start()
            kills += 1

        def done() -> bool:
            found = asyncio.run(runs(url))
            return len(found) >= seconds and all(run.state in ENDED for run in found)

        wait_until(done, 60, "every run has ended")
        wait_until(lambda: set(nodes) <= asyncio.run(joined(url)), 60, "the last one replaced hears signals")
    finally:
        for pid in nodes:
            os.kill(pid, signal.SIGTERM)
        ended = [wait(pid) for pid in nodes]
        calls = agent.calls()
        agent.close()
    wrong = judge(calls, begin, seconds) + asyncio.run(account(url, seconds))
    wrong += [f"an instance ended with {code}" for code in ended if code]
    for line in wrong:
        print(line)
    if wrong:
        print(said.read_text()[-5_000:])
    keys = {call["key"] for call in calls}
    print(
        f"{seconds} fires, {len(calls)} calls with {len(keys)} keys, {size} instances, {kills} kills: "
        f"{len(wrong)} violations"
    )
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--kill-every", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=20261116)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="agent-loop-") as name:
        folder = Path(name)
        if given.store == "sqlite":
            return loop(f"sqlite:///{folder}/ms.db", 1, given.seconds, given.kill_every, rng, folder)
        try:
            server = PowerCut(folder)
        except Unavailable as error:
            print(error)
            return NO_SERVER
        try:
            return loop(server.url(), 2, given.seconds, given.kill_every, rng, folder)
        finally:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
