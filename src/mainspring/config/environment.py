"""Environment variables and `.env` files: Mainspring's own names, and the names that source 002 uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mainspring.config import readers
from mainspring.config.schema import KEYS, VARIABLE_PREFIX, VARIABLES, variable
from mainspring.model.errors import InvalidInput, suggest_nearest

MAX_DOTENV_BYTES = 64 * 1024
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)", re.DOTALL)
#: Variables of source 002 without effect: it needs Redis, this service does not.
_WITHOUT_EFFECT = ("REDIS_HOST", "REDIS_PORT")


class VariableValues:
    """Settings read from variables: values by key, the variable that each came from, and notes for the user."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.names: dict[str, str] = {}
        self.notes: list[str] = []

    def put(self, key: str, value: Any, name: str) -> None:
        """Set the value of a key; `name` is its variable."""
        self.values[key] = value
        self.names[key] = name


def read_variables(variables: Mapping[str, str], where: str = "") -> VariableValues:
    """Return the settings in these variables; errors put `where` before the name of the wrong variable."""
    given = VariableValues()
    _read_source_002(given, variables, where)
    own = {variable(key): key for key in KEYS}
    for name, value in variables.items():
        if name in own:
            given.put(own[name], KEYS[own[name]].read(value, where + name), name)
        elif name.endswith("_FILE") and name.removesuffix("_FILE") in own:
            key = own[name.removesuffix("_FILE")]
            given.put(key, KEYS[key].read(_read_secret(name, value, where), where + name), name)
        elif name.startswith(VARIABLE_PREFIX) and "__" in name:
            raise InvalidInput(
                where + name, "there is no such setting", suggest_nearest(name, own) or "See `config show`"
            )
    given.notes += [f"{name} has no effect here" for name in _WITHOUT_EFFECT if name in variables]
    return given


def _read_source_002(given: VariableValues, variables: Mapping[str, str], where: str) -> None:
    """Add the settings in the variables of source 002; Mainspring's own names are read later and override them."""
    url = _postgres_url(variables, where)
    if url is not None:
        given.put("store", url, "POSTGRES_HOST" if "POSTGRES_HOST" in variables else "POSTGRES_DB")
    for name, alias in VARIABLES.items():
        if variables.get(name, "") != "":
            given.put(alias.key, alias.read(variables[name], where + name), name)


def read_dotenv(path: Path) -> dict[str, str]:
    """Return the NAME=value lines of a `.env` file by name; a missing file has none.

    `#` starts a comment, quotes around a value are removed, and nothing is executed or expanded.
    """
    try:
        if not path.is_file():
            return {}
        text = path.read_bytes()[: MAX_DOTENV_BYTES + 1].decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            str(path), f"cannot be read: {error}", "Make it a UTF-8 text file that this user may read"
        ) from None
    if len(text) > MAX_DOTENV_BYTES:
        raise InvalidInput(str(path), f"is larger than {MAX_DOTENV_BYTES} bytes", "Write one NAME=value a line")
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        parts = _LINE.fullmatch(line)
        if parts is None:
            raise InvalidInput(f"{path}: line {number}", "is not NAME=value", "Write for example PORT=3000")
        found[parts[1]] = _unquoted(parts[2].strip(), f"{path}: line {number}")
    return found


def _unquoted(value: str, where: str) -> str:
    if value[:1] in ("'", '"'):
        end = value.find(value[0], 1)
        rest = value[end + 1 :].strip()
        if end < 0 or (rest and not rest.startswith("#")):
            raise InvalidInput(where, "its quotes do not match", "End the value with the quote that it starts with")
        return value[1:end]
    return re.split(r"\s#", value, maxsplit=1)[0].strip()


def _postgres_url(variables: Mapping[str, str], where: str) -> str | None:
    """Return the URL of source 002's database; None if neither POSTGRES_HOST nor POSTGRES_DB is set."""
    host, database = variables.get("POSTGRES_HOST", ""), variables.get("POSTGRES_DB", "")
    if not host and not database:
        return None
    port = readers.whole(1, 65_535)(variables.get("POSTGRES_PORT") or "5432", f"{where}POSTGRES_PORT")
    user = variables.get("POSTGRES_USER") or "postgres"
    password = _postgres_password(variables, where)
    credentials = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    name = quote(database or user, safe="")
    address = f"[{host}]" if ":" in host else (host or "localhost")
    return str(readers.store_url(f"postgresql://{credentials}@{address}:{port}/{name}", f"{where}POSTGRES_HOST"))


def _postgres_password(variables: Mapping[str, str], where: str) -> str:
    password, path = variables.get("POSTGRES_PASSWORD", ""), variables.get("POSTGRES_PASSWORD_FILE", "")
    return password if password or not path else _read_secret("POSTGRES_PASSWORD_FILE", path, where)


def _read_secret(name: str, path: str, where: str) -> str:
    """Return the content of the file that a variable ending in _FILE names."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InvalidInput(
            where + name, f"{path} cannot be read: {error}", "Name a file that holds the value"
        ) from None
