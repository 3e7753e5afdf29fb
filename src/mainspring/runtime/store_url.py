"""Make a store from its URL. Only the backend that the URL names is imported."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qsl, unquote, urlsplit

from mainspring.model.errors import InvalidInput, MissingExtra, suggest_nearest
from mainspring.ports.clock import Clock
from mainspring.ports.store import Store

#: Schemes of stores that a later version may have. The error for such a URL says that this version has none.
_PLANNED_SCHEMES = ("mongodb", "mongodb+srv")
#: Schemes of Redis and Valkey: one server, with TLS, behind a Sentinel, in a cluster.
_REDIS_STORE_SCHEMES = tuple(
    f"{name}{kind}" for kind in ("", "+sentinel", "+cluster") for name in ("redis", "rediss", "valkey", "valkeys")
)
#: The fix of errors about a URL that names no store.
_STORE_FORMS = (
    "Write sqlite:///relative.db or sqlite:////absolute/path.db for a file, postgresql:// or redis:// for a server, "
    "or memory:// for tests"
)
_SQLITE_FORMS = "Write sqlite:///relative.db or sqlite:////absolute/path.db"
_BOOLEANS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def open_store(url: str, clock: Clock) -> Store:
    """Return the store that `url` names, not yet opened.

    Raises: InvalidInput if `url` is not the URL of a store; MissingExtra if the package it needs is not installed.
    """
    if not isinstance(url, str) or "://" not in url:
        raise InvalidInput("url", f"{url!r} is not a store URL", _STORE_FORMS)
    scheme = url.partition("://")[0].lower()
    maker = _STORE_MAKERS.get(scheme)
    if maker is not None:
        return maker(url, clock)
    if scheme in _PLANNED_SCHEMES:
        raise InvalidInput("url", f"this version has no {scheme} store yet", _STORE_FORMS)
    fix = f"{suggest_nearest(scheme, _STORE_MAKERS) or ''} Known are {', '.join(_STORE_MAKERS)}".strip()
    raise InvalidInput("url", f"{scheme + '://'!r} is not the scheme of a store", fix)


def _read_options(query: str, known: tuple[str, ...]) -> dict[str, str]:
    """Return the options in a URL's query, as name → text. Raises: InvalidInput for a name that is not in `known`."""
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            fix = suggest_nearest(name, known) or (f"Known are {', '.join(known)}" if known else "It takes no options")
            raise InvalidInput("url", f"{name!r} is not an option of this store", fix)
        options[name] = value
    return options


def _read_boolean(options: dict[str, str], name: str) -> bool:
    """Return the option `name`, False if it is not given. Raises: InvalidInput for a value that is no boolean."""
    found = _BOOLEANS.get(options.get(name, "0").lower())
    if found is None:
        raise InvalidInput("url", f"{name}={options[name]!r} is not known", "Use 1 or 0")
    return found


def _memory(url: str, clock: Clock) -> Store:
    """Return a new, empty store in memory. Raises: InvalidInput if the URL has more than `memory://`."""
    from mainspring.backends.memory.store import MemoryStore

    parts = urlsplit(url)
    if parts.netloc or parts.path.strip("/"):
        raise InvalidInput("url", f"{url!r} names a place, but memory has none", "Write memory://")
    _read_options(parts.query, ())
    return MemoryStore(clock)


def _sqlite(url: str, clock: Clock) -> Store:
    """Return the store in the file PATH of a `sqlite:///PATH` URL. Raises: InvalidInput if the URL is not valid."""
    from mainspring.backends.sqlite import SqliteStore

    # Not urlsplit: a "#" or ";" in a file name is part of the name.
    place, _, query = url.partition("://")[2].partition("?")
    if not place.startswith("/"):
        raise InvalidInput("url", f"{url!r} has no third slash, so {place!r} would be a host name", _SQLITE_FORMS)
    path = unquote(place[1:])
    if not path or path.endswith("/"):
        raise InvalidInput("url", f"{url!r} names no file", _SQLITE_FORMS)
    if path == ":memory:":
        raise InvalidInput("url", "SQLite's :memory: is not supported", "Write memory://")
    if "\0" in path:
        raise InvalidInput("url", "the path contains a NUL character", _SQLITE_FORMS)
    options = _read_options(query, ("synchronous", "force", "shared", "read_only"))
    synchronous = options.get("synchronous", "full").lower()
    if synchronous not in ("full", "normal"):
        raise InvalidInput(
            "url",
            f"synchronous={synchronous!r} is not known",
            "Use full (survives power loss) or normal (the last commits may be lost with the power)",
        )
    force, shared, read_only = (_read_boolean(options, name) for name in ("force", "shared", "read_only"))
    return SqliteStore(path, clock, synchronous=synchronous, force=force, shared=shared, read_only=read_only)


def _postgres(url: str, clock: Clock) -> Store:
    """Return the store of a PostgreSQL URL.

    Raises: InvalidInput if the URL is not valid; MissingExtra if asyncpg is not installed.
    """
    try:
        from mainspring.backends.postgres import PostgresStore
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise MissingExtra("PostgreSQL needs asyncpg. Install it: pip install 'mainspring[postgres]'") from error

    return PostgresStore(url, clock)


def _redis(url: str, clock: Clock) -> Store:
    """Return the store of a URL of Redis or Valkey.

    Raises: InvalidInput if the URL is not valid; MissingExtra if redis-py is not installed.
    """
    try:
        from mainspring.backends.redis import RedisStore
    except ModuleNotFoundError as error:
        if error.name not in ("redis", "hiredis"):
            raise
        raise MissingExtra("Redis and Valkey need redis-py. Install it: pip install 'mainspring[redis]'") from error

    return RedisStore(url, clock)


#: Scheme of a URL → the function that makes the store.
_STORE_MAKERS: dict[str, Callable[[str, Clock], Store]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgresql": _postgres,
    "postgres": _postgres,
    **dict.fromkeys(_REDIS_STORE_SCHEMES, _redis),
}
