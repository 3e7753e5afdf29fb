"""The kill loop on PostgreSQL: three instances, a server that is killed too, and a network that fails between them.

python pg_kill_loop.py --kills 200 --stops 40 --backends 20 --restarts 5 --faults 10 [--seed N]

Beside `kill -9` and SIGSTOP of instances: pg_terminate_backend of random connections, kill -9 and restart of the whole
server (fsync on), a server that stands still, and by the proxy: connections reset, a black hole, delays, and commits
whose answer is lost (`--faults` of each). After each of these every instance that was there must claim and store
outcomes again within five seconds, by the server's own log, without being started again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

import asyncpg
from kill_loop import Loop, now, report
from nodes import wait
from pg_server import NO_SERVER, PowerCut, Unavailable, start_proxy

LEASE = 1_000
INSTANCES = 3
#: After so many milliseconds at most, each instance claims and stores outcomes again.
RECOVERY = 5_000


class PostgresLoop(Loop):
    """The same processes, and what may happen between them and the server."""

    def __init__(self, folder: Path, seed: int, server: PowerCut) -> None:
        self.server = server
        self.proxy_pid, self.proxy = start_proxy(folder, server.port, INSTANCES)
        super().__init__(folder, seed, [server.url(port) for port in self.proxy.ports], LEASE)
        self.url = server.url()
        #: By what happened: how long each process took to be back, in milliseconds.
        self.recoveries: dict[str, list[int]] = defaultdict(list)
        self.blows |= {
            "backend kill": self.end_backends,
            "server restart": self.restart,
            "server freeze": self.freeze,
            "cut": self.cut,
            "black hole": self.black_hole,
            "delay": self.slow_down,
            "lost answer": self.lose_answers,
        }

    def end(self) -> None:
        super().end()
        os.kill(self.proxy_pid, signal.SIGKILL)
        wait(self.proxy_pid)

    # ── what may happen ────────────────────────────────────────────────────

    def end_backends(self, victim: int) -> None:
        """Some of the server's own processes, or all of them."""
        self._everybody_works()
        most = self.rng.choice([1, 2, 100])
        ended = asyncio.run(self._terminate(most))
        if not ended:
            self.wrong.append("there was no backend to end")
        self._healed("backend kill", self.nodes)

    async def _terminate(self, most: int) -> int:
        rows = await self._ask("SELECT pid FROM pg_stat_activity WHERE application_name = 'mainspring'")
        chosen = self.rng.sample([row["pid"] for row in rows], min(most, len(rows)))
        return len(await self._ask("SELECT pg_terminate_backend(p) FROM unnest($1::int[]) p", chosen))

    def restart(self, victim: int) -> None:
        """The server loses its power; sometimes an instance dies meanwhile."""
        self._everybody_works()
        self.server.kill()
        self._outage(victim, self.rng.uniform(0.0, 4.0))
        self.server.start()
        self._healed("server restart", self.nodes)

    def freeze(self, victim: int) -> None:
        """The server is stopped, as by a machine that swaps; its clock goes on, and so do the leases."""
        self._everybody_works()
        self.server.freeze()
        self._outage(victim, self.rng.uniform(0.5, 3.5))
        self.server.thaw()
        self._healed("server freeze", self.nodes)

    def cut(self, victim: int) -> None:
        """Every connection of one instance, or of all, is reset."""
        places = self._places(victim)
        self.proxy.tell("cut", places)
        self._healed("cut", [self.nodes[place] for place in places])

    def black_hole(self, victim: int) -> None:
        """What one instance says, or all of them, disappears for a while."""
        places = self._places(victim)
        self.proxy.tell("swallow", places)
        self._outage(victim, self.rng.uniform(0.5, 3.5))
        self.proxy.tell("heal", places)
        self._healed("black hole", [self.nodes[place] for place in places])

    def slow_down(self, victim: int) -> None:
        """Every message takes long."""
        places = self._places(victim)
        self.proxy.tell("delay", places, self.rng.uniform(0.02, 0.3))
        self._outage(victim, self.rng.uniform(0.5, 2.0))
        self.proxy.tell("heal", places)
        self._healed("delay", [self.nodes[place] for place in places])

    def lose_answers(self, victim: int) -> None:
        """The next commits are carried out, and whoever sent them gets a reset for an answer."""
        places = self._places(victim)
        count = self.rng.randint(1, 3)
        before = self.proxy.tell("lost")
        self.proxy.tell("lose", places, count)
        self.until(lambda: self.proxy.tell("lost") >= before + count * len(places), "commits lose their answer")
        self.proxy.tell("heal", places)
        self._healed("lost answer", [self.nodes[place] for place in places])

    def _places(self, victim: int) -> list[int]:
        self._everybody_works()
        return [victim] if self.rng.random() < 0.6 else list(range(len(self.nodes)))

    def _everybody_works(self) -> None:
        """A fault in the middle of an instance's start ends it, as a supervisor would see; that is not meant here."""
        self.until(lambda: all(self._begun(pid) for pid in self.nodes), "every instance works")
        self._progress(self.rng.randint(0, 14))

    def _outage(self, victim: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        if self.rng.random() < 0.3:
            time.sleep(self.rng.uniform(0.0, 0.5) * seconds)
            self.kill(victim)
        time.sleep(max(0.0, until - time.monotonic()))

    def _healed(self, what: str, pids: list[int]) -> None:
        """Wait until each of them has claimed again and stored an outcome; how long it took, by the server's log."""
        healed, wanted = now(), [pid for pid in pids if self._begun(pid)]  # not those that were only just started
        words = self.folder / "nodes.txt"
        mark = words.stat().st_size
        self.until(lambda: len(self._back_since(healed, wanted)) == len(wanted), f"all are back after a {what}")
        for pid, at in self._back_since(healed, wanted).items():
            took = at - healed
            self.recoveries[what].append(took)
            if took > RECOVERY:
                said = words.read_bytes()[mark : mark + 5_000].decode(errors="replace")
                load = os.getloadavg()[0]
                self.wrong.append(
                    f"{what}: process {pid} was back after {took} ms (load {load:.1f}); meanwhile:\n{said}"
                )

    def _back_since(self, healed: int, pids: list[int]) -> dict[int, int]:
        """Those that are back, and since when."""
        time.sleep(0.02)
        found = asyncio.run(self._ask("SELECT owner, type, min(at) AS at" + _SINCE, healed))
        by_pid: dict[int, list[int]] = defaultdict(list)
        for row in found:
            by_pid[int(row["owner"].split(":")[-2])].append(row["at"])
        return {pid: max(by_pid[pid]) for pid in pids if len(by_pid[pid]) == 2}

    async def _ask(self, sql: str, *values: object) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.url)
        try:
            found: list[asyncpg.Record] = await connection.fetch(sql, *values)
            return found
        finally:
            await connection.close()


#: The newest events are enough: nobody waits longer than for a few thousand.
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
        **dict.fromkeys(("server freeze", "cut", "black hole", "delay", "lost answer"), options.faults),
    }
    with tempfile.TemporaryDirectory(prefix="pg-kill-") as name:
        try:
            server = PowerCut(Path(name))
        except Unavailable as error:
            print(error)
            return NO_SERVER
        loop = PostgresLoop(Path(name), options.seed, server)
        try:
            began = time.monotonic()
            try:
                loop.run(counts)
                took = time.monotonic() - began
                for what, times in loop.recoveries.items():
                    half = f"half within {median(times):.0f} ms"
                    print(f"{what}: {len(times)} recoveries, {half}, all within {max(times)} ms")
            except AssertionError:
                loop.tell_why()
                raise
            finally:
                loop.end()
            return report(loop, counts, took)
        finally:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
