"""Configuration files: YAML or TOML into a flat list of keys. Whatever is wrong is one line: where, what, the fix."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mainspring.config import readers
from mainspring.config.keys import ALIASES, KEYS
from mainspring.model.errors import InvalidInput, MissingExtra, nearest

#: Looked for in the working directory when no file is named.
NAMES = ("mainspring.yaml", "mainspring.yml", "mainspring.toml")
LARGEST = 1024 * 1024
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
#: Sections of source 000 that name things we have otherwise; see `_foreign`.
_SECTIONS = ("storage", "broker")
_FOREIGN = (
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
    """What a file says: values by key, and what is worth saying about it."""

    def __init__(self, values: dict[str, Any], notes: list[str]) -> None:
        self.values = values
        self.notes = notes


def find_file(folder: Path) -> Path | None:
    """The file that is used when none is named."""
    found = [folder / name for name in NAMES if (folder / name).exists()]
    if len(found) > 1:
        raise InvalidInput(
            "--config", f"{found[0].name} and {found[1].name} are both here", "Remove one, or name the one to use"
        )
    return found[0] if found else None


def read_file(path: Path, variables: Mapping[str, str]) -> ConfigFile:
    """Read and check a file."""
    try:
        return _flat(_parse(path, _text(path)), variables)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error.field}" if error.field else str(path), error.problem, error.fix) from None


def _text(path: Path) -> str:
    try:
        if path.is_dir():
            raise InvalidInput("", "is a directory", f"Name a file in it, for example {path}/mainspring.yaml")
        if path.stat().st_size > LARGEST:
            raise InvalidInput("", f"is larger than {LARGEST} bytes", "A configuration is a page or two")
        data = path.read_bytes()
    except FileNotFoundError:
        raise InvalidInput("", "does not exist", "Check the path, or leave --config out") from None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise InvalidInput("", f"cannot be read: {why}", "Let this user read it: chmod, chown") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InvalidInput(f"line {line}", "is not UTF-8 text", "Save the file as UTF-8") from None


def _parse(path: Path, text: str) -> Any:
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
    raise InvalidInput("", f"{path.suffix or 'no suffix'} is not a known format", "Name it .yaml, .yml or .toml")


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise MissingExtra("YAML needs PyYAML. Install it: pip install 'mainspring[serve]'") from error

    class Strict(yaml.SafeLoader):
        """Plain data only: a key given twice and references are errors."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                mark = self.get_mark()
                raise InvalidInput(f"line {mark.line + 1}", "uses a reference (*name)", "Write the value out")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key, _ in node.value:
                name = str(key.value)
                if name in seen:
                    raise InvalidInput(f"line {key.start_mark.line + 1}", f"{name!r} is given twice", "Remove one")
                seen.add(name)
            return super().construct_mapping(node, deep)

    loader = Strict(text)
    try:
        return loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        where = f"line {mark.line + 1}" if mark is not None else ""
        what = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read")
        if "\\t" in what:
            raise InvalidInput(where, "begins with a tab", "Indent with spaces") from None
        raise InvalidInput(where, f"is not YAML: {what}", "Write `key: value`, indented by spaces") from None
    except (ValueError, RecursionError) as error:  # a date that is none, too deep
        raise InvalidInput("", f"is not YAML: {error}", "Put texts between quotes") from None
    finally:
        loader.dispose()


def _flat(data: Any, variables: Mapping[str, str]) -> ConfigFile:
    if data is None:
        return ConfigFile({}, [])
    if not isinstance(data, dict):
        raise InvalidInput("", "holds no keys", "Write for example `server: {port: 3000}`")
    given = {key: _expanded(value, key, variables) for key, value in _leaves(data, "")}
    notes: list[str] = []
    values: dict[str, Any] = {}
    said: dict[str, str] = {}
    for key, value in given.items():
        if "." in key and key.partition(".")[0] in _SECTIONS:
            continue
        alias = ALIASES.get(key)
        target = alias.key if alias else key
        if target in said:
            raise InvalidInput(key, f"says the same as {said[target]}", "Remove one of them")
        said[target] = key
        values[target] = (alias.read if alias else KEYS[key].read)(value, key)
    _foreign(given, values, notes)
    if values.get("metrics.enabled"):
        notes.append("metrics.enabled: this version has no metrics yet")
    return ConfigFile(values, notes)


def _leaves(data: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Keys with dots and their values; a key that nobody knows is an error that names the nearest."""
    for name, value in data.items():
        if not isinstance(name, str):
            raise InvalidInput(f"{prefix}{name}", "is not a name", "Keys are words")
        key = f"{prefix}{name}"
        if key == "store" and isinstance(value, dict):
            yield from (
                ("store", part) if leaf == "store.url" else _refuse(leaf) for leaf, part in _any(value, "store.")
            )
        elif (key in KEYS or key in ALIASES or key in _FOREIGN) and not (key == "broker" and isinstance(value, dict)):
            yield key, value
        elif _is_section(key):
            if isinstance(value, dict):
                yield from _leaves(value, f"{key}.")
            elif value is not None:
                raise InvalidInput(
                    key, f"is a section, not {type(value).__name__}", f"Write the keys of {key} under it"
                )
        else:
            _refuse(key)


def _any(data: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        yield f"{prefix}{name}", value


def _is_section(key: str) -> bool:
    return any(known.startswith(f"{key}.") for known in (*KEYS, *_FOREIGN))


def _refuse(key: str) -> Any:
    known = [*KEYS, *ALIASES, *_FOREIGN, "store.url"]
    section, _, name = key.rpartition(".")
    sections = {known_key.partition(".")[0] for known_key in known if "." in known_key}
    fix = nearest(key, known)
    if not fix and section:
        here = [k.rpartition(".")[2] for k in known if k.startswith(f"{section}.")]
        fix = nearest(name, here) or f"{section} has {', '.join(sorted(set(here)))}"
    if not section:
        elsewhere = [k for k in known if k.rpartition(".")[2] == name]
        fix = (f"Write it as {elsewhere[0]}" if elsewhere else "") or nearest(key, sections) or fix
    raise InvalidInput(key, "there is no such key", fix or f"The sections are {', '.join(sorted(sections))}")


def _expanded(value: Any, key: str, variables: Mapping[str, str]) -> Any:
    """${NAME} and ${NAME:-default} in texts."""
    if isinstance(value, list):
        return [_expanded(item, key, variables) for item in value]
    if not isinstance(value, str) or "${" not in value:
        return value

    def put(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if name in variables:
            return variables[name]
        if default is None:
            raise InvalidInput(key, f"${{{name}}} is not set", f"Set {name}, or write ${{{name}:-a default}}")
        return default

    expanded = _VARIABLE.sub(put, value)
    if "${" in _VARIABLE.sub("", value):
        raise InvalidInput(key, f"{value!r} holds an unfinished ${{…}}", "Write ${NAME} or ${NAME:-default}")
    return expanded


# ── source 000: where things are kept and how they travel ───────────────────


def _foreign(given: Mapping[str, Any], values: dict[str, Any], notes: list[str]) -> None:
    broker = given.get("broker.type", "in_memory")
    readers.word("in_memory", "redis", "sqs")(broker, "broker.type")
    if broker == "sqs":
        raise InvalidInput("broker.type", "this version has no sqs broker", "Write redis or in_memory")
    if broker == "redis":
        values["broker"] = _redis_broker(given)
    if "storage.type" not in given:
        if any(key.startswith("storage.") for key in given):
            raise InvalidInput("storage.type", "is missing", "Write in_memory, sqlite, json_file or postgres")
        return
    kind = readers.word(*_STORAGE)(given["storage.type"], "storage.type")
    if "store" in values:
        raise InvalidInput("storage.type", "says where things are kept, and so does store", "Remove one of them")
    values["store"] = _STORAGE[kind](given, notes)


def _redis_broker(given: Mapping[str, Any]) -> str:
    if "broker.redis.url" not in given:
        raise InvalidInput("broker.redis.url", "is missing", "Write redis://HOST:6379")
    url = readers.broker_url(given["broker.redis.url"], "broker.redis.url")
    stream = given.get("broker.redis.stream_name")
    if stream is None:
        return url
    named = quote(readers.text(stream, "broker.redis.stream_name"), safe="")
    return readers.broker_url(f"{url}{'&' if '?' in url else '?'}stream={named}", "broker.redis.stream_name")


def _json_file(given: Mapping[str, Any], notes: list[str]) -> str:
    path = Path(readers.text(given.get("storage.json_file.path", "./data/tasks.json"), "storage.json_file.path"))
    if "storage.json_file.auto_save_interval_secs" in given:
        key = "storage.json_file.auto_save_interval_secs"
        readers.whole(0, 86_400, "seconds")(given[key], key)
    path = path.with_suffix(".db")
    notes.append(f"storage.type: json_file is kept as SQLite in {path}; every change is saved at once")
    return readers.store_url(f"sqlite:///{path}", "storage.json_file.path")


def _sqlite(given: Mapping[str, Any], notes: list[str]) -> str:
    path = readers.text(given.get("storage.sqlite.path", "mainspring.db"), "storage.sqlite.path")
    return readers.store_url(f"sqlite:///{path}", "storage.sqlite.path")


def _postgres(given: Mapping[str, Any], notes: list[str]) -> str:
    if "storage.postgres.url" not in given:
        raise InvalidInput("storage.postgres.url", "is missing", "Write postgresql://user@host/database")
    return readers.store_url(given["storage.postgres.url"], "storage.postgres.url")


_STORAGE: Mapping[str, Callable[[Mapping[str, Any], list[str]], str]] = {
    "in_memory": lambda given, notes: "memory://",
    "sqlite": _sqlite,
    "json_file": _json_file,
    "postgres": _postgres,
}
