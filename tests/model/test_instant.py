"""Instants that users give: converted exactly, or refused with the range that is allowed."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.model.errors import InvalidDuration, InvalidInput
from mainspring.model.instant import duration_ms, instant_ms, isoformat, to_datetime

OFFSETS = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(value=st.datetimes(timezones=OFFSETS))
def test_an_accepted_instant_is_a_datetime_in_utc_and_others_are_refused(value: datetime) -> None:
    try:
        ms = instant_ms(value, field="startAt")
    except InvalidInput:
        assert value.year in (1, 9999)
    else:
        assert to_datetime(ms) == value.replace(microsecond=value.microsecond // 1000 * 1000)
        assert instant_ms(isoformat(ms)) == ms


@pytest.mark.parametrize(
    "text", ["0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-14:00"]
)
def test_an_instant_out_of_range_is_refused_with_the_range(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^at: .* is out of range\. Give a time in the years 1 to 9999, in UTC$"):
        instant_ms(text, field="at")


@pytest.mark.parametrize("text", ["90", " 1.5 "])
def test_a_number_as_text_is_told_to_add_a_unit(text: str) -> None:
    with pytest.raises(InvalidDuration) as told:
        duration_ms(text, field="timeout")
    assert str(told.value) == f'timeout: {text!r} has no unit. Add one: "{text.strip()}s" for seconds'
