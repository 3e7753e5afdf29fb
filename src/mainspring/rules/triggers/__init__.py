"""Triggers compute the fire times of a schedule: `Cron` by an expression, `Every` by an interval, `At` by a list."""

from mainspring.rules.triggers.at import At
from mainspring.rules.triggers.base import Finding, Trigger
from mainspring.rules.triggers.compile import compile_trigger
from mainspring.rules.triggers.cron import Cron
from mainspring.rules.triggers.every import Every

__all__ = ["At", "Cron", "Every", "Finding", "Trigger", "compile_trigger"]
