"""Read a configuration file, in YAML or TOML, into checked values by key, such as `server.port`.

Every error is one line: where, what is wrong, and the fix. "Source 000" is scheduler-rs (docs/sources.md), whose
configuration files are understood, too.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

from mainspring.config import readers
from mainspring.config.schema import ALIASES, KEYS
from mainspring.model.errors import InvalidInput, MissingExtra, suggest_nearest

#: Names that a configuration file may have, if its path is not given.
CONFIG_FILE_NAMES = ("mainspring.yaml", "mainspring.yml", "mainspring.toml")
MAX_FILE_BYTES = 1024 * 1024
#: ${NAME} or ${NAME:-default} in a text.
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
#: Sections and keys of source 000 that `_adopt_foreign` translates into the keys `store` and `broker`.
_FOREIGN_SECTIONS = ("storage", "broker")
_FOREIGN_KEYS = (
    "broker.type",
    "broker.redis.url",
    "broker.redis.stream_name",
    "broker.sqs.queue_url",
    "storage.type",
    "storage.json_file.path",
    "storage.json_file.auto_save_interval_secs",
    "storage.sqlite.path",
    "storage.postgres.url",
)


class ConfigFile:
    """The checked content of a configuration file: key → value, and sentences for the user (`notes`)."""

    def __init__(self, values: dict[str, Any], notes: list[str]) -> None:
        self.values = values
        self.notes = notes


def find_file(folder: Path) -> Path | None:
    """Return the path of the configuration file in `folder`, or None. Raises: InvalidInput if there are several."""
    found = [folder / name for name in CONFIG_FILE_NAMES if (folder / name).exists()]
    if len(found) > 1:
        raise InvalidInput(
            "--config", f"there are {found[0].name} and {found[1].name}", "Remove one, or name the one to use"
        )
    return found[0] if found else None


def read_file(path: Path, variables: Mapping[str, str]) -> ConfigFile:
    """Read a configuration file and return its checked content. `variables` are the values of `${NAME}` in its texts.

    Raises: InvalidInput for the first mistake, with path, line or key, and the fix; MissingExtra if the file is YAML
    and PyYAML is not installed.
    """
    try:
        return _flatten(_parse(path, _read_text(path)), variables)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error.field}" if error.field else str(path), error.problem, error.fix) from None


def _read_text(path: Path) -> str:
    """Return the text of a UTF-8 file. Raises: InvalidInput if it cannot be read or is larger than `MAX_FILE_BYTES`."""
    try:
        if path.is_dir():
            raise InvalidInput("", "is a directory", f"Name a file in it, for example {path}/mainspring.yaml")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)  # the size of a device or pipe is not known before
    except FileNotFoundError:
        raise InvalidInput("", "does not exist", "Check the path, or leave --config out") from None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise InvalidInput("", f"cannot be read: {why}", "Let this user read it: chmod, chown") from None
    if len(data) > MAX_FILE_BYTES:
        raise InvalidInput(
            "", f"is larger than {MAX_FILE_BYTES} bytes", "Is this the right file? A configuration has at most 1 MiB"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InvalidInput(f"line {line}", "is not UTF-8 text", "Save the file as UTF-8") from None


def _parse(path: Path, text: str) -> Any:
    """Return the data in `text`, the content of `path`; the file's suffix decides between YAML and TOML.

    Raises: InvalidInput if the text cannot be parsed or the suffix is unknown; MissingExtra if PyYAML is missing.
    """
    if path.suffix.lower() in (".yaml", ".yml"):
        return _yaml(text)
    if path.suffix.lower() == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            found = re.search(r"^(.*?) \(at line (\d+), column \d+\)$", str(error))
            where, what = (f"line {found[2]}", found[1]) if found else ("", str(error))
            raise InvalidInput(
                where, f"is not TOML: {what}", "Texts go between quotes, sections in [brackets]"
            ) from None
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, or values nested too deeply
            raise InvalidInput("", f"is not TOML: {error}", "Put long numbers between quotes; nest less") from None
    raise InvalidInput("", f"{path.suffix or 'no suffix'} is not a known format", "Name it .yaml, .yml or .toml")


def _yaml(text: str) -> Any:
    """Return the data in a YAML text; None if it is empty.

    Raises: InvalidInput, with the line if it is known, if the text is not YAML, has a key twice in one mapping, or uses
    a reference (`*name`); MissingExtra if PyYAML is not installed.
    """
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise MissingExtra("YAML needs PyYAML. Install it: pip install 'mainspring[serve]'") from error

    class StrictLoader(yaml.SafeLoader):
        """Loader of plain data from YAML that refuses a key given twice in a mapping, and a reference (`*name`)."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                mark = self.get_mark()
                raise InvalidInput(f"line {mark.line + 1}", "uses a reference (*name)", "Write the value itself")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key, _ in node.value:
                name = str(key.value)
                if name in seen:
                    raise InvalidInput(f"line {key.start_mark.line + 1}", f"{name!r} is given twice", "Remove one")
                seen.add(name)
            return super().construct_mapping(node, deep)

    try:
        loader = StrictLoader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        where = f"line {mark.line + 1}" if mark is not None else ""
        what = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read")
        if "\\t" in what:
            raise InvalidInput(where, "begins with a tab", "Indent with spaces") from None
        raise InvalidInput(where, f"is not YAML: {what}", "Write `key: value`, indented by spaces") from None
    except (ValueError, RecursionError) as error:  # for example a date that does not exist, or values nested too deeply
        raise InvalidInput("", f"is not YAML: {error}", "Put texts between quotes") from None


def _flatten(data: Any, variables: Mapping[str, str]) -> ConfigFile:
    """Return the checked content of a file from `data`, its parsed content, which is None for an empty file.

    `variables`: NAME → value of `${NAME}` in texts. Raises: InvalidInput for the first wrong key or value.
    """
    if data is None:
        return ConfigFile({}, [])
    if not isinstance(data, dict):
        raise InvalidInput("", "holds no keys", "Write for example `server: {port: 3000}`")
    given = {key: _expand(value, key, variables) for key, value in _leaves(data, "")}
    notes: list[str] = []
    values = _read_values({key: value for key, value in given.items() if not _is_foreign(key)})
    _adopt_foreign(given, values, notes)
    if values.get("metrics.enabled"):
        notes.append("metrics.enabled: this version has no metrics yet")
    return ConfigFile(values, notes)


def _is_foreign(key: str) -> bool:
    """Return True for a key in the section `storage` or `broker` of scheduler-rs, which `_adopt_foreign` translates."""
    return "." in key and key.partition(".")[0] in _FOREIGN_SECTIONS


def _read_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the raw values in `given` (key, or another name of a key → raw value), and return key → checked value.

    Raises: InvalidInput for a wrong value, or if two names in `given` mean one key.
    """
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in given.items():
        alias = ALIASES.get(name)
        key = alias.key if alias else name
        if key in names:
            raise InvalidInput(name, f"means the same setting as {names[key]}", "Remove one of them")
        names[key] = name
        values[key] = (alias.read if alias else KEYS[key].read)(value, name)
    return values


def _leaves(data: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield (full key, value) for each setting in `data`, the content of a file or section, and in its sub-sections.

    A full key is `prefix`, such as "server.", and the name in `data`. Raises: InvalidInput for a key that is unknown or
    is not a text, and for a section that is not a mapping.
    """
    for name, value in data.items():
        if not isinstance(name, str):
            raise InvalidInput(f"{prefix}{name}", "is not a text", "Write the key as a word")
        key = f"{prefix}{name}"
        if key == "store" and isinstance(value, dict):
            yield from _store_leaves(value)
        elif _is_key(key) and not (key == "broker" and isinstance(value, dict)):
            yield key, value
        elif _is_section(key):
            yield from _section_leaves(key, value)
        else:
            _refuse(key)


def _section_leaves(section: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (full key, value) for each setting in `value`, the content of a section, which is None if it is empty.

    Raises: InvalidInput if `value` is neither a mapping nor None, and for an unknown key in it.
    """
    if isinstance(value, dict):
        yield from _leaves(value, f"{section}.")
    elif value is not None:
        problem = f"is a section, not {type(value).__name__}"
        raise InvalidInput(section, problem, f"Write the keys of {section} under it")


def _store_leaves(section: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yield ("store", URL) for a section `store: {url: URL}`. Raises: InvalidInput for any other key in the section."""
    for name, value in section.items():
        if name != "url":
            _refuse(f"store.{name}")
        yield "store", value


def _is_key(key: str) -> bool:
    """Return True if a configuration file may have a value for `key`, a name with its sections, such as "server.port".

    The names that only scheduler-rs uses (`ALIASES`, `_FOREIGN_KEYS`) count as keys. `store.url` does not count:
    `_store_leaves` reads it.
    """
    return key in KEYS or key in ALIASES or key in _FOREIGN_KEYS


def _is_section(key: str) -> bool:
    """Return True if some key begins with `key` and a dot."""
    return any(known.startswith(f"{key}.") for known in (*KEYS, *_FOREIGN_KEYS))


def _refuse(key: str) -> NoReturn:
    """Raise InvalidInput for an unknown key, with the nearest key as its fix, or the keys or sections that exist."""
    known = [*KEYS, *ALIASES, *_FOREIGN_KEYS, "store.url"]
    section, _, name = key.rpartition(".")
    fix = _suggest_in_section(section, name, known) if section else _suggest_section(name, known)
    sections = ", ".join(sorted(_sections(known)))
    raise InvalidInput(key, "there is no such key", fix or f"The sections are {sections}")


def _sections(keys: list[str]) -> set[str]:
    return {key.partition(".")[0] for key in keys if "." in key}


def _suggest_in_section(section: str, name: str, known: list[str]) -> str:
    """Return a hint for an unknown key `name` in a section: the nearest key, else the names in the section.

    `known` are the full names of all keys. The nearest of all keys is tried first, then the nearest in the section.
    """
    names = [key.rpartition(".")[2] for key in known if key.startswith(f"{section}.")]
    every = f"{section} has {', '.join(sorted(set(names)))}"
    return suggest_nearest(f"{section}.{name}", known) or suggest_nearest(name, names) or every


def _suggest_section(name: str, known: list[str]) -> str:
    """Return a hint for an unknown name at the top level of a file, or "" if no known name is near.

    The hint is the key that has this name in a section, else the nearest section, else the nearest key. `known` are the
    full names of all keys.
    """
    for key in known:
        if key.rpartition(".")[2] == name:
            return f"Write it as {key}"
    return suggest_nearest(name, _sections(known)) or suggest_nearest(name, known)


def _expand(value: Any, key: str, variables: Mapping[str, str]) -> Any:
    """Return `value`, a text or a list with texts, with each ${NAME} replaced by the value of NAME in `variables`.

    ${NAME:-default} becomes `default` if NAME is not set. Other values are returned unchanged. Raises: InvalidInput,
    with the field `key`, for a variable that is not set and has no default, or an unfinished ${…}.
    """
    if isinstance(value, list):
        return [_expand(item, key, variables) for item in value]
    if not isinstance(value, str) or "${" not in value:
        return value

    def replacement(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if name in variables:
            return variables[name]
        if default is None:
            raise InvalidInput(key, f"${{{name}}} is not set", f"Set {name}, or write ${{{name}:-a default}}")
        return default

    expanded = _VARIABLE.sub(replacement, value)
    if "${" in _VARIABLE.sub("", value):
        raise InvalidInput(key, f"{value!r} holds an unfinished ${{…}}", "Write ${NAME} or ${NAME:-default}")
    return expanded


# ── source 000: its sections `storage` and `broker` ─────────────────────────


def _adopt_foreign(given: Mapping[str, Any], values: dict[str, Any], notes: list[str]) -> None:
    """Set `store` and `broker` in `values` from the sections `storage` and `broker` of a scheduler-rs file, if given.

    `given`: key → raw value, of the whole file. Sentences for the user are added to `notes`. Raises: InvalidInput for
    a wrong or missing value, or if both the sections and `values` name a store.
    """
    broker = given.get("broker.type", "in_memory")
    readers.word_reader("in_memory", "redis", "sqs")(broker, "broker.type")
    if broker == "sqs":
        raise InvalidInput("broker.type", "this version has no sqs broker", "Write redis or in_memory")
    if broker == "redis":
        values["broker"] = _redis_broker(given)
    if "storage.type" not in given:
        if any(key.startswith("storage.") for key in given):
            raise InvalidInput("storage.type", "is missing", "Write in_memory, sqlite, json_file or postgres")
        return
    kind = readers.word_reader(*_STORAGE)(given["storage.type"], "storage.type")
    if "store" in values:
        raise InvalidInput("storage.type", "names a store, and so does store", "Remove one of them")
    values["store"] = _STORAGE[kind](given, notes)


def _redis_broker(given: Mapping[str, Any]) -> str:
    """Return the URL of the broker from the keys `broker.redis.url` and `broker.redis.stream_name`.

    `given`: key → raw value of a scheduler-rs file. Raises: InvalidInput if the URL is missing or a value is wrong.
    """
    if "broker.redis.url" not in given:
        raise InvalidInput("broker.redis.url", "is missing", "Write redis://HOST:6379")
    url = readers.read_broker_url(given["broker.redis.url"], "broker.redis.url")
    stream = given.get("broker.redis.stream_name")
    if stream is None:
        return url
    named = quote(readers.read_text(stream, "broker.redis.stream_name"), safe="")
    return readers.read_broker_url(f"{url}{'&' if '?' in url else '?'}stream={named}", "broker.redis.stream_name")


def _json_file(given: Mapping[str, Any], notes: list[str]) -> str:
    """Return the URL of the SQLite store that replaces a JSON file of scheduler-rs: the file's path with suffix .db.

    `given`: key → raw value of the configuration file. A sentence for the user is added to `notes`. The save interval
    in `given` is only checked: SQLite saves every change at once.
    """
    path = Path(readers.read_text(given.get("storage.json_file.path", "./data/tasks.json"), "storage.json_file.path"))
    if "storage.json_file.auto_save_interval_secs" in given:
        key = "storage.json_file.auto_save_interval_secs"
        readers.whole_reader(0, 86_400, "seconds")(given[key], key)
    path = path.with_suffix(".db")
    notes.append(f"storage.type: json_file is stored as SQLite in {path}; every change is saved at once")
    return readers.read_store_url(f"sqlite:///{path}", "storage.json_file.path")


def _sqlite(given: Mapping[str, Any], notes: list[str]) -> str:
    path = readers.read_text(given.get("storage.sqlite.path", "mainspring.db"), "storage.sqlite.path")
    return readers.read_store_url(f"sqlite:///{path}", "storage.sqlite.path")


def _postgres(given: Mapping[str, Any], notes: list[str]) -> str:
    if "storage.postgres.url" not in given:
        raise InvalidInput("storage.postgres.url", "is missing", "Write postgresql://user@host/database")
    return readers.read_store_url(given["storage.postgres.url"], "storage.postgres.url")


#: Value of `storage.type` → function that returns the store's URL, given the raw values by key and the list of notes.
_STORAGE: Mapping[str, Callable[[Mapping[str, Any], list[str]], str]] = {
    "in_memory": lambda given, notes: "memory://",
    "sqlite": _sqlite,
    "json_file": _json_file,
    "postgres": _postgres,
}
