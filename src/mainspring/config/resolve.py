"""Settings from all sources. The first that gives a value wins: flag, variable, `.env`, file, default.

The origin of each value is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from mainspring.config.environment import VariableValues, read_dotenv, read_variables
from mainspring.config.files import ConfigFile, find_file, read_file
from mainspring.config.schema import KEYS, assemble, get_value
from mainspring.config.settings import SchedulerSettings, ServeSettings
from mainspring.model.errors import InvalidInput, LeaseTooShort
from mainspring.model.policies import RetryPolicy
from mainspring.model.settings import make_settings

DEFAULT = "default"
CONFIG = "MAINSPRING_CONFIG"


class Resolved(Struct, frozen=True):
    """Settings in force, the origin of each by key, notes for the user, and the file that was read, if any."""

    settings: ServeSettings
    origins: dict[str, str]
    notes: tuple[str, ...] = ()
    file: Path | None = None


class Sources(Struct, frozen=True):
    """Where settings are read from, at the start and at each reload."""

    flags: Mapping[str, Any] = {}
    variables: Mapping[str, str] = {}
    folder: Path = Path()
    config: Path | None = None


def resolve(sources: Sources) -> Resolved:
    """Read and check all sources and return the settings.

    Raises: InvalidInput, with the place and the fix, for the first wrong value.
    """
    dotenv_path = sources.folder / ".env"
    dotenv = read_dotenv(dotenv_path)
    path = _named_file(sources, dotenv) or find_file(sources.folder)
    from_file = ConfigFile({}, []) if path is None else read_file(path, {**dotenv, **sources.variables})
    from_dotenv = read_variables(dotenv, f"{dotenv_path}: ") if dotenv else VariableValues()
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


def _named_file(sources: Sources, dotenv: Mapping[str, str]) -> Path | None:
    """Return the configuration file that an option or a variable names, or None."""
    name = sources.variables.get(CONFIG) or dotenv.get(CONFIG)
    if sources.config is not None or not name:
        return sources.config
    return sources.folder / name


def _check_together(settings: ServeSettings, origins: Mapping[str, str]) -> None:
    """Refuse values that are valid alone and contradict each other."""
    _check_lease(settings.scheduler)
    _check_retry(settings.retry, origins)
    if settings.agents.keep_response > settings.agents.max_response:
        raise InvalidInput(
            "agents.keep_response", "more bytes are kept than are read", "Make it at most agents.max_response"
        )
    if settings.limits.burst is not None and settings.limits.requests_per_second is None:
        raise InvalidInput("limits.burst", "needs limits.requests_per_second", "Set both or neither")
    if settings.role == "worker" and settings.store == "memory://":
        raise InvalidInput(
            "role", "a worker finds no runs in a store in its own memory", "Give a store that others open"
        )


def _check_lease(scheduler: SchedulerSettings) -> None:
    try:
        make_settings(lease_ttl=scheduler.lease_ttl / 1000, poll_interval=scheduler.poll_interval / 1000)
    except LeaseTooShort as error:
        raise InvalidInput("scheduler.lease_ttl", error.problem, error.fix) from None


def _check_retry(retry: RetryPolicy, origins: Mapping[str, str]) -> None:
    if retry.initial > retry.max_delay:
        given = [key for key in ("retry.initial_delay", "retry.max_delay") if origins[key] != DEFAULT]
        raise InvalidInput(
            given[0] if given else "retry.initial_delay",
            "the first delay is longer than the longest one",
            "Make retry.max_delay at least retry.initial_delay",
        )


def compare(old: ServeSettings, new: ServeSettings) -> dict[str, tuple[Any, Any]]:
    """Return the keys whose values differ, with the old and the new value."""
    pairs = {key: (get_value(old, key), get_value(new, key)) for key in KEYS}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def select_live(old: ServeSettings, new: ServeSettings) -> tuple[ServeSettings, list[str], list[str]]:
    """Return the settings for a running service: live keys from `new`, the others from `old`.

    Also return the live keys that changed, and the changed keys that take effect at the next start.
    """
    differences = compare(old, new)
    live = [key for key in differences if KEYS[key].live]
    values = {key: get_value(old, key) for key in KEYS} | {key: differences[key][1] for key in live}
    return assemble(values), live, [key for key in differences if key not in live]
