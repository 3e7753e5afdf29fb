"""Cron against the brute-force oracle: many zones, each in a year in which its clock does something worth seeing."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from mainspring.rules.triggers import Cron
from tests.rules.triggers.oracle import (
    EPOCH,
    MACROS,
    Tally,
    ZoneSpan,
    compare_zone,
    day_matches,
    fires,
    split,
    times_of_day,
    utc_second,
)

ZONES = {
    "UTC": 2024,
    "Africa/Cairo": 2014,  # two changes around Ramadan
    "Africa/Casablanca": 2026,  # the other way round in Ramadan
    "Africa/El_Aaiun": 2031,
    "Africa/Freetown": 1939,  # two changes within four days
    "Africa/Monrovia": 1972,  # from -0:44:30
    "Africa/Tunis": 1943,
    "America/Adak": 1983,
    "America/Anchorage": 1867,  # LMT +14:00 to -10:00: a repeated day
    "America/Argentina/Tucuman": 2004,
    "America/Asuncion": 2024,
    "America/Caracas": 2007,  # half an hour back
    "America/Havana": 2012,  # midnight gap
    "America/Los_Angeles": 2007,
    "America/New_York": 2026,
    "America/Nuuk": 2023,
    "America/Santiago": 2022,  # midnight gap on a Sunday
    "America/Sao_Paulo": 2018,  # midnight gap
    "America/Scoresbysund": 2024,
    "America/St_Johns": 1988,  # two hours of daylight saving, changed at 00:01
    "Antarctica/Casey": 2020,
    "Antarctica/Troll": 2025,  # two hours
    "Asia/Amman": 2022,
    "Asia/Beirut": 2023,
    "Asia/Gaza": 2040,  # two changes in a week
    "Asia/Kathmandu": 1986,  # a quarter of an hour
    "Asia/Kolkata": 2026,
    "Asia/Manila": 1844,  # a missing day
    "Asia/Pyongyang": 2018,
    "Asia/Tehran": 2021,
    "Asia/Tokyo": 1950,
    "Atlantic/Azores": 1992,
    "Australia/Lord_Howe": 2025,  # half an hour
    "Australia/Melbourne": 2028,
    "Europe/Amsterdam": 1937,  # offsets with seconds
    "Europe/Berlin": 1945,  # double summer time
    "Europe/Dublin": 2026,  # negative daylight saving
    "Europe/Istanbul": 2016,
    "Europe/Lisbon": 1992,
    "Europe/London": 1947,  # four changes
    "Europe/Moscow": 2011,
    "Europe/Simferopol": 2014,  # two hours at once
    "Europe/Volgograd": 2020,
    "Pacific/Apia": 2011,  # 30 December is missing
    "Pacific/Auckland": 2100,
    "Pacific/Chatham": 2045,
    "Pacific/Easter": 2038,
    "Pacific/Kwajalein": 1993,  # 21 August is missing
}

EXPRESSIONS = (
    # times of day
    "0 0 * * *",
    "30 0 * * *",
    "59 23 * * *",
    "0 1 * * *",
    "30 1 * * *",
    "0 2 * * *",
    "15 2 * * *",
    "30 2 * * *",
    "45 2 * * *",
    "0 3 * * *",
    "0 9 * * *",
    "0,30 1,2,3 * * *",
    "0-59/20 0-4 * * *",
    "5/25 23 * * *",
    "0 22-2 * * *",
    "10-50/20 22-3/2 * * *",
    "17 0-23 * * 6-1",
    "0 2,14 * * *",
    "1,2,3 2,3 * * *",
    # by minute and hour, following elapsed time
    "0 * * * *",
    "*/30 * * * SAT-MON",
    "0 */2 * * *",
    "15 */6 * * *",
    "*/45 1-3 * * *",
    "? 2 * * SUN",
    "*/20 0-6 * * SUN,3",
    "7 ? * * SAT-MON",
    # days
    "30 2 1 * *",
    "0 0 31 * *",
    "0 0 29 2 *",
    "30 1 L * *",
    "0 3 L-3 * *",
    "30 2 LW * *",
    "0 9 15W * *",
    "30 2 1W,31W * *",
    "0 0 1,15,L * *",
    "0 9 * * 1-5",
    "0 9 * * Mon-Fri",
    "30 2 * * 0",
    "30 2 * * 7",
    "30 1 * * SAT,SUN",
    "0 2 * * FRI-MON",
    "0 0 * * 5-7",
    "30 2 * * 0#2",
    "30 1 * * SUN#1",
    "30 2 * * 0L",
    "0 1 * * FRIL",
    "0 4 * * WED#5",
    "30 2 13 * 5",
    "0 0 1 * 1",
    "30 2 */2 * 0",
    "0 12 8-14 * */2",
    "0 0 ? * MON",
    "0 0 30 2 *",
    "0 0 29 2 1",
    # months
    "30 2 * 3,4,9,10,11 *",
    "0 0 * NOV-FEB *",
    "0 0 1 */3 *",
    "0 2 * JUL-DEC/2 *",
    "@daily",
    "@weekly",
    "@monthly",
    "@yearly",
    # six fields
    "0 30 2 * * *",
    "15 30 1 * * *",
    "*/20 0 2 * * *",
    "59 59 23 * * *",
    "30 */30 * * * SUN",
    "0,30 0 1-3 * * SUN",
    # dense: compared around the changes
    "* * * * *",
    "*/5 * * * *",
    "*/7 * * * *",
    "* 1-2 * * *",
    "0-59 0-23 * * *",
    "3-58/5 0-5 * * *",
    "* * * * * *",
    "*/15 * * * * *",
    "*/10 0-59 1-3 * * *",
    "0 */5 * * * *",
)


@pytest.mark.parametrize("zone", ZONES)
def test_no_difference(zone: str) -> None:
    tally = Tally()
    found = compare_zone(zone, EXPRESSIONS, [ZONES[zone]], tally)
    assert not found, "\n".join(map(str, found[:10]))
    assert tally.expressions >= len(EXPRESSIONS) - 12
    assert tally.fires > 50_000


def test_there_are_enough() -> None:
    assert len(ZONES) >= 40
    assert len(EXPRESSIONS) >= 60


@pytest.mark.parametrize(
    ("zone", "year"), [("America/New_York", 2026), ("Australia/Lord_Howe", 2025), ("Pacific/Apia", 2011)]
)
def test_the_oracle_agrees_with_walking_every_minute(zone: str, year: int) -> None:
    """The plainest definition there is, for schedules that follow elapsed time: whatever minute the clock shows."""
    info, start, end = ZoneInfo(zone), utc_second(year), utc_second(year, 12, 31)
    span = ZoneSpan(zone, start, end)
    local = [(at, datetime.fromtimestamp(at, info)) for at in range(start + 60, end + 1, 60)]
    for expression in ("0 * * * *", "*/20 0-6 * * *", "? 2 * * SUN", "15 */6 1,L * *"):
        parts = split(expression)
        minutes = set(times_of_day(*parts[:3]))
        walked = [
            at
            for at, wall in local
            if wall.hour * 3600 + wall.minute * 60 in minutes and day_matches(*parts[3:], wall.date())
        ]
        assert fires(span, expression, "shift", "first", start, end)[0] == walked
        assert Cron(expression, zone).fires_ms(start * 1000, end * 1000, 10**9) == [at * 1000 for at in walked]


def test_the_oracle_reads_macros_and_days_of_its_own() -> None:
    assert set(MACROS) < {"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"}
    matching = [
        day for day in (date(2026, 5, 1) + timedelta(days=n) for n in range(31)) if day_matches("LW", "*", "*", day)
    ]
    assert matching == [date(2026, 5, 29)]
    assert EPOCH.tzinfo is None
