"""Cron against cronsim, an independent library, for the syntax and the rules the two share.

Shared: five fields, numbers, names, lists, ranges, steps, L, LW, nL and n#m, the star rule for the two day fields and
Debian's clock-change rules, which are our defaults. Left out, because the two mean different things or cronsim does
not know it: `a/n` for weekdays (cronsim counts on to 7, so Sunday joins in), wrap-around ranges, nW, L-n, ?, H, macros
and six fields (cronsim has no clock-change rules for them). Starts lie outside repeated hours, where cronsim's answer
depends on the fold of the datetime it was given.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim, CronSimError

from mainspring.rules.triggers import Cron

ZONES = (
    *("UTC", "America/New_York", "Europe/Berlin", "America/Santiago", "America/Havana", "Australia/Lord_Howe"),
    *("Antarctica/Troll", "Europe/Dublin", "Asia/Kolkata", "Africa/Casablanca"),
)
NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


def plain(random: Random, low: int, high: int) -> str:
    first, second = sorted(random.sample(range(low, high + 1), 2))  # cronsim reads 2-2/3 as 2/3, we as 2
    step = random.randint(1, max(2, (high - low) // 2))
    choices = (f"{first}", f"{first},{second}", f"{first}-{second}", f"{first}-{second}/{step}", f"*/{step}", "*")
    return random.choice((f"{second}", *choices))


def expression(random: Random) -> str:
    day = random.choice(("*", "*", plain(random, 1, 31), "L", "LW", "1,15"))
    month = random.choice(("*", "*", "*", plain(random, 1, 12), "MAR", "OCT,NOV"))
    nth = f"{random.choice((*range(7), *NAMES))}#{random.randint(1, 5)}"
    weekday = random.choice(
        ("*", "*", plain(random, 0, 6), "7", "1-5", random.choice(NAMES), f"{random.randint(0, 6)}L", nth)
    )
    return f"{plain(random, 0, 59)} {plain(random, 0, 23)} {day} {month} {weekday}"


def starts(random: Random, info: ZoneInfo) -> datetime:
    while True:
        start = datetime(2020, 1, 1, tzinfo=UTC) + timedelta(minutes=random.randint(0, 8 * 525_600))
        around = {(start + timedelta(hours=hours)).astimezone(info).utcoffset() for hours in (-4, 0, 4)}
        if len(around) == 1:
            return start.astimezone(info)


@pytest.mark.parametrize("zone", ZONES)
def test_same_fires_as_cronsim(zone: str) -> None:
    random, info, compared = Random(f"cronsim {zone}"), ZoneInfo(zone), 0
    while compared < 40:
        text = expression(random)
        ours, start = Cron(text, zone), starts(random, info)
        try:
            theirs = CronSim(text, start)
        except CronSimError:
            assert ours.never, text
            continue
        for wanted in ours.upcoming(start, 25) or [None]:
            found = next(theirs, None)
            if found is None:
                # cronsim gives up after 50 years
                assert wanted is None or wanted.year - start.year >= 40, (text, start)
                break
            assert wanted is not None, (text, start, found)
            assert found.astimezone(UTC) == wanted.astimezone(UTC), (text, start)
        compared += 1


@pytest.mark.parametrize(
    ("zone", "start", "days"),
    [
        ("America/New_York", datetime(2026, 3, 6, tzinfo=UTC), 4),
        ("America/New_York", datetime(2026, 10, 30, tzinfo=UTC), 4),
        ("America/Santiago", datetime(2026, 9, 4, tzinfo=UTC), 4),
        ("Australia/Lord_Howe", datetime(2026, 10, 2, tzinfo=UTC), 4),
        ("Europe/Berlin", datetime(2026, 10, 23, tzinfo=UTC), 4),
    ],
)
def test_same_fires_as_cronsim_through_a_clock_change(zone: str, start: datetime, days: int) -> None:
    random, end = Random(f"{zone}{start}"), start + timedelta(days=days)
    for _ in range(60):
        text = f"{plain(random, 0, 59)} {plain(random, 0, 4)} * * *"
        if zone == "Australia/Lord_Howe" and not Cron(text).fields.fixed_time:
            continue  # after half an hour's gap cronsim 2.8 loses 03:00 and 03:25 of */25 3, which the clock does show
        wanted = []
        for found in CronSim(text, start.astimezone(ZoneInfo(zone))):
            if found.astimezone(UTC) > end:
                break
            wanted.append(found.astimezone(UTC))
        cron = Cron(text, zone)
        found_by_us = [at.astimezone(UTC) for at in cron.upcoming(start, cron.count(start, end))]
        assert found_by_us == wanted, text
