"""At: an explicit list of instants."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from mainspring.model.errors import InvalidInput, NaiveDatetime
from mainspring.model.trigger import AtSpec
from mainspring.rules.triggers import At, compile_trigger

ONE = datetime(2026, 3, 1, 9, tzinfo=UTC)
TWO = ONE + timedelta(days=1)


def test_one_instant() -> None:
    assert At(ONE).next_after(ONE - timedelta(seconds=1)) == ONE
    assert At(ONE).next_after(ONE) is None


def test_several_are_sorted_and_each_once() -> None:
    same = ONE.astimezone(ZoneInfo("Asia/Tokyo"))
    assert At([TWO, ONE, same]) == At((ONE, TWO))
    assert At(time for time in (TWO, ONE)).upcoming(ONE - timedelta(days=1), 5) == [ONE, TWO]
    assert compile_trigger(AtSpec((2, 1, 1))).fires_ms(0, 9, 9) == [1, 2]


def test_an_empty_list_never_fires() -> None:
    assert At([]).next_after(ONE) is None
    assert At([]).count(ONE, TWO) == 0
    assert At([]).describe() == "Never: the list of times is empty"
    assert [finding.code for finding in At([]).lint()] == ["L001"]


def test_count_first_and_last() -> None:
    at = compile_trigger(AtSpec(tuple(range(10))))
    assert at.count_ms(2, 5) == 3
    assert at.count_ms(5, 2) == 0
    assert at.fires_ms(2, 8, 2) == [3, 4]
    assert at.last_ms(2, 8, 2) == [7, 8]
    assert at.last_ms(2, 8, 0) == []
    assert at.last_ms(2, 8, 100) == [3, 4, 5, 6, 7, 8]
    assert at.dropped_ms(0, 9) == []


def test_refuses_naive_times_and_other_things() -> None:
    with pytest.raises(NaiveDatetime):
        At(datetime(2026, 1, 1))
    with pytest.raises(NaiveDatetime):
        At([ONE, datetime(2026, 1, 1)])
    for times in (5, "2026-01-01T00:00:00Z", None, [5]):
        with pytest.raises(InvalidInput):
            At(times)  # type: ignore[arg-type]


def test_lint_reports_times_that_are_over() -> None:
    assert At(ONE).lint() == []
    assert At(ONE).lint(around=ONE - timedelta(days=1)) == []
    assert [finding.code for finding in At(ONE).lint(around=TWO)] == ["L001"]


def test_describe() -> None:
    assert At(ONE).describe() == "At 2026-03-01T09:00:00Z"
    assert At([ONE, TWO]).describe() == "At 2026-03-01T09:00:00Z and 2026-03-02T09:00:00Z"
    many = At([ONE + timedelta(days=n) for n in range(5)])
    assert many.describe() == "At 5 times from 2026-03-01T09:00:00Z to 2026-03-05T09:00:00Z"
