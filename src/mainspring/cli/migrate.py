"""`mainspring migrate`: bring the schema of a PostgreSQL store up to date, or print the SQL for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from mainspring.cli.program import config_option, find_store_url
from mainspring.model.errors import InvalidInput
from mainspring.model.settings import DEFAULT_STORE_URL


@click.command()
@click.option(
    "--store", "url", metavar="URL", help=f"URL of the store; default: the configured one, then {DEFAULT_STORE_URL}."
)
@click.option("--app", "program", metavar="MODULE:APP", help="Program whose store is meant if none is configured.")
@config_option
@click.option("--sql", "only_print", is_flag=True, help="Print the SQL that would run, and change nothing.")
def migrate(url: str | None, program: str | None, path: Path | None, only_print: bool) -> None:
    """Bring the schema of a PostgreSQL store up to date and list the steps that were run; --sql only prints the SQL.

    Other stores need no migration: a SQLite file is brought up to date when it is opened, and Redis has no schema.

    Example: mainspring migrate --store postgresql://me@db/app --sql
    """
    url = find_store_url(path, url, program)
    scheme = url.partition("://")[0].lower()
    if scheme.startswith(("redis", "valkey")):
        click.echo("nothing to do: a Redis or Valkey store has no schema")
        return
    if scheme in ("sqlite", "memory"):
        click.echo(f"nothing to do: a {scheme} store is brought up to date when it is opened")
        return
    if scheme not in ("postgresql", "postgres"):
        raise InvalidInput("--store", f"{url!r} is not a store with migrations", "Give a postgresql:// URL")
    from mainspring.ports.clock import SystemClock
    from mainspring.ports.store_extras import MigratableStore
    from mainspring.runtime.store_url import open_store

    store = open_store(url, SystemClock())
    assert isinstance(store, MigratableStore)
    click.echo(asyncio.run(store.migrate(only_print=only_print)))
