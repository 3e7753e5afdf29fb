"""Flag over variable over `.env` over file over default; each value remembers where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from mainspring.config.environment import Given, read_dotenv, read_variables
from mainspring.config.files import ConfigFile, find_file, read_file
from mainspring.config.keys import KEYS, assemble, value_of
from mainspring.config.settings import ServeSettings
from mainspring.model.errors import InvalidInput, LeaseTooShort
from mainspring.model.settings import make_settings

DEFAULT = "default"
CONFIG = "MAINSPRING_CONFIG"


class Resolved(Struct, frozen=True):
    """Settings, where each of them came from, and what is worth saying about them."""

    settings: ServeSettings
    origins: dict[str, str]
    notes: tuple[str, ...] = ()
    file: Path | None = None


class Sources(Struct, frozen=True):
    """Where to look; the same again at each reload."""

    flags: Mapping[str, Any] = {}
    variables: Mapping[str, str] = {}
    folder: Path = Path()
    config: Path | None = None


def resolve(sources: Sources) -> Resolved:
    """Read everything, check everything, put it together."""
    dotenv_path = sources.folder / ".env"
    dotenv = read_dotenv(dotenv_path)
    named = sources.config
    if named is None and (name := sources.variables.get(CONFIG) or dotenv.get(CONFIG)):
        named = sources.folder / name
    path = named or find_file(sources.folder)
    from_file = ConfigFile({}, []) if path is None else read_file(path, {**dotenv, **sources.variables})
    from_dotenv = read_variables(dotenv, f"{dotenv_path}: ") if dotenv else Given()
    from_env = read_variables(sources.variables)
    values: dict[str, Any] = {}
    origins = dict.fromkeys(KEYS, DEFAULT)
    for key, value in from_file.values.items():
        values[key], origins[key] = value, f"file {path}"
    for key, value in from_dotenv.values.items():
        values[key], origins[key] = value, f".env {from_dotenv.names[key]}"
    for key, value in from_env.values.items():
        values[key], origins[key] = value, f"env {from_env.names[key]}"
    for key, value in sources.flags.items():
        flag = f"--{key.rpartition('.')[2].replace('_', '-')}"
        values[key], origins[key] = KEYS[key].read(value, flag), f"flag {flag}"
    settings = assemble(values)
    try:
        _check_together(settings, origins)
    except InvalidInput as error:
        if origins[error.field].startswith("file"):
            raise InvalidInput(f"{path}: {error.field}", error.problem, error.fix) from None
        raise
    notes = tuple(dict.fromkeys([*from_file.notes, *from_dotenv.notes, *from_env.notes]))
    return Resolved(settings, origins, notes, path)


def _check_together(settings: ServeSettings, origins: Mapping[str, str]) -> None:
    """What is right alone may be wrong together."""
    scheduler = settings.scheduler
    try:
        make_settings(lease_ttl=scheduler.lease_ttl / 1000, poll_interval=scheduler.poll_interval / 1000)
    except LeaseTooShort as error:
        raise InvalidInput("scheduler.lease_ttl", error.problem, error.fix) from None
    if settings.retry.initial > settings.retry.max_delay:
        given = [key for key in ("retry.initial_delay", "retry.max_delay") if origins[key] != DEFAULT]
        raise InvalidInput(
            given[0] if given else "retry.initial_delay",
            "the first delay is longer than the longest",
            "Make retry.max_delay at least retry.initial_delay",
        )
    if settings.agents.keep_response > settings.agents.max_response:
        raise InvalidInput("agents.keep_response", "more is kept than is read", "Make it at most agents.max_response")
    if settings.limits.burst is not None and settings.limits.requests_per_second is None:
        raise InvalidInput("limits.burst", "needs limits.requests_per_second", "Set both or neither")
    if settings.role == "worker" and settings.store == "memory://":
        raise InvalidInput("role", "a worker finds nothing in its own memory", "Give a store that others open too")


def changed(old: ServeSettings, new: ServeSettings) -> dict[str, tuple[Any, Any]]:
    """The keys whose values differ."""
    pairs = {key: (value_of(old, key), value_of(new, key)) for key in KEYS}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def adopted(old: ServeSettings, new: ServeSettings) -> tuple[ServeSettings, list[str], list[str]]:
    """What a running service goes on with: the live keys of the new, the rest of the old.

    Also the keys that changed, and those that wait for the next start.
    """
    differences = changed(old, new)
    live = [key for key in differences if KEYS[key].live]
    values = {key: value_of(old, key) for key in KEYS} | {key: differences[key][1] for key in live}
    return assemble(values), live, [key for key in differences if key not in live]
