"""`mainspring events`: list the event log, and check every row against it."""

from __future__ import annotations

from collections import deque
from typing import Any

import click

from mainspring.cli.common import find_schedule_id, parse_time, print_json, query_store, store_option
from mainspring.ledger.verify import Report
from mainspring.model.event_names import resolve_type_names
from mainspring.model.events import EVENT_BASE_FIELDS, Event
from mainspring.model.ids import printable_text
from mainspring.model.instant import Ms, isoformat
from mainspring.model.plural import plural
from mainspring.ports.paging import iterate_rows
from mainspring.ports.store import Events, Store

#: Events read in one page by `--last`, which reads all events that match.
LAST_PAGE_EVENTS = 10_000


@click.group()
def events() -> None:
    """List the event log, and check every row against it."""


@events.command()
@store_option
@click.pass_context
def verify(context: click.Context, url: str | None, as_json: bool) -> None:
    """Replay the event log and compare the result with every stored row; exit with 1 if a row differs.

    Example: mainspring events verify --store sqlite:///mainspring.db
    """

    async def check(store: Store, now: Ms) -> Report:
        from mainspring.ledger.verify import verify as replay

        return await replay(store)

    report = query_store(url, check)
    counts = {name: getattr(report, name) for name in ("events", "runs", "schedules", "spans", "bodies", "gates")}
    if as_json:
        import msgspec

        differences = msgspec.to_builtins(report.differences)
        print_json({"ok": report.ok, **counts, "found": report.found, "differences": differences})
    else:
        click.echo(" · ".join(_count(name, count) for name, count in counts.items()))
        for difference in report.differences:
            click.echo(printable_text(f"✕ {difference.kind} {difference.id}  {difference.what}"))
        rest = report.found - len(report.differences)
        click.echo(
            "ok: the rows agree with the log"
            if report.ok
            else plural(report.found, "difference") + (f", {rest} of them not shown" if rest else "")
        )
    context.exit(0 if report.ok else 1)


def _count(name: str, count: int) -> str:
    """Return a count with its noun, from the plural `name`: "1 run", "0 bodies"."""
    return f"{count} {name}" if name == "bodies" else plural(count, name.removesuffix("s"))


@events.command("list")
@store_option
@click.option("--run", "run_id", metavar="ID", help="Only events of this run.")
@click.option("--schedule", metavar="NAME", help="Only events of this schedule and its runs, by name or id.")
@click.option("--namespace", "ns", metavar="NAME", help="Only events of this namespace.")
@click.option("--type", "types", metavar="TYPE", multiple=True, help="Only events of this type; repeatable.")
@click.option("--since", metavar="TIME", help="Only events from this time on (ISO 8601, or 1h ago as 1h).")
@click.option("--until", metavar="TIME", help="Only events before this time (ISO 8601, or 1h ago as 1h).")
@click.option("--after", metavar="SEQ", type=click.IntRange(0), help="Only events with a greater number than SEQ.")
@click.option("--last", metavar="N", type=click.IntRange(1, 100_000), help="Only the newest N events that match.")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="The most events to print."
)
def list_events(
    url: str | None,
    as_json: bool,
    run_id: str | None,
    schedule: str | None,
    ns: str | None,
    types: tuple[str, ...],
    since: str | None,
    until: str | None,
    after: int | None,
    last: int | None,
    limit: int,
) -> None:
    """Print the events that match all options, oldest first: the first ones, or with --last the newest ones.

    Example: mainspring events list --type RunFailed --last 5
    """

    async def read(store: Store, now: Ms) -> list[Event]:
        query = Events(
            ns=ns,
            run_id=run_id,
            schedule_id=None if schedule is None else await find_schedule_id(store, schedule),
            types=resolve_type_names(types, field="--type") if types else None,
            since=parse_time(since, now, field="--since"),
            until=parse_time(until, now, field="--until"),
            after=None if after is None else str(after),
            limit=limit if last is None else LAST_PAGE_EVENTS,
        )
        if last is None:
            return await store.find(query)
        newest: deque[Event] = deque(maxlen=last)
        async for event in iterate_rows(store, query, lambda event: str(event.seq)):
            newest.append(event)
        return list(newest)

    found = query_store(url, read)
    if as_json:
        return print_json([_as_dict(event) for event in found])
    for event in found:
        subject = event.run_id or event.schedule_id or "-"
        number = "" if event.n is None else f" n={event.n}"
        line = f"{event.seq}  {isoformat(event.at)}  {type(event).__name__}  {subject}{number}  {_format_data(event)}"
        click.echo(printable_text(line.rstrip()).replace("\n", "\\n"))
    if not found:
        click.echo("no events")
    elif last is None and len(found) == limit:
        click.echo(f"there may be more: --after {found[-1].seq}, or a greater --limit", err=True)
    return None


def _as_dict(event: Event) -> dict[str, Any]:
    """Return an event as JSON types: its type, the fields that every event has, and under `data` its other fields."""
    import msgspec

    from mainspring.api.event_view import show_instants
    from mainspring.model.masked_events import mask_event

    values: dict[str, Any] = msgspec.to_builtins(mask_event(event))
    columns = {name: values[name] for name in EVENT_BASE_FIELDS if name in values and name != "at"}
    data = show_instants(event, {name: value for name, value in values.items() if name not in EVENT_BASE_FIELDS})
    return {"type": type(event).__name__, "at": isoformat(event.at), **columns, "data": data}


def _format_data(event: Event) -> str:
    """Return the fields that not every event has, in the form `name=value …`, cut to 160 characters.

    Only texts, numbers and booleans are shown, and times as ISO 8601.
    """
    data = _as_dict(event)["data"]
    text = " ".join(f"{name}={value}" for name, value in data.items() if isinstance(value, str | int | float))
    return text if len(text) <= 160 else f"{text[:159]}…"
