"""Print the table of defaults of docs/defaults.md: of a Python program and of the service, read from the code.

python tools/print_defaults.py              # exit code 1 if a difference has no reason, or a reason no difference
python tools/print_defaults.py --write      # also put it into the page, between its two markers
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from mainspring import AgentSettings, Http, Mainspring, Retry
from mainspring.backends.memory.store import MemoryStore
from mainspring.backends.redis.store import RedisStore
from mainspring.backends.sqlite.store import SqliteStore
from mainspring.config.settings import ServeSettings
from mainspring.model.http import MAX_CALL_CRASHES
from mainspring.model.instant import duration_ms, format_duration
from mainspring.model.policies import RunOptions
from mainspring.model.schedule import ScheduleSpec
from mainspring.rules.definition import SpecTarget, build_spec

PAGE = Path(__file__).parents[1] / "docs" / "defaults.md"
BEGIN, END = "<!-- defaults:begin -->", "<!-- defaults:end -->"

_AS_BEFORE = "Clients of the REST API that ours is compatible with leave the field out and expect this."
_STRANGERS = "A program names its own agents and intervals. The service takes them from everybody with a key."


class Row(Struct, frozen=True):
    """A setting: its names, its two defaults as text, and why they differ ("" if they are equal)."""

    name: str
    python: str
    service: str
    python_name: str
    service_name: str
    reason: str = ""

    @property
    def is_sound(self) -> bool:
        """True if there is a reason exactly if the defaults differ."""
        return (self.python != self.service) == bool(self.reason)


def parameter(function: Callable[..., Any], name: str) -> Any:
    """Return the default of a parameter."""
    return inspect.signature(inspect.unwrap(function)).parameters[name].default


def duration(value: Any) -> str:
    """Return a duration that a user or a struct writes as text; a whole number is in milliseconds."""
    return format_duration(value if isinstance(value, int) else duration_ms(value))


def size(count: int) -> str:
    return f"{count // 1024} KiB" if count < 1 << 20 else f"{count >> 20} MiB"


def engine_rows() -> Iterator[Row]:
    """Yield the settings of an instance."""
    given = {name: parameter(Mainspring.__init__, name) for name in inspect.signature(Mainspring.__init__).parameters}
    serve = ServeSettings()
    own = serve.scheduler
    yield Row("store", "sqlite:///mainspring.db", serve.store, "`Mainspring(url)`", "`store`, `--store`")
    yield Row("name of the program", given["name"], own.name, "`name=`", "`scheduler.name`")
    yield Row("namespace", given["namespace"], own.namespace, "`namespace=`", "`scheduler.namespace`")
    yield Row(
        "runs at once",
        str(given["concurrency"]),
        str(own.workers),
        "`concurrency=`, `--concurrency`",
        "`scheduler.concurrency`",
    )
    yield Row("lease", duration(given["lease_ttl"]), duration(own.lease_ttl), "`lease_ttl=`", "`scheduler.lease_ttl`")
    yield Row(
        "poll interval",
        duration(given["poll_interval"]),
        duration(own.poll_interval),
        "`poll_interval=`",
        "`scheduler.poll_interval`",
    )
    yield Row(
        "time to finish at shutdown",
        duration(given["shutdown_timeout"]),
        duration(own.shutdown_timeout),
        "`shutdown_timeout=`",
        "`scheduler.shutdown_timeout`",
        "The service also gives open requests 4 s, and must end before systemd or Kubernetes kills it after 30 s.",
    )
    usual, redis, memory = SqliteStore.capabilities, RedisStore.capabilities, MemoryStore.capabilities
    assert redis.logs_limit == memory.logs_limit
    history = f"{duration(usual.history)}; {duration(redis.history)} on Redis"
    yield Row(
        "history",
        history if given["history"] is None else duration(given["history"]),
        history if own.history is None else duration(own.history),
        "`history=`",
        "`scheduler.history`",
    )
    logs = f"{size(usual.logs_limit)}; {size(redis.logs_limit)} on Redis and in memory"
    yield Row(
        "run logs of the store",
        logs if given["logs_limit"] is None else size(given["logs_limit"]),
        logs if own.logs_limit is None else size(own.logs_limit),
        "`logs_limit=`",
        "`scheduler.logs_limit`",
    )
    yield Row(
        "arguments of a run",
        size(given["payload_limit"]),
        size(own.payload_limit),
        "`payload_limit=`",
        "`scheduler.payload_limit`",
    )


def schedule_rows() -> Iterator[Row]:
    """Yield the options of a schedule. Python and REST make its definition with the same function."""
    spec = build_spec(SpecTarget("task"), {"delay": "1s"}, name="default/x", now=0)
    assert spec == ScheduleSpec(trigger=spec.trigger, task="task")
    run = RunOptions()
    plain: list[tuple[str, str, str, str]] = [
        ("time zone", spec.tz, "`tz=`", "`timezone`"),
        ("missed fires", f"`{spec.missed}`", "`missed=`", "`missed`"),
        ("how late a fire may be", duration(spec.grace), "`grace=`", "`graceMs`"),
        ("most fires that are replayed", str(spec.replay_max), "`replay_max=`", "`replayMax`"),
        ("oldest fire that is replayed", duration(spec.replay_age), "`replay_age=`", "`replayAgeMs`"),
        ("overlap, function", f"`{spec.overlap}`", "`overlap=`", "`overlap`"),
        ("overlap, HTTP agent", "`allow_parallel`", "`overlap=`", "`overlap`"),
        ("jitter of the start", duration(spec.jitter), "`jitter=`", "`jitterMs`"),
        ("spread of the start", duration(spec.spread), "`spread=`", "`spreadMs`"),
        ("start deadline", "none" if run.start_deadline is None else "", "`start_deadline=`", "`startDeadlineMs`"),
        ("after the last retry", "`continue`", "`on_exhausted=`", "`onExhausted`"),
        ("after the last fire", f"`{spec.terminal}`", "`terminal=`", "`terminal`"),
        ("priority", "`normal`", "`priority=`", "`priority`"),
        ("queue", spec.queue, "`queue=`", "`queue`"),
        ("after a crash", "`retry`", "`recovery=`", "`recovery`"),
        ("most crashes, function", str(parameter_of_task("max_crashes")), "`max_crashes=`", "–"),
        ("most crashes, HTTP agent", str(MAX_CALL_CRASHES), "–", "–"),
    ]
    yield from (Row(name, value, value, python, service) for name, value, python, service in plain)
    yield Row(
        "shortest interval",
        "1ms",
        duration(ServeSettings().limits.min_interval),
        "`every=`",
        "`limits.min_interval`",
        _STRANGERS,
    )


def parameter_of_task(name: str) -> Any:
    """Return the default of an option of a task."""
    ms = Mainspring("memory://")
    return getattr(ms.task(size).options, name)


def attempt_rows() -> Iterator[Row]:
    """Yield time limits and retries."""
    none = "none" if parameter_of_task("timeout") is None else duration(parameter_of_task("timeout"))
    yield Row("time limit, function", none, none, "`timeout=`", "`timeoutMs`")
    yield Row(
        "time limit, HTTP agent",
        duration(AgentSettings().timeout),
        duration(ServeSettings().agents.timeout),
        "`timeout=`, `AgentSettings(timeout=)`",
        "`timeoutMs`, `agents.timeout`",
    )
    own, serve = Retry(), ServeSettings().retry
    yield Row(
        "attempts",
        str(own.max_attempts),
        str(serve.max_attempts),
        "`Retry(max_attempts=)`",
        "`retryPolicy.maxAttempts`",
    )
    yield Row("backoff", f"`{own.backoff}`", f"`{serve.backoff}`", "`Retry(backoff=)`", "`retryPolicy.backoff`")
    yield Row(
        "first delay",
        duration(own.initial),
        duration(serve.initial),
        "`Retry(initial_delay=)`, short `initial=`",
        "`retryPolicy.initialDelayMs`",
    )
    yield Row(
        "backoff multiplier",
        f"{own.base:g}",
        f"{serve.base:g}",
        "`Retry(backoff_multiplier=)`: `base=`, or `multiplier=` if linear",
        "`retryPolicy.backoffMultiplier`",
    )
    yield Row(
        "longest delay",
        duration(own.max_delay),
        duration(serve.max_delay),
        "`Retry(max_delay=)`",
        "`retryPolicy.maxDelayMs`",
        _AS_BEFORE,
    )
    yield Row(
        "jitter of a delay",
        f"{own.jitter:g}",
        f"{serve.jitter:g}",
        "`Retry(jitter=)`",
        "`retryPolicy.jitter`",
        "As above: that API has no jitter, so its clients expect exact delays.",
    )


def agent_rows() -> Iterator[Row]:
    """Yield the limits of calls of HTTP agents."""
    own, serve = AgentSettings(), ServeSettings().agents
    for name, field, show in (
        ("calls at once", "concurrency", str),
        ("calls of one host at once", "per_host", str),
        ("time to connect", "connect", duration),
        ("answer that is read", "max_response", size),
        ("answer that is kept", "keep_response", size),
    ):
        key = "connect_timeout" if field == "connect" else field
        values = (show(getattr(own, field)), show(getattr(serve, field)))
        yield Row(name, *values, f"`AgentSettings({field}=)`", f"`agents.{key}`")
    for name, python in (("time between callbacks", "silence"), ("time for work after a 202", "within")):
        value = duration(parameter(Http, python))
        yield Row(name, value, value, f"`Http({python}=)`", "–")
    yield Row(
        "private addresses",
        "allowed",
        "allowed if only this machine uses the service",
        "`AgentSettings(allow_private=)`",
        "`agents.allow_private`",
        _STRANGERS,
    )
    yield Row(
        "ports",
        "any",
        "any if only this machine uses the service, else 80 and 443",
        "`AgentSettings(allow_ports=)`",
        "`agents.allow_ports`",
        _STRANGERS,
    )
    limits = ServeSettings().limits
    yield Row(
        "requests in a second",
        "–",
        f"{limits.requests_per_second:g}, {2 * (limits.requests_per_second or 0):g} after a pause",
        "–",
        "`limits.requests_per_second`, `limits.burst`",
        "A program answers no requests.",
    )


def rows() -> list[Row]:
    return [*engine_rows(), *schedule_rows(), *attempt_rows(), *agent_rows()]


def block() -> str:
    """Return the table as it stands in the page, markers included."""
    lines = [
        "| setting | Python | service | in Python | in REST or the configuration | why they differ |",
        "|---|---|---|---|---|---|",
    ]
    for one in rows():
        service = one.service if one.reason else "=" if one.service == one.python else one.service
        lines.append(
            f"| {one.name} | {one.python} | {service} | {one.python_name} | {one.service_name} | {one.reason} |"
        )
    return "\n".join([BEGIN, *lines, END])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/defaults.md")
    options = parser.parse_args(arguments)
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(
            re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block(), text, flags=re.S), encoding="utf-8"
        )
    print(block())
    unsound = [one.name for one in rows() if not one.is_sound]
    print("\n".join(unsound), file=sys.stderr)
    return 1 if unsound else 0


if __name__ == "__main__":
    sys.exit(main())
