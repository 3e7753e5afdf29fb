"""Mainspring runs work at the right time, once, and can prove it.

PYTEST_DONT_REWRITE: else pytest, which knows our plugin, would warn a program that imports us before it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainspring.app import Mainspring
    from mainspring.context import Context
    from mainspring.depends import Depends
    from mainspring.handle import RunHandle
    from mainspring.locks import LockGuard, SyncLockGuard
    from mainspring.model.errors import (
        ExecutionTaken,
        InvalidInput,
        LockLost,
        LockTaken,
        MainspringError,
        ResultTimeout,
        RunNotSuccessful,
        StoreError,
        UnknownRun,
        UnknownSchedule,
        UnknownTask,
        WrongArguments,
    )
    from mainspring.model.events import (
        Event,
        LeaderElected,
        LeaderLost,
        RunCancelled,
        RunFailed,
        RunRetrying,
        RunScheduled,
        RunSkipped,
        RunStarted,
        RunSucceeded,
    )
    from mainspring.model.http import AgentSettings, Http, HttpAgent, HttpResult
    from mainspring.model.outcome import Cancel, Snooze
    from mainspring.model.policies import Priority, Retry, RetryPolicy
    from mainspring.model.run import Run, State
    from mainspring.model.schedule import Schedule
    from mainspring.ports.lock import ExecutionGuard
    from mainspring.rules.triggers import At, Cron, Every
    from mainspring.rules.windows import Window
    from mainspring.telemetry.logging import LoggingHandler

__version__ = "0.1.0"

_HOME = {
    "RunSucceeded": "model.events",
    "RunStarted": "model.events",
    "RunSkipped": "model.events",
    "RunScheduled": "model.events",
    "RunRetrying": "model.events",
    "RunFailed": "model.events",
    "RunCancelled": "model.events",
    "Event": "model.events",
    "StoreError": "model.errors",
    "WrongArguments": "model.errors",
    "UnknownTask": "model.errors",
    "UnknownSchedule": "model.errors",
    "UnknownRun": "model.errors",
    "InvalidInput": "model.errors",
    "AgentSettings": "model.http",
    "Http": "model.http",
    "HttpAgent": "model.http",
    "HttpResult": "model.http",
    "At": "rules.triggers",
    "Cancel": "model.outcome",
    "Context": "context",
    "Cron": "rules.triggers",
    "Depends": "depends",
    "Every": "rules.triggers",
    "ExecutionGuard": "ports.lock",
    "ExecutionTaken": "model.errors",
    "LeaderElected": "model.events",
    "LeaderLost": "model.events",
    "LockGuard": "locks",
    "LockLost": "model.errors",
    "LockTaken": "model.errors",
    "SyncLockGuard": "locks",
    "LoggingHandler": "telemetry.logging",
    "Mainspring": "app",
    "MainspringError": "model.errors",
    "Priority": "model.policies",
    "ResultTimeout": "model.errors",
    "Retry": "model.policies",
    "RetryPolicy": "model.policies",
    "Run": "model.run",
    "RunHandle": "handle",
    "RunNotSuccessful": "model.errors",
    "Schedule": "model.schedule",
    "Snooze": "model.outcome",
    "State": "model.run",
    "Window": "rules.windows",
}

__all__ = [
    "AgentSettings",
    "At",
    "Cancel",
    "Context",
    "Cron",
    "Depends",
    "Event",
    "Every",
    "ExecutionGuard",
    "ExecutionTaken",
    "Http",
    "HttpAgent",
    "HttpResult",
    "InvalidInput",
    "LeaderElected",
    "LeaderLost",
    "LockGuard",
    "LockLost",
    "LockTaken",
    "LoggingHandler",
    "Mainspring",
    "MainspringError",
    "Priority",
    "ResultTimeout",
    "Retry",
    "RetryPolicy",
    "Run",
    "RunCancelled",
    "RunFailed",
    "RunHandle",
    "RunNotSuccessful",
    "RunRetrying",
    "RunScheduled",
    "RunSkipped",
    "RunStarted",
    "RunSucceeded",
    "Schedule",
    "Snooze",
    "State",
    "StoreError",
    "SyncLockGuard",
    "UnknownRun",
    "UnknownSchedule",
    "UnknownTask",
    "Window",
    "WrongArguments",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Load a name when it is first asked for: the command line does not pay for the engine."""
    if name not in _HOME:
        raise AttributeError(f"module 'mainspring' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"mainspring.{_HOME[name]}"), name)
    globals()[name] = value
    return value
