"""Definitions of schedules: their digests are stored, so a new version must compute the digests of the old one."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.rules.definition import SpecTarget, amend, build_spec, digest_of

NOW = 1_795_036_193_370


def spec_of(**options: Any) -> Any:
    return build_spec(SpecTarget("work"), options, name="default/nightly", now=NOW)


@pytest.mark.parametrize(
    ("options", "digest"),
    [
        ({"cron": "0 9 * * *"}, "a7fbf1f511d8eedcd321a10961ef4eff"),
        (
            {"cron": "0 9 * * *", "tz": "Europe/Berlin", "missed": "skip", "priority": "high"},
            "36c4dad56196a4e8533088f19b5fa5cb",
        ),
        (
            {"every": "90s", "grace": "5s", "replay_max": 7, "timeout": "30s", "max_runs": 3},
            "6bb435723e26051809e80ac70c6e8c8e",
        ),
    ],
)
def test_the_digest_of_a_definition_never_changes(options: dict[str, Any], digest: str) -> None:
    assert digest_of(spec_of(**options)) == digest


def test_an_option_changed_to_none_has_its_default_and_the_digest_of_it() -> None:
    changed = spec_of(cron="0 9 * * *", grace="5s", replay_max=7, replay_age="1h")
    reset = amend(
        changed,
        SpecTarget("work"),
        {"grace": None, "replay_max": None, "replay_age": None},
        name="default/nightly",
        now=NOW,
    )
    assert digest_of(reset) == digest_of(spec_of(cron="0 9 * * *"))
