"""`mainspring worker module:app`: work on what others plan, in one process or in a pool of them."""

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
from typing import TYPE_CHECKING

import click

from mainspring.cli.run import SWITCH_INTERVAL, begin_logging, broker_option, load
from mainspring.model.errors import InvalidInput
from mainspring.model.settings import adjusted
from mainspring.rules.pool import Bounds, Demand, bounds_of

if TYPE_CHECKING:
    from mainspring.app import Mainspring
    from mainspring.engine.runtime import Runtime

log = logging.getLogger("mainspring")


@click.command()
@click.argument("target", metavar="MODULE:APP")
@broker_option
@click.option("--processes", type=int, metavar="N", help="How many worker processes; 1 unless bounds are given.")
@click.option("--concurrency", type=int, metavar="M", help="Runs at once in each; else what the application says.")
@click.option("--min-processes", "low", type=int, metavar="N", help="The fewest; see --max-processes.")
@click.option("--max-processes", "high", type=int, metavar="N", help="The most: the pool follows the backlog.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Shown by `workers`; repeatable.")
@click.option("--log-level", default="info", show_default=True, help="debug, info, warning or error.")
@click.option("--supervised", is_flag=True, hidden=True, help="One of a pool: ends when its standard input does.")
def worker(
    target: str,
    broker: str | None,
    processes: int | None,
    concurrency: int | None,
    low: int | None,
    high: int | None,
    labels: tuple[str, ...],
    log_level: str,
    supervised: bool,
) -> None:
    """Run tasks of MODULE:APP that other instances planned or enqueued, until SIGTERM or Ctrl-C.

    Plans no schedules: at least one `mainspring run` does that. The first signal stops taking work and lets what runs
    finish; the second hands everything back at once; the third kills a pool. A worker that dies is started again.

    Example: mainspring worker app:ms --min-processes 1 --max-processes 8 --concurrency 20
    """
    begin_logging(log_level, "%(asctime)s %(process)d %(levelname)-7s %(name)s: %(message)s")
    bounds = bounds_of(processes, low, high)
    app = load(target)
    app.use_broker(broker)
    app.settings = adjusted(app.settings, concurrency=concurrency, labels=dict(_label(text) for text in labels))
    if not app.capabilities().multi_process:
        raise InvalidInput("url", f"{app.url} lives inside one process: a worker finds nothing there", "Use `run`")
    if not app.tasks:
        raise InvalidInput("MODULE:APP", f"{target} has no task", "A worker needs the functions that it shall run")
    if supervised or bounds.high == 1:
        if supervised:
            threading.Thread(target=_end_with_parent, name="mainspring-parent", daemon=True).start()
        sys.setswitchinterval(SWITCH_INTERVAL)
        log.info("%s: worker for %d tasks, %d slots", app.url, len(app.tasks), app.settings.concurrency)
        app.run(role="worker")
        log.info("stopped in order")
        return
    given = [f"--label={text}" for text in labels] + ([] if concurrency is None else [f"--concurrency={concurrency}"])
    given += [] if broker is None else [f"--broker={broker}"]
    command = [sys.executable, "-m", "mainspring.cli.main", "worker", target, "--supervised"]
    code = asyncio.run(_supervise(app, [*command, f"--log-level={log_level}", *given], bounds))
    log.info("stopped in order" if code == 0 else "stopped; not every worker ended in order")
    sys.exit(code)


async def _supervise(app: Mainspring, command: list[str], bounds: Bounds) -> int:
    from mainspring.engine.demand import demand
    from mainspring.supervisor import Supervisor

    host, settings = socket.gethostname(), app.settings

    async def ask(pids: Collection[int], enough: int) -> Demand:
        async def look(runtime: Runtime) -> Demand:
            return await demand(runtime, host, pids, enough)

        return await app.call(look)

    pool = Supervisor(
        command,
        bounds,
        slots=settings.concurrency,
        poll=max(settings.poll, settings.heartbeat // 4) / 1000,  # several heartbeats pass before it shrinks
        shutdown_timeout=settings.shutdown_timeout / 1000,
        demand=ask,
    )
    size = f"{bounds.low} to {bounds.high}" if bounds.low < bounds.high else f"{bounds.start}"
    log.info("%s: %s workers of %d slots; Ctrl-C stops", app.url, size, settings.concurrency)
    try:
        return await pool.run()
    finally:
        await app.close()


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise InvalidInput("--label", f"{text!r} is not a label", "Write NAME=VALUE, for example zone=eu")
    return name, value


def _end_with_parent() -> None:
    """Whatever ended the supervisor, its end of the pipe closes: then stop as by a signal."""
    with contextlib.suppress(OSError):
        while os.read(0, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
