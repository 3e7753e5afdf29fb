"""Make a broker from its URL. Only the backend that the URL names is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from mainspring.model.errors import InvalidInput, MissingExtra, suggest_nearest
from mainspring.model.instant import duration_ms
from mainspring.ports.broker import MAX_BROKER_NAME_CHARS, Broker, BrokerLimits
from mainspring.ports.clock import Clock

_BROKER_FORMS = "Write memory:// or redis://HOST:6379/0"
#: The options of a URL that set a field of `BrokerLimits`: whole numbers, and the duration `redeliver_after`.
_WHOLE_NUMBER_OPTIONS = ("capacity", "kept", "max_deliveries", "dead")
_LIMIT_OPTIONS = (*_WHOLE_NUMBER_OPTIONS, "redeliver_after")
#: The options that a broker adds to those of a Redis URL: the limits; `stream`, the name of the stream of events; and
#: `events`, which says when events are sent: "asked", only while they have a reader, or "always".
_BROKER_OPTIONS = (*_LIMIT_OPTIONS, "stream", "events")
#: Schemes of Redis and Valkey: one server, behind a Sentinel, in a cluster; with TLS or not.
_REDIS_BROKER_SCHEMES = [
    f"{base}{mode}" for mode in ("", "+sentinel", "+cluster") for base in ("redis", "rediss", "valkey", "valkeys")
]


def open_broker(url: str, clock: Clock) -> Broker:
    """Return the broker that `url` names, not yet opened.

    Raises: InvalidInput if `url` is not the URL of a broker; MissingExtra if the package it needs is not installed.
    """
    if not isinstance(url, str) or "://" not in url:
        raise InvalidInput("broker", f"{url!r} is not a broker URL", _BROKER_FORMS)
    scheme = url.partition("://")[0].lower()
    maker = _BROKER_MAKERS.get(scheme)
    if maker is None:
        fix = f"{suggest_nearest(scheme, _BROKER_MAKERS) or ''} Known are {', '.join(_BROKER_MAKERS)}".strip()
        raise InvalidInput("broker", f"{scheme + '://'!r} is not the scheme of a broker", fix)
    return maker(url, clock)


def _memory(url: str, clock: Clock) -> Broker:
    """Return the broker of a `memory://NAME` URL. Brokers of one NAME in this process share their messages.

    Raises: InvalidInput if the URL has a path, or an option that is unknown or out of range.
    """
    from mainspring.backends.memory.broker import MemoryBroker

    parts = urlsplit(url)
    name = unquote(parts.netloc)
    if parts.path.strip("/"):
        raise InvalidInput("broker", f"{url!r} has a path", "Write memory:// or memory://NAME")
    return MemoryBroker(name, clock, _read_limits(_read_options(parts.query, _LIMIT_OPTIONS)))


def _redis(url: str, clock: Clock) -> Broker:
    """Return the broker of a URL of Redis or Valkey.

    Raises: InvalidInput if the URL is not valid; MissingExtra if redis-py is not installed.
    """
    try:
        from mainspring.backends.redis.broker import RedisStreams
        from mainspring.backends.redis.broker_client import BrokerClient
        from mainspring.backends.redis.settings import read_url
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "redis":
            raise
        raise MissingExtra("Redis Streams need redis-py. Install it: pip install 'mainspring[redis]'") from error

    base, _, query = url.partition("?")
    own = {name: value for name, value in parse_qsl(query, keep_blank_values=True) if name in _BROKER_OPTIONS}
    rest = urlencode([pair for pair in parse_qsl(query, keep_blank_values=True) if pair[0] not in _BROKER_OPTIONS])
    try:
        settings = read_url(f"{base}?{rest}")
    except InvalidInput as error:
        raise InvalidInput("broker", error.problem, error.fix) from None
    events = own.get("events", "asked")
    if events not in ("asked", "always"):
        raise InvalidInput("broker", f"events={events!r} is not known", "Use asked or always")
    return RedisStreams(
        BrokerClient(settings),
        prefix=settings.prefix,
        stream=_read_name(own, "stream"),
        events_always=events == "always",
        limits=_read_limits(own),
    )


def _read_options(query: str, known: tuple[str, ...]) -> dict[str, str]:
    """Return the options in a URL's query, as name → text. Raises: InvalidInput for a name that is not in `known`."""
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise InvalidInput(
                "broker",
                f"{name!r} is not an option of this broker",
                suggest_nearest(name, known) or f"Known: {', '.join(known)}",
            )
        options[name] = value
    return options


def _read_name(options: Mapping[str, str], name: str) -> str | None:
    """Return the value of the option `name`, which must be a name itself; None if the option is not given.

    `options`: the options of a URL, name → text. Raises: InvalidInput if the value is empty, too long or not printable.
    """
    value = options.get(name)
    if value is not None and not (1 <= len(value) <= MAX_BROKER_NAME_CHARS and value.isprintable()):
        raise InvalidInput(
            "broker", f"{name}={value!r:.40} is not a name", f"Use 1 to {MAX_BROKER_NAME_CHARS} printable characters"
        )
    return value


def _read_limits(options: Mapping[str, str]) -> BrokerLimits:
    """Return limits with the values that the options give, else with defaults. `options`: name → text.

    Raises: InvalidInput if a value is not a number or duration, or out of range.
    """
    values: dict[str, int] = {}
    for name in _WHOLE_NUMBER_OPTIONS:
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
    return BrokerLimits(**values)


#: Scheme of a URL → the function that makes the broker.
_BROKER_MAKERS: dict[str, Callable[[str, Clock], Broker]] = {
    "memory": _memory,
    **dict.fromkeys(_REDIS_BROKER_SCHEMES, _redis),
}
