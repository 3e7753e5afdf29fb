"""Read settings from environment variables and `.env` files.

Variables have Mainspring's own names, or the names in another scheduler, which is called source 002 (docs/serving.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mainspring.config import readers
from mainspring.config.schema import KEYS, VARIABLE_PREFIX, VARIABLES, variable_name
from mainspring.model.errors import InvalidInput, suggest_nearest

MAX_DOTENV_BYTES = 64 * 1024
#: A line of a `.env` file: the name, and everything after `=`.
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=(.*)", re.DOTALL)
#: Variables of source 002 that have no effect here: source 002 needs Redis, this service does not.
_WITHOUT_EFFECT = ("REDIS_HOST", "REDIS_PORT")


class VariableValues:
    """Settings that were read from variables. `notes`: sentences for the user, such as "NAME has no effect here"."""

    def __init__(self) -> None:
        #: Configuration key → value.
        self.values: dict[str, Any] = {}
        #: Configuration key → name of the variable that its value came from.
        self.names: dict[str, str] = {}
        self.notes: list[str] = []

    def put(self, key: str, value: Any, name: str) -> None:
        """Set the value of a key, in place of an earlier value; `name` is the variable that the value came from."""
        self.values[key] = value
        self.names[key] = name


def read_variables(variables: Mapping[str, str], where: str = "") -> VariableValues:
    """Return the settings in `variables` (name → value). Variables that set nothing are ignored.

    A variable whose name ends in _FILE holds the path of a file with the value. Raises: InvalidInput for a wrong value,
    and for a name that starts with MAINSPRING_ and contains `__` but is no setting. Its text begins with `where`, such
    as the path of the `.env` file, and the name of the variable.
    """
    given = VariableValues()
    _read_source_002(given, variables, where)
    own = {variable_name(key): key for key in KEYS}
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
    """Add to `given` the settings from MAINSPRING_URL and from the variables of another scheduler (source 002).

    The caller reads the names MAINSPRING_SECTION__KEY later: they override these settings. Error texts begin with
    `where` and the name of the variable.
    """
    url = _postgres_url(variables, where)
    if url is not None:
        given.put("store", url, "POSTGRES_HOST" if "POSTGRES_HOST" in variables else "POSTGRES_DB")
    for name, alias in VARIABLES.items():
        if variables.get(name, "") != "":
            given.put(alias.key, alias.read(variables[name], where + name), name)


def read_dotenv(path: Path) -> dict[str, str]:
    """Return name → value for the NAME=value lines of a `.env` file; an empty dict if there is no file.

    Outside quotes, `#` at the start of a line or after white space starts a comment. Quotes around a value are
    removed. Nothing is executed or expanded. Raises: InvalidInput if the file cannot be read, is too large, or has a
    wrong line; for a wrong line, the error has its number.
    """
    try:
        if not path.is_file():
            return {}
        with path.open("rb") as file:
            raw = file.read(MAX_DOTENV_BYTES + 1)
        text = raw.decode("utf-8-sig") if len(raw) <= MAX_DOTENV_BYTES else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            str(path), f"cannot be read: {error}", "Make it a UTF-8 text file that this user may read"
        ) from None
    if len(raw) > MAX_DOTENV_BYTES:
        raise InvalidInput(
            str(path), f"is larger than {MAX_DOTENV_BYTES} bytes", "Is this the right file? It holds NAME=value lines"
        )
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        parts = _LINE.fullmatch(line)
        if parts is None:
            raise InvalidInput(f"{path}: line {number}", "is not NAME=value", "Write for example PORT=3000")
        found[parts[1]] = _unquoted(parts[2], f"{path}: line {number}")
    return found


def _unquoted(value: str, where: str) -> str:
    """Return `value`, the text after `=`, without the quotes around it, the comment after it, and white space.

    Without quotes, a comment starts with `#` after white space; after a closing quote, with any `#`. So the value is ""
    if only a comment follows `= `. Raises: InvalidInput, whose text begins with `where`, if a quote is not closed or
    other text follows it.
    """
    quoted = value.strip()
    if quoted[:1] in ("'", '"'):
        end = quoted.find(quoted[0], 1)
        rest = quoted[end + 1 :].strip()
        if end < 0 or (rest and not rest.startswith("#")):
            raise InvalidInput(where, "its quotes do not match", "End the value with the quote that it starts with")
        return quoted[1:end]
    return re.split(r"\s#", value, maxsplit=1)[0].strip()


def _postgres_url(variables: Mapping[str, str], where: str) -> str | None:
    """Return the store URL that the POSTGRES_ variables of another scheduler (source 002) give together.

    Return None if neither POSTGRES_HOST nor POSTGRES_DB is set. Error texts begin with `where` and the name of the
    variable.
    """
    host, database = variables.get("POSTGRES_HOST", ""), variables.get("POSTGRES_DB", "")
    if not host and not database:
        return None
    port = readers.whole_reader(1, 65_535)(variables.get("POSTGRES_PORT") or "5432", f"{where}POSTGRES_PORT")
    user = variables.get("POSTGRES_USER") or "postgres"
    password = _postgres_password(variables, where)
    credentials = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    name = quote(database or user, safe="")
    address = f"[{host}]" if ":" in host else (host or "localhost")
    return str(readers.read_store_url(f"postgresql://{credentials}@{address}:{port}/{name}", f"{where}POSTGRES_HOST"))


def _postgres_password(variables: Mapping[str, str], where: str) -> str:
    """Return the password in POSTGRES_PASSWORD, else in the file that POSTGRES_PASSWORD_FILE names, else "".

    Error texts begin with `where` and the name of the variable.
    """
    password, path = variables.get("POSTGRES_PASSWORD", ""), variables.get("POSTGRES_PASSWORD_FILE", "")
    return password if password or not path else _read_secret("POSTGRES_PASSWORD_FILE", path, where)


def _read_secret(name: str, path: str, where: str) -> str:
    """Return the content of the file `path`, without white space around it.

    `name` is the variable that holds the path. Raises: InvalidInput, whose text begins with `where` and `name`.
    """
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InvalidInput(
            where + name, f"{path} cannot be read: {error}", "Name a file that holds the value"
        ) from None
