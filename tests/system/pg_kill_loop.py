"""The kill loop on PostgreSQL: three instances, a server that is killed too, and a network that fails between them.

python pg_kill_loop.py --kills 200 --stops 40 --backends 20 --restarts 5 --faults 10 [--seed N]

Beside `kill -9` and SIGSTOP of instances: pg_terminate_backend of random connections, kill -9 and restart of the whole
server (fsync on), a server that stands still, and by the proxy: connections reset, a black hole, delays, and commits
whose answer is lost (`--faults` of each).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import asyncpg

sys.path.append(str(Path(__file__).parents[2]))  # a script finds the repository by itself

from tests.system.pg_server import NO_SERVER, PowerCut, Unavailable
from tests.system.server_loop import FAULTS, ServerLoop, play


class PostgresLoop(ServerLoop):
    """The kill loop on PostgreSQL, which looks at the server by SQL."""

    def end_some_backends(self, most: int) -> int:
        return asyncio.run(self._terminate(most))

    async def _terminate(self, most: int) -> int:
        rows = await self._ask("SELECT pid FROM pg_stat_activity WHERE application_name = 'mainspring'")
        chosen = self.rng.sample([row["pid"] for row in rows], min(most, len(rows)))
        return len(await self._ask("SELECT pg_terminate_backend(p) FROM unnest($1::int[]) p", chosen))

    def seen_since(self, at: int) -> Iterable[tuple[str, str, int]]:
        found = asyncio.run(self._ask("SELECT owner, type, min(at) AS at" + _SINCE, at))
        return [(row["owner"], row["type"], row["at"]) for row in found]

    async def _ask(self, sql: str, *values: object) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.url)
        try:
            found: list[asyncpg.Record] = await connection.fetch(sql, *values)
            return found
        finally:
            await connection.close()


#: The newest events are enough: the loop never waits for more than a few thousand.
_SINCE = """
FROM (SELECT * FROM mainspring.event ORDER BY seq DESC LIMIT 5000) e
WHERE e.at >= $1 AND e.type IN ('RunStarted', 'RunSucceeded') AND e.owner IS NOT NULL GROUP BY 1, 2
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--stops", type=int, default=2)
    parser.add_argument("--backends", type=int, default=2)
    parser.add_argument("--restarts", type=int, default=1)
    parser.add_argument("--faults", type=int, default=1)
    parser.add_argument("--seed", type=int, default=20261116)
    options = parser.parse_args()
    counts = {
        "kill": options.kills,
        "stop": options.stops,
        "backend kill": options.backends,
        "server restart": options.restarts,
        **dict.fromkeys(FAULTS, options.faults),
    }
    with tempfile.TemporaryDirectory(prefix="pg-kill-") as name:
        try:
            server = PowerCut(Path(name))
        except Unavailable as error:
            print(error)
            return NO_SERVER
        try:
            return play(PostgresLoop(Path(name), options.seed, server), counts)
        finally:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
