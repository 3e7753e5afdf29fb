"""Compilation: turn the stored spec of a trigger into the `Trigger` object that computes fire times."""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import replace

from mainspring.model.instant import Ms
from mainspring.model.trigger import AtSpec, CronSpec, EverySpec, TriggerSpec
from mainspring.rules.triggers.at import At
from mainspring.rules.triggers.base import Trigger
from mainspring.rules.triggers.cron import Cron
from mainspring.rules.triggers.every import Every


@lru_cache(maxsize=16_384)
def compile_trigger(spec: TriggerSpec, anchor: Ms | None = None) -> Trigger:
    """Return the trigger of a spec, from a cache. An interval whose spec has no anchor is counted from `anchor`."""
    match spec:
        case CronSpec():
            return Cron.from_spec(spec)
        case EverySpec():
            return Every.from_spec(replace(spec, anchor=anchor) if spec.anchor is None else spec)
        case AtSpec():
            return At.from_spec(spec)
