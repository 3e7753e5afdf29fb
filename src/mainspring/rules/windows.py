"""Time windows: may a run begin at this instant, and when is the next opening."""

from __future__ import annotations

from datetime import datetime, time, timedelta

from mainspring.model.errors import InvalidInput
from mainspring.model.instant import Ms, instant_ms, to_datetime, zone
from mainspring.model.policies import Segment, WindowSpec, choice

DAY = 86_400
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def Window(  # noqa: N802 - it reads as the value it makes
    *segments: str | tuple[time, time],
    weekdays: str | tuple[str, ...] | list[str] = (),
    tz: str = "UTC",
) -> WindowSpec:
    """Window("09:00-12:00", "13:00-18:00", weekdays="mon-fri", tz="Asia/Shanghai"); no segment means the whole day."""
    zone(tz, field="window.tz")
    return WindowSpec(tz=tz, weekdays=_weekdays(weekdays), segments=tuple(_segment(s) for s in segments))


def _weekdays(value: str | tuple[str, ...] | list[str]) -> tuple[int, ...]:
    items = [part.strip() for part in value.split(",")] if isinstance(value, str) else list(value)
    days: set[int] = set()
    for item in items:
        first, _, last = item.partition("-")
        begin, end = _weekday(first), _weekday(last or first)
        days.update((begin + i) % 7 for i in range((end - begin) % 7 + 1))
    return tuple(sorted(days)) or tuple(range(7))


def _weekday(text: str) -> int:
    return _WEEKDAYS.index(choice(text.strip().lower()[:3], _WEEKDAYS, field="window.weekdays"))


def _segment(value: str | tuple[time, time]) -> Segment:
    if isinstance(value, str):
        first, dash, last = value.partition("-")
        if not dash:
            raise InvalidInput("window.segments", f"{value!r} is not a segment", 'Write for example "09:00-17:30"')
        start, end = _seconds(first), _seconds(last)
    else:
        start, end = (t.hour * 3600 + t.minute * 60 + t.second for t in value)
    if start == end:
        raise InvalidInput("window.segments", f"{value!r} is empty", "The end is not part of it; write 00:00-24:00")
    return Segment(start, end)


def _seconds(text: str) -> int:
    if text.strip() in ("24:00", "24:00:00"):
        return DAY
    try:
        parsed = time.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInput("window.segments", f"{text!r} is not a time of day", 'Write for example "09:00"') from None
    return parsed.hour * 3600 + parsed.minute * 60 + parsed.second


def is_open(window: WindowSpec, at: Ms) -> bool:
    """True inside a segment of an allowed weekday. A segment that crosses midnight belongs to the day it begins on."""
    local = to_datetime(at, zone(window.tz))
    second = local.hour * 3600 + local.minute * 60 + local.second
    today, yesterday = local.weekday(), (local.weekday() - 1) % 7
    if not window.segments:
        return today in window.weekdays
    for segment in window.segments:
        if segment.start < segment.end:
            inside = today in window.weekdays and segment.start <= second < segment.end
        else:
            inside = (today in window.weekdays and second >= segment.start) or (
                yesterday in window.weekdays and second < segment.end
            )
        if inside:
            return True
    return False


def next_opening(window: WindowSpec, after: Ms) -> Ms | None:
    """The first instant ≥ `after` at which the window is open; None when it never is within eight days."""
    if is_open(window, after):
        return after
    tz = zone(window.tz)
    local = to_datetime(after, tz)
    starts = sorted({segment.start for segment in window.segments} | {0})
    for days in range(9):
        day = local.date() + timedelta(days=days)
        for start in starts:
            wall = datetime(day.year, day.month, day.day, tzinfo=tz) + timedelta(seconds=start % DAY)
            at = instant_ms(wall)
            if at >= after and is_open(window, at):
                return at
    return None
