"""Calls to an agent, and what the service costs while nothing is due."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import uvloop

from bench.contenders.agent_calls import AT_ONCE, PAYLOAD, agent_process
from bench.contenders.common import Figures, Meter, rate, sorted_ms, wait_until
from bench.contenders.mainspring_kit import durability_in, open_reader, until, url_of
from mainspring import AgentSettings, At, Every, Http, Mainspring
from mainspring.app.internals import host_of
from mainspring.cli.run import SWITCH_INTERVAL_SECONDS
from mainspring.model.instant import to_datetime

#: Interval of the calls to another address beside the load.
TICK = "100ms"


def calls(folder: str, n: int, store: str = "sqlite") -> Figures:
    """Triggered first, then started as `mainspring serve` starts it; the end is the commit of the last outcome."""
    return uvloop.run(_calls(folder, n, store))


async def _calls(folder: str, n: int, store: str) -> Figures:
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    with agent_process() as there:
        ms = Mainspring(url_of(folder, store), agents=AgentSettings(per_host=AT_ONCE))
        never = At(to_datetime(host_of(ms).now() + 86_400_000))
        load = await ms.schedule("load", Http(there.load), trigger=never, payload=PAYLOAD, priority="low")
        for start in range(0, n, 100):
            await asyncio.gather(*(ms.trigger("load") for _ in range(start, min(start + 100, n))))
        await ms.schedule("tick", Http(there.ticks), trigger=Every(TICK), payload=PAYLOAD, missed="skip")
        durability = await durability_in(ms)
        reader = open_reader(folder)
        still = "SELECT EXISTS (SELECT 1 FROM run WHERE ended_at IS NULL AND schedule_id = ?)"
        meter = Meter()
        async with ms.running():
            while (await there.seen())[0] < n:  # noqa: ASYNC110 - another process counts
                await asyncio.sleep(0.02)
            await until(lambda: not reader.execute(still, (load.id,)).fetchone()[0], 60)
            seconds, cpu = meter.wall(), meter.cpu()
            count, late = await there.seen()
            await ms.pause("tick")
    fires = "SELECT created_at - fire_time FROM run WHERE origin = 'fire' ORDER BY 1"
    planned = [late for (late,) in reader.execute(fires)]
    reader.close()
    if count != n:
        raise SystemExit(f"{count} calls came of {n}")
    if not planned or not late:
        raise SystemExit(f"{n} calls were over before {TICK}, when another is due; ask for more of them")
    return {
        "n": n,
        "per_second": rate(n, seconds),
        "cpu_us": cpu / n * 1e6,
        "ticks": len(late),
        "planned_p99_ms": planned[int(len(planned) * 0.99)],
        "ms": sorted_ms(late),
        "durability": durability,
    }


def idle(folder: str, seconds: int) -> Figures:
    """`mainspring serve` with an hourly schedule: how soon it is ready, and what it costs when it has nothing to do."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("mainspring")), "serve", "--port", str(port)]
    began = time.monotonic()
    server = subprocess.Popen([*command, "--store", url_of(folder, "sqlite")], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: _ready(port), 60, 0.02)
        ready = time.monotonic() - began
        _create(port)
        time.sleep(3)  # what starting leaves behind is not what idling costs
        cpu = _cpu_seconds(server.pid)
        time.sleep(seconds)
        used = _cpu_seconds(server.pid) - cpu
        status = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii")
        kilobytes = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        return {
            "ready_seconds": ready,
            "core_percent": used / seconds * 100,
            "rss_mb": kilobytes / 1024,
            "durability": "WAL, synchronous=FULL",
        }
    finally:
        server.terminate()
        server.wait(30)


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _create(port: int) -> None:
    body = (
        b'{"name": "hourly", "cronExpression": "0 * * * *", "agentId": "a", "agentUrl": "http://127.0.0.1:9/", '
        b'"httpMethod": "POST"}'
    )
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/schedules", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 201


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
