"""What a `redis://` or `valkey://` URL says, in every spelling: one server, behind a Sentinel, in a cluster, by TLS."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

from mainspring.model.errors import InvalidInput, nearest
from mainspring.model.instant import Ms, duration_ms

Mode = Literal["server", "sentinel", "cluster"]
_BASES = {"redis": False, "rediss": True, "valkey": False, "valkeys": True}
_MODES: dict[str, Mode] = {"": "server", "+sentinel": "sentinel", "+cluster": "cluster"}
#: Every scheme there is: whether it speaks TLS, and what it leads to.
SCHEMES: dict[str, tuple[bool, Mode]] = {
    base + extra: (tls, mode) for extra, mode in _MODES.items() for base, tls in _BASES.items()
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
_PORTS: dict[Mode, int] = {"server": 6379, "sentinel": 26379, "cluster": 6379}
_FORMS: dict[Mode, str] = {
    "server": "Write redis://user:password@host:6379/0",
    "sentinel": "Write redis+sentinel://user:password@host1:26379,host2:26379/service/0",
    "cluster": "Write redis+cluster://user:password@host1:6379,host2:6379",
}
_YES = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


class RedisSettings(Struct, frozen=True):
    """How to reach the server and how to behave there."""

    mode: Mode
    #: The server, the Sentinels, or some nodes of the cluster.
    hosts: tuple[tuple[str, int], ...]
    #: For people: no password.
    where: str
    #: What the Sentinels call the primary.
    service: str = ""
    db: int = 0
    user: str | None = None
    password: str | None = None
    #: The hash tag of every key: all of them lie in one slot.
    prefix: str = "mainspring"
    #: At most so many connections, beside the one that listens.
    pool: int = 4
    #: How long a server that is not there may take to come.
    wait: Ms = 30_000
    #: How long an answer may take.
    timeout: Ms = 10_000
    client_name: str = "mainspring"
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_verify: bool = True
    sentinel_user: str | None = None
    sentinel_password: str | None = None


def read_url(url: str) -> RedisSettings:
    """The settings of a URL; what is wrong with it is said here, before anything is opened."""
    scheme, _, rest = url.partition("://")
    found = SCHEMES.get(scheme.lower())
    if found is None:
        fix = nearest(scheme, SCHEMES) or f"Known are {', '.join(SCHEMES)}"
        raise InvalidInput("url", f"{scheme!r} is no scheme of Redis or Valkey", fix)
    tls, mode = found
    place, _, query = rest.partition("?")
    login, _, address = place.rpartition("@")
    netloc, _, path = address.partition("/")
    user, colon, password = login.partition(":")
    hosts = tuple(_host(one, mode) for one in netloc.split(","))
    if mode == "server" and len(hosts) > 1:
        raise InvalidInput("url", f"{netloc!r} names several servers", f"{_FORMS['cluster'][6:]} is a cluster")
    service, db = _path(path, mode)
    options = _options(query)
    prefix = options.get("prefix", "mainspring")
    if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,100}", prefix):
        raise InvalidInput(
            "url",
            f"prefix={prefix!r} is not a plain name, which every key has as its hash tag",
            "Use letters, digits and _ . : -, at most 100",
        )
    many = ",".join(f"{host}:{port}" for host, port in hosts)
    product = "Valkey" if scheme.lower().startswith("valkey") else "Redis"
    told = {
        "server": f"{product} at {many}/{db}",
        "sentinel": f"{product} {service!r} behind the Sentinel at {many}",
        "cluster": f"the {product} cluster at {many}",
    }
    return RedisSettings(
        mode=mode,
        hosts=hosts,
        where=told[mode],
        service=service,
        db=db,
        user=unquote(user) or None,
        password=unquote(password) if colon else None,
        prefix=prefix,
        pool=_number(options, "pool", 4, 1, 100),
        wait=_duration(options, "wait", 30_000),
        timeout=_duration(options, "timeout", 10_000),
        client_name=_client_name(options.get("client_name", "mainspring")),
        tls=tls,
        tls_ca=options.get("tls_ca"),
        tls_cert=options.get("tls_cert"),
        tls_key=options.get("tls_key"),
        tls_verify=_flag(options, "tls_verify", default=True),
        sentinel_user=options.get("sentinel_user"),
        sentinel_password=options.get("sentinel_password"),
    )


def _host(text: str, mode: Mode) -> tuple[str, int]:
    found = re.fullmatch(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:\[\]]*)(:(?P<port>[0-9]*))?", text)
    port = int(found["port"] or _PORTS[mode]) if found is not None else 0
    if found is None or not 0 < port < 65_536:
        raise InvalidInput("url", f"{text!r} is no host and port", _FORMS[mode])
    return found["host"].strip("[]") or "localhost", port


def _path(path: str, mode: Mode) -> tuple[str, int]:
    """The service's name and the number of the database."""
    parts = [unquote(part) for part in path.split("/")] if path else []
    service = ""
    if mode == "sentinel":
        service = parts.pop(0) if parts else ""
        if not service:
            raise InvalidInput("url", "it does not say what the Sentinels call the primary", _FORMS[mode])
    number = parts.pop(0) if parts else ""
    if parts or (number and not (number.isdecimal() and int(number) < 100_000)):
        raise InvalidInput("url", f"{path!r} is no number of a database", _FORMS[mode])
    if mode == "cluster" and int(number or 0):
        raise InvalidInput("url", f"a cluster has no database {number}", f"{_FORMS[mode]}; ?prefix= keeps stores apart")
    return service, int(number or 0)


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            fix = nearest(name, _OPTIONS) or f"Known are {', '.join(_OPTIONS)}"
            raise InvalidInput("url", f"{name!r} is not an option of this store", fix)
        options[name] = value
    tls = [name for name in options if name in ("tls_cert", "tls_key")]
    if len(tls) == 1:
        raise InvalidInput("url", f"{tls[0]} is alone", "Give both tls_cert and tls_key, or neither")
    return options


def _client_name(text: str) -> str:
    if not re.fullmatch(r"[!-~]{1,60}", text):
        raise InvalidInput("url", f"client_name={text!r} is not a plain word", "Use visible ASCII without blanks")
    return text


def _flag(options: dict[str, str], name: str, *, default: bool) -> bool:
    value = _YES.get(options.get(name, str(int(default))).lower())
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


def _duration(options: dict[str, str], name: str, default: Ms) -> Ms:
    return duration_ms(options[name], field=f"url: {name}") if name in options else default
