"""Resolve each setting: of flag, variable, `.env`, file and default, the first source that gives a value wins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from mainspring.config.environment import VariableValues, read_dotenv, read_variables
from mainspring.config.files import ConfigFile, find_file, read_file
from mainspring.config.schema import KEYS, build_settings, get_value
from mainspring.config.settings import SchedulerSettings, ServeSettings
from mainspring.model.errors import InvalidInput, LeaseTooShort
from mainspring.model.policies import RetryPolicy
from mainspring.model.settings import make_settings

#: Origin of a value that no source gives.
DEFAULT_ORIGIN = "default"
#: Variable with the path of the configuration file.
CONFIG_VARIABLE = "MAINSPRING_CONFIG"
#: Variable of source 002 (docs/serving.md): "production" means JSON lines, unless a source gives the log's format.
NODE_VARIABLE = "NODE_ENV"
#: Configuration key → its option on the command line, where that is not the last part of the key.
FLAGS = {"logging.level": "--log-level", "scheduler.workers": "--concurrency"}


class Resolved(Struct, frozen=True):
    """The settings that all sources give together, and where each came from."""

    settings: ServeSettings
    #: Key → its origin: `DEFAULT_ORIGIN`, or the source and its name, such as "flag --port", "env PORT" or "file PATH".
    origins: dict[str, str]
    #: Sentences for the user, for example about a setting without effect.
    notes: tuple[str, ...] = ()
    #: The configuration file that was read; None if there is none.
    file: Path | None = None


class Sources(Struct, frozen=True):
    """Where settings are read from, at the start and at each reload."""

    #: Key → value that the command line gives for it.
    flags: Mapping[str, Any] = {}
    #: The environment variables of the process.
    variables: Mapping[str, str] = {}
    #: Directory of `.env`, and of the configuration file unless `config` or $MAINSPRING_CONFIG names one.
    folder: Path = Path()
    #: Configuration file that the command line names, or None.
    config: Path | None = None


def resolve(sources: Sources) -> Resolved:
    """Read and check all sources, and return the settings with the origin of each value.

    Raises: InvalidInput for the first wrong value, or for values that do not fit together; MissingExtra if a package is
    not installed that the file (PyYAML), the store URL or the broker URL needs. The error names a wrong value by its
    flag, its variable, or its file and key. It names values that do not fit together by one key, with the file if that
    key's value is from it.
    """
    dotenv_path = sources.folder / ".env"
    dotenv = read_dotenv(dotenv_path)
    path = _named_file(sources, dotenv) or find_file(sources.folder)
    from_file = ConfigFile({}, []) if path is None else read_file(path, {**dotenv, **sources.variables})
    from_dotenv = read_variables(dotenv, f"{dotenv_path}: ") if dotenv else VariableValues()
    from_env = read_variables(sources.variables)
    values: dict[str, Any] = {}
    origins = dict.fromkeys(KEYS, DEFAULT_ORIGIN)
    for key, value in from_file.values.items():
        values[key], origins[key] = value, f"file {path}"
    for key, value in from_dotenv.values.items():
        values[key], origins[key] = value, f".env {from_dotenv.names[key]}"
    for key, value in from_env.values.items():
        values[key], origins[key] = value, f"env {from_env.names[key]}"
    for key, value in sources.flags.items():
        flag = FLAGS.get(key) or f"--{key.rpartition('.')[2].replace('_', '-')}"
        values[key], origins[key] = KEYS[key].read(value, flag), f"flag {flag}"
    if "logging.format" not in values and {**dotenv, **sources.variables}.get(NODE_VARIABLE) == "production":
        values["logging.format"], origins["logging.format"] = "json", f"env {NODE_VARIABLE}"
    settings = build_settings(values)
    try:
        _check_together(settings, origins)
    except InvalidInput as error:
        if origins[error.field].startswith("file"):
            raise InvalidInput(f"{path}: {error.field}", error.problem, error.fix) from None
        raise
    notes = tuple(dict.fromkeys([*from_file.notes, *from_dotenv.notes, *from_env.notes]))
    return Resolved(settings, origins, notes, path)


def _named_file(sources: Sources, dotenv: Mapping[str, str]) -> Path | None:
    """Return the configuration file that `--config`, else $MAINSPRING_CONFIG, names; None if neither does.

    `dotenv`: name → value of the variables in the `.env` file. A variable of the process has priority over them.
    """
    name = sources.variables.get(CONFIG_VARIABLE) or dotenv.get(CONFIG_VARIABLE)
    if sources.config is not None or not name:
        return sources.config
    return sources.folder / name


def _check_together(settings: ServeSettings, origins: Mapping[str, str]) -> None:
    """Raise InvalidInput if settings that are valid alone contradict each other.

    `origins`: key → the source of its value, so that an error about retry delays names a key that a source gives.
    """
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
    """Raise InvalidInput if the first delay is longer than `max_delay`. The error names a key that a source gives.

    `origins`: key → the source of its value; `DEFAULT_ORIGIN` if no source gives it.
    """
    if retry.initial > retry.max_delay:
        given = [key for key in ("retry.initial_delay", "retry.max_delay") if origins[key] != DEFAULT_ORIGIN]
        raise InvalidInput(
            given[0] if given else "retry.initial_delay",
            "the first delay is longer than the longest one",
            "Make retry.max_delay at least retry.initial_delay",
        )


def compare(old: ServeSettings, new: ServeSettings) -> dict[str, tuple[Any, Any]]:
    """Return key → (old value, new value) for each key whose values in `old` and `new` differ."""
    pairs = {key: (get_value(old, key), get_value(new, key)) for key in KEYS}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def select_live(old: ServeSettings, new: ServeSettings) -> tuple[ServeSettings, list[str], list[str]]:
    """Return the settings after a reload, the changed keys that are live, and the changed keys that need a restart.

    A live key takes effect in the running service. The settings have the values of live keys from `new`, and all other
    values from `old`.
    """
    differences = compare(old, new)
    live = [key for key in differences if KEYS[key].live]
    values = {key: get_value(old, key) for key in KEYS} | {key: differences[key][1] for key in live}
    return build_settings(values), live, [key for key in differences if key not in live]
