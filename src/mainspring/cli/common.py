"""Options and helpers of the commands that read a store."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import click
import msgspec

from mainspring.model.errors import (
    InvalidInput,
    MainspringError,
    StoreCorrupt,
    StoreUnavailable,
    UnknownSchedule,
    suggest_nearest,
)
from mainspring.model.instant import Ms, duration_ms, instant_ms
from mainspring.model.schedule import ScheduleState
from mainspring.ports.clock import SystemClock
from mainspring.ports.store import Schedules, Store

T = TypeVar("T")
DEFAULT_URL = "sqlite:///mainspring.db"


def store_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options `--store URL` and `--json` to a command."""
    json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    where = click.option(
        "--store",
        "url",
        metavar="URL",
        help=f"URL of the store; default: $MAINSPRING_URL, then {DEFAULT_URL}.",
    )
    return where(json_flag(command))


def query_store(url: str | None, question: Callable[[Store, Ms], Awaitable[T]]) -> T:
    """Open the store, return what `question(store, now)` returns, and close the store.

    A file that does not exist is an error: reading creates nothing.
    """
    url = url or os.environ.get("MAINSPRING_URL") or DEFAULT_URL
    check_exists(url)

    async def ask() -> T:
        from mainspring.runtime.store_url import open_store

        clock = SystemClock()
        store = open_store(url, clock)
        await store.open()
        try:
            return await question(store, clock.now())
        finally:
            await store.close()

    try:
        return asyncio.run(ask())
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"a row of {url} cannot be read: {error}. `mainspring events verify` names it") from error


def check_exists(url: str, fix: str = "Give the store's URL with --store or MAINSPRING_URL") -> None:
    """Refuse a SQLite file that does not exist or is empty, because opening it would create a store."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    if scheme == "memory":
        raise InvalidInput(
            "--store", f"{url} lives inside one process", "Give the URL of a store that other processes can open"
        )
    place = unquote(rest.partition("?")[0])
    if scheme != "sqlite" or not place.startswith("/") or place.endswith("/"):
        return  # opening the store reports what is wrong
    path = Path(place[1:])
    if not path.exists():
        raise StoreUnavailable(f"{path.absolute()} does not exist. {fix}")
    if path.is_file() and path.stat().st_size == 0:
        raise MainspringError(f"{path.absolute()} is empty: it is not a Mainspring store")


def parse_time(text: str | None, now: Ms, *, field: str) -> Ms | None:
    """Parse a time given as an option: "7d" is seven days before `now`, else it is an ISO 8601 time with an offset."""
    if text is None:
        return None
    if text[:1].isdigit() and "-" not in text:
        return now - duration_ms(text, field=field)
    return instant_ms(text, field=field)


async def find_schedule_id(store: Store, given: str) -> str:
    """Return the id of the schedule with this id or name. A deleted schedule is found if no other one matches."""
    states: tuple[ScheduleState, ...] = ("active", "paused", "finished", "deleted")
    for query in (Schedules(id=given, states=states), Schedules(name=given, states=states)):
        found = await store.find(query)
        if found:
            return max(found, key=lambda row: (row.state != "deleted", row.id)).id
    names = [row.name for row in await store.find(Schedules(limit=1_000))]
    raise UnknownSchedule(" ".join(filter(None, (f"there is no schedule {given!r}.", suggest_nearest(given, names)))))


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))
