"""Variables: our own names, those of source 002, and `.env` files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mainspring.config import readers
from mainspring.config.keys import KEYS, PREFIX, VARIABLES, variable
from mainspring.model.errors import InvalidInput, nearest

LARGEST = 64 * 1024
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)", re.DOTALL)
#: Source 002 runs beside Redis; nothing here needs it.
_UNUSED = ("REDIS_HOST", "REDIS_PORT", "NODE_ENV")


class Given:
    """Values by key, each with the variable that gave it."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.names: dict[str, str] = {}
        self.notes: list[str] = []

    def put(self, key: str, value: Any, name: str) -> None:
        self.values[key] = value
        self.names[key] = name


def read_variables(variables: Mapping[str, str], where: str = "") -> Given:
    """What the variables say; `where` is put before the name of a wrong one."""
    given = Given()
    url = _postgres_url(variables, where)
    if url is not None:
        given.put("store", url, "POSTGRES_HOST" if "POSTGRES_HOST" in variables else "POSTGRES_DB")
    for name, alias in VARIABLES.items():
        if variables.get(name, "") != "":
            given.put(alias.key, alias.read(variables[name], where + name), name)
    own = {variable(key): key for key in KEYS}
    for name, value in variables.items():
        if name in own:
            given.put(own[name], KEYS[own[name]].read(value, where + name), name)
        elif name.endswith("_FILE") and name.removesuffix("_FILE") in own:
            key = own[name.removesuffix("_FILE")]
            given.put(key, KEYS[key].read(_secret(name, value, where), where + name), name)
        elif name.startswith(PREFIX) and "__" in name:
            raise InvalidInput(where + name, "there is no such setting", nearest(name, own) or "See `config show`")
    given.notes += [f"{name} has no effect here" for name in _UNUSED if name.startswith("REDIS") and name in variables]
    return given


def read_dotenv(path: Path) -> dict[str, str]:
    """NAME=value lines; `#` begins a comment, quotes are taken off, nothing is run."""
    try:
        if not path.is_file():
            return {}
        text = path.read_bytes()[: LARGEST + 1].decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            str(path), f"cannot be read: {error}", "Make it a UTF-8 text that this user may read"
        ) from None
    if len(text) > LARGEST:
        raise InvalidInput(str(path), f"is larger than {LARGEST} bytes", "It holds one NAME=value a line")
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
            raise InvalidInput(where, "its quotes do not match", "End the value with the quote it begins with")
        return value[1:end]
    return re.split(r"\s#", value, maxsplit=1)[0].strip()


def _postgres_url(variables: Mapping[str, str], where: str) -> str | None:
    """The database that source 002's variables name; `POSTGRES_HOST` or `POSTGRES_DB` asks for it."""
    host, database = variables.get("POSTGRES_HOST", ""), variables.get("POSTGRES_DB", "")
    if not host and not database:
        return None
    port = readers.whole(1, 65_535)(variables.get("POSTGRES_PORT") or "5432", f"{where}POSTGRES_PORT")
    user = variables.get("POSTGRES_USER") or "postgres"
    password = variables.get("POSTGRES_PASSWORD", "")
    if not password and variables.get("POSTGRES_PASSWORD_FILE"):
        password = _secret("POSTGRES_PASSWORD_FILE", variables["POSTGRES_PASSWORD_FILE"], where)
    who = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    name = quote(database or user, safe="")
    address = f"[{host}]" if ":" in host else (host or "localhost")
    return str(readers.store_url(f"postgresql://{who}@{address}:{port}/{name}", f"{where}POSTGRES_HOST"))


def _secret(name: str, path: str, where: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InvalidInput(
            where + name, f"{path} cannot be read: {error}", "Name a file that holds the value"
        ) from None
