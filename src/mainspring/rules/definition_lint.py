"""Lint of definitions: probable mistakes in a trigger, its bounds and its window, each with what to write instead."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from mainspring.model.instant import DAY_MS, Ms, instant_ms, isoformat, load_zone, to_datetime
from mainspring.model.policies import WindowSpec
from mainspring.model.schedule import ScheduleSpec
from mainspring.model.trigger import CronSpec
from mainspring.rules.planning import is_fixed_delay, next_fire, trigger_of
from mainspring.rules.triggers import Finding
from mainspring.rules.triggers.cron_parse import MONTH_WORDS
from mainspring.rules.triggers.zone_table import changes
from mainspring.rules.windows import is_open, next_opening

#: A window is checked against the fires of this many days.
CHECKED_DAYS = 366
#: In each part of the year with its own distance between the two zones, this many fires of one week are compared.
MAX_COMPARED_FIRES = 2_000
_WEEK_MS: Ms = 7 * DAY_MS


def lint_definition(spec: ScheduleSpec, now: Ms) -> list[Finding]:
    """Return a finding for each probable mistake in a definition that is in force from `now` on.

    The findings of its trigger come first; then L001 if its start and end leave it no fire, L010 if its window shuts
    out all fires of a month of the next year, and L011 if the window shuts out fires of one local time on some days.
    A zone is taken as given: a schedule always has one.
    """
    trigger = trigger_of(spec, now)
    findings = trigger.lint(zone_given=True, around=to_datetime(now))
    if never_fires(spec, now) and not any(finding.code == "L001" for finding in findings):
        findings = [Finding("L001", _describe_bounds(spec)), *findings]
    window = spec.options.window if spec.options is not None else None
    if window is not None and not is_fixed_delay(spec):
        findings += [*_shut_months(spec, window, now), *_uneven_days(spec, window, now)]
    return findings


def never_fires(spec: ScheduleSpec, now: Ms) -> bool:
    """Return True if a schedule that is created at `now` with this definition has no fire."""
    if is_fixed_delay(spec):
        return False
    return next_fire(spec, now, now) is None


def _describe_bounds(spec: ScheduleSpec) -> str:
    if spec.end is None:
        return "never fires. Give a trigger that has a time to come"
    return f"never fires: it has no time to come before its end, {isoformat(spec.end)}. Give a later end"


# ── windows ─────────────────────────────────────────────────────────────────


def _shut_months(spec: ScheduleSpec, window: WindowSpec, now: Ms) -> Iterator[Finding]:
    """Yield one finding if the window shuts out all fires of a month, or of every month, in the year after `now`."""
    zone = load_zone(_zone_of(spec))
    begin = to_datetime(now, zone)
    shut: list[str] = []
    fired = 0
    for step in range(12):
        year, month = divmod(begin.year * 12 + begin.month - 1 + step, 12)
        after_year, after_month = divmod(begin.year * 12 + begin.month + step, 12)
        low = max(now, instant_ms(datetime(year, month + 1, 1, tzinfo=zone)) - 1)
        high = instant_ms(datetime(after_year, after_month + 1, 1, tzinfo=zone)) - 1
        found = _has_open_fire(spec, window, now, low, high)
        fired += found is not None
        if found is False:
            shut.append(MONTH_WORDS[month])
    if not shut:
        return
    which = "of the next year" if len(shut) == fired else f"in {', '.join(shut)}"
    yield Finding(
        "L010",
        f"the window (in {window.tz}) shuts out all fires {which}, so nothing runs then. Write a window that contains "
        f'them, or give its zone: Window(…, tz="{_zone_of(spec)}")',
    )


def _has_open_fire(spec: ScheduleSpec, window: WindowSpec, anchor: Ms, low: Ms, high: Ms) -> bool | None:
    """Return True if a fire in (low, high] lies in the window, False if none does; None if there is no fire."""
    fire = next_fire(spec, anchor, low)
    if fire is None or fire > high:
        return None
    while fire is not None and fire <= high:
        if is_open(window, fire):
            return True
        opening = next_opening(window, fire)
        fire = None if opening is None else next_fire(spec, anchor, max(fire, opening - 1))
    return False


def _uneven_days(spec: ScheduleSpec, window: WindowSpec, now: Ms) -> Iterator[Finding]:
    """Yield a finding if fires of one local time and weekday lie in the window in one season and not in another.

    That needs two zones whose distance changes, because of daylight-saving time.
    """
    name = _zone_of(spec)
    if window.tz == name:
        return
    zone, end = load_zone(name), now + CHECKED_DAYS * DAY_MS
    instants = {change.at * 1000 for tz in (name, window.tz) for change in changes(tz, now // 1000, end // 1000)}
    seen: dict[tuple[int, int], bool] = {}
    for begin in sorted({now, *(at for at in instants if now < at < end)}):
        fires = trigger_of(spec, now).fires_ms(begin, begin + _WEEK_MS, MAX_COMPARED_FIRES)
        for fire in fires:
            local = to_datetime(fire, zone)
            key = local.weekday(), local.hour * 3600 + local.minute * 60 + local.second
            is_in = is_open(window, fire)
            if seen.setdefault(key, is_in) is not is_in:
                yield Finding(
                    "L011",
                    f"the window (in {window.tz}) contains the fires of {local:%H:%M} ({name}) on some days and not on "
                    f'others, because the two zones change their clocks differently. Write Window(…, tz="{name}")',
                )
                return


def _zone_of(spec: ScheduleSpec) -> str:
    return spec.trigger.tz if isinstance(spec.trigger, CronSpec) else spec.tz
