"""Triggers: the fire times of a schedule, by `Cron`, `Every` and `At`."""

from mainspring.rules.triggers.at import At
from mainspring.rules.triggers.base import Finding, Trigger
from mainspring.rules.triggers.compile import compile_trigger
from mainspring.rules.triggers.cron import Cron
from mainspring.rules.triggers.every import Every

__all__ = ["At", "Cron", "Every", "Finding", "Trigger", "compile_trigger"]
