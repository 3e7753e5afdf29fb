"""Triggers as data: the stored form of the rule for a schedule's fires. `rules/triggers` computes the fire times."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from mainspring.model.instant import Ms

#: What becomes of a fire in the hour that a clock change skips: it comes at the end of that hour, or does not run.
Gap = Literal["shift", "skip"]
#: When a fire in the hour that a clock change repeats comes: the first time, the last time, or both times.
Fold = Literal["first", "last", "both"]
#: When an interval fires for the first time, if not one interval after the schedule was created: at once.
First = Literal["now"]


class CronSpec(Struct, frozen=True, omit_defaults=True, tag="cron", tag_field="kind", gc=False):
    """A cron expression, its zone, and what happens to fires that a clock change skips (`gap`) or repeats (`overlap`).

    `hash_id` is the text from which the values of `H` are derived, usually the schedule's name. It may be None only if
    the expression has no `H`.
    """

    expr: str
    tz: str = "UTC"
    gap: Gap = "shift"
    overlap: Fold = "first"
    hash_id: str | None = None


class EverySpec(Struct, frozen=True, omit_defaults=True, tag="every", tag_field="kind", gc=False):
    """Fires at anchor + n × interval for n ≥ 1. `anchor` None: the instant `anchor` in the schedule's row is used.

    With `fixed_delay`, each fire comes one interval after the end of the last run instead. `first` "now": the first
    fire comes when the schedule is created or gets another interval, or at its start, not one interval later.
    """

    interval: Ms
    anchor: Ms | None = None
    fixed_delay: bool = False
    first: First | None = None


class AtSpec(Struct, frozen=True, omit_defaults=True, tag="at", tag_field="kind", gc=False):
    """Fires at an explicit list of instants, strictly increasing. With an empty list, there is no fire."""

    times: tuple[Ms, ...]


TriggerSpec = CronSpec | EverySpec | AtSpec
