"""Option hints: what to write here for an option that another scheduler has, or that is spelled wrong."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import ParamSpec, TypeVar

from mainspring.model.errors import InvalidInput, suggest_nearest

P = ParamSpec("P")
R = TypeVar("R")

#: Option of another scheduler, or of REST → what to write here.
OTHER_OPTIONS = {
    "acks_late": 'Write recovery="retry", the default, or recovery="fail"',
    "agentUrl": 'Write Http("https://…")',
    "args": "Write args=(…) with ms.schedule or a schedule's decorator, or pass the arguments to enqueue(…)",
    "autoretry_for": "Write retry=Retry(on=(ConnectionError,))",
    "bind": "Leave it out: a first parameter ctx: Context receives the context",
    "coalesce": 'Write missed="catch_up_once", the default, "skip" or "replay_all"',
    "concurrency": "Write limit=… for a task, or Mainspring(concurrency=…)",
    "countdown": 'Write send.using(delay="10m").enqueue(…)',
    "cronExpression": 'Write cron="0 9 * * *"',
    "crontab": 'Write cron="0 9 * * *"',
    "day": 'Write cron="0 9 1 * *"',
    "day_of_week": 'Write cron="0 9 * * Mon-Fri"',
    "days": 'Write every="1d"',
    "default_retry_delay": 'Write retry=Retry(initial_delay="30s")',
    "dont_autoretry_for": "Write retry=Retry(never=(ValueError,))",
    "dst_gap": 'Write cron=Cron("0 9 * * *", gap="skip")',
    "dst_overlap": 'Write cron=Cron("0 9 * * *", overlap="both")',
    "enabled": "Call ms.pause(name) or ms.resume(name)",
    "end_date": "Write end=datetime(…, tzinfo=UTC)",
    "eta": "Write send.using(at=datetime(…, tzinfo=UTC)).enqueue(…)",
    "expires": "Write start_deadline=… for a schedule, or send.using(expires=…) for a call",
    "func": "Give the task as the second argument: ms.schedule(name, task, …)",
    "hour": 'Write cron="0 9 * * *"',
    "hours": 'Write every="1h"',
    "httpMethod": 'Write Http("https://…", method="POST")',
    "id": "Write name=…",
    "interval": 'Write every="10m"',
    "intervalMs": 'Write every="10m"',
    "jobstore": 'Write Mainspring("sqlite:///jobs.db"): all schedules are in that store',
    "jobstores": 'Write Mainspring("sqlite:///jobs.db"): all schedules are in that store',
    "max_attempts": "Write retry=Retry(max_attempts=…)",
    "max_instances": "Write limit=… for a task, or overlap=… for a schedule",
    "max_retries": "Write retry=Retry(max_attempts=…), which counts the first attempt, too",
    "minute": 'Write cron="30 * * * *"',
    "minutes": 'Write every="10m"',
    "misfire_grace_time": 'Write grace="60s", and missed="skip" to drop later fires',
    "next_run_time": 'Write first="now" with every=…, or start=datetime(…, tzinfo=UTC)',
    "replace_existing": 'Write on_conflict="replace"',
    "retries": "Write retry=Retry(max_attempts=…), which counts the first attempt, too",
    "retry_backoff": 'Write retry=Retry(backoff="exponential")',
    "retry_delay": 'Write retry=Retry(initial_delay="30s")',
    "retryPolicy": "Write retry=Retry(max_attempts=…)",
    "run_at": "Write at=datetime(…, tzinfo=UTC)",
    "run_immediately": 'Write first="now" with every=…, or call ms.trigger(name)',
    "run_now": 'Write first="now" with every=…, or call ms.trigger(name)',
    "seconds": 'Write every="30s"',
    "soft_time_limit": 'Write timeout="5m"',
    "start_date": "Write start=datetime(…, tzinfo=UTC)",
    "time_limit": 'Write timeout="5m"',
    "timezone": 'Write tz="Europe/Berlin"',
    "tzinfo": 'Write tz="Europe/Berlin"',
    "unique_key": "Write unique=…",
    "weeks": 'Write every="7d"',
    "zone": 'Write tz="Europe/Berlin"',
}
#: Options of single calls, which `using(…)` takes.
CALL_OPTIONS = ("priority", "queue", "delay", "at", "unique", "expires", "timeout", "retry", "recovery")


def suggest_option(wrong: str, options: Iterable[str]) -> str:
    """Return a hint for an error text: what to write for `wrong`, the option that it resembles, or all `options`."""
    known = sorted(options)
    return OTHER_OPTIONS.get(wrong) or suggest_nearest(wrong, known) or f"Known are {', '.join(known)}"


def refuse_unknown_options(
    what: str, hints: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator of a function: calls with a keyword that the function does not have raise InvalidInput.

    `what` names the function in the error: "timezone: is not an option of Mainspring(…). Write tz=…". `hints` maps such
    keywords to what to write, where that differs from the hints for schedules.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters.values()
        known = frozenset(one.name for one in parameters if one.kind is not one.VAR_POSITIONAL)

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            if not kwargs.keys() <= known:
                wrong = next(name for name in kwargs if name not in known)
                hint = hints.get(wrong) or suggest_option(wrong, known - {"self"})
                raise InvalidInput(wrong, f"is not an option of {what}", hint)
            return function(*args, **kwargs)

        return checked

    return decorate
