"""`mainspring copy`: copy the schedules, runs and history of one store to another, and compare the two stores."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import click

from mainspring.cli.common import check_exists, print_json
from mainspring.model.errors import InvalidInput, StoreUnavailable
from mainspring.model.plural import plural
from mainspring.ports.clock import SystemClock
from mainspring.ports.store import Store
from mainspring.ports.store_extras import ServerStore

if TYPE_CHECKING:
    from mainspring.ledger.compare import Comparison
    from mainspring.ledger.copy import Copied, Step


@click.command()
@click.argument("source")
@click.argument("target")
@click.option("--force", is_flag=True, help="Copy even if an instance seems to run on SOURCE.")
@click.option(
    "--page", type=click.IntRange(1, 10_000), default=1_000, show_default=True, help="Events copied in one transaction."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def copy(context: click.Context, source: str, target: str, force: bool, page: int, as_json: bool) -> None:
    """Copy schedules, runs and history from the store at URL SOURCE to the one at URL TARGET, and compare the two.

    Stop every instance on SOURCE first; TARGET must be empty. Exit with 1 if the stores differ after the copy. To
    resume an interrupted copy, repeat the command. Runs in progress are started again on TARGET.

    Example: mainspring copy sqlite:///mainspring.db postgresql://user@host/app
    """
    for field, url in (("SOURCE", source), ("TARGET", target)):
        if url.partition("://")[0].lower() == "memory":
            raise InvalidInput(
                field, f"{url} lives inside one process", "Give the URL of a store that other processes can open"
            )
    check_exists(source, "Give the URL of the store to copy from")
    copied, comparison = asyncio.run(_copy(source, target, force, page, as_json))
    if as_json:
        print_json(_as_dict(copied, comparison))
    else:
        _print(copied, comparison)
    context.exit(0 if comparison.ok else 1)


async def _copy(source_url: str, target_url: str, force: bool, page: int, quiet: bool) -> tuple[Copied, Comparison]:
    """Open both stores, copy the source to the target, and return (what was copied, comparison of the stores).

    `force`: copy even if an instance seems to run on the source. `page`: number of events in one transaction. `quiet`:
    show no progress bar. Raises: InvalidInput if both URLs name one store; StoreUnavailable if the source does not
    exist; CopyRefused.
    """
    from mainspring.ledger.compare import compare
    from mainspring.ledger.copy import check_source
    from mainspring.ledger.copy import copy as copy_store

    clock = SystemClock()
    source, target = _store("SOURCE", source_url, clock), _store("TARGET", target_url, clock)
    name = _describe_place(source)
    if name == _describe_place(target):
        raise InvalidInput("TARGET", "SOURCE and TARGET are the same store", "Give the URL of another one")
    await _check_source_exists(source)
    await source.open()
    try:
        await check_source(source, force=force)  # before the target is created by opening it
        await target.open()
        try:
            with _ProgressBar(quiet) as bar:
                copied = await copy_store(source, target, name=name, force=force, page=page, progress=bar.step)
                bar.describe("comparing")
                return copied, await compare(source, target, clock.now())
        finally:
            await target.close()
    finally:
        await source.close()


def _store(argument: str, url: str, clock: SystemClock) -> Store:
    """Return the store at a URL, without opening it. Raises: InvalidInput, which names `argument`: SOURCE or TARGET."""
    from mainspring.runtime.store_url import open_store

    try:
        return open_store(url, clock)
    except InvalidInput as error:
        raise InvalidInput(argument, error.problem, error.fix) from error


def _describe_place(store: Store) -> str:
    """Return where a store is, as text without a password. Two URLs of one store give equal texts."""
    if isinstance(path := getattr(store, "path", None), str):
        return os.path.realpath(path)
    settings: Any = getattr(store, "settings", None)
    if settings is None:
        return str(store)
    within = f"schema {settings.schema}" if hasattr(settings, "schema") else f"prefix {settings.prefix}"
    return f"{settings.where}, {within}"


async def _check_source_exists(store: Store) -> None:
    """Raise StoreUnavailable if `store` is on a server and does not exist yet. Why: opening it would create it."""
    if isinstance(store, ServerStore) and not await store.exists():
        raise StoreUnavailable(f"{_describe_place(store)} does not exist. Give the URL of the store to copy from")


class _ProgressBar:
    """Progress bar of a copy, on standard error. `quiet`, or a standard error that is no terminal: show nothing."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, disable=quiet or not console.is_terminal)
        self._task = self._progress.add_task("events", total=None)

    def __enter__(self) -> _ProgressBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def step(self, step: Step) -> None:
        """Show a step of the copy: what is copied, and the numbers of the last event copied and of the last to copy."""
        self._progress.update(self._task, description=step.what, completed=step.seq, total=step.end)

    def describe(self, text: str) -> None:
        """Show `text` before the bar, for example "comparing"."""
        self._progress.update(self._task, description=text)


def _as_dict(copied: Copied, comparison: Comparison) -> dict[str, Any]:
    import msgspec

    return {
        "ok": comparison.ok,
        "copied": msgspec.to_builtins(copied),
        "source": comparison.source,
        "target": comparison.target,
        "differences": comparison.differences,
    }


def _print(copied: Copied, comparison: Comparison) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True, markup=False)
    table = Table(box=None, pad_edge=False)
    for column in ("", "source", "target", ""):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for name, value in comparison.source.items():
        other = comparison.target[name]
        table.add_row(name, _short(value), _short(other), "" if value == other else "✕")
    console.print(table)
    if copied.resumed and not copied.events:
        console.print("0 events copied: the target had them all already")
    else:
        after = f", after event {copied.resumed} of an earlier copy" if copied.resumed else ""
        console.print(f"{plural(copied.events, 'event')} copied{after}")
    if copied.running:
        were = "was" if copied.running == 1 else "were"
        console.print(f"{plural(copied.running, 'run')} {were} running: the first instance on the target rescues them")
    if comparison.ok:
        console.print("ok: the stores are equal")
    elif comparison.differences:
        console.print(
            f"✕ {', '.join(comparison.differences)} differ. If a program wrote to the source meanwhile, stop it and "
            "run the command again"
        )
    else:
        console.print("✕ the stores are equal, but their rows differ from the log: see `mainspring events verify`")


def _short(value: int | str) -> str:
    """Return a value for the table of the comparison: a number as text, or the first 12 characters of a hash."""
    return value[:12] if isinstance(value, str) else str(value)
