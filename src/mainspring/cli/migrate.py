"""`mainspring migrate`: bring a server's schema up to date, or print how."""

from __future__ import annotations

import asyncio
import os

import click

from mainspring.cli.common import DEFAULT_URL
from mainspring.model.errors import InvalidInput, MissingExtra


@click.command()
@click.option("--store", "url", metavar="URL", help="The store to migrate; else $MAINSPRING_URL.")
@click.option("--sql", "only_print", is_flag=True, help="Print the SQL that would run, and change nothing.")
def migrate(url: str | None, only_print: bool) -> None:
    """Bring the schema of a PostgreSQL store up to date; a SQLite file does it by itself when it is opened.

    Example: mainspring migrate --store postgresql://me@db/app --sql
    """
    url = url or os.environ.get("MAINSPRING_URL") or DEFAULT_URL
    scheme = url.partition("://")[0].lower()
    if scheme.startswith(("redis", "valkey")):
        click.echo("nothing to do: a Redis or Valkey store has no schema")
        return
    if scheme in ("sqlite", "memory"):
        click.echo(f"nothing to do: a {scheme} store is brought up to date when it is opened")
        return
    if scheme not in ("postgresql", "postgres"):
        raise InvalidInput("--store", f"{url!r} is not a store with migrations", "Give a postgresql:// URL")
    try:
        from mainspring.stores.postgres.database import upgrade
        from mainspring.stores.postgres.settings import read_url
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise MissingExtra("PostgreSQL needs asyncpg. Install it: pip install 'mainspring[postgres]'") from error
    said = asyncio.run(upgrade(read_url(url), only_print=only_print))
    click.echo(said)
