"""`mainspring ledger`: account for every planned fire. Planned = ended + open + skipped + missed, if all is well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mainspring.cli.common import parse_time, print_json, query_store, store_option
from mainspring.ledger.account import Ledger
from mainspring.model.instant import Ms, isoformat
from mainspring.model.plural import plural
from mainspring.ports.store import Store

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@store_option
@click.option(
    "--since", metavar="TIME", help="Only fires since this time: an ISO 8601 time, or a duration ago such as 7d."
)
@click.option("--namespace", "ns", help="Only this namespace.")
@click.option("--all", "every", is_flag=True, help="Print a line for each schedule.")
@click.pass_context
def ledger(
    context: click.Context, url: str | None, as_json: bool, since: str | None, ns: str | None, every: bool
) -> None:
    """Account for every planned fire; exit with 1 if one is unexplained.

    The planned fires are computed from the schedules' definitions. Each must have become a run that has ended or is
    open, or must be recorded as skipped, with a reason, or as missed. Fires that are due, but that no instance has
    turned into runs yet, are counted as behind.

    Example: mainspring ledger --since 7d
    """

    async def account(store: Store, now: Ms) -> Ledger:
        from mainspring.ledger.account import ledger as balance

        return await balance(store, now, parse_time(since, now, field="--since"), ns)

    book = query_store(url, account)
    if as_json:
        print_json(as_dict(book))
    else:
        _print(book, every)
    context.exit(1 if book.unexplained else 0)


def as_dict(book: Ledger) -> dict[str, Any]:
    """Return a ledger as JSON types, for `--json`. The columns of the table come first; instants are ISO 8601 texts."""
    import msgspec

    values: dict[str, Any] = msgspec.to_builtins(book)
    columns = ("planned", "ended", "open", "skipped", "missed", "behind", "unexplained")
    instants = {"now": isoformat(book.now), "since": None if book.since is None else isoformat(book.since)}
    return {name: values.pop(name) for name in columns} | values | instants


def _print(book: Ledger, every: bool) -> None:
    """Print the ledger: a table with the total, then the notes below it (skips, rewinds, ad-hoc runs, differences).

    With `every`, the table also has a line for each schedule in `book.schedules`, which may be fewer than all.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True, markup=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("schedule" if every else "")
    for column in ("planned", "ended", "open", "skipped", "missed", "behind", "unexplained"):
        table.add_column(column, justify="right", no_wrap=True)
    if every:
        for line in book.schedules:
            table.add_row(f"{line.name} ({line.state})", *_cells(line))
    total = plural(book.schedules_total, "schedule")
    table.add_row(total, *_cells(book, less=book.ad_hoc.unexplained))
    console.print(table)
    _print_notes(console, book)


def _print_notes(console: Console, book: Ledger) -> None:
    """Print the lines below the table: skips by reason, ad-hoc runs, start of the period, warnings, differences."""
    for reason, count in book.skipped.items():
        console.print(f"  skipped {reason}: {count}")
    if taken_back := sum(line.taken_back for line in book.schedules):
        console.print(f"  runs from before a rewind, not planned again: {taken_back}")
    work = book.ad_hoc
    text = f"ad hoc: {work.enqueued} enqueued = {work.ended} ended + {work.open} open"
    console.print(text if not work.unexplained else f"{text}, {work.unexplained} unexplained")
    if book.since is not None:
        rounded = " (the start of that day: older runs are counted by day)" if book.rounded else ""
        console.print(f"since {isoformat(book.since)}{rounded}")
    for warning in book.warnings:
        console.print(f"! {warning}")
    for difference in book.differences:
        console.print(f"✕ {difference.kind}  {difference.text}")
    if book.unexplained > len(book.differences) > 0:
        console.print(f"✕ {book.unexplained} unexplained in all")


def _cells(line: Any, less: int = 0) -> list[str]:
    """Return the numbers of one line of the table as text. `line`: a `ScheduleAccount`, or a `Ledger` for the total.

    `less`: how many unexplained to leave out. The total leaves out the unexplained ad-hoc runs, which are printed below
    the table.
    """
    numbers = (line.planned, line.ended, line.open, sum(line.skipped.values()), line.missed, line.behind)
    return [str(number) for number in (*numbers, line.unexplained - less)]
