"""`mainspring workers`: list the instances on a store, with their load and last heartbeat."""

from __future__ import annotations

from typing import Any

import click

from mainspring.cli.common import print_json, query_store, store_option
from mainspring.engine.presence import Instance, list_instances
from mainspring.model.instant import Ms, format_duration, isoformat
from mainspring.model.lease import Lease
from mainspring.ports.store import Store

#: An instance whose last heartbeat is older than this is listed with --all only.
RECENT_MS: Ms = 3_600_000


@click.command()
@store_option
@click.option("--all", "every", is_flag=True, help="Include instances without a heartbeat for more than an hour.")
def workers(url: str | None, as_json: bool, every: bool) -> None:
    """List the instances that plan schedules or execute runs, live ones first.

    An instance is live while its lease lasts; each heartbeat renews the lease. Afterwards it is stopped, if it stopped
    in order, else dead: its process was killed, hangs, or cannot reach the store.
    """

    async def read(store: Store, now: Ms) -> tuple[Ms, list[tuple[Lease, Instance]]]:
        return now, await list_instances(store)

    now, found = query_store(url, read)
    shown = [(lease, one) for lease, one in found if every or lease.live or now - lease.renewed_at <= RECENT_MS]
    shown.sort(key=lambda pair: (not pair[0].live, pair[1].host, pair[1].pid, pair[0].owner))
    if as_json:
        print_json([_as_dict(lease, one) for lease, one in shown])
        return
    if not shown:
        click.echo("no instance has run in the last hour; `mainspring run MODULE:APP` starts one")
        return
    _print(shown, now)


def _as_dict(lease: Lease, one: Instance) -> dict[str, Any]:
    """Return an instance as JSON types, for `--json`. `load` is the fraction of its slots that are in use."""
    return {
        "id": lease.owner,
        "live": lease.live,
        "state": _state_of(lease, one),
        "last_seen": isoformat(lease.renewed_at),
        "since": isoformat(one.since) if one.since else None,
        "app": one.app,
        "version": one.version,
        "role": one.role,
        "host": one.host,
        "pid": one.pid,
        "running": one.running,
        "slots": one.concurrency,
        "load": round(one.running / one.concurrency, 3) if one.concurrency else 0.0,
        "queues": list(one.queues),
        "labels": one.labels,
        "tasks": sorted(one.tasks),
    }


def _state_of(lease: Lease, one: Instance) -> str:
    """Return "live", "stopped" if the instance stopped in order, or "dead"."""
    return "live" if lease.live else "stopped" if one.stopped else "dead"


def _print(shown: list[tuple[Lease, Instance]], now: Ms) -> None:
    """Print a line for each instance, as wide as its content: a terminal wraps it, and a pipe gets all of it."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("state", "last seen", "app", "version", "role", "host", "pid", "running", "queues", "labels"):
        table.add_column(column, justify="right" if column in ("pid", "running") else "left", no_wrap=True)
    for lease, one in shown:
        ago = max(0, now - lease.renewed_at) // 1000 * 1000
        table.add_row(
            _state_of(lease, one),
            f"{format_duration(ago)} ago" if ago else "now",
            one.app,
            one.version or "-",
            one.role,
            one.host,
            str(one.pid),
            f"{one.running}/{one.concurrency}",
            ", ".join(one.queues),
            ", ".join(f"{name}={value}" for name, value in sorted(one.labels.items())),
        )
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.width = max(console.width, console.measure(table, options=console.options.update(width=10_000)).maximum)
    console.print(table)
