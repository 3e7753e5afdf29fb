"""Helpers of commands that read a store: their options, opening a store, times, finding a schedule, printing JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import click
import msgspec

from mainspring.cli.program import find_store_url
from mainspring.model.errors import (
    InvalidInput,
    MainspringError,
    StoreCorrupt,
    StoreReadOnly,
    StoreUnavailable,
    UnknownSchedule,
    suggest_nearest,
)
from mainspring.model.instant import Ms, duration_ms, instant_ms
from mainspring.model.schedule import ScheduleState
from mainspring.model.settings import DEFAULT_STORE_URL
from mainspring.ports.clock import SystemClock
from mainspring.ports.store import Schedules, Store

T = TypeVar("T")


def store_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options `--store URL` and `--json` to a command, which receives them as `url` and `as_json`."""
    json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    where = click.option(
        "--store",
        "url",
        metavar="URL",
        help=f"URL of the store; default: the configured one ($MAINSPRING_URL, .env, file), then {DEFAULT_STORE_URL}.",
    )
    return where(json_flag(command))


def query_store(url: str | None, question: Callable[[Store, Ms], Awaitable[T]]) -> T:
    """Open the store at `url`, return what `question(store, now)` returns, and close the store.

    A SQLite file that this user may not write is opened to read. `url` None stands for the store that `serve` and `run`
    use. `now` is the time of this machine. Raises:
    InvalidInput for a memory store, because another process cannot open it; StoreUnavailable for a SQLite file that
    does not exist and MainspringError for an empty one, because opening it would create a store; StoreCorrupt if a row
    cannot be decoded.
    """
    url = url or find_store_url()
    check_exists(url)

    async def ask() -> T:
        from mainspring.runtime.store_url import open_store

        clock = SystemClock()
        store = open_store(url, clock)
        try:
            await store.open()
        except StoreReadOnly:
            if not url.lower().startswith("sqlite:"):
                raise
            store = open_store(f"{url}{'&' if '?' in url else '?'}read_only=1", clock)
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
    """Raise a MainspringError if `url` names a memory store, or a SQLite file that does not exist or is empty.

    Why: opening such a file would create a store in it, and a memory store of this process is always empty. Any other
    wrong URL is reported when the store is opened. `fix` is the advice in the error text about a missing file.
    """
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


#: What to write for an option that takes a time.
TIME_FIX = "Write a duration ago such as 30m, 12h or 7d, or a time such as 2026-03-01T09:00:00Z"


def parse_time(text: str | None, now: Ms, *, field: str) -> Ms | None:
    """Return the instant that `text`, the value of a time option, names; None if the option was not given.

    A duration such as "7d" means seven days before `now`. Any other text must be an ISO 8601 time with an offset.
    Raises: InvalidInput, which names `field`: the option, such as "--since".
    """
    if text is None:
        return None
    try:
        if text[:1].isdigit() and "-" not in text:
            return now - duration_ms(text, field=field)
        return instant_ms(text, field=field)
    except InvalidInput as error:  # its fix speaks of Python
        raise InvalidInput(field, error.problem, TIME_FIX) from None


async def find_schedule_id(store: Store, given: str) -> str:
    """Return the id of the schedule whose id or name is `given`, in any namespace.

    Of several schedules with this name, the newest that is not deleted is taken; if all are deleted, the newest.
    Raises: UnknownSchedule, with the nearest name, if there is no such schedule.
    """
    states: tuple[ScheduleState, ...] = ("active", "paused", "finished", "deleted")
    for query in (Schedules(id=given, states=states), Schedules(name=given, states=states)):
        found = await store.find(query)
        if found:
            return max(found, key=lambda row: (row.state != "deleted", row.id)).id
    names = [row.name for row in await store.find(Schedules(limit=1_000))]
    raise UnknownSchedule(" ".join(filter(None, (f"there is no schedule {given!r}.", suggest_nearest(given, names)))))


def print_json(value: Any) -> None:
    """Print a value to standard output as indented JSON."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))
