"""Configured settings in a Python program: they replace those that it gives its `Mainspring` object."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from mainspring.app.internals import host_of
from mainspring.app.mainspring import Mainspring
from mainspring.config.resolve import DEFAULT_ORIGIN, Resolved
from mainspring.config.settings import ServeSettings
from mainspring.model.errors import LeaseTooShort
from mainspring.model.http import AgentSettings
from mainspring.model.instant import format_duration
from mainspring.model.settings import Settings

#: Configuration key → its field in `Settings`, for the keys that replace a setting of a program.
PROGRAM_KEYS = {
    "scheduler.name": "app",
    "scheduler.namespace": "namespace",
    "scheduler.workers": "concurrency",
    "scheduler.poll_interval": "poll",
    "scheduler.shutdown_timeout": "shutdown_timeout",
    "scheduler.lease_ttl": "lease_ttl",
    "scheduler.history": "history",
    "scheduler.payload_limit": "payload_limit",
    "scheduler.logs_limit": "logs_limit",
}


#: Ports that a service which others use may call, unless `agents.allow_ports` is configured.
WEB_PORTS = (80, 443)


def configure_program(program: Mainspring, resolved: Resolved) -> None:
    """Let store, broker, settings and limits of agents replace those of `program`, each only if it is configured.

    The program must not have opened its store. Raises: LeaseTooShort if the configured lease is shorter than three of
    the program's own heartbeats.
    """
    settings, host = resolved.settings, host_of(program)
    host.configure(
        url=settings.store if _is_given(resolved, ("store",)) else None,
        broker=settings.broker if _is_given(resolved, ("broker",)) else UNSET,
        settings=_program_settings(host.settings, resolved),
    )
    if _is_given(resolved, [key for key in resolved.origins if key.startswith("agents.")]):
        host.enable_agents(agent_settings(settings))


def _program_settings(own: Settings, resolved: Resolved) -> Settings:
    """Return a program's `own` settings with the configured ones in their place."""
    scheduler = resolved.settings.scheduler
    given: dict[str, Any] = {
        field: getattr(scheduler, key.partition(".")[2])
        for key, field in PROGRAM_KEYS.items()
        if _is_given(resolved, (key,))
    }
    lease = given.get("lease_ttl")
    if lease is not None and own.heartbeat == own.lease_ttl // 3:
        given["heartbeat"] = lease // 3
    elif lease is not None and lease < 3 * own.heartbeat:
        raise LeaseTooShort(
            "scheduler.lease_ttl",
            f"{format_duration(lease)} is less than 3 of the program's heartbeats of {format_duration(own.heartbeat)}",
            f"Use at least {format_duration(3 * own.heartbeat)}, or leave heartbeat out of the program",
        )
    return replace(own, **given)


def _is_given(resolved: Resolved, keys: Iterable[str]) -> bool:
    """Return True if a source gives a value for one of the configuration keys."""
    return any(resolved.origins[key] != DEFAULT_ORIGIN for key in keys)


def agent_settings(settings: ServeSettings) -> AgentSettings:
    """Return the settings for calls of HTTP agents, with values for `allow_private`, `allow_ports` and `public_url`.

    A service that only this machine uses may call private addresses and any port, unless it is configured otherwise.
    Any other service may call public addresses, at the ports 80 and 443.
    """
    agents, is_private = settings.agents, settings.server.is_private
    return replace(
        agents,
        allow_private=is_private if agents.allow_private is None else agents.allow_private,
        allow_ports=WEB_PORTS if agents.allow_ports is None and not is_private else agents.allow_ports,
        public_url=settings.url,
    )
