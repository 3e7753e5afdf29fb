"""The settings of the service as values: what `mainspring serve` needs to know, every part with its default."""

from __future__ import annotations

import ipaddress
from typing import Literal

from msgspec import Struct, field

from mainspring.model.http import AgentSettings
from mainspring.model.instant import Ms
from mainspring.model.policies import RetryPolicy

ServeRole = Literal["all", "api", "planner", "worker"]
SERVE_ROLES: tuple[ServeRole, ...] = ("all", "api", "planner", "worker")
LogFormat = Literal["text", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = ("text", "json")
LogLevel = Literal["debug", "info", "warning", "error"]
LOG_LEVELS: tuple[LogLevel, ...] = ("debug", "info", "warning", "error")

DEFAULT_STORE = "sqlite:///mainspring.db"
#: What a request may carry beside a payload.
BODY_MARGIN = 64 * 1024


class ServerSettings(Struct, frozen=True, kw_only=True):
    """Where it listens and whom it answers."""

    host: str = "127.0.0.1"
    port: int = 3000
    #: Where browsers, agents and callbacks reach it, when that is not http://host:port.
    public_url: str | None = None
    #: Names beside its own that requests may be addressed to (the Host header); a leading dot allows sub-domains.
    allow_hosts: tuple[str, ...] = ()
    #: Serve strangers without a key. The name in files and variables is `server.insecure_no_auth`.
    insecure_no_auth: bool = False
    #: Ask for a key on loopback, too: for a proxy on the same machine that lets strangers in.
    require_key: bool = False
    access_log: bool = True
    #: So long a client may take to send a request, head and body.
    request_timeout: Ms = 10_000

    @property
    def on_loopback(self) -> bool:
        """True when only this machine can reach it."""
        return is_loopback(self.host)


class SchedulerSettings(Struct, frozen=True, kw_only=True):
    """The engine behind it."""

    name: str = "mainspring"
    namespace: str = "default"
    workers: int = 10
    poll_interval: Ms = 1_000
    shutdown_timeout: Ms = 20_000
    lease_ttl: Ms = 30_000
    #: None: as long as the store does by itself, 30 days or, on Redis, one.
    history: Ms | None = None
    payload_limit: int = 64 * 1024
    #: Readiness is false when planning is so far behind.
    max_lag: Ms = 30_000


class LimitSettings(Struct, frozen=True, kw_only=True):
    """What is refused; None is no limit."""

    min_interval: Ms | None = None
    #: For each key, or for each address where no key is needed.
    requests_per_second: float | None = None
    burst: int | None = None


class LoggingSettings(Struct, frozen=True, kw_only=True):
    """What it says on standard error."""

    level: LogLevel = "info"
    format: LogFormat = "text"


class MetricsSettings(Struct, frozen=True, kw_only=True):
    """Understood, and without effect in this version."""

    enabled: bool = True
    port: int = 9090


#: Source 002: three attempts, times two, from one second to thirty.
HTTP_RETRY = RetryPolicy(max_attempts=3, backoff="exponential", initial=1_000, base=2.0, max_delay=30_000, jitter=0.0)


class ServeSettings(Struct, frozen=True, kw_only=True):
    """Everything `mainspring serve` needs to know."""

    store: str = DEFAULT_STORE
    #: How hints of work and events travel between instances; without one the store's own hints do.
    broker: str | None = None
    role: ServeRole = "all"
    #: MODULE:APP with the tasks and schedules of a Python program.
    app: str | None = None
    server: ServerSettings = ServerSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    agents: AgentSettings = AgentSettings()
    limits: LimitSettings = LimitSettings()
    #: For schedules that say nothing about it.
    retry: RetryPolicy = field(default=HTTP_RETRY)
    logging: LoggingSettings = LoggingSettings()
    metrics: MetricsSettings = MetricsSettings()

    @property
    def url(self) -> str:
        """Where it is reached, as far as it knows."""
        if self.server.public_url is not None:
            return self.server.public_url.rstrip("/")
        host = self.server.host
        if host in ("0.0.0.0", "::", ""):  # noqa: S104 - only compared
            host = "localhost"
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server.port}"

    @property
    def body_limit(self) -> int:
        """The largest request body."""
        return self.scheduler.payload_limit + BODY_MARGIN


def is_loopback(host: str) -> bool:
    """True for an address or name that only this machine can reach."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
