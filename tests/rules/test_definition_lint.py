"""Lint of definitions: what can never fire, and windows that shut out fires."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import At, Every, Window
from mainspring.model.instant import instant_ms
from mainspring.model.schedule import ScheduleSpec
from mainspring.rules.definition import SpecTarget, build_spec
from mainspring.rules.definition_lint import lint_definition, never_fires

NOW = datetime(2026, 1, 10, 12, tzinfo=UTC)
NOW_MS = instant_ms(NOW)
OFFICE = Window("08:00-18:00")


def spec(**options: Any) -> ScheduleSpec:
    return build_spec(SpecTarget("t"), {"tz": "Europe/Berlin", **options}, name="s", now=NOW_MS)


def findings(**options: Any) -> dict[str, str]:
    return {finding.code: finding.message for finding in lint_definition(spec(**options), NOW_MS)}


@pytest.mark.parametrize(
    ("options", "never"),
    [
        ({"at": NOW - timedelta(hours=1)}, True),
        ({"at": NOW}, True),
        ({"at": NOW + timedelta(milliseconds=1)}, False),
        ({"at": [NOW - timedelta(hours=1), NOW + timedelta(hours=1)]}, False),
        ({"trigger": At([])}, True),
        ({"cron": "0 0 30 2 *"}, True),
        ({"cron": "0 0 29 2 *"}, False),
        ({"every": "1h", "end": NOW + timedelta(minutes=59)}, True),
        ({"every": "1h", "end": NOW + timedelta(minutes=60)}, False),
        ({"cron": "0 9 * * *", "start": NOW, "end": NOW + timedelta(hours=1)}, True),
        ({"every": Every("1h", fixed_delay=True)}, False),
    ],
)
def test_what_can_never_fire_has_the_finding_l001_and_nothing_else_has(options: dict[str, Any], never: bool) -> None:
    assert never_fires(spec(**options), NOW_MS) is never
    assert ("L001" in findings(**options)) is never


def test_a_window_in_another_zone_shuts_out_the_fires_of_one_season() -> None:
    found = findings(cron="0 9 * * Mon-Fri", window=Window("08:00-18:00", tz="UTC"))
    assert found["L010"].startswith(
        "the window (in UTC) shuts out all fires in April, May, June, July, August, September, so nothing runs then."
    )
    assert 'Window(…, tz="Europe/Berlin")' in found["L010"]
    assert "contains the fires of 09:00 (Europe/Berlin) on some days and not on others" in found["L011"]


def test_a_window_that_contains_the_fires_has_no_finding() -> None:
    assert findings(cron="0 9 * * Mon-Fri", window=OFFICE) == {}
    assert findings(cron="30 9 * * *", window=Window(weekdays="mon-fri")) == {}
    assert findings(every="10m", window=OFFICE) == {}
    assert findings(cron="0 9 * * *", window=Window("07:00-18:00", tz="UTC")) == {}


def test_a_window_that_contains_no_fire_at_all() -> None:
    found = findings(cron="0 9 * * *", window=Window("10:00-18:00"))
    assert list(found) == ["L010"]
    assert "shuts out all fires of the next year" in found["L010"]


def test_a_month_without_fires_is_not_shut_out() -> None:
    assert findings(cron="0 9 1 6 *", window=OFFICE) == {}
    assert list(findings(cron="0 9 1 6,7 *", window=Window("08:00-10:00", weekdays="mon"))) == ["L010"]


def test_many_fires_are_checked_quickly_and_the_edges_of_the_window_are_seen() -> None:
    found = findings(cron="* * * * *", window=Window("08:00-18:00", tz="UTC"))
    assert list(found) == ["L011"]
