"""Every: multiples of an interval from an anchor."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mainspring.model.errors import InvalidDuration, InvalidInput, NaiveDatetime
from mainspring.model.trigger import EverySpec
from mainspring.rules.triggers import Every, compile_trigger

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_counts_from_the_anchor() -> None:
    every = Every("10m", START)
    assert every.next_after(START - timedelta(days=400)) == START + timedelta(minutes=10)
    assert every.next_after(START) == START + timedelta(minutes=10)
    assert every.next_after(START + timedelta(minutes=9, seconds=59)) == START + timedelta(minutes=10)
    assert every.next_after(START + timedelta(minutes=10)) == START + timedelta(minutes=20)
    assert every.upcoming(START, 3) == [START + timedelta(minutes=n) for n in (10, 20, 30)]


def test_without_an_anchor_counts_from_the_instant_of_the_query() -> None:
    every = Every("1h")
    assert every.next_after(START) == START + timedelta(hours=1)
    assert every.upcoming(START, 2) == [START + timedelta(hours=1), START + timedelta(hours=2)]
    assert every.count(START, START + timedelta(hours=2)) == 2


def test_count_and_last_are_arithmetic() -> None:
    every = compile_trigger(EverySpec(1, 0))
    assert every.count_ms(0, 10**13) == 10**13
    assert every.last_ms(0, 10**13, 2) == [10**13 - 1, 10**13]
    assert every.fires_ms(5, 100, 2) == [6, 7]
    assert every.count_ms(100, 5) == 0
    assert every.last_ms(0, 100, 0) == []
    assert every.last_ms(100, 5, 3) == []


def test_before_the_anchor_there_is_nothing() -> None:
    every = compile_trigger(EverySpec(10, 1000))
    assert every.count_ms(0, 1009) == 0
    assert every.count_ms(0, 1010) == 1
    assert every.fires_ms(0, 1030, 9) == [1010, 1020, 1030]
    assert every.last_ms(0, 1030, 9) == [1010, 1020, 1030]


def test_fixed_delay_previews_the_same() -> None:
    assert Every("1h", START, fixed_delay=True).upcoming(START, 2) == Every("1h", START).upcoming(START, 2)


@pytest.mark.parametrize("interval", [0, -1, "0s", "", "soon", float("nan"), True, None, timedelta(microseconds=10)])
def test_refuses_values_that_are_no_interval(interval: object) -> None:
    with pytest.raises(InvalidDuration):
        Every(interval)  # type: ignore[arg-type]


def test_refuses_a_stored_interval_of_nothing() -> None:
    with pytest.raises(InvalidDuration):
        compile_trigger(EverySpec(0))


def test_refuses_a_naive_anchor_and_question() -> None:
    with pytest.raises(NaiveDatetime):
        Every("1h", datetime(2026, 1, 1))
    with pytest.raises(NaiveDatetime):
        Every("1h").next_after(datetime(2026, 1, 1))
    with pytest.raises(InvalidInput):
        Every("1h").upcoming(START, -1)


def test_the_end_of_time() -> None:
    assert Every("1h").next_after(datetime.max.replace(tzinfo=UTC)) is None
    assert Every(timedelta(days=9_000_000), START).next_after(START) is None
    assert [finding.code for finding in Every(timedelta(days=9_000_000), START).lint()] == ["L001"]
    assert Every("1h").lint() == []


@pytest.mark.parametrize(
    ("every", "text"),
    [
        (Every("5m"), "Every 5 minutes"),
        (Every("1h"), "Every hour"),
        (Every("90s"), "Every 1m30s"),
        (Every("2d"), "Every 2 days"),
        (Every(0.001), "Every millisecond"),
        (Every("36h"), "Every 1d12h"),
        (Every("5m", START), "Every 5 minutes, counted from 2026-01-01T00:00:00Z"),
        (Every("5m", fixed_delay=True), "Every 5 minutes after the end of the last run"),
    ],
)
def test_describe(every: Every, text: str) -> None:
    assert every.describe() == text
