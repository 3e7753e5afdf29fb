"""Triggers as data: what is stored of *when*; `rules/triggers` computes with it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from mainspring.model.instant import Ms

Gap = Literal["shift", "skip"]
Fold = Literal["first", "last", "both"]


class CronSpec(Struct, frozen=True, omit_defaults=True, tag="cron", tag_field="kind", gc=False):
    """A cron expression, its zone and its clock-change policy."""

    expr: str
    tz: str = "UTC"
    gap: Gap = "shift"
    overlap: Fold = "first"
    hash_id: str | None = None


class EverySpec(Struct, frozen=True, omit_defaults=True, tag="every", tag_field="kind", gc=False):
    """anchor + n × interval, n ≥ 1; with `fixed_delay` the interval counts from the end of the last run."""

    interval: Ms
    anchor: Ms | None = None
    fixed_delay: bool = False


class AtSpec(Struct, frozen=True, omit_defaults=True, tag="at", tag_field="kind", gc=False):
    """An explicit list of instants, strictly increasing; empty is valid and never fires."""

    times: tuple[Ms, ...]


TriggerSpec = CronSpec | EverySpec | AtSpec
