"""Cron in words: descriptions, and what the linter has to say."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mainspring.rules.triggers import Cron

DESCRIBED = [
    ("*/5 * * * *", "Every 5 minutes"),
    ("*/7 * * * *", "Every 7 minutes, starting again each hour"),
    ("*/90 * * * *", "Every hour"),
    ("0 */5 * * *", "Every 5 hours, starting again each day"),
    ("*/7 */5 * * *", "Every 7 minutes, every 5 hours, starting again each hour and day"),
    ("0 0 */2 * *", "At 00:00, every 2 days, starting again each month"),
    ("0 0 1 */5 *", "At 00:00, on day 1 of the month, every 5 months, starting again each year"),
    ("0 0 1 */3 *", "At 00:00, on day 1 of the month, every 3 months"),
    ("0 9 * * 1-5", "At 09:00, Monday through Friday"),
    ("0 9 1 * 1", "At 09:00, on day 1 of the month, or on Monday"),
    ("0 17 * * *", "At 17:00"),
    ("@hourly", "Every hour"),
    ("@WEEKLY", "At 00:00, only on Sunday"),
    ("0 0 L * *", "At 00:00, on the last day of the month"),
    ("0 0 L-3 * *", "At 00:00, 3 days before the last day of the month"),
    ("0 0 LW * *", "At 00:00, on the last weekday of the month"),
    ("0 0 15W * *", "At 00:00, on the weekday nearest day 15 of the month"),
    ("0 0 * * 5L", "At 00:00, on the last Friday of the month"),
    ("0 0 * * FRI#2", "At 00:00, on the second Friday of the month"),
    ("0 0 * * FRI-MON", "At 00:00, Friday through Monday"),
    ("0 0 * * 5-7", "At 00:00, Friday through Sunday"),
    ("0 0 * * 0,7", "At 00:00, only on Sunday"),
    ("0 0 ? * ?", "At 00:00"),
    ("5/15 * * * *", "Every 15 minutes, starting at 5 minutes past the hour"),
    ("30 5 9 * * *", "At 09:05:30"),
    ("0 0 15W,L * *", "At 00:00, on the weekday nearest day 15 and the last day of the month"),
    ("0 0 1,15,L 2 *", "At 00:00, on day 1 and 15 and the last day of the month, only in February"),
    ("0 9 */10 * 1", "At 09:00, on day 1, 11, 21 and 31 of the month if it is also Monday"),
    (
        "0 0 1 * 5#2,6L",
        "At 00:00, on day 1 of the month, or on the second Friday of the month and the last Saturday of the month",
    ),
]


@pytest.mark.parametrize(("text", "words"), DESCRIBED)
def test_describe(text: str, words: str) -> None:
    assert Cron(text, "Europe/Berlin").describe() == f"{words} (Europe/Berlin)"


def test_describe_says_the_hashed_time() -> None:
    assert Cron("H H * * *", hash_id="nightly").describe() == "At 18:42 (UTC)"


def codes(cron: Cron, **options: object) -> list[str]:
    return [finding.code for finding in cron.lint(**options)]  # type: ignore[arg-type]


def message(cron: Cron, code: str) -> str:
    return next(finding.message for finding in cron.lint() if finding.code == code)


@pytest.mark.parametrize(
    "text", ["*/5 * * * *", "0 9 * * 1-5", "0 9 1,15 * *", "0 0 L * *", "0 9 28-31 * *", "0 */6 * * *"]
)
def test_lint_has_no_findings(text: str) -> None:
    assert codes(Cron(text, "America/New_York")) == []


def test_l001_never_fires() -> None:
    cron = Cron("0 0 30 2 *", "UTC")
    assert codes(cron) == ["L001"]
    assert "February has no day 30" in message(cron, "L001")
    assert codes(Cron("0 0 */31 4 1#2", "UTC"))[0] == "L001"


def test_l001_never_fires_again() -> None:
    assert codes(Cron("0 0 29 2 *", "UTC"), around=datetime(9998, 1, 1, tzinfo=UTC))[0] == "L001"


def test_l002_both_day_fields() -> None:
    cron = Cron("0 9 1 * 1", "UTC")
    assert codes(cron) == ["L002"]
    assert 'OR. For "first Monday of the month" write 0 9 * * 1#1' in message(cron, "L002")
    assert "0 0 9 * 3 5#2" in message(Cron("0 0 9 8-14 3 5", "UTC"), "L002")
    assert "5#2" in message(Cron("0 9 1,15 * 1,2", "UTC"), "L002")
    assert "L002" not in codes(Cron("0 9 */2 * 1", "UTC"))


def test_l003_uneven_steps() -> None:
    text = message(Cron("*/7 * * * *", "UTC"), "L003")
    assert "last gap is 4 instead of 7" in text
    assert '*/6 or */10, or Every("7m")' in text
    assert codes(Cron("0 */5 * * *", "UTC")) == ["L003"]
    assert 'Every("2d")' in message(Cron("0 0 */2 * *", "UTC"), "L003")
    assert "matches 0 only" in message(Cron("*/90 * * * *", "UTC"), "L003")
    assert "last gap is 1 instead of 2" in message(Cron("0 0 * * */2", "UTC"), "L003")


def test_l004_a_gap() -> None:
    text = message(Cron("30 2 * * *", "America/New_York"), "L004")
    assert "2025-03-09" in text
    assert "02:00 to 03:00" in text
    assert 'moves to 03:00 (gap="shift")' in text
    assert "is dropped" in message(Cron("30 2 * * *", "America/New_York", gap="skip"), "L004")


def test_l004_a_repeated_hour() -> None:
    assert "once, the first time" in message(Cron("30 1 * * *", "America/New_York"), "L004")
    assert "twice" in message(Cron("30 1 * * *", "America/New_York", overlap="both"), "L004")


def test_l004_both_and_neither() -> None:
    assert codes(Cron("30 1,2 * * *", "America/New_York")) == ["L004", "L004"]
    assert codes(Cron("30 2 * * *", "Asia/Kolkata")) == []
    assert codes(Cron("30 * * * *", "America/New_York")) == []
    assert codes(Cron("30 2 * * 3", "America/New_York")) == []
    assert codes(Cron("30 2 * * *", "Europe/Istanbul")) == []
    assert codes(Cron("30 3 * * *", "Europe/Istanbul"), around=datetime(2014, 6, 1, tzinfo=UTC)) == ["L004", "L004"]


def test_l005_missing_days() -> None:
    assert "February, April, June, September, November" in message(Cron("0 0 31 * *", "UTC"), "L005")
    assert "leap" in message(Cron("0 0 29 * *", "UTC"), "L005")
    assert codes(Cron("0 0 15,30 * *", "UTC")) == ["L005"]
    assert codes(Cron("0 0 31W * *", "UTC")) == ["L005"]
    assert codes(Cron("0 0 L-30 * *", "UTC")) == ["L005"]
    assert codes(Cron("0 0 31 1,3,5 *", "UTC")) == []
    assert codes(Cron("0 0 1-31 * *", "UTC")) == []


def test_l008_six_fields() -> None:
    assert codes(Cron("0 0 9 * * *", "UTC")) == ["L008"]


def test_l009_no_zone() -> None:
    assert codes(Cron("0 9 * * *")) == ["L009"]
    assert codes(Cron("0 9 * * *", "UTC")) == []
    assert codes(Cron("0 9 * * *", "UTC"), zone_given=False) == ["L009"]
    assert codes(Cron("0 9 * * *"), zone_given=True) == []
    assert codes(Cron("*/5 * * * *")) == []
    assert "L009" in codes(Cron("0 * */2 * *"))
