"""Settings of `mainspring serve` as values, each with its default."""

from __future__ import annotations

import ipaddress
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct, field

from mainspring.model.http import AgentSettings
from mainspring.model.instant import Ms
from mainspring.model.policies import RetryPolicy
from mainspring.model.settings import DEFAULT_STORE_URL

ServeRole = Literal["all", "api", "planner", "worker"]
SERVE_ROLES: tuple[ServeRole, ...] = ("all", "api", "planner", "worker")
LogFormat = Literal["text", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = ("text", "json")
LogLevel = Literal["debug", "info", "warning", "error"]
LOG_LEVELS: tuple[LogLevel, ...] = ("debug", "info", "warning", "error")

#: Bytes that a request body may have in addition to its payload.
BODY_MARGIN_BYTES = 64 * 1024


class ServerSettings(Struct, frozen=True, kw_only=True):
    """Settings of the HTTP server: the address on which it listens, and the requests that it answers."""

    host: str = "127.0.0.1"
    port: int = 3000
    #: URL under which browsers and agents reach the service, if that is not http://host:port.
    public_url: str | None = None
    #: Further host names that the Host header of a request may have; a name with a leading dot allows its sub-domains.
    allow_hosts: tuple[str, ...] = ()
    #: Addresses and networks of proxies. Only they are believed what address a client has (X-Forwarded-For).
    trusted_proxies: tuple[str, ...] = ()
    #: Serve every caller without a key, on any address.
    insecure_no_auth: bool = False
    #: Require a key on loopback, too. Why: a proxy on this machine may forward requests of other machines.
    require_key: bool = False
    #: Write a line to the log for each request.
    access_log: bool = True
    #: Time in which a client must have sent a request, headers and body; after it, the connection is closed.
    request_timeout: Ms = 10_000

    @property
    def on_loopback(self) -> bool:
        """True if only this machine can reach the service."""
        return is_loopback(self.host)

    @property
    def is_private(self) -> bool:
        """True if only programs of this machine use the service, and no proxy forwards requests of others to it.

        A required key or a public URL of another host show that others use the service, too.
        """
        public = None if self.public_url is None else urlsplit(self.public_url).hostname
        return self.on_loopback and not self.require_key and (public is None or is_loopback(public))


class SchedulerSettings(Struct, frozen=True, kw_only=True):
    """Settings of the engine. A field without a comment means what it means in `model.settings.Settings`.

    If the service runs a Python program (`ServeSettings.app`), the program's own settings apply instead, except for
    `max_lag`, and with the exceptions that `server.serve.make_app` lists.
    """

    #: Name under which instances of one program share a leader (`app` in `Settings`).
    name: str = "mainspring"
    namespace: str = "default"
    #: The most runs that the instance executes at once (`concurrency` in `Settings`).
    workers: int = 10
    #: Longest time between two queries for due work (`poll` in `Settings`).
    poll_interval: Ms = 1_000
    shutdown_timeout: Ms = 20_000
    lease_ttl: Ms = 30_000
    #: How long ended runs are kept. None: the store's default, which is 30 days, or one day on Redis.
    history: Ms | None = None
    #: The largest size of a run's arguments as JSON, in bytes.
    payload_limit: int = 64 * 1024
    #: The most bytes of all run logs. None: the store's default, which is 1 GiB, or 64 MiB on Redis and in memory.
    logs_limit: int | None = None
    #: `/ready` answers 503 while planning is further behind than this.
    max_lag: Ms = 30_000


class LimitSettings(Struct, frozen=True, kw_only=True):
    """Limits on requests to the API. None means no limit, except where a comment says otherwise."""

    #: Shortest time between two fires of a schedule that is created or changed over the API.
    min_interval: Ms | None = 1_000
    #: Requests in a second of one API key, or of one address that sends no key.
    requests_per_second: float | None = 50.0
    #: Requests that one caller may send at once after a pause. None: twice `requests_per_second`.
    burst: int | None = None


class LoggingSettings(Struct, frozen=True, kw_only=True):
    """Settings of the log, which goes to standard error."""

    level: LogLevel = "info"
    format: LogFormat = "text"


class MetricsSettings(Struct, frozen=True, kw_only=True):
    """Settings of metrics. They are accepted, but have no effect in this version."""

    enabled: bool = True
    port: int = 9090


#: Default of `ServeSettings.retry`: three attempts, delays that double from one second up to thirty. Another scheduler,
#: source 002 (see `environment.py`), has the same default.
HTTP_RETRY = RetryPolicy(max_attempts=3, backoff="exponential", initial=1_000, base=2.0, max_delay=30_000, jitter=0.0)


class ServeSettings(Struct, frozen=True, kw_only=True):
    """All settings of `mainspring serve`."""

    store: str = DEFAULT_STORE_URL
    #: Broker that carries hints between instances; None: the store carries them.
    broker: str | None = None
    role: ServeRole = "all"
    #: MODULE:APP of a Python program with tasks and schedules; None: the service has no tasks.
    app: str | None = None
    server: ServerSettings = ServerSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    agents: AgentSettings = AgentSettings()
    limits: LimitSettings = LimitSettings()
    #: Retry policy of schedules that call an HTTP agent and have no policy of their own.
    retry: RetryPolicy = field(default=HTTP_RETRY)
    logging: LoggingSettings = LoggingSettings()
    metrics: MetricsSettings = MetricsSettings()

    @property
    def url(self) -> str:
        """URL of the service without a slash at its end: `public_url`, or one made from host and port.

        If the service listens on all addresses, the host is localhost.
        """
        if self.server.public_url is not None:
            return self.server.public_url.rstrip("/")
        host = self.server.host
        if host in ("0.0.0.0", "::", ""):  # noqa: S104 - only compared
            host = "localhost"
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server.port}"


def is_loopback(host: str) -> bool:
    """Return True if `host` is "localhost" or a loopback address; False for any other name, which is not resolved."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
