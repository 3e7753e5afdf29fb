"""`mainspring ledger`: planned = ended + open + skipped + missed, and what is not explained by name."""

from __future__ import annotations

from typing import Any

import click

from mainspring.cli.common import look, moment, print_json, store_option
from mainspring.ledger import Ledger
from mainspring.model.instant import Ms, isoformat
from mainspring.ports.store import Store


@click.command()
@store_option
@click.option("--since", metavar="TIME", help="Only fires since then: a duration such as 7d, or an ISO 8601 time.")
@click.option("--namespace", "ns", help="Only this namespace.")
@click.option("--all", "every", is_flag=True, help="A line for each schedule.")
@click.pass_context
def ledger(
    context: click.Context, url: str | None, as_json: bool, since: str | None, ns: str | None, every: bool
) -> None:
    """Account for every planned fire; exits with 1 when something is unexplained.

    Example: mainspring ledger --since 7d
    """

    async def account(store: Store, now: Ms) -> Ledger:
        from mainspring.ledger import ledger as balance

        return await balance(store, now, moment(since, now, field="--since"), ns)

    book = look(url, account)
    if as_json:
        print_json(as_dict(book))
    else:
        _print(book, every)
    context.exit(1 if book.unexplained else 0)


def as_dict(book: Ledger) -> dict[str, Any]:
    """The account with the columns first, and instants as text."""
    import msgspec

    values: dict[str, Any] = msgspec.to_builtins(book)
    columns = ("planned", "ended", "open", "skipped", "missed", "behind", "unexplained")
    instants = {"now": isoformat(book.now), "since": None if book.since is None else isoformat(book.since)}
    return {name: values.pop(name) for name in columns} | values | instants


def _print(book: Ledger, every: bool) -> None:
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
    total = f"{book.schedules_total} schedule{'' if book.schedules_total == 1 else 's'}"
    table.add_row(total, *_cells(book, less=book.ad_hoc.unexplained))
    console.print(table)
    for reason, count in book.skipped.items():
        console.print(f"  skipped {reason}: {count}")
    work = book.ad_hoc
    text = f"ad hoc: {work.enqueued} enqueued = {work.ended} ended + {work.open} open"
    console.print(text if not work.unexplained else f"{text}, {work.unexplained} unexplained")
    if book.since is not None:
        rounded = " (the start of that day: older runs are only known by the day)" if book.rounded else ""
        console.print(f"since {isoformat(book.since)}{rounded}")
    for difference in book.differences:
        console.print(f"✕ {difference.kind}  {difference.text}")
    if book.unexplained > len(book.differences) > 0:
        console.print(f"✕ {book.unexplained} unexplained in all")


def _cells(line: Any, less: int = 0) -> list[str]:
    numbers = (line.planned, line.ended, line.open, sum(line.skipped.values()), line.missed, line.behind)
    return [str(number) for number in (*numbers, line.unexplained - less)]
