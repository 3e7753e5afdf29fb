"""`mainspring worker MODULE:APP`: execute runs that other instances plan, in one process or in a pool."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mainspring.app.internals import host_of
from mainspring.cli.program import load_configured, program_options, read_configuration
from mainspring.cli.run import SWITCH_INTERVAL_SECONDS
from mainspring.config.redaction import show_store
from mainspring.model.errors import InvalidInput
from mainspring.model.plural import plural
from mainspring.model.settings import adjust_settings
from mainspring.rules.autoscale import Bounds, Demand, parse_bounds
from mainspring.telemetry.log_format import configure_logging

if TYPE_CHECKING:
    from mainspring.app.mainspring import Mainspring
    from mainspring.runtime.runtime import Runtime

log = logging.getLogger("mainspring")


@click.command()
@program_options
@click.option(
    "--processes",
    type=int,
    metavar="N",
    help="Number of worker processes; default: 1; with --min/--max-processes, the number at the start.",
)
@click.option(
    "--concurrency", type=int, metavar="M", help="Runs at a time in each process; default: the application's setting."
)
@click.option("--min-processes", "low", type=int, metavar="N", help="Smallest pool; see --max-processes.")
@click.option(
    "--max-processes", "high", type=int, metavar="N", help="Largest pool: it grows and shrinks with the waiting runs."
)
@click.option(
    "--label", "labels", multiple=True, metavar="NAME=VALUE", help="Label that `mainspring workers` shows; repeatable."
)
@click.option("--supervised", is_flag=True, hidden=True, help="Worker of a pool: ends when its standard input does.")
def worker(
    target: str | None,
    store: str | None,
    broker: str | None,
    path: Path | None,
    log_level: str | None,
    processes: int | None,
    concurrency: int | None,
    low: int | None,
    high: int | None,
    labels: tuple[str, ...],
    supervised: bool,
) -> None:
    """Execute runs of MODULE:APP that other instances planned or enqueued, until SIGTERM or Ctrl-C.

    A worker plans no schedules; at least one `mainspring run` must do that. At the first signal, the worker claims no
    more runs and ends when its running ones have finished or its shutdown time-out is over. A second signal makes it
    hand its running ones back at once. A third signal kills the processes of a pool. A process of a pool that dies is
    replaced.

    Example: mainspring worker app:ms --min-processes 1 --max-processes 8 --concurrency 20
    """
    given = {"store": store, "broker": broker, "logging.level": log_level, "scheduler.workers": concurrency}
    resolved = read_configuration(path, given)
    configure_logging(
        resolved.settings.logging.level,
        resolved.settings.logging.format,
        "%(asctime)s %(process)d %(levelname)-7s %(name)s: %(message)s",
    )
    bounds = parse_bounds(processes, low, high)
    app = load_configured(target, resolved)
    host = host_of(app)
    host.configure(settings=adjust_settings(app.settings, labels=dict(_parse_label(text) for text in labels)))
    if not host.capabilities.multi_process:
        raise InvalidInput("url", f"{app.url} lives inside one process: a worker finds no runs there", "Use `run`")
    if not app.tasks:
        raise InvalidInput(
            "MODULE:APP",
            f"{target or resolved.settings.app} has no task",
            "Declare the functions that the worker executes as tasks",
        )
    if supervised or bounds.high == 1:
        _run_one(app, supervised=supervised)
        return
    options = {"store": store, "broker": broker, "config": path, "log-level": log_level, "concurrency": concurrency}
    words = [f"--{name}={value}" for name, value in options.items() if value is not None]
    words += [f"--label={text}" for text in labels] + ([] if target is None else [target])
    command = [sys.executable, "-m", "mainspring.cli.main", "worker", "--supervised", *words]
    code = asyncio.run(_supervise(app, command, bounds))
    log.info("stopped cleanly" if code == 0 else "stopped; some workers had to be killed")
    sys.exit(code)


def _run_one(app: Mainspring, *, supervised: bool) -> None:
    """Execute runs in this process until SIGTERM or SIGINT.

    `supervised`: the process belongs to a pool. It then also stops when its standard input closes, which shows that its
    supervisor has ended.
    """
    if supervised:
        threading.Thread(target=_end_with_parent, name="mainspring-parent", daemon=True).start()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    tasks, slots = plural(len(app.tasks), "task"), plural(app.settings.concurrency, "slot")
    log.info("%s: worker for %s, %s", show_store(app.url), tasks, slots)
    app.run(role="worker")
    log.info("stopped cleanly")


async def _supervise(app: Mainspring, command: list[str], bounds: Bounds) -> int:
    """Run a pool of worker processes until SIGTERM or SIGINT. Return the exit code: 0 if no worker had to be killed.

    `command` starts one worker, and `bounds` limit the size of the pool. This process executes no runs; it opens the
    store of `app` only to count the waiting runs.
    """
    from mainspring.runtime.backlog import measure_demand
    from mainspring.server.supervisor import Supervisor

    host, settings = socket.gethostname(), app.settings

    async def read_demand(pids: Collection[int], enough: int) -> Demand:
        async def read(runtime: Runtime) -> Demand:
            return await measure_demand(runtime, host, pids, enough)

        return await host_of(app).call(read)

    pool = Supervisor(
        command,
        bounds,
        slots=settings.concurrency,
        # Seconds. Workers report their load with each heartbeat. The demand is read at most four times per heartbeat,
        # so that the pool shrinks only after several heartbeats.
        poll=max(settings.poll, settings.heartbeat // 4) / 1000,
        shutdown_timeout=settings.shutdown_timeout / 1000,
        demand=read_demand,
    )
    size = plural(bounds.start, "worker") if bounds.low == bounds.high else f"{bounds.low} to {bounds.high} workers"
    log.info("%s: %s of %s; Ctrl-C stops", show_store(app.url), size, plural(settings.concurrency, "slot"))
    try:
        return await pool.run()
    finally:
        await app.close()


def _parse_label(text: str) -> tuple[str, str]:
    """Return (name, value) of a label given as NAME=VALUE. Raises: InvalidInput for any other text."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise InvalidInput("--label", f"{text!r} is not a label", "Write NAME=VALUE, for example zone=eu")
    return name, value


def _end_with_parent() -> None:
    """Block until standard input closes, then send SIGTERM to this process. Thread: one of its own.

    Why: a worker must not outlive its supervisor. Its standard input is a pipe from the supervisor, which the system
    closes when the supervisor ends, even by SIGKILL.
    """
    with contextlib.suppress(OSError):
        while os.read(0, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
