"""The keys of the configuration: how the value of each key is read, and which variables and other names set it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from mainspring.config import readers
from mainspring.config.settings import LOG_FORMATS, LOG_LEVELS, SERVE_ROLES, ServeSettings
from mainspring.model.policies import BACKOFF
from mainspring.model.settings import MAX_PAYLOAD_BYTES

SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000


class Key(Struct, frozen=True):
    """How one key of the configuration is read and where its value is kept."""

    read: readers.Reader
    #: True: a reload changes the value in the running service. False: a new value takes effect at the next start.
    live: bool = False
    #: Attributes, joined by dots, that lead to the value in `ServeSettings`; "" if they equal the name of the key.
    path: str = ""


KEYS: Mapping[str, Key] = {
    "store": Key(readers.read_store_url),
    "broker": Key(readers.optional_reader(readers.read_broker_url)),
    "role": Key(readers.word_reader(*SERVE_ROLES)),
    "app": Key(readers.optional_reader(readers.read_program)),
    "server.host": Key(readers.read_host),
    "server.port": Key(readers.whole_reader(0, 65_535)),
    "server.public_url": Key(readers.optional_reader(readers.read_http_url), live=True),
    "server.allow_hosts": Key(readers.list_reader(readers.read_text), live=True),
    "server.trusted_proxies": Key(readers.list_reader(readers.read_network), live=True),
    "server.insecure_no_auth": Key(readers.read_boolean),
    "server.require_key": Key(readers.read_boolean, live=True),
    "server.access_log": Key(readers.read_boolean, live=True),
    "server.request_timeout": Key(readers.duration_reader(SECOND_MS, 10 * MINUTE_MS)),
    "scheduler.name": Key(readers.read_name),
    "scheduler.namespace": Key(readers.read_name),
    "scheduler.workers": Key(readers.whole_reader(1, 10_000)),
    "scheduler.poll_interval": Key(readers.duration_reader(10, MINUTE_MS)),
    "scheduler.shutdown_timeout": Key(readers.duration_reader(0, HOUR_MS)),
    "scheduler.lease_ttl": Key(readers.duration_reader(300, DAY_MS)),
    "scheduler.history": Key(readers.duration_reader(MINUTE_MS, 36_500 * DAY_MS)),
    "scheduler.logs_limit": Key(readers.optional_reader(readers.size_reader(0, 1 << 50))),
    "scheduler.payload_limit": Key(readers.size_reader(1, MAX_PAYLOAD_BYTES)),
    "scheduler.max_lag": Key(readers.duration_reader(SECOND_MS, DAY_MS), live=True),
    "agents.concurrency": Key(readers.whole_reader(1, 100_000)),
    "agents.per_host": Key(readers.whole_reader(1, 100_000), live=True),
    "agents.connect_timeout": Key(readers.duration_reader(10, MINUTE_MS), path="agents.connect"),
    "agents.timeout": Key(readers.duration_reader(10, DAY_MS)),
    "agents.max_response": Key(readers.size_reader(0, 1 << 30), live=True),
    "agents.keep_response": Key(readers.size_reader(0, MAX_PAYLOAD_BYTES), live=True),
    "agents.allow_private": Key(readers.optional_reader(readers.read_boolean)),
    "agents.allow_hosts": Key(readers.list_reader(readers.read_agent_host)),
    "agents.allow_ports": Key(readers.optional_reader(readers.read_ports)),
    "limits.min_interval": Key(readers.optional_reader(readers.duration_reader(1, 365 * DAY_MS)), live=True),
    "limits.requests_per_second": Key(readers.optional_reader(readers.number_reader(0.001, 1e6)), live=True),
    "limits.burst": Key(readers.optional_reader(readers.whole_reader(1, 1_000_000)), live=True),
    "retry.max_attempts": Key(readers.whole_reader(1, 1_000), live=True),
    "retry.backoff_strategy": Key(readers.word_reader(*BACKOFF), live=True, path="retry.backoff"),
    "retry.initial_delay": Key(readers.duration_reader(0, DAY_MS), live=True, path="retry.initial"),
    "retry.max_delay": Key(readers.duration_reader(0, 365 * DAY_MS), live=True),
    "retry.backoff_multiplier": Key(readers.number_reader(1, 1_000), live=True, path="retry.base"),
    "retry.jitter": Key(readers.number_reader(0, 1), live=True),
    "logging.level": Key(readers.word_reader(*LOG_LEVELS), live=True),
    "logging.format": Key(readers.word_reader(*LOG_FORMATS)),
    "metrics.enabled": Key(readers.read_boolean),
    "metrics.port": Key(readers.whole_reader(1, 65_535)),
}


class Alias(Struct, frozen=True):
    """Another name of a key (in a file, or a variable): the key, and the function that reads values under that name.

    It has a reader of its own because values under that name may have another unit, such as milliseconds.
    """

    key: str
    read: readers.Reader


#: Other names of keys in a file: the words of Python and REST, and those that scheduler-rs, source 000
#: (docs/sources.md), uses.
ALIASES: Mapping[str, Alias] = {
    "scheduler.concurrency": Alias("scheduler.workers", readers.whole_reader(1, 10_000)),
    "retry.backoff": Alias("retry.backoff_strategy", readers.word_reader(*BACKOFF)),
    "scheduler.poll_interval_ms": Alias("scheduler.poll_interval", readers.duration_count_reader(1, 10, MINUTE_MS)),
    "scheduler.shutdown_timeout_secs": Alias(
        "scheduler.shutdown_timeout", readers.duration_count_reader(SECOND_MS, 0, HOUR_MS)
    ),
    "retry.initial_delay_ms": Alias("retry.initial_delay", readers.duration_count_reader(1, 0, DAY_MS)),
    "retry.max_delay_ms": Alias("retry.max_delay", readers.duration_count_reader(1, 0, 365 * DAY_MS)),
}

#: Variables that set a key, besides those named by `variable_name`. All but MAINSPRING_URL are variables of another
#: scheduler, source 002 (docs/serving.md). Its variables for the database are read by `environment.py`.
VARIABLES: Mapping[str, Alias] = {
    "MAINSPRING_URL": Alias("store", readers.read_store_url),
    "PORT": Alias("server.port", readers.whole_reader(0, 65_535)),
    "SCHEDULER_TICK_INTERVAL": Alias("scheduler.poll_interval", readers.duration_count_reader(1, 10, MINUTE_MS)),
    "LOCK_TTL": Alias("scheduler.lease_ttl", readers.duration_count_reader(1, 300, DAY_MS)),
    "MAX_RETRY_ATTEMPTS": Alias("retry.max_attempts", readers.whole_reader(1, 1_000)),
    "RETRY_BACKOFF_BASE": Alias("retry.initial_delay", readers.duration_count_reader(1, 0, DAY_MS)),
}

#: Start of the names of Mainspring's own variables.
VARIABLE_PREFIX = "MAINSPRING_"


def variable_name(key: str) -> str:
    """Return the name of the environment variable that sets a key: MAINSPRING_SERVER__PORT for `server.port`."""
    return VARIABLE_PREFIX + key.replace(".", "__").upper()


def settings_path(key: str) -> str:
    """Return the path to a key's value in `ServeSettings`: names of attributes, joined by dots."""
    return KEYS[key].path or key


def get_value(settings: ServeSettings, key: str) -> Any:
    """Return the value of a configuration key in `settings`."""
    found: Any = settings
    for part in settings_path(key).split("."):
        found = getattr(found, part)
    return found


def build_settings(values: Mapping[str, Any]) -> ServeSettings:
    """Return settings with `values` (configuration key → value); a key without a value gets its default.

    The caller has passed each value through its key's reader. A `server.public_url` is also set in the settings for
    agents, whose callbacks use it.
    """
    changes: dict[str, dict[str, Any]] = {}
    top: dict[str, Any] = {}
    for key, value in values.items():
        section, dot, name = settings_path(key).partition(".")
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
