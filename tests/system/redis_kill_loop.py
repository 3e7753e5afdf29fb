"""The kill loop on Valkey or Redis: three instances, a server that is killed too, and a network that fails.

python redis_kill_loop.py --kills 100 --stops 20 --backends 10 --restarts 10 --faults 5 [--kind redis] [--seed N]

Faults beside `kill -9` and SIGSTOP of instances: connections closed by the server, `kill -9` and restart of the server
(AOF `always`), a stopped server; and by the proxy, `--faults` of each: connections reset, a black hole, delays, scripts
whose answer is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # a script finds the repository by itself

from mainspring.model.events import Event
from mainspring.ports.clock import SystemClock
from mainspring.ports.store import Events
from mainspring.runtime.store_url import open_store
from tests.system.redis_power import NO_SERVER, RedisLink, RedisPower, Unavailable
from tests.system.server_loop import FAULTS, ServerLoop, play

TYPES = ("RunStarted", "RunSucceeded")


class RedisLoop(ServerLoop):
    """The kill loop with Redis: reads the events from the store's log, and closes connections by CLIENT KILL."""

    server: RedisPower

    def end_some_backends(self, most: int) -> int:
        with self.server.server.client() as client:
            own = client.client_id()
            ids = [one["id"] for one in client.client_list() if int(one["id"]) != own]
            chosen = self.rng.sample(ids, min(most, len(ids)))
            return sum(client.client_kill_filter(_id=number) for number in chosen)

    def seen_since(self, at: int) -> Iterable[tuple[str, str, int]]:
        found = asyncio.run(self._events(at))
        return [(event.owner, type(event).__name__, event.at) for event in found if event.owner is not None]

    async def _events(self, at: int) -> list[Event]:
        store = open_store(self.url, SystemClock())
        await store.open()
        try:
            return await store.find(Events(types=TYPES, since=at, limit=5_000))
        finally:
            await store.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--stops", type=int, default=2)
    parser.add_argument("--backends", type=int, default=2)
    parser.add_argument("--restarts", type=int, default=1)
    parser.add_argument("--faults", type=int, default=1)
    parser.add_argument("--seed", type=int, default=20261116)
    parser.add_argument("--kind", choices=("valkey", "redis"), default="valkey")
    options = parser.parse_args()
    counts = {
        "kill": options.kills,
        "stop": options.stops,
        "backend kill": options.backends,
        "server restart": options.restarts,
        **dict.fromkeys(FAULTS, options.faults),
    }
    with tempfile.TemporaryDirectory(prefix="redis-kill-") as name:
        try:
            server = RedisPower(options.kind)
        except Unavailable as error:
            print(error)
            return NO_SERVER
        try:
            return play(RedisLoop(Path(name), options.seed, server, RedisLink), counts)
        finally:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
