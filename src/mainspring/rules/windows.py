"""Time windows: parse a window, check whether a run may begin at an instant, and find the next opening."""

from __future__ import annotations

import sys
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from msgspec.structs import replace

from mainspring.model.errors import InvalidInput
from mainspring.model.instant import DAY_SECONDS, Ms, instant_ms, load_zone, to_datetime
from mainspring.model.option_hints import refuse_unknown_options
from mainspring.model.policies import Segment, WindowSpec, check_choice

#: `WindowSpec.tz` of a window that takes the zone of its schedule. Definitions replace it by that zone, so it is not
#: stored.
SCHEDULE_ZONE = ""
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


_DAYS_HINT = 'Write Window("09:00-17:00", weekdays="mon-fri")'
_SEGMENTS_HINT = 'Write Window("09:00-12:00", "13:00-17:00")'
#: Keywords that users try → what to write.
_HINTS = {
    **dict.fromkeys(("days", "day_of_week", "weekday"), _DAYS_HINT),
    **dict.fromkeys(("segments", "hours", "start", "end"), _SEGMENTS_HINT),
}


@refuse_unknown_options("Window(…)", _HINTS)
def Window(  # noqa: N802 - it reads as the value it makes
    *segments: str | tuple[time, time],
    weekdays: str | tuple[str, ...] | list[str] = (),
    tz: str | None = None,
) -> WindowSpec:
    """Return the time window in which runs of a schedule may begin, made of segments of the day and weekdays.

    `Window("09:00-12:00", "13:00-18:00", weekdays="mon-fri", tz="Asia/Shanghai")`

    A segment does not contain its end. If it ends before it begins ("22:00-06:00"), it crosses midnight and belongs to
    the weekday on which it begins. Without segments, the whole day is open; without weekdays, every day. Without `tz`,
    the times are in the zone of the schedule that gets the window. Raises `InvalidInput` or `UnknownZone` for a value
    that cannot be read.
    """
    if tz is not None:
        load_zone(tz, field="window.tz")
    return WindowSpec(
        tz=SCHEDULE_ZONE if tz is None else tz,
        weekdays=_parse_weekdays(weekdays),
        segments=tuple(_parse_segment(s) for s in segments),
    )


def _parse_weekdays(value: str | tuple[str, ...] | list[str]) -> tuple[int, ...]:
    """Return the weekdays (0 = Monday) that "mon-fri,sun" or ["mon-fri", "sun"] names. An empty list names all seven.

    A range may pass the end of the week: "sat-mon" is Saturday, Sunday and Monday.
    """
    items = [part.strip() for part in value.split(",")] if isinstance(value, str) else list(value)
    days: set[int] = set()
    for item in items:
        first, _, last = item.partition("-")
        begin, end = _parse_weekday(first), _parse_weekday(last or first)
        days.update((begin + i) % 7 for i in range((end - begin) % 7 + 1))
    return tuple(sorted(days)) or tuple(range(7))


def _parse_weekday(text: str) -> int:
    """Return the weekday (0 = Monday) whose English name begins with the first three letters of `text`."""
    return _WEEKDAYS.index(check_choice(text.strip().lower()[:3], _WEEKDAYS, field="window.weekdays"))


def _parse_segment(value: str | tuple[time, time]) -> Segment:
    if isinstance(value, str):
        first, dash, last = value.partition("-")
        if not dash:
            raise InvalidInput("window.segments", f"{value!r} is not a segment", 'Write for example "09:00-17:30"')
        start, end = _parse_time(first, value), _parse_time(last, value)
    elif isinstance(value, tuple) and len(value) == 2 and all(isinstance(one, time) for one in value):
        start, end = (t.hour * 3600 + t.minute * 60 + t.second for t in value)
    else:
        fix = 'Write for example "09:00-17:30", or (time(9), time(17, 30))'
        raise InvalidInput("window.segments", f"{value!r} is not a segment", fix)
    if start == end:
        raise InvalidInput("window.segments", f"{value!r} is empty", "Write 00:00-24:00 for the whole day")
    return Segment(start, end)


def _parse_time(text: str, segment: str) -> int:
    """Return the seconds from midnight to the time of day in a text such as "09:00" or "24:00".

    `segment` is the text of which `text` is a part, for the error.
    """
    if text.strip() in ("24:00", "24:00:00"):
        return DAY_SECONDS
    try:
        parsed = time.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInput(
            "window.segments",
            f"{text!r} in {segment!r} is not a time of day",
            'Write hours and minutes, for example "09:00-17:30"',
        ) from None
    return parsed.hour * 3600 + parsed.minute * 60 + parsed.second


def resolve_zone(window: WindowSpec | None, tz: str) -> WindowSpec | None:
    """Return the window of a schedule with the zone `tz`: a window without a zone of its own gets `tz`."""
    # Why `intern`: the encoder leaves a field out only if its value is the object of the default. So the digest of a
    # window in UTC is the same whether UTC was written or not.
    return replace(window, tz=sys.intern(tz)) if window is not None and window.tz == SCHEDULE_ZONE else window


def is_open(window: WindowSpec, at: Ms) -> bool:
    """Return True if a run may begin at `at`: in the window's zone, it lies in a segment of an allowed weekday.

    A window without a zone, which no stored schedule has, counts in UTC.

    Without segments, the whole day counts. A segment that crosses midnight belongs to the weekday on which it begins.
    """
    local = to_datetime(at, _zone_of(window))
    second = local.hour * 3600 + local.minute * 60 + local.second
    today = local.weekday() in window.weekdays
    yesterday = (local.weekday() - 1) % 7 in window.weekdays
    if not window.segments:
        return today
    return any(_is_inside(segment, second, today, yesterday) for segment in window.segments)


def _zone_of(window: WindowSpec) -> ZoneInfo:
    return load_zone(window.tz or "UTC")


def _is_inside(segment: Segment, second: int, today: bool, yesterday: bool) -> bool:
    """Return True if `second`, counted from midnight, lies in a segment that begins on an allowed weekday.

    `today`: today's weekday is allowed. `yesterday`: yesterday's weekday is allowed, which matters to a segment that
    crosses midnight.
    """
    if segment.start < segment.end:
        return today and segment.start <= second < segment.end
    return (today and second >= segment.start) or (yesterday and second < segment.end)


def next_opening(window: WindowSpec, after: Ms) -> Ms | None:
    """Return the first instant at or after `after` at which the window is open, None if there is none in eight days.

    Only midnight and the starts of segments are tried, as wall times. So on the day of a clock change, an opening in
    the hour that is skipped or repeated may be missed; then a later opening is returned, or None.
    """
    if is_open(window, after):
        return after
    tz = _zone_of(window)
    local = to_datetime(after, tz)
    starts = sorted({segment.start for segment in window.segments} | {0})
    for days in range(9):
        day = local.date() + timedelta(days=days)
        for start in starts:
            wall = datetime(day.year, day.month, day.day, tzinfo=tz) + timedelta(seconds=start % DAY_SECONDS)
            at = instant_ms(wall)
            if at >= after and is_open(window, at):
                return at
    return None
