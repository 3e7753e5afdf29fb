"""The keys of the configuration: how the value of each is read, and which variables and other names set it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from mainspring.config import readers as read
from mainspring.config.settings import LOG_FORMATS, LOG_LEVELS, SERVE_ROLES, ServeSettings
from mainspring.model.policies import BACKOFF
from mainspring.model.settings import MAX_PAYLOAD_BYTES

#: Durations in milliseconds.
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


class Key(Struct, frozen=True):
    """How one key of the configuration is read and where its value is kept."""

    read: read.Reader
    #: A reload changes the value in a running service. Other keys take effect at the next start.
    live: bool = False
    #: Attributes, joined by dots, that lead to the value in `ServeSettings`; "" if they equal the name of the key.
    place: str = ""


KEYS: Mapping[str, Key] = {
    "store": Key(read.store_url),
    "broker": Key(read.optional(read.broker_url)),
    "role": Key(read.word(*SERVE_ROLES)),
    "app": Key(read.optional(read.program)),
    "server.host": Key(read.host),
    "server.port": Key(read.whole(0, 65_535)),
    "server.public_url": Key(read.optional(read.http_url), live=True),
    "server.allow_hosts": Key(read.several(read.text), live=True),
    "server.insecure_no_auth": Key(read.boolean),
    "server.require_key": Key(read.boolean, live=True),
    "server.access_log": Key(read.boolean, live=True),
    "server.request_timeout": Key(read.duration(SECOND, 10 * MINUTE)),
    "scheduler.name": Key(read.name),
    "scheduler.namespace": Key(read.name),
    "scheduler.workers": Key(read.whole(1, 10_000)),
    "scheduler.poll_interval": Key(read.duration(10, MINUTE)),
    "scheduler.shutdown_timeout": Key(read.duration(0, HOUR)),
    "scheduler.lease_ttl": Key(read.duration(300, DAY)),
    "scheduler.history": Key(read.duration(MINUTE, 36_500 * DAY)),
    "scheduler.payload_limit": Key(read.size(1, MAX_PAYLOAD_BYTES)),
    "scheduler.max_lag": Key(read.duration(SECOND, DAY), live=True),
    "agents.concurrency": Key(read.whole(1, 100_000)),
    "agents.per_host": Key(read.whole(1, 100_000), live=True),
    "agents.connect_timeout": Key(read.duration(10, MINUTE), place="agents.connect"),
    "agents.timeout": Key(read.duration(10, DAY)),
    "agents.max_response": Key(read.size(0, 1 << 30), live=True),
    "agents.keep_response": Key(read.size(0, MAX_PAYLOAD_BYTES), live=True),
    "agents.allow_private": Key(read.optional(read.boolean)),
    "agents.allow_hosts": Key(read.several(read.text)),
    "agents.allow_ports": Key(read.optional(read.several(read.whole(1, 65_535)))),
    "limits.min_interval": Key(read.optional(read.duration(1, 365 * DAY)), live=True),
    "limits.requests_per_second": Key(read.optional(read.number(0.001, 1e6)), live=True),
    "limits.burst": Key(read.optional(read.whole(1, 1_000_000)), live=True),
    "retry.max_attempts": Key(read.whole(1, 1_000), live=True),
    "retry.backoff_strategy": Key(read.word(*BACKOFF), live=True, place="retry.backoff"),
    "retry.initial_delay": Key(read.duration(0, DAY), live=True, place="retry.initial"),
    "retry.max_delay": Key(read.duration(0, 365 * DAY), live=True),
    "retry.backoff_multiplier": Key(read.number(1, 1_000), live=True, place="retry.base"),
    "retry.jitter": Key(read.number(0, 1), live=True),
    "logging.level": Key(read.word(*LOG_LEVELS), live=True),
    "logging.format": Key(read.word(*LOG_FORMATS)),
    "metrics.enabled": Key(read.boolean),
    "metrics.port": Key(read.whole(1, 65_535)),
}


class Alias(Struct, frozen=True):
    """Another name of a key: the key that it sets, and the reader of values under this name."""

    key: str
    read: read.Reader


#: Other name of a key → the key. The names are those of scheduler-rs, source 000 (docs/sources.md).
ALIASES: Mapping[str, Alias] = {
    "scheduler.poll_interval_ms": Alias("scheduler.poll_interval", read.duration_count(1, 10, MINUTE)),
    "scheduler.shutdown_timeout_secs": Alias("scheduler.shutdown_timeout", read.duration_count(SECOND, 0, HOUR)),
    "retry.initial_delay_ms": Alias("retry.initial_delay", read.duration_count(1, 0, DAY)),
    "retry.max_delay_ms": Alias("retry.max_delay", read.duration_count(1, 0, 365 * DAY)),
}

#: Variable → the key that it sets. Apart from MAINSPRING_URL, they are variables of another scheduler, source 002
#: (docs/serving.md). `environment.py` makes a URL of its variables for the database.
VARIABLES: Mapping[str, Alias] = {
    "MAINSPRING_URL": Alias("store", read.store_url),
    "PORT": Alias("server.port", read.whole(0, 65_535)),
    "SCHEDULER_TICK_INTERVAL": Alias("scheduler.poll_interval", read.duration_count(1, 10, MINUTE)),
    "LOCK_TTL": Alias("scheduler.lease_ttl", read.duration_count(1, 300, DAY)),
    "MAX_RETRY_ATTEMPTS": Alias("retry.max_attempts", read.whole(1, 1_000)),
    "RETRY_BACKOFF_BASE": Alias("retry.initial_delay", read.duration_count(1, 0, DAY)),
}

#: The first characters of the name of each variable that `variable` returns.
VARIABLE_PREFIX = "MAINSPRING_"


def variable(key: str) -> str:
    """Return the name of the environment variable that sets a key: MAINSPRING_SERVER__PORT for `server.port`."""
    return VARIABLE_PREFIX + key.replace(".", "__").upper()


def place(key: str) -> str:
    """Return the attributes, joined by dots, that lead to a key's value in `ServeSettings`."""
    return KEYS[key].place or key


def get_value(settings: ServeSettings, key: str) -> Any:
    """Return the value that a key has in `settings`."""
    found: Any = settings
    for part in place(key).split("."):
        found = getattr(found, part)
    return found


def assemble(values: Mapping[str, Any]) -> ServeSettings:
    """Return settings with the value that `values` gives for a key; a key that is not in it has its default.

    The values must have been read by the key's reader. `server.public_url` is also set in the settings for agents.
    """
    changes: dict[str, dict[str, Any]] = {}
    top: dict[str, Any] = {}
    for key, value in values.items():
        section, dot, name = place(key).partition(".")
        if dot:
            changes.setdefault(section, {})[name] = value
        else:
            top[section] = value
    base = ServeSettings()
    for section, parts in changes.items():
        top[section] = msgspec.structs.replace(getattr(base, section), **parts)
    public_url = changes.get("server", {}).get("public_url")
    if public_url is not None:  # agents send their callbacks to this address
        top["agents"] = msgspec.structs.replace(top.get("agents", base.agents), public_url=public_url)
    return msgspec.structs.replace(base, **top)
