"""Mainspring runs work at the right time, once, and can prove it."""

from mainspring.app import Mainspring
from mainspring.context import Context
from mainspring.depends import Depends
from mainspring.handle import RunHandle
from mainspring.model.errors import MainspringError, ResultTimeout, RunNotSuccessful
from mainspring.model.outcome import Cancel, Snooze
from mainspring.model.policies import Priority, Retry, RetryPolicy
from mainspring.model.run import Run, State
from mainspring.model.schedule import Schedule
from mainspring.rules.triggers import At, Cron, Every
from mainspring.rules.windows import Window

__version__ = "0.1.0"

__all__ = [
    "At",
    "Cancel",
    "Context",
    "Cron",
    "Depends",
    "Every",
    "Mainspring",
    "MainspringError",
    "Priority",
    "ResultTimeout",
    "Retry",
    "RetryPolicy",
    "Run",
    "RunHandle",
    "RunNotSuccessful",
    "Schedule",
    "Snooze",
    "State",
    "Window",
    "__version__",
]
