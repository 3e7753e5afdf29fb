"""A broker from its URL; only the one that is named gets imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from mainspring.model.errors import InvalidInput, MissingExtra, nearest
from mainspring.model.instant import duration_ms
from mainspring.ports.broker import MAX_NAME, Broker, Limits
from mainspring.ports.clock import Clock

_FORMS = "Write memory:// or redis://HOST:6379/0"
_WHOLE = ("capacity", "kept", "max_deliveries", "dead")
_LIMITS = (*_WHOLE, "redeliver_after")
#: What the broker adds to the options of a Redis URL.
_OWN = (*_LIMITS, "stream", "events")
#: One server, behind a Sentinel, in a cluster; by TLS or not.
_REDIS = [
    f"{base}{mode}" for mode in ("", "+sentinel", "+cluster") for base in ("redis", "rediss", "valkey", "valkeys")
]


def open_broker(url: str, clock: Clock) -> Broker:
    """The broker that `url` names, not yet opened."""
    if not isinstance(url, str) or "://" not in url:
        raise InvalidInput("broker", f"{url!r} is not a broker URL", _FORMS)
    scheme = url.partition("://")[0].lower()
    maker = _MAKERS.get(scheme)
    if maker is None:
        fix = f"{nearest(scheme, _MAKERS) or ''} Known are {', '.join(_MAKERS)}".strip()
        raise InvalidInput("broker", f"no broker is called {scheme!r}", fix)
    return maker(url, clock)


def _memory(url: str, clock: Clock) -> Broker:
    from mainspring.brokers.memory import MemoryBroker

    parts = urlsplit(url)
    name = unquote(parts.netloc)
    if parts.path.strip("/"):
        raise InvalidInput("broker", f"{url!r} has a path", "Write memory:// or memory://NAME")
    return MemoryBroker(name, clock, _limits(_options(parts.query, _LIMITS)))


def _redis(url: str, clock: Clock) -> Broker:
    try:
        from mainspring.brokers.redis_client import Client
        from mainspring.brokers.redis_streams import RedisStreams
        from mainspring.stores.redis.settings import read_url
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "redis":
            raise
        raise MissingExtra("Redis Streams need redis-py. Install it: pip install 'mainspring[redis]'") from error

    base, _, query = url.partition("?")
    own = {name: value for name, value in parse_qsl(query, keep_blank_values=True) if name in _OWN}
    rest = urlencode([pair for pair in parse_qsl(query, keep_blank_values=True) if pair[0] not in _OWN])
    try:
        settings = read_url(f"{base}?{rest}")
    except InvalidInput as error:
        raise InvalidInput("broker", error.problem, error.fix) from None
    events = own.get("events", "asked")
    if events not in ("asked", "always"):
        raise InvalidInput("broker", f"events={events!r} is not known", "Use asked or always")
    return RedisStreams(
        Client(settings),
        prefix=settings.prefix,
        stream=_word(own, "stream"),
        always=events == "always",
        limits=_limits(own),
    )


def _options(query: str, known: tuple[str, ...]) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise InvalidInput(
                "broker",
                f"{name!r} is not an option of this broker",
                nearest(name, known) or f"Known: {', '.join(known)}",
            )
        options[name] = value
    return options


def _word(options: Mapping[str, str], name: str) -> str | None:
    value = options.get(name)
    if value is not None and not (1 <= len(value) <= MAX_NAME and value.isprintable()):
        raise InvalidInput("broker", f"{name}={value!r:.40} is not a name", f"Use 1 to {MAX_NAME} printable characters")
    return value


def _limits(options: Mapping[str, str]) -> Limits:
    values: dict[str, int] = {}
    for name in _WHOLE:
        if name in options:
            text = options[name]
            if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 10_000_000):
                raise InvalidInput("broker", f"{name}={text!r} is not a whole number", "Use 1 to 10000000")
            values[name] = int(text)
    if "redeliver_after" in options:
        after = duration_ms(options["redeliver_after"], field="broker")
        if not 10 <= after <= 86_400_000:
            raise InvalidInput(
                "broker", f"redeliver_after={options['redeliver_after']} is out of range", "Use 10ms to 24h"
            )
        values["redeliver_after"] = after
    return Limits(**values)


_MAKERS: dict[str, Callable[[str, Clock], Broker]] = {"memory": _memory, **dict.fromkeys(_REDIS, _redis)}
