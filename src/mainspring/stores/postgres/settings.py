"""What a `postgresql://` URL says: options of ours are taken out, the rest is the driver's."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from mainspring.model.errors import InvalidInput, nearest
from mainspring.model.instant import Ms, duration_ms

_OURS = ("schema", "pool", "statement_cache_size", "pooler", "listen", "wait", "application_name")
_DRIVERS = (
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "sslpassword",
    "sslcrl",
    "passfile",
    "host",
    "port",
    "user",
    "password",
    "database",
    "target_session_attrs",
    "krbsrvname",
    "gsslib",
)
_YES = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


class PostgresSettings(Struct, frozen=True):
    """How to reach the server and how to behave there."""

    dsn: str
    #: For people: no password.
    where: str
    schema: str = "mainspring"
    #: At most so many connections, beside the one that listens.
    pool: int = 4
    statement_cache_size: int = 256
    #: Behind PgBouncer in transaction mode: nothing may outlive a transaction.
    pooler: bool = False
    #: LISTEN needs a connection of its own to the server itself: here, nowhere, or at this address.
    listen: str = "yes"
    #: How long a server that is not there may take to come.
    wait: Ms = 30_000
    #: What `pg_stat_activity` calls us.
    application_name: str = "mainspring"


def read_url(url: str) -> PostgresSettings:
    """The settings of a URL; what is wrong with it is said here, before anything is opened."""
    parts = urlsplit(url)
    options: dict[str, str] = {}
    rest: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in _OURS:
            options[name] = value
        elif name in _DRIVERS:
            rest.append((name, value))
        else:
            known = (*_OURS, *_DRIVERS)
            fix = nearest(name, known) or f"Known are {', '.join(known)}"
            raise InvalidInput("url", f"{name!r} is not an option of this store", fix)
    try:
        port = parts.port or 5432
    except ValueError:
        port = 0  # several hosts, or nonsense: the driver says which
    path = parts.path.strip("/")
    if "/" in path:
        raise InvalidInput("url", f"{parts.path!r} is no database name", "Write postgresql://user@host:5432/database")
    schema = options.get("schema", "mainspring")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,59}", schema):
        raise InvalidInput("url", f"schema={schema!r} is not a plain name", "Use letters, digits and _, at most 60")
    pooler = _flag(options, "pooler")
    listen = options.get("listen", "no" if pooler else "yes")
    if listen.lower() in _YES:
        listen = "yes" if _YES[listen.lower()] else "no"
    elif ":" not in listen:
        raise InvalidInput("url", f"listen={listen!r} is not known", "Use 1, 0, or the server's own host:port")
    return PostgresSettings(
        dsn=urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(rest), "")),
        where=f"PostgreSQL at {parts.hostname or 'localhost'}:{port}/{unquote(path) or 'its default database'}",
        schema=schema,
        pool=_number(options, "pool", 4, 1, 100),
        statement_cache_size=_number(options, "statement_cache_size", 0 if pooler else 256, 0, 10_000),
        pooler=pooler,
        listen=listen,
        wait=duration_ms(options["wait"], field="url: wait") if "wait" in options else 30_000,
        application_name=options.get("application_name", "mainspring"),
    )


def _flag(options: dict[str, str], name: str) -> bool:
    value = _YES.get(options.get(name, "0").lower())
    if value is None:
        raise InvalidInput("url", f"{name}={options[name]!r} is not known", "Use 1 or 0")
    return value


def _number(options: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    text = options.get(name, str(default))
    if not text.isdecimal() or not least <= int(text) <= most:
        raise InvalidInput(
            "url", f"{name}={text!r} is not a number from {least} to {most}", f"The default is {default}"
        )
    return int(text)
