"""The kill loop with a broker: runs are in PostgreSQL, Redis Streams carry hints, and both hints and processes fail.

python broker_kill_loop.py --kills 20 --stops 5 --restarts 5 --wipes 5 [--seed N]

Three instances. One message in a hundred each is lost, doubled or delayed. The broker's server is killed and restarted,
sometimes empty, and emptied while it runs; instances are killed and stopped. The checks are those of the other loops:
no run lost, no run doubled, no stale result accepted.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # a script finds the repository by itself

from mainspring.ports.clock import SystemClock
from mainspring.runtime.broker_url import open_broker
from proof.faulty_broker import FaultyBroker
from servers.redis import RedisServer
from tests.system.kill_loop import Loop, node, report
from tests.system.nodes import fork
from tests.system.pg_server import NO_SERVER, PowerCut, Unavailable

LEASE = 1_000
INSTANCES = 3
RATE = 0.01


class BrokerLoop(Loop):
    """The kill loop's processes, with an unreliable broker between them."""

    def __init__(self, folder: Path, seed: int, server: PowerCut, redis: RedisServer) -> None:
        super().__init__(folder, seed, [server.url()] * INSTANCES, LEASE)
        self.redis = redis
        self.heard = self.sent = 0
        self.blows |= {"redis restart": self.restart, "redis wipe": self.wipe}

    def start(self, place: int, ending: bool = False) -> int:
        url = self.urls[place]

        def work() -> int:
            clock = SystemClock()
            broker = open_broker(f"{self.redis.url}?redeliver_after=2s&events=always", clock)
            rng = random.Random(os.getpid())
            faulty = FaultyBroker(broker, rng, dropped=RATE, doubled=RATE, reordered=RATE)
            code = node(self.folder, url, self.lease, ending, faulty)
            print(f"messages: {faulty.lost} lost, {faulty.repeated} doubled, {faulty.shuffled} late", flush=True)
            return code

        return fork(work, self.folder / "nodes.txt")

    def restart(self, victim: int) -> None:
        """Kill the broker's server and start it again, half of the times without its data."""
        self._count()
        self._progress(self.rng.randint(0, 14))
        self.redis.kill()
        self._progress(self.rng.randint(5, 40))  # runs go on without the broker
        if self.rng.random() < 0.5:
            for one in self.redis.folder.glob("appendonlydir"):
                one.rename(one.with_name(f"lost-{time.monotonic_ns()}"))
        self.redis.start()
        self._messages_travel()

    def wipe(self, victim: int) -> None:
        """Empty the broker's server while runs are under way."""
        self._count()
        self._progress(self.rng.randint(0, 14))
        self.redis.do("FLUSHALL")
        self._messages_travel()

    def _messages_travel(self) -> None:
        began, before = time.monotonic(), self._read()
        self.until(lambda: self._read() > before, "messages travel again")
        took = time.monotonic() - began
        if took > 5:
            self.wrong.append(f"messages travel again after {took:.1f} s")

    def _read(self) -> int:
        return self._calls("xack")

    def _calls(self, command: str) -> int:
        return int(self.redis.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))

    def _count(self) -> None:
        """Add the server's counters to the totals and reset them; called before a restart, which would reset them."""
        self.heard += self._calls("xack")
        self.sent += self._calls("xadd")
        self.redis.do("CONFIG", "RESETSTAT")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--stops", type=int, default=1)
    parser.add_argument("--restarts", type=int, default=2)
    parser.add_argument("--wipes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=20261117)
    options = parser.parse_args()
    counts = {
        "kill": options.kills,
        "stop": options.stops,
        "redis restart": options.restarts,
        "redis wipe": options.wipes,
    }
    with tempfile.TemporaryDirectory(prefix="broker-kill-") as name:
        try:
            server, redis = PowerCut(Path(name), durable=False), RedisServer("valkey").start()
        except Unavailable as error:
            print(error)
            return NO_SERVER
        loop = BrokerLoop(Path(name), options.seed, server, redis)
        began = time.monotonic()
        try:
            try:
                loop.run(counts)
            except AssertionError:
                loop.tell_why()
                raise
            finally:
                loop.end()
            loop._count()
            dead = redis.do("XLEN", "mainspring:dlq")
            print(f"{loop.sent} messages of work and events, {loop.heard} batches answered, {dead} dead letters")
            print(*(line for line in loop.said().splitlines() if line.startswith("messages:")), sep="\n")
            return report(loop, counts, time.monotonic() - began)
        finally:
            server.stop()
            redis.remove()


if __name__ == "__main__":
    sys.exit(main())
