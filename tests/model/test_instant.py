"""Instants and durations that users give: converted exactly, or refused with the range that is allowed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.model.errors import InvalidDuration, InvalidInput
from mainspring.model.instant import MAX_DURATION_MS, duration_ms, instant_ms, isoformat, to_datetime

OFFSETS = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
ZONES = st.sampled_from(["UTC", "Pacific/Kiritimati", "Pacific/Niue", "America/New_York"])


@given(value=st.datetimes(timezones=OFFSETS), zone=ZONES)
def test_an_accepted_instant_is_a_datetime_in_every_zone_and_others_are_refused(value: datetime, zone: str) -> None:
    try:
        ms = instant_ms(value, field="startAt")
    except InvalidInput:
        assert value.year in (1, 9999)
    else:
        assert to_datetime(ms, ZoneInfo(zone)) == value.replace(microsecond=value.microsecond // 1000 * 1000)
        assert instant_ms(isoformat(ms)) == ms


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00"])
def test_an_instant_out_of_range_is_refused_with_the_range(text: str) -> None:
    with pytest.raises(
        InvalidInput, match=r"^at: .* is out of range\. Give a time from 0001-01-02 to 9999-12-31 in UTC$"
    ):
        instant_ms(text, field="at")


@pytest.mark.parametrize("value", ["36525d1ms", "99999999w", timedelta(days=36_526), 1e300])
def test_a_duration_over_a_hundred_years_is_refused(value: str | timedelta | float) -> None:
    with pytest.raises(InvalidDuration, match=r"^every: .* is too long\. The longest is 36525d$"):
        duration_ms(value, field="every")
    assert duration_ms("36525d") == MAX_DURATION_MS
    assert to_datetime(instant_ms(datetime(2026, 11, 19, tzinfo=UTC)) + MAX_DURATION_MS).year == 2126
