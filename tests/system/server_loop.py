"""The kill loop on a database server: the server dies and stands still, and the network to it fails.

After each fault, every instance that was running must claim runs and store outcomes again within five seconds, by the
server's own log, without being restarted.
"""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Protocol

from tests.system.chaos_proxy import Link
from tests.system.kill_loop import Loop, now, report
from tests.system.nodes import wait
from tests.system.pg_server import start_proxy

LEASE_MS = 1_000
INSTANCES = 3
#: Milliseconds within which each instance must claim and store outcomes again.
RECOVERY = 5_000
#: Faults of the network, and a server that stands still.
FAULTS = ("server freeze", "cut", "black hole", "delay", "lost answer")


class Power(Protocol):
    """A server that can lose its power and come back."""

    @property
    def port(self) -> int: ...
    def url(self, port: int | None = None) -> str: ...
    def kill(self) -> None: ...
    def start(self) -> None: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...


class ServerLoop(Loop):
    """The processes of the kill loop, and faults between them and the server."""

    def __init__(self, folder: Path, seed: int, server: Power, link: type[Link] = Link) -> None:
        self.server = server
        self.proxy_pid, self.proxy = start_proxy(folder, server.port, INSTANCES, link)
        super().__init__(folder, seed, [server.url(port) for port in self.proxy.ports], LEASE_MS)
        self.url = server.url()
        #: Kind of fault → the milliseconds that each process took to work again.
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

    def end_some_backends(self, most: int) -> int:
        """Let the server close at most this number of connections; return their number."""
        raise NotImplementedError

    def seen_since(self, at: int) -> Iterable[tuple[str, str, int]]:
        """Return owner, type and time of the first `RunStarted` and `RunSucceeded` of each owner since then."""
        raise NotImplementedError

    # ── what may happen ────────────────────────────────────────────────────

    def end_backends(self, victim: int) -> None:
        """Let the server close some of its connections, or all."""
        self._everybody_works()
        if not self.end_some_backends(self.rng.choice([1, 2, 100])):
            self.wrong.append("there was no backend to end")
        self._healed("backend kill", self.nodes)

    def restart(self, victim: int) -> None:
        """Cut the power of the server and start it again; sometimes kill an instance meanwhile."""
        self._everybody_works()
        self.server.kill()
        self._outage(victim, self.rng.uniform(0.0, 4.0))
        self.server.start()
        self._healed("server restart", self.nodes)

    def freeze(self, victim: int) -> None:
        """Stop the server process, as a machine that swaps would; its clock and the leases go on."""
        self._everybody_works()
        self.server.freeze()
        self._outage(victim, self.rng.uniform(0.5, 3.5))
        self.server.thaw()
        self._healed("server freeze", self.nodes)

    def cut(self, victim: int) -> None:
        """Reset every connection of one instance, or of all."""
        places = self._places(victim)
        self.proxy.tell("cut", places)
        self._healed("cut", [self.nodes[place] for place in places])

    def black_hole(self, victim: int) -> None:
        """Discard the data of one instance, or of all, for a while."""
        places = self._places(victim)
        self.proxy.tell("swallow", places)
        self._outage(victim, self.rng.uniform(0.5, 3.5))
        self.proxy.tell("heal", places)
        self._healed("black hole", [self.nodes[place] for place in places])

    def slow_down(self, victim: int) -> None:
        """Delay every message."""
        places = self._places(victim)
        self.proxy.tell("delay", places, self.rng.uniform(0.02, 0.3))
        self._outage(victim, self.rng.uniform(0.5, 2.0))
        self.proxy.tell("heal", places)
        self._healed("delay", [self.nodes[place] for place in places])

    def lose_answers(self, victim: int) -> None:
        """Let the next commits take effect and reset the connection instead of answering."""
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
        """Wait until each process has claimed and stored an outcome again; record the time by the server's log."""
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
        """Return the processes that work again, and since when."""
        time.sleep(0.02)
        by_pid: dict[int, dict[str, int]] = defaultdict(dict)
        for owner, kind, at in self.seen_since(healed):
            by_pid[int(owner.split(":")[-2])].setdefault(kind, at)
        return {pid: max(by_pid[pid].values()) for pid in pids if len(by_pid[pid]) == 2}


def play(loop: ServerLoop, counts: dict[str, int]) -> int:
    """Run the loop, print the recovery times and check the store; return 1 if there are violations."""
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
