"""`mainspring schedules`: commands on single schedules of a store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mainspring.cli.common import check_exists
from mainspring.model.settings import DEFAULT_NAMESPACE, DEFAULT_STORE_URL

if TYPE_CHECKING:
    from mainspring.app.mainspring import Mainspring

T = TypeVar("T")


@click.group()
def schedules() -> None:
    """Act on a schedule of a store, also while programs run on the store."""


def place_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options `--store URL` and `--namespace NAME`; the command receives them as `url` and `ns`."""
    where = f"URL of the store; default: $MAINSPRING_URL, then {DEFAULT_STORE_URL}."
    command = click.option(
        "--namespace", "ns", default=DEFAULT_NAMESPACE, show_default=True, help="Namespace of the schedule."
    )(command)
    return click.option("--store", "url", metavar="URL", help=where)(command)


def with_app(url: str | None, ns: str, work: Callable[[Mainspring], Coroutine[Any, Any, T]]) -> T:
    """Open the store at `url` as an app of namespace `ns` without tasks, and return what `work(app)` returns.

    `url` None stands for $MAINSPRING_URL, else `DEFAULT_STORE_URL`. Raises: MainspringError for a store that is not
    there, and whatever `work` raises.
    """
    from mainspring.app.mainspring import Mainspring

    url = url or os.environ.get("MAINSPRING_URL") or DEFAULT_STORE_URL
    check_exists(url)

    async def run() -> T:
        app = Mainspring(url, namespace=ns)
        try:
            return await work(app)
        finally:
            await app.close()

    return asyncio.run(run())


@schedules.command()
@click.argument("name")
@place_options
def resume(name: str, url: str | None, ns: str) -> None:
    """Plan runs of the paused schedule NAME again. Its fires during the pause never run. NAME may be its id.

    Example: mainspring schedules resume nightly
    """

    async def work(app: Mainspring) -> str:
        before = await app.get(name)
        if before.state != "paused":
            return f"{before.name} is {before.state}, not paused; nothing was changed"
        await app.resume(name)
        return f"{before.name} is resumed; it was paused: {before.reason}"

    click.echo(with_app(url, ns, work))


@schedules.command()
@click.argument("name")
@click.argument("new_name", metavar="NEW")
@place_options
def rename(name: str, new_name: str, url: str | None, ns: str) -> None:
    """Give the schedule NAME the name NEW. Its runs and its history stay with it. NAME may be its id.

    A schedule that code declares is renamed in the code.

    Example: mainspring schedules rename nightly nightly-report
    """

    async def work(app: Mainspring) -> str:
        before = await app.get(name)
        after = await app.rename(before.id, new_name)
        if after.revision == before.revision:
            return f"the name is {after.name} already; nothing was changed"
        return f"{before.name} is now {after.name}: revision {after.revision}"

    click.echo(with_app(url, ns, work))


@schedules.command("use-code")
@click.argument("name")
@place_options
def use_code(name: str, url: str | None, ns: str) -> None:
    """Replace a person's edit of the schedule NAME by the definition that code declared last. NAME may be its id.

    The program that declares it need not run. Without such an edit, nothing is changed.

    Example: mainspring schedules use-code nightly
    """

    async def work(app: Mainspring) -> str:
        before = await app.get(name)
        after = await app.use_code(name)
        if after.revision == before.revision:
            return f"{before.name} is as the code declares it; nothing was changed"
        return f"{before.name} is as the code declares it again: revision {after.revision}"

    click.echo(with_app(url, ns, work))


@schedules.command()
@click.argument("name")
@place_options
def rewind(name: str, url: str | None, ns: str) -> None:
    """Set the schedule NAME, which a wrong clock planned ahead, back to now. NAME may be its id.

    Its fires from now on run again, except those that have a run already.

    Example: mainspring schedules rewind nightly
    """

    from mainspring.app.internals import queries_of
    from mainspring.model.instant import isoformat

    async def work(app: Mainspring) -> str:
        before = await queries_of(app).find_schedule(name)
        after = await app.rewind(name)
        row = await queries_of(app).find_schedule(name)
        if row.cursor >= before.cursor:
            return f"{before.name} is not planned ahead of the clock; nothing was changed"
        then = "" if after.next_run is None else f"; its next run is at {after.next_run.isoformat()}"
        return f"{before.name} was planned up to {isoformat(before.cursor)}, and is planned up to now again{then}"

    click.echo(with_app(url, ns, work))
