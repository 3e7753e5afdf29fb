"""`mainspring runs`: commands on single runs of a store."""

from __future__ import annotations

import asyncio

import click

from mainspring.cli.common import query_store, store_option
from mainspring.engine.work.log_writer import FLUSH_SECONDS
from mainspring.model.errors import UnknownRun
from mainspring.model.ids import printable_text
from mainspring.model.instant import Ms, isoformat
from mainspring.model.run import ENDED, OPEN, Run, State
from mainspring.model.run_log import LogEntry
from mainspring.ports.store import RunLogs, Runs, Store

#: The most lines in one read of a log.
PAGE_LINES = 1_000
#: Seconds between two reads of a log that is followed.
POLL_SECONDS = 0.5
#: Seconds for which a log is read on after its run has ended: another process may not have stored its last lines.
LAST_LINES_SECONDS = 2 * FLUSH_SECONDS


@click.group()
def runs() -> None:
    """Show what a run did."""


@runs.command()
@click.argument("run_id", metavar="RUN")
@store_option
@click.option("--attempt", type=click.IntRange(min=1), help="Only lines of this attempt.")
@click.option("--follow", "-f", is_flag=True, help="Print further lines until the run has ended.")
def logs(run_id: str, url: str | None, as_json: bool, attempt: int | None, follow: bool) -> None:
    """Print the log of the run with the id RUN: what its handler wrote with `ctx.log`, and its captured output.

    With --json, each line is a JSON object on a line of its own. The error of a run that failed is written to standard
    error.
    """

    async def read(store: Store, now: Ms) -> None:
        after: int | None = None
        left = LAST_LINES_SECONDS
        while True:
            found = await store.find(Runs(id=run_id))
            if not found:
                raise UnknownRun(f"there is no run {run_id!r}")
            cursor = None if after is None else str(after)
            lines = await store.find(RunLogs(run_id=run_id, attempt=attempt, after=cursor, limit=PAGE_LINES))
            for line in lines:
                click.echo(_as_json(line) if as_json else _as_text(line))
            after = lines[-1].n if lines else after
            if len(lines) == PAGE_LINES:
                continue
            if not follow or left <= 0:
                click.echo(_describe_end(found[0], has_lines=after is not None), err=True, nl=False)
                return
            left = left - POLL_SECONDS if found[0].state in ENDED else LAST_LINES_SECONDS
            await asyncio.sleep(POLL_SECONDS)

    query_store(url, read)


def _describe_end(run: Run, *, has_lines: bool) -> str:
    """Return a line for people with the state of `run` and its last error; nothing if neither is worth a line.

    `has_lines`: lines of its log were printed, so only an error is worth a line.
    """
    if has_lines and run.state in OPEN | {State.SUCCEEDED}:
        return ""
    error = f"; last error: {run.error}" if run.error else ""
    return printable_text(f"{'' if has_lines else 'no lines; '}state of the run: {run.state}{error}") + "\n"


def _as_text(line: LogEntry) -> str:
    """Return a line for people: time, attempt, level, source and text, in which no character controls the terminal."""
    return printable_text(f"{isoformat(line.at)} #{line.attempt} {line.level:7} {line.source}: {line.text}")


def _as_json(line: LogEntry) -> str:
    """Return a line as a JSON object, with the names of the API."""
    import json

    from mainspring.app.log_line import log_line

    return json.dumps(log_line(line).to_dict(), ensure_ascii=False)
