"""From the stored value of a trigger to the trigger that computes."""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import replace

from mainspring.model.instant import Ms
from mainspring.model.trigger import AtSpec, CronSpec, EverySpec, TriggerSpec
from mainspring.rules.triggers.at import At
from mainspring.rules.triggers.base import Trigger
from mainspring.rules.triggers.cron import Cron
from mainspring.rules.triggers.every import Every


def compile_trigger(spec: TriggerSpec, anchor: Ms | None = None) -> Trigger:
    """The trigger of a value; `anchor` is where an Every without one counts from."""
    if isinstance(spec, EverySpec):  # made sooner than looked up
        return Every.from_spec(spec if anchor is None or spec.anchor is not None else replace(spec, anchor=anchor))
    return _compiled(spec)


@lru_cache(maxsize=16_384)
def _compiled(spec: CronSpec | AtSpec) -> Trigger:
    return Cron.from_spec(spec) if isinstance(spec, CronSpec) else At.from_spec(spec)
