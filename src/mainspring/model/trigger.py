"""Triggers as data: the stored form of a schedule's times. `rules/triggers` computes the fire times."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from mainspring.model.instant import Ms

Gap = Literal["shift", "skip"]
Fold = Literal["first", "last", "both"]


class CronSpec(Struct, frozen=True, omit_defaults=True, tag="cron", tag_field="kind", gc=False):
    """A cron expression, its zone, and what happens to fires that a clock change skips (`gap`) or repeats (`overlap`).

    `hash_id` is the text from which the values of `H` are derived.
    """

    expr: str
    tz: str = "UTC"
    gap: Gap = "shift"
    overlap: Fold = "first"
    hash_id: str | None = None


class EverySpec(Struct, frozen=True, omit_defaults=True, tag="every", tag_field="kind", gc=False):
    """The instants anchor + n × interval for n ≥ 1. With `fixed_delay`, the anchor is the end of the last run."""

    interval: Ms
    anchor: Ms | None = None
    fixed_delay: bool = False


class AtSpec(Struct, frozen=True, omit_defaults=True, tag="at", tag_field="kind", gc=False):
    """An explicit list of instants, strictly increasing. An empty list is valid and never fires."""

    times: tuple[Ms, ...]


TriggerSpec = CronSpec | EverySpec | AtSpec
