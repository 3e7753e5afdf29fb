"""Named cases of cron time: each clock-change choice, odd zones, odd days."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from mainspring.model.errors import NaiveDatetime
from mainspring.rules.triggers import Cron

NY, SANTIAGO, HAVANA, HOWE = "America/New_York", "America/Santiago", "America/Havana", "Australia/Lord_Howe"
TROLL, APIA, CASA, DUBLIN = "Antarctica/Troll", "Pacific/Apia", "Africa/Casablanca", "Europe/Dublin"


def local(text: str, zone: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))


def shown(fires: list[datetime]) -> list[str]:
    return [fire.strftime("%Y-%m-%d %H:%M:%S%z").replace(":00+", "+").replace(":00-", "-") for fire in fires]


def upcoming(cron: Cron, start: str, n: int) -> list[str]:
    return shown(cron.upcoming(local(start, cron.spec.tz), n))


# -- the choices, one by one ------------------------------------------------------------------------------------


def test_gap_shift_fires_once_at_the_end_of_the_gap() -> None:
    assert upcoming(Cron("30 2 * * *", NY), "2026-03-07T12:00", 2) == ["2026-03-08 03:00-0400", "2026-03-09 02:30-0400"]


def test_gap_shift_makes_one_of_several() -> None:
    found = upcoming(Cron("0,15,30 2 * * *", NY), "2026-03-07T12:00", 2)
    assert found == ["2026-03-08 03:00-0400", "2026-03-09 02:00-0400"]


def test_gap_shift_joins_a_fire_that_is_there_anyway() -> None:
    found = upcoming(Cron("0 2,3 * * *", NY), "2026-03-07T12:00", 2)
    assert found == ["2026-03-08 03:00-0400", "2026-03-09 02:00-0400"]


def test_gap_shift_leaves_the_rest_of_the_day() -> None:
    found = upcoming(Cron("30 1,2,3 * * *", NY), "2026-03-07T12:00", 3)
    assert found == ["2026-03-08 01:30-0500", "2026-03-08 03:00-0400", "2026-03-08 03:30-0400"]


def test_gap_skip_drops_the_fire_and_reports_the_place() -> None:
    cron = Cron("30 2 * * *", NY, gap="skip")
    assert upcoming(cron, "2026-03-07T12:00", 1) == ["2026-03-09 02:30-0400"]
    after, through = (int(local(text, NY).timestamp() * 1000) for text in ("2026-03-07T12:00", "2026-03-10T00:00"))
    end = int(local("2026-03-08T03:00", NY).timestamp() * 1000)
    assert cron.dropped_ms(after, through) == [end]
    assert cron.dropped_ms(end, through) == []
    assert cron.dropped_ms(after, end) == [end]
    assert cron.count_ms(after, through) == 1


def test_gap_skip_drops_nothing_where_the_end_fires_itself() -> None:
    cron = Cron("0 2,3 * * *", NY, gap="skip")
    assert upcoming(cron, "2026-03-07T12:00", 1) == ["2026-03-08 03:00-0400"]
    assert cron.dropped_ms(1_772_900_000_000, 1_773_100_000_000) == []


def test_gap_shift_reports_nothing_dropped() -> None:
    assert Cron("30 2 * * *", NY).dropped_ms(1_767_000_000_000, 1_798_000_000_000) == []


def test_gap_is_only_for_fixed_times() -> None:
    cron = Cron("*/30 2 * * *", NY, gap="skip")
    assert cron.dropped_ms(1_767_000_000_000, 1_798_000_000_000) == []
    assert upcoming(Cron("*/30 2 * * *", NY), "2026-03-07T12:00", 1) == ["2026-03-09 02:00-0400"]


def test_overlap_first() -> None:
    found = upcoming(Cron("30 1 * * *", NY), "2026-10-31T12:00", 2)
    assert found == ["2026-11-01 01:30-0400", "2026-11-02 01:30-0500"]


def test_overlap_last() -> None:
    found = upcoming(Cron("30 1 * * *", NY, overlap="last"), "2026-10-31T12:00", 2)
    assert found == ["2026-11-01 01:30-0500", "2026-11-02 01:30-0500"]


def test_overlap_both() -> None:
    found = upcoming(Cron("30 1 * * *", NY, overlap="both"), "2026-10-31T12:00", 2)
    assert found == ["2026-11-01 01:30-0400", "2026-11-01 01:30-0500"]


def test_overlap_first_from_within_the_repetition() -> None:
    start = datetime(2026, 11, 1, 6, 10, tzinfo=UTC)  # 01:10 for the second time
    assert shown(Cron("30 1 * * *", NY).upcoming(start, 1)) == ["2026-11-02 01:30-0500"]


def test_every_hour_follows_elapsed_time() -> None:
    found = upcoming(Cron("0 * * * *", NY), "2026-11-01T00:30", 3)
    assert found == ["2026-11-01 01:00-0400", "2026-11-01 01:00-0500", "2026-11-01 02:00-0500"]
    assert upcoming(Cron("0 * * * *", NY), "2026-03-08T01:30", 1) == ["2026-03-08 03:00-0400"]


def test_six_fields_follow_the_same_rules() -> None:
    assert upcoming(Cron("15 30 2 * * *", NY), "2026-03-07T12:00", 1) == ["2026-03-08 03:00-0400"]
    found = upcoming(Cron("15 30 1 * * *", NY), "2026-10-31T12:00", 2)
    assert found == ["2026-11-01 01:30:15-0400", "2026-11-02 01:30:15-0500"]


# -- zones and days, as a table ---------------------------------------------------------------------------------

CASES = [
    # midnight gaps
    ("0 0 * * *", SANTIAGO, "2026-09-05T12:00", "2026-09-06 01:00-0300"),
    ("30 0 * * *", SANTIAGO, "2026-09-05T12:00", "2026-09-06 01:00-0300"),
    ("0 0 * * 0", SANTIAGO, "2026-09-05T12:00", "2026-09-06 01:00-0300"),
    ("30 23 * * *", SANTIAGO, "2026-04-04T22:00", "2026-04-04 23:30-0300"),
    ("30 23 * * *", SANTIAGO, "2026-04-04T23:31", "2026-04-05 23:30-0400"),
    ("0 0 * * *", HAVANA, "2026-03-07T12:00", "2026-03-08 01:00-0400"),
    ("30 0 * * *", HAVANA, "2026-10-31T12:00", "2026-11-01 00:30-0400"),
    ("*/30 * * * *", HAVANA, "2026-03-07T23:45", "2026-03-08 01:00-0400"),
    # half an hour
    ("15 2 * * *", HOWE, "2026-10-03T12:00", "2026-10-04 02:30+1100"),
    ("45 2 * * *", HOWE, "2026-10-03T12:00", "2026-10-04 02:45+1100"),
    ("45 1 * * *", HOWE, "2026-04-04T12:00", "2026-04-05 01:45+1100"),
    ("0 * * * *", HOWE, "2026-10-04T01:10", "2026-10-04 03:00+1100"),
    # two hours
    ("30 1 * * *", TROLL, "2026-03-28T12:00", "2026-03-29 03:00+0200"),
    ("30 2 * * *", TROLL, "2026-03-28T12:00", "2026-03-29 03:00+0200"),
    ("30 2 * * *", TROLL, "2026-10-24T12:00", "2026-10-25 02:30+0200"),
    # a missing day
    ("0 9 * * *", APIA, "2011-12-29T12:00", "2011-12-31 00:00+1400"),
    ("0 9 30 12 *", APIA, "2011-12-01T00:00", "2011-12-31 00:00+1400"),
    ("0 9 * * 5", APIA, "2011-12-24T00:00", "2011-12-31 00:00+1400"),
    ("*/30 9 30 12 *", APIA, "2011-12-01T00:00", "2012-12-30 09:00+1400"),
    ("0 0 31 12 *", APIA, "2011-12-01T00:00", "2011-12-31 00:00+1400"),
    ("0 * * * *", APIA, "2011-12-29T23:30", "2011-12-31 00:00+1400"),
    # Ramadan: the clock goes back in, and forward out of it
    ("30 2 * * *", CASA, "2026-02-14T12:00", "2026-02-15 02:30+0100"),
    ("30 2 * * *", CASA, "2026-03-21T12:00", "2026-03-22 03:00+0100"),
    # negative daylight saving
    ("30 1 * * *", DUBLIN, "2026-03-28T12:00", "2026-03-29 02:00+0100"),
    ("30 1 * * *", DUBLIN, "2026-10-24T12:00", "2026-10-25 01:30+0100"),
    # offsets with seconds, and years long ago
    ("30 0 * * *", "Africa/Monrovia", "1972-01-06T12:00", "1972-01-07 00:44:30+0000"),
    ("0 9 * * *", "Africa/Monrovia", "1971-06-01T12:00", "1971-06-02 09:00-004430"),
    # leap days
    ("0 0 29 2 *", "UTC", "2024-03-01T00:00", "2028-02-29 00:00+0000"),
    ("0 0 29 2 *", "UTC", "2096-03-01T00:00", "2104-02-29 00:00+0000"),
    ("0 0 29 2 *", "UTC", "1996-03-01T00:00", "2000-02-29 00:00+0000"),
    ("0 0 * 2 1#5", "UTC", "2026-01-01T00:00", "2044-02-29 00:00+0000"),
    ("0 0 * 2 1#5", "UTC", "2072-03-01T00:00", "2112-02-29 00:00+0000"),
    # ends of months
    ("0 0 31 * *", "UTC", "2026-01-31T00:00", "2026-03-31 00:00+0000"),
    ("0 0 30 * *", "UTC", "2026-01-30T00:00", "2026-03-30 00:00+0000"),
    ("0 0 L * *", "UTC", "2026-02-01T00:00", "2026-02-28 00:00+0000"),
    ("0 0 L * *", "UTC", "2028-02-01T00:00", "2028-02-29 00:00+0000"),
    ("0 0 L-3 * *", "UTC", "2026-02-01T00:00", "2026-02-25 00:00+0000"),
    ("0 0 L-30 * *", "UTC", "2026-02-01T00:00", "2026-03-01 00:00+0000"),
    ("0 0 LW * *", "UTC", "2026-05-01T00:00", "2026-05-29 00:00+0000"),
    ("0 0 LW * *", "UTC", "2026-02-01T00:00", "2026-02-27 00:00+0000"),
    ("0 0 15W * *", "UTC", "2026-02-01T00:00", "2026-02-16 00:00+0000"),
    ("0 0 15W * *", "UTC", "2026-08-01T00:00", "2026-08-14 00:00+0000"),
    ("0 0 1W * *", "UTC", "2026-07-31T12:00", "2026-08-03 00:00+0000"),
    ("0 0 31W * *", "UTC", "2026-05-01T00:00", "2026-05-29 00:00+0000"),
    ("0 0 31W * *", "UTC", "2026-06-01T00:00", "2026-07-31 00:00+0000"),
    # weekdays
    ("0 0 * * 5L", "UTC", "2026-05-01T00:00", "2026-05-29 00:00+0000"),
    ("0 0 * * FRI#2", "UTC", "2026-05-01T00:00", "2026-05-08 00:00+0000"),
    ("0 0 * * 5#5", "UTC", "2026-06-01T00:00", "2026-07-31 00:00+0000"),
    ("0 0 * * 7", "UTC", "2026-05-01T00:00", "2026-05-03 00:00+0000"),
    ("0 0 * * 0", "UTC", "2026-05-01T00:00", "2026-05-03 00:00+0000"),
    ("0 0 * * FRI-MON", "UTC", "2026-05-04T00:00", "2026-05-08 00:00+0000"),
    # the two day fields: OR, unless one starts with a star
    ("0 0 13 * 5", "UTC", "2026-05-01T00:00", "2026-05-08 00:00+0000"),
    ("0 0 13 * 5", "UTC", "2026-05-08T00:00", "2026-05-13 00:00+0000"),
    ("0 0 */2 * 5", "UTC", "2026-05-01T00:00", "2026-05-15 00:00+0000"),
    ("0 0 13 * */2", "UTC", "2026-05-01T00:00", "2026-06-13 00:00+0000"),
    ("0 0 ? * 5", "UTC", "2026-05-01T00:00", "2026-05-08 00:00+0000"),
    ("0 0 29 2 1#5", "UTC", "2026-03-01T00:00", "2028-02-29 00:00+0000"),
    # edges of days and years
    ("59 59 23 * * *", "UTC", "2026-12-31T23:59:58", "2026-12-31 23:59:59+0000"),
    ("59 59 23 * * *", "UTC", "2026-12-31T23:59:59", "2027-01-01 23:59:59+0000"),
    ("0 0 1 1 *", "UTC", "2025-12-31T23:59:59", "2026-01-01 00:00+0000"),
    ("14 3 19 1 *", "UTC", "2038-01-01T00:00", "2038-01-19 03:14+0000"),
    ("30 2 * * *", NY, "2038-03-13T12:00", "2038-03-14 03:00-0400"),
    ("30 2 * * *", NY, "2100-03-13T12:00", "2100-03-14 03:00-0400"),
    ("30 1 * * *", NY, "2100-11-06T12:00", "2100-11-07 01:30-0400"),
    ("0 0 1 3 *", "UTC", "2100-02-28T12:00", "2100-03-01 00:00+0000"),
    ("0 12 * * *", "UTC", "1900-02-28T12:00", "1900-03-01 12:00+0000"),
    ("0 22-2/2 * * *", "UTC", "2026-05-01T22:00", "2026-05-02 00:00+0000"),
]


@pytest.mark.parametrize(("text", "zone", "start", "wanted"), CASES)
def test_case(text: str, zone: str, start: str, wanted: str) -> None:
    assert upcoming(Cron(text, zone), start, 1) == [wanted]


def test_there_are_enough() -> None:
    assert len(CASES) >= 60


# -- the ends of time -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "0 0 31W 6 *", "0 0 L-30 2 *", "0 0 */31 4 1#2"])
def test_impossible(text: str) -> None:
    cron = Cron(text, NY)
    assert cron.never
    assert cron.next_after(datetime(2026, 1, 1, tzinfo=UTC)) is None
    assert cron.count(datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)) == 0
    assert cron.last_ms(0, 10**14, 5) == []


@pytest.mark.parametrize("zone", ["UTC", NY, "Asia/Tokyo", "Pacific/Kiritimati"])
def test_near_the_end_and_the_beginning_of_datetime(zone: str) -> None:
    cron = Cron("0 0 * * *", zone)
    for instant in (datetime.max, datetime.max - timedelta(days=1), datetime(9999, 1, 2)):
        assert cron.next_after(instant.replace(tzinfo=UTC)) is None
    assert cron.next_after(datetime(1, 1, 1, tzinfo=UTC)) is not None
    assert cron.upcoming(datetime(9998, 12, 29, tzinfo=UTC), 10)[-1].year in (9998, 9999)
    assert cron.next_ms(-(10**18)) is not None
    assert cron.next_ms(10**18) is None
    assert cron.count_ms(253_339_228_800_000, 10**18) in (364, 365)


def test_all_of_time_can_be_counted() -> None:
    assert Cron("0 0 * * *").count_ms(-(10**18), 10**18) == (datetime(9999, 1, 1) - datetime(2, 1, 1)).days


def test_results_are_aware_and_in_the_zone() -> None:
    found = Cron("0 9 * * *", NY).next_after(datetime(2026, 1, 1, tzinfo=UTC))
    assert found is not None
    assert found.tzinfo == ZoneInfo(NY)
    with pytest.raises(NaiveDatetime):
        Cron("0 9 * * *").next_after(datetime(2026, 1, 1))
    with pytest.raises(NaiveDatetime):
        Cron("0 9 * * *").count(datetime(2026, 1, 1), datetime(2026, 1, 2, tzinfo=UTC))


def test_milliseconds_are_not_lost() -> None:
    cron = Cron("* * * * * *")
    assert cron.next_ms(999) == 1000
    assert cron.next_ms(1000) == 2000
    assert cron.count_ms(999, 1000) == 1
    assert cron.count_ms(1000, 1999) == 0
    assert cron.last_ms(0, 2999, 1) == [2000]
