"""`mainspring key`: create, list and revoke the API keys of `mainspring serve`, in its store."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from mainspring.cli.common import check_exists, print_json
from mainspring.cli.program import config_option, find_namespace, find_store_url
from mainspring.model.instant import Ms, duration_ms, isoformat
from mainspring.ports.clock import SystemClock
from mainspring.ports.store import Store

T = TypeVar("T")


@click.group()
def key() -> None:
    """Create, list and revoke API keys. A key is shown only when it is created: the store holds a hash of it.

    A key belongs to one namespace. The services of other namespaces on the store refuse it.
    """


def _store_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--store`, `--app`, `--config` and `--namespace` to a command.

    The command receives the store's URL that they name as `url`, and the namespace of the keys as `ns`.
    """

    @functools.wraps(command)
    def with_url(
        *, store: str | None, program: str | None, path: Path | None, namespace: str | None, **given: Any
    ) -> None:
        ns = find_namespace(path, namespace, program)
        command(url=find_store_url(path, store, program), ns=ns, **given)

    app = click.option("--app", "program", metavar="MODULE:APP", help="Program that `serve --app` serves.")
    where = click.option("--store", metavar="URL", help="URL of the store; default: the one that `serve` uses.")
    namespace = click.option(
        "--namespace", metavar="NAME", help="Namespace of the keys; default: the one that `serve` uses."
    )
    return where(app(config_option(namespace(with_url))))


@key.command()
@click.argument("name")
@click.option(
    "--expires", default=None, metavar="DURATION", help="Time until the key expires, for example 90d; default: never."
)
@click.option(
    "--scope", type=click.Choice(["read", "write"]), default="write", show_default=True, help="What the key may do."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_store_options
def create(name: str, expires: str | None, scope: Literal["read", "write"], as_json: bool, url: str, ns: str) -> None:
    """Create an API key called NAME and print it. No command shows it again."""
    from mainspring.service.api_keys import create_key

    lasts = None if expires is None else duration_ms(expires, field="--expires", minimum=1_000)

    async def work(store: Store, now: Ms) -> tuple[Any, str]:
        return await create_key(store, name, None if lasts is None else now + lasts, ns=ns, scope=scope)

    made, token = _on_store(url, work)
    if as_json:
        shown = {"id": made.id, "name": name, "namespace": made.ns, "scope": scope}
        print_json(shown | {"expiresAt": _format_time(made.expires_at), "key": token})
        return
    click.echo(token)
    until = "never expires" if made.expires_at is None else f"expires {_format_time(made.expires_at)}"
    click.echo(f"key {made.id} ({name}), {until}; it is not shown again", err=True)


@key.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_store_options
def list_(as_json: bool, url: str, ns: str) -> None:
    """List every key with its id, name, creation, expiry and last use, but not the key itself, which is not stored."""
    from mainspring.service.api_keys import list_keys

    check_exists(url)
    keys = _on_store(url, lambda store, now: list_keys(store, ns))
    rows = [
        {
            "id": one.id,
            "name": one.name,
            "namespace": one.ns,
            "scope": "write" if one.may_write else "read",
            "createdAt": _format_time(one.created_at),
            "expiresAt": _format_time(one.expires_at),
            "lastUsedAt": _format_time(one.last_used),
        }
        for one in keys
    ]
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo("no keys. Make one: mainspring key create NAME")
    for row in rows:
        expires, used = row["expiresAt"] or "never", row["lastUsedAt"] or "never used"
        click.echo(f"{row['id']}  {row['name']}  {row['scope']}  since {row['createdAt']}  expires {expires}  {used}")


@key.command()
@click.argument("key")
@_store_options
def revoke(key: str, url: str, ns: str) -> None:
    """Revoke KEY, given by its id or name; every instance refuses it within five seconds."""
    from mainspring.service.api_keys import revoke_key

    check_exists(url)
    gone = _on_store(url, lambda store, now: revoke_key(store, key, ns))
    click.echo(f"revoked: {gone.id} ({gone.name})")


def _format_time(at: Ms | None) -> str | None:
    return None if at is None else isoformat(at)


def _on_store(url: str, work: Callable[[Store, Ms], Awaitable[T]]) -> T:
    """Open the store at `url`, return what `work(store, now)` returns, and close the store.

    `now` is the time of this machine. Raises: InvalidInput for a memory store.
    """
    from mainspring.model.errors import InvalidInput
    from mainspring.runtime.store_url import open_store

    if url.startswith("memory:"):
        raise InvalidInput("--store", "a key in memory is lost when this command ends", "Give the store of the service")

    async def on_store() -> T:
        clock = SystemClock()
        store = open_store(url, clock)
        await store.open()
        try:
            return await work(store, clock.now())
        finally:
            await store.close()

    return asyncio.run(on_store())
