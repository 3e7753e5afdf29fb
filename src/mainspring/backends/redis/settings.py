"""Settings of the Redis store, parsed from a URL: one server, a primary behind Sentinels, or a cluster; TLS or not."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import unquote

from msgspec import Struct

from mainspring.backends.remote.url_options import parse_options, read_duration, read_flag, read_number
from mainspring.model.errors import InvalidInput, suggest_nearest
from mainspring.model.instant import Ms

Mode = Literal["server", "sentinel", "cluster"]
_TLS_OF_BASE = {"redis": False, "rediss": True, "valkey": False, "valkeys": True}
_MODE_OF_SUFFIX: dict[str, Mode] = {"": "server", "+sentinel": "sentinel", "+cluster": "cluster"}
#: By URL scheme: True if it uses TLS, and the kind of server that it names.
SCHEMES: dict[str, tuple[bool, Mode]] = {
    base + suffix: (tls, mode) for suffix, mode in _MODE_OF_SUFFIX.items() for base, tls in _TLS_OF_BASE.items()
}
_OPTIONS = (
    "prefix",
    "pool",
    "wait",
    "timeout",
    "client_name",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_verify",
    "sentinel_user",
    "sentinel_password",
)
_DEFAULT_PORTS: dict[Mode, int] = {"server": 6379, "sentinel": 26379, "cluster": 6379}
_URL_EXAMPLES: dict[Mode, str] = {
    "server": "Write redis://user:password@host:6379/0",
    "sentinel": "Write redis+sentinel://user:password@host1:26379,host2:26379/service/0",
    "cluster": "Write redis+cluster://user:password@host1:6379,host2:6379",
}


class RedisSettings(Struct, frozen=True):
    """Settings of a Redis store: how to reach the server, and limits such as the number of connections."""

    mode: Mode
    #: Addresses of the server, of the Sentinels, or of some nodes of the cluster.
    hosts: tuple[tuple[str, int], ...]
    #: The server's name in log lines and error texts, without the password.
    where: str
    #: The name under which the Sentinels know the primary; "" without Sentinels.
    service: str = ""
    db: int = 0
    user: str | None = None
    password: str | None = None
    #: The hash tag with which every key begins, so that all keys lie in one hash slot of a cluster.
    prefix: str = "mainspring"
    #: The largest number of connections. The connection that subscribes to notifications is not counted.
    pool: int = 4
    #: How long `open` waits for a server that does not answer yet, in milliseconds.
    wait: Ms = 30_000
    #: The time-out for the answer to a call, in milliseconds.
    timeout: Ms = 10_000
    client_name: str = "mainspring"
    tls: bool = False
    #: Files with the certificate authorities to trust (None: the system's), the client's certificate, and its key.
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_verify: bool = True
    #: Login at the Sentinels; `user` and `password` are for the primary.
    sentinel_user: str | None = None
    sentinel_password: str | None = None


def read_url(url: str) -> RedisSettings:
    """Return the settings that a URL gives; nothing is opened. Raises: InvalidInput for a wrong URL, with the fix."""
    scheme, _, rest = url.partition("://")
    found = SCHEMES.get(scheme.lower())
    if found is None:
        fix = suggest_nearest(scheme, SCHEMES) or f"Known are {', '.join(SCHEMES)}"
        raise InvalidInput("url", f"{scheme!r} is no scheme of Redis or Valkey", fix)
    tls, mode = found
    authority, _, query = rest.partition("?")
    login, _, address = authority.rpartition("@")
    netloc, _, path = address.partition("/")
    user, colon, password = login.partition(":")
    hosts = tuple(_parse_host(host, mode) for host in netloc.split(","))
    if mode == "server" and len(hosts) > 1:
        raise InvalidInput("url", f"{netloc!r} names several servers", f"{_URL_EXAMPLES['cluster'][6:]} is a cluster")
    service, db = _parse_path(path, mode)
    options, _ = parse_options(query, _OPTIONS)
    _check_tls_pair(options)
    addresses = ",".join(f"{host}:{port}" for host, port in hosts)
    product = "Valkey" if scheme.lower().startswith("valkey") else "Redis"
    where = {
        "server": f"{product} at {addresses}/{db}",
        "sentinel": f"{product} {service!r} behind the Sentinel at {addresses}",
        "cluster": f"the {product} cluster at {addresses}",
    }
    return RedisSettings(
        mode=mode,
        hosts=hosts,
        where=where[mode],
        service=service,
        db=db,
        user=unquote(user) or None,
        password=unquote(password) if colon else None,
        prefix=_check_prefix(options.get("prefix", "mainspring")),
        pool=read_number(options, "pool", 4, 1, 100),
        wait=read_duration(options, "wait", 30_000),
        timeout=read_duration(options, "timeout", 10_000),
        client_name=_check_client_name(options.get("client_name", "mainspring")),
        tls=tls,
        tls_ca=options.get("tls_ca"),
        tls_cert=options.get("tls_cert"),
        tls_key=options.get("tls_key"),
        tls_verify=read_flag(options, "tls_verify", default=True),
        sentinel_user=options.get("sentinel_user"),
        sentinel_password=options.get("sentinel_password"),
    )


def _check_prefix(prefix: str) -> str:
    """Return the prefix unchanged. Raises: InvalidInput unless it has 1 to 100 letters, digits or `_.:-`."""
    if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,100}", prefix):
        raise InvalidInput(
            "url",
            f"prefix={prefix!r} is not allowed",
            "Use 1 to 100 letters, digits and _ . : -",
        )
    return prefix


def _parse_host(text: str, mode: Mode) -> tuple[str, int]:
    """Return host and port of an address in a URL; the defaults are localhost and the usual port of the `mode`.

    Raises: InvalidInput if the text has another form than host:port.
    """
    found = re.fullmatch(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:\[\]]*)(:(?P<port>[0-9]*))?", text)
    port = int(found["port"] or _DEFAULT_PORTS[mode]) if found is not None else 0
    if found is None or not 0 < port < 65_536:
        raise InvalidInput("url", f"{text!r} is no host and port", _URL_EXAMPLES[mode])
    return found["host"].strip("[]") or "localhost", port


def _parse_path(path: str, mode: Mode) -> tuple[str, int]:
    """Return two values from a URL's path: the Sentinels' name of the primary, and the number of the database.

    The name is "" unless `mode` is "sentinel". Raises: InvalidInput if a name is missing or the number is wrong.
    """
    parts = [unquote(part) for part in path.split("/")] if path else []
    service = ""
    if mode == "sentinel":
        service = parts.pop(0) if parts else ""
        if not service:
            raise InvalidInput(
                "url", "it has no service name (the Sentinels' name of the primary)", _URL_EXAMPLES[mode]
            )
    return service, _parse_database(parts, path, mode)


def _parse_database(parts: list[str], path: str, mode: Mode) -> int:
    """Return the number of the database: the only item of `parts`, or 0 without items.

    `parts`: the parts of the URL's path behind the Sentinels' service name. `path`: the whole path, for the error text.
    Raises: InvalidInput if there is more than one part, if the part is no number below 100,000, or if a cluster is
    given another database than 0.
    """
    number = parts[0] if parts else ""
    if len(parts) > 1 or (number and not (number.isdecimal() and int(number) < 100_000)):
        raise InvalidInput("url", f"{path!r} is no number of a database", _URL_EXAMPLES[mode])
    if mode == "cluster" and int(number or 0):
        raise InvalidInput(
            "url", f"a cluster has no database {number}", f"{_URL_EXAMPLES[mode]}; ?prefix= keeps stores apart"
        )
    return int(number or 0)


def _check_tls_pair(options: dict[str, str]) -> None:
    """Raise InvalidInput if only one of the options for the client's certificate and its key is given."""
    tls = [name for name in options if name in ("tls_cert", "tls_key")]
    if len(tls) == 1:
        other = "tls_key" if tls[0] == "tls_cert" else "tls_cert"
        raise InvalidInput("url", f"{tls[0]} is given without {other}", "Give both tls_cert and tls_key, or neither")


def _check_client_name(text: str) -> str:
    if not re.fullmatch(r"[!-~]{1,60}", text):
        raise InvalidInput(
            "url", f"client_name={text!r} is not allowed", "Use 1 to 60 visible ASCII characters, no blank"
        )
    return text
