"""Mainspring, a task scheduler: `ms = Mainspring(…)`. The package imports each public name when it is first used.

PYTEST_DONT_REWRITE in this docstring tells pytest not to rewrite the package's asserts. Otherwise pytest, which loads
our plugin by an entry point, would warn a program that had imported the package before.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers; a test compares these imports with the table below
    from mainspring.app.context import Context as Context
    from mainspring.app.dependencies import Depends as Depends
    from mainspring.app.locks import LockGuard as LockGuard
    from mainspring.app.locks import SyncLockGuard as SyncLockGuard
    from mainspring.app.log_line import LogLine as LogLine
    from mainspring.app.mainspring import Mainspring as Mainspring
    from mainspring.app.run_handle import RunHandle as RunHandle
    from mainspring.app.run_view import Run as Run
    from mainspring.app.schedule_view import Schedule as Schedule
    from mainspring.model.errors import ExecutionTaken as ExecutionTaken
    from mainspring.model.errors import InvalidInput as InvalidInput
    from mainspring.model.errors import LockLost as LockLost
    from mainspring.model.errors import LockTaken as LockTaken
    from mainspring.model.errors import MainspringError as MainspringError
    from mainspring.model.errors import ResultTimeout as ResultTimeout
    from mainspring.model.errors import RunNotSuccessful as RunNotSuccessful
    from mainspring.model.errors import StoreError as StoreError
    from mainspring.model.errors import UnknownRun as UnknownRun
    from mainspring.model.errors import UnknownSchedule as UnknownSchedule
    from mainspring.model.errors import UnknownTask as UnknownTask
    from mainspring.model.errors import WrongArguments as WrongArguments
    from mainspring.model.events import Event as Event
    from mainspring.model.events import LeaderElected as LeaderElected
    from mainspring.model.events import LeaderLost as LeaderLost
    from mainspring.model.events import RunCancelled as RunCancelled
    from mainspring.model.events import RunFailed as RunFailed
    from mainspring.model.events import RunRetrying as RunRetrying
    from mainspring.model.events import RunScheduled as RunScheduled
    from mainspring.model.events import RunSkipped as RunSkipped
    from mainspring.model.events import RunStarted as RunStarted
    from mainspring.model.events import RunSucceeded as RunSucceeded
    from mainspring.model.http import AgentSettings as AgentSettings
    from mainspring.model.http import Http as Http
    from mainspring.model.http import HttpAgent as HttpAgent
    from mainspring.model.http import HttpResult as HttpResult
    from mainspring.model.outcome import Cancel as Cancel
    from mainspring.model.outcome import Fail as Fail
    from mainspring.model.outcome import Snooze as Snooze
    from mainspring.model.policies import Priority as Priority
    from mainspring.model.policies import Retry as Retry
    from mainspring.model.policies import RetryPolicy as RetryPolicy
    from mainspring.model.run import State as State
    from mainspring.ports.lock import ExecutionGuard as ExecutionGuard
    from mainspring.rules.run_commands import Complete as Complete
    from mainspring.rules.triggers import At as At
    from mainspring.rules.triggers import Cron as Cron
    from mainspring.rules.triggers import Every as Every
    from mainspring.rules.typestate import Blocked as Blocked
    from mainspring.rules.typestate import Ended as Ended
    from mainspring.rules.typestate import Moved as Moved
    from mainspring.rules.typestate import Retrying as Retrying
    from mainspring.rules.typestate import Running as Running
    from mainspring.rules.typestate import RunState as RunState
    from mainspring.rules.typestate import Waiting as Waiting
    from mainspring.rules.windows import Window as Window
    from mainspring.runtime.broker_url import open_broker as open_broker
    from mainspring.telemetry.event_log import LoggingHandler as LoggingHandler

__version__ = "0.1.0"

#: Module of this package → the public names that it defines. The module is imported when one of them is first used.
_EXPORTS = {
    "app.context": ("Context",),
    "app.dependencies": ("Depends",),
    "app.locks": ("LockGuard", "SyncLockGuard"),
    "app.log_line": ("LogLine",),
    "app.mainspring": ("Mainspring",),
    "app.run_handle": ("RunHandle",),
    "app.run_view": ("Run",),
    "app.schedule_view": ("Schedule",),
    "model.errors": (
        "ExecutionTaken",
        "InvalidInput",
        "LockLost",
        "LockTaken",
        "MainspringError",
        "ResultTimeout",
        "RunNotSuccessful",
        "StoreError",
        "UnknownRun",
        "UnknownSchedule",
        "UnknownTask",
        "WrongArguments",
    ),
    "model.events": (
        "Event",
        "LeaderElected",
        "LeaderLost",
        "RunCancelled",
        "RunFailed",
        "RunRetrying",
        "RunScheduled",
        "RunSkipped",
        "RunStarted",
        "RunSucceeded",
    ),
    "model.http": ("AgentSettings", "Http", "HttpAgent", "HttpResult"),
    "model.outcome": ("Cancel", "Fail", "Snooze"),
    "model.policies": ("Priority", "Retry", "RetryPolicy"),
    "model.run": ("State",),
    "ports.lock": ("ExecutionGuard",),
    "rules.run_commands": ("Complete",),
    "rules.triggers": ("At", "Cron", "Every"),
    "rules.typestate": ("Blocked", "Ended", "Moved", "Retrying", "RunState", "Running", "Waiting"),
    "rules.windows": ("Window",),
    "runtime.broker_url": ("open_broker",),
    "telemetry.event_log": ("LoggingHandler",),
}
#: Name that other schedulers have → what to write here.
_OTHER_NAMES = {
    "AsyncIOScheduler": "write Mainspring(…) and async with ms.running():",
    "BackgroundScheduler": "write Mainspring(…) and call ms.start_background()",
    "BlockingScheduler": "write Mainspring(…) and call ms.run()",
    "Celery": "write Mainspring(…)",
    "CronTrigger": 'write Cron("0 9 * * *")',
    "DateTrigger": "write At(datetime(…, tzinfo=UTC))",
    "IntervalTrigger": 'write Every("10m")',
    "Scheduler": "write Mainspring(…)",
    "crontab": 'write Cron("0 9 * * *")',
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [*sorted(_MODULE_OF), "__version__"]


def __dir__() -> list[str]:
    """Return the public names, also those that were not used yet, for completion in editors and notebooks."""
    return __all__


def __getattr__(name: str) -> Any:
    """Return the object of a public name: Python calls this when `name` is used for the first time.

    Why at the first use: a program that needs few names, such as the command line, does not import the engine. Raises:
    AttributeError for a name that is not public; ImportError for one of another scheduler, because `from … import`
    replaces the text of an AttributeError.
    """
    if name in _OTHER_NAMES:
        raise ImportError(f"module 'mainspring' has no {name!r}: {_OTHER_NAMES[name]}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'mainspring' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"mainspring.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
