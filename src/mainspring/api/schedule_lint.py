"""Lint of requests: refuse a schedule that can never fire, and warn of probable mistakes in the answer."""

from __future__ import annotations

from mainspring.api.problems import invalid_field
from mainspring.model.instant import Ms
from mainspring.model.schedule import Schedule, ScheduleSpec
from mainspring.model.trigger import AtSpec, CronSpec
from mainspring.rules.definition_lint import lint_definition, never_fires


def refuse_never(spec: ScheduleSpec, now: Ms, old: ScheduleSpec | None = None) -> None:
    """Raise Refused if the definition of a request can never fire. `old`: the definition that the request edits.

    An edit that leaves trigger, start and end as they are is accepted, also of a schedule that has finished.
    """
    if old is not None and (old.trigger, old.start, old.end) == (spec.trigger, spec.start, spec.end):
        return
    if not never_fires(spec, now) or has_just_passed(spec, now):
        return
    text = next(finding.message for finding in lint_definition(spec, now) if finding.code == "L001")
    problem, _, fix = text.partition(". ")
    field = {AtSpec: "at", CronSpec: "cronExpression"}.get(type(spec.trigger), "intervalMs")
    bounded = spec.end is not None and not isinstance(spec.trigger, AtSpec)
    raise invalid_field(f"#/{'endAt' if bounded else field}", problem, fix or "Give a time that is still to come")


def has_just_passed(spec: ScheduleSpec, now: Ms) -> bool:
    """Return True if the last of the given times has passed by no more than `grace`.

    A request takes a moment, and clocks differ. So such a schedule is meant to fire at once.
    """
    times = spec.trigger.times if isinstance(spec.trigger, AtSpec) else ()
    return bool(times) and now - spec.grace <= times[-1] <= now and (spec.end is None or spec.end >= now)


def describe_mistakes(schedule: Schedule, now: Ms) -> list[str]:
    """Return a text for each probable mistake in a schedule's definition, with its code: "L003: …".

    A schedule that has finished has none.
    """
    if schedule.state not in ("active", "paused"):
        return []
    return [f"{finding.code}: {finding.message}" for finding in lint_definition(schedule.spec, now)]
