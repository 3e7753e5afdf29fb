"""Settings of a PostgreSQL store, parsed from a `postgresql://` URL; the driver's own options are passed on to it."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from mainspring.backends.remote.url_options import FLAGS, parse_options, read_duration, read_flag, read_number
from mainspring.model.errors import InvalidInput
from mainspring.model.instant import Ms

_OWN_OPTIONS = ("schema", "pool", "statement_cache_size", "pooler", "listen", "wait", "application_name")
_DRIVER_OPTIONS = (
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


class PostgresSettings(Struct, frozen=True):
    """Settings of a PostgreSQL store: how to reach the server, and which limits apply to the store's connections."""

    #: The driver's connection string: the URL without the options that only Mainspring knows.
    dsn: str
    #: The name of the database in log lines and error texts, without the password.
    where: str
    #: The schema that holds all tables of the store.
    schema: str = "mainspring"
    #: The largest number of connections in the pool. Connections that listen, or hold an advisory lock, are not
    #: counted.
    pool: int = 4
    #: How many prepared statements the driver keeps per connection; 0: none, the default behind a pooler.
    statement_cache_size: int = 256
    #: True behind PgBouncer in transaction mode: no setting or prepared statement may outlive a transaction.
    pooler: bool = False
    #: Where to LISTEN for notifications, which needs a direct connection to the server: 'yes' means at the URL's
    #: address, 'no' means not at all, anything else is the address as host:port.
    listen: str = "yes"
    #: How long `open` waits for a server that is not up, in milliseconds.
    wait: Ms = 30_000
    #: The name of our connections in `pg_stat_activity`.
    application_name: str = "mainspring"


def read_url(url: str) -> PostgresSettings:
    """Return the settings that the URL of a store gives; nothing is opened. Raises: `InvalidInput` for a wrong URL."""
    parts = urlsplit(url)
    options, driver_options = parse_options(parts.query, _OWN_OPTIONS, _DRIVER_OPTIONS)
    try:
        port = parts.port or 5432
    except ValueError:
        port = 0  # several hosts or a wrong number: the driver checks which
    path = parts.path.strip("/")
    if "/" in path:
        raise InvalidInput(
            "url", f"{parts.path!r} is not the name of a database", "Write postgresql://user@host:5432/database"
        )
    schema = options.get("schema", "mainspring")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,59}", schema):
        raise InvalidInput(
            "url", f"schema={schema!r} is not allowed", "Use at most 60 letters, digits and _; begin with no digit"
        )
    pooler = read_flag(options, "pooler")
    return PostgresSettings(
        dsn=urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(driver_options), "")),
        where=f"PostgreSQL at {parts.hostname or 'localhost'}:{port}/{unquote(path) or 'its default database'}",
        schema=schema,
        pool=read_number(options, "pool", 4, 1, 100),
        statement_cache_size=read_number(options, "statement_cache_size", 0 if pooler else 256, 0, 10_000),
        pooler=pooler,
        listen=_read_listen(options, pooler),
        wait=read_duration(options, "wait", 30_000),
        application_name=options.get("application_name", "mainspring"),
    )


def _read_listen(options: dict[str, str], pooler: bool) -> str:
    """Return the option `listen` as 'yes', 'no' or an address host:port.

    Without the option, it is 'no' behind a pooler, else 'yes'. Raises: `InvalidInput` if it is neither a flag nor an
    address.
    """
    listen = options.get("listen", "no" if pooler else "yes")
    if listen.lower() in FLAGS:
        return "yes" if FLAGS[listen.lower()] else "no"
    if ":" not in listen:
        raise InvalidInput("url", f"listen={listen!r} is not known", "Use 1, 0, or the server's own host:port")
    return listen
