"""Settings of one instance. `make_settings` checks the values that a user passes, and makes the settings from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mainspring.model.errors import InvalidInput, LeaseTooShort
from mainspring.model.ids import check_name
from mainspring.model.instant import Duration, Ms, duration_ms, format_duration

#: The URL of the store for a program, command or service that is given no store: a file in the working directory.
DEFAULT_STORE_URL = "sqlite:///mainspring.db"
#: The namespace of a program that names none.
DEFAULT_NAMESPACE = "default"
#: The shortest lease, in milliseconds: a shorter one would end before it can be renewed reliably.
MIN_LEASE_MS = 300
#: The highest value of the option `payload_limit`.
MAX_PAYLOAD_BYTES = 1024 * 1024
#: The most labels of an instance, and the most characters of a label's value.
MAX_LABEL_COUNT, MAX_LABEL_CHARS = 32, 100
#: The highest value of the option `concurrency`.
MAX_CONCURRENT_RUNS = 10_000


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of the engine of one instance; durations in milliseconds."""

    namespace: str = DEFAULT_NAMESPACE
    #: The name under which instances of one program share a leader and declare their schedules.
    app: str = "mainspring"
    #: The version of the program's code. If two live versions declare a schedule differently, the newer version wins.
    version: str = ""
    #: Queues from which this instance claims runs.
    queues: tuple[str, ...] = ("default",)
    #: The most runs that this instance executes at once.
    concurrency: int = 10
    #: The length of a lease, and the time between two renewals of it.
    lease_ttl: Ms = 30_000
    heartbeat: Ms = 10_000
    #: The longest time between two queries for due work; hints make the engine ask earlier.
    poll: Ms = 1_000
    #: How long runs may continue after a stop was requested, before they are handed back.
    shutdown_timeout: Ms = 30_000
    #: How long ended runs are kept. None: the default of the store.
    history: Ms | None = None
    #: The most bytes of a run's arguments as JSON.
    payload_limit: int = 64 * 1024
    #: The most bytes of all run logs in the store. None: the default of the store; 0: no lines are stored.
    logs_limit: int | None = None
    #: A schedule that no live instance of the app has declared for this long is paused.
    undeclared_after: Ms = 600_000
    #: Texts by name that describe the instance where instances are listed.
    labels: dict[str, str] = {}
    #: The time between two commits of outcomes for which no caller waits: such outcomes may linger to share a commit
    #: (`Batcher`). Zero under virtual time, where no time passes by itself.
    pace: Ms = 5


def make_settings(
    *,
    namespace: str = DEFAULT_NAMESPACE,
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
    logs_limit: int | None = None,
    labels: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings with the values that a user passed. `Settings` explains the fields.

    `heartbeat` None: a third of `lease_ttl`. Raises `InvalidInput`, with the name of the parameter, for a value that is
    not acceptable.
    """
    ttl, beat = _check_lease(lease_ttl, heartbeat)
    if not isinstance(payload_limit, int) or not 1 <= payload_limit <= MAX_PAYLOAD_BYTES:
        raise InvalidInput("payload_limit", f"{payload_limit!r} is out of range", f"Use 1 to {MAX_PAYLOAD_BYTES} bytes")
    if logs_limit is not None and (isinstance(logs_limit, bool) or not isinstance(logs_limit, int) or logs_limit < 0):
        raise InvalidInput(
            "logs_limit", f"{logs_limit!r} is no number of bytes", "Use 0 or more bytes, such as 1 << 30"
        )
    return Settings(
        namespace=check_name(namespace, field="namespace"),
        app=check_name(app, field="app"),
        version=str(version),
        queues=_check_queues(queues),
        concurrency=_check_concurrency(concurrency),
        lease_ttl=ttl,
        heartbeat=beat,
        poll=duration_ms(poll_interval, field="poll_interval", minimum=1),
        shutdown_timeout=duration_ms(shutdown_timeout, field="shutdown_timeout"),
        history=None if history is None else duration_ms(history, field="history"),
        payload_limit=payload_limit,
        logs_limit=logs_limit,
        labels=_check_labels(labels or {}),
    )


def adjust_settings(
    settings: Settings, *, concurrency: int | None = None, labels: Mapping[str, str] | None = None
) -> Settings:
    """Return a copy of a program's settings with the concurrency and the further labels of the command line.

    `concurrency` None: the program's own. A label replaces the program's label with an equal name. Raises
    `InvalidInput` for a value that is not acceptable.
    """
    return replace(
        settings,
        concurrency=settings.concurrency if concurrency is None else _check_concurrency(concurrency),
        labels=settings.labels | _check_labels(labels or {}),
    )


def _check_lease(lease_ttl: Duration, heartbeat: Duration | None) -> tuple[Ms, Ms]:
    """Return the lease and the heartbeat in milliseconds. `heartbeat` None: a third of the lease.

    Raises `LeaseTooShort` for a lease shorter than `MIN_LEASE_MS` or than three heartbeats, because one late renewal
    would end it.
    """
    ttl = duration_ms(lease_ttl, field="lease_ttl")
    beat = ttl // 3 if heartbeat is None else duration_ms(heartbeat, field="heartbeat", minimum=1)
    if ttl < MIN_LEASE_MS:
        raise LeaseTooShort(
            "lease_ttl",
            f"{format_duration(ttl)} is too short",
            f"Use at least {format_duration(MIN_LEASE_MS)}; 30s is the default",
        )
    if ttl < 3 * beat:
        raise LeaseTooShort(
            "lease_ttl",
            f"{format_duration(ttl)} is less than 3 heartbeats of {format_duration(beat)}",
            f"Use lease_ttl of at least {format_duration(3 * beat)}, or a shorter heartbeat",
        )
    return ttl, beat


def _check_queues(queues: Sequence[str]) -> tuple[str, ...]:
    if isinstance(queues, str) or not queues:
        raise InvalidInput(
            "queues", f"{queues!r} is not a list of names", 'Write for example queues=["default", "mail"]'
        )
    return tuple(check_name(queue, field="queues") for queue in queues)


def _check_concurrency(given: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= MAX_CONCURRENT_RUNS:
        raise InvalidInput(
            "concurrency", f"{given!r} is out of range", f"Use a whole number from 1 to {MAX_CONCURRENT_RUNS}"
        )
    return given


def _check_labels(given: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(given, Mapping) or len(given) > MAX_LABEL_COUNT:
        raise InvalidInput(
            "labels", f"{given!r} is not a dict of at most {MAX_LABEL_COUNT} labels", 'Write labels={"zone": "eu"}'
        )
    for name, value in given.items():
        check_name(name, field="labels")
        if not isinstance(value, str) or not 1 <= len(value) <= MAX_LABEL_CHARS:
            raise InvalidInput(
                f"labels.{name}", f"{value!r} is not 1 to {MAX_LABEL_CHARS} characters", "Give a short text"
            )
    return dict(given)
