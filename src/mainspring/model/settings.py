"""The settings of one instance, checked once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mainspring.model.errors import InvalidInput, LeaseTooShort
from mainspring.model.ids import check_name
from mainspring.model.instant import Duration, Ms, duration_ms, format_duration

MIN_LEASE = 300
PAYLOAD_HARD_LIMIT = 1024 * 1024
MAX_LABELS, MAX_LABEL = 32, 100


class Settings(Struct, frozen=True, kw_only=True):
    """What the engine needs to know; durations in milliseconds."""

    namespace: str = "default"
    app: str = "mainspring"
    version: str = ""
    queues: tuple[str, ...] = ("default",)
    concurrency: int = 10
    lease_ttl: Ms = 30_000
    heartbeat: Ms = 10_000
    poll: Ms = 1_000
    shutdown_timeout: Ms = 30_000
    #: None: as long as the store does by itself.
    history: Ms | None = None
    payload_limit: int = 64 * 1024
    undeclared_after: Ms = 600_000
    labels: dict[str, str] = {}
    #: How long an outcome that nobody waits for may wait for company; zero where time passes only when it is let.
    pace: Ms = 5


def make_settings(
    *,
    namespace: str = "default",
    app: str = "mainspring",
    version: str = "",
    queues: Sequence[str] = ("default",),
    concurrency: int = 10,
    lease_ttl: Duration = "30s",
    heartbeat: Duration | None = None,
    poll_interval: Duration = "1s",
    shutdown_timeout: Duration = "30s",
    history: Duration | None = None,
    payload_limit: int = 64 * 1024,
    labels: Mapping[str, str] | None = None,
) -> Settings:
    """Read and check what a user gives."""
    ttl = duration_ms(lease_ttl, field="lease_ttl")
    beat = ttl // 3 if heartbeat is None else duration_ms(heartbeat, field="heartbeat", minimum=1)
    if ttl < MIN_LEASE:
        raise LeaseTooShort(
            "lease_ttl", f"{format_duration(ttl)} is too short", "Use at least 300ms; 30s is the default"
        )
    if ttl < 3 * beat:
        raise LeaseTooShort(
            "lease_ttl",
            f"{format_duration(ttl)} is less than 3 heartbeats of {format_duration(beat)}",
            f"Use lease_ttl of at least {format_duration(3 * beat)}, or a shorter heartbeat",
        )
    if not isinstance(payload_limit, int) or not 1 <= payload_limit <= PAYLOAD_HARD_LIMIT:
        raise InvalidInput("payload_limit", f"{payload_limit!r} is out of range", "Use 1 to 1048576 bytes")
    if isinstance(queues, str) or not queues:
        raise InvalidInput(
            "queues", f"{queues!r} is not a list of names", 'Write for example queues=["default", "mail"]'
        )
    return Settings(
        namespace=check_name(namespace, field="namespace"),
        app=check_name(app, field="app"),
        version=str(version),
        queues=tuple(check_name(queue, field="queues") for queue in queues),
        concurrency=_concurrency(concurrency),
        lease_ttl=ttl,
        heartbeat=beat,
        poll=duration_ms(poll_interval, field="poll_interval", minimum=1),
        shutdown_timeout=duration_ms(shutdown_timeout, field="shutdown_timeout"),
        history=None if history is None else duration_ms(history, field="history"),
        payload_limit=payload_limit,
        labels=_labels(labels or {}),
    )


def adjusted(
    settings: Settings, *, concurrency: int | None = None, labels: Mapping[str, str] | None = None
) -> Settings:
    """The settings of a program as whoever starts it wants them: more or fewer slots, labels added."""
    return replace(
        settings,
        concurrency=settings.concurrency if concurrency is None else _concurrency(concurrency),
        labels=settings.labels | _labels(labels or {}),
    )


def _concurrency(given: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= 10_000:
        raise InvalidInput("concurrency", f"{given!r} is out of range", "Use a whole number from 1 to 10000")
    return given


def _labels(given: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(given, Mapping) or len(given) > MAX_LABELS:
        raise InvalidInput(
            "labels", f"{given!r} is not a dict of at most {MAX_LABELS} labels", 'Write labels={"zone": "eu"}'
        )
    for name, value in given.items():
        check_name(name, field="labels")
        if not isinstance(value, str) or not 1 <= len(value) <= MAX_LABEL:
            raise InvalidInput(f"labels.{name}", f"{value!r} is not 1 to {MAX_LABEL} characters", "Give a short text")
    return dict(given)
