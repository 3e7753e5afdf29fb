"""`mainspring cron`: words for people, JSON for machines, clear refusals."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from mainspring.cli import cron as module
from mainspring.cli.cron import cron

FROM = ("--from", "2026-03-06T00:00:00Z")


def run(*args: str) -> Result:
    return CliRunner().invoke(cron, list(args), catch_exceptions=False)


def test_next_as_a_table() -> None:
    result = run("next", "30 2 * * *", "--tz", "America/New_York", "-n", "4", *FROM)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 5
    assert "Sun  2026-03-08T03:00:00-04:00  2026-03-08T07:00:00Z" in lines[3]


def test_next_as_json() -> None:
    result = run("next", "0 9 * * 1", "--tz", "Europe/Berlin", "-n", "1", "--json", *FROM)
    assert json.loads(result.stdout) == {
        "expression": "0 9 * * 1",
        "tz": "Europe/Berlin",
        "from": "2026-03-06T00:00:00Z",
        "fires": ["2026-03-09T09:00:00+01:00"],
    }


def test_next_starts_from_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "now_ms", lambda: 0)
    assert json.loads(run("next", "0 9 * * *", "-n", "1", "--json").stdout)["fires"] == ["1970-01-01T09:00:00+00:00"]


def test_now_is_the_clock() -> None:
    assert module.now_ms() > 1_700_000_000_000


def test_next_of_what_never_fires() -> None:
    result = run("next", "0 0 30 2 *", *FROM)
    assert result.exit_code == 0
    assert "never fires" in result.stdout
    assert json.loads(run("next", "0 0 30 2 *", "--json", *FROM).stdout)["fires"] == []


def test_explain() -> None:
    result = run("explain", "0 9 1 * 1", *FROM)
    assert result.exit_code == 0
    assert "At 09:00, on day 1 of the month, or on Monday (UTC)" in result.stdout
    assert "Mon 2026-03-09 09:00 · Mon 2026-03-16 09:00 · Mon 2026-03-23 09:00 …" in result.stdout
    assert "≈ 61 fires/year" in result.stdout
    assert "⚠ L002" in result.stdout


def test_explain_as_json() -> None:
    found = json.loads(run("explain", "*/5 * * * *", "--json", *FROM).stdout)
    assert list(found) == ["expression", "tz", "from", "description", "next", "fires_per_year", "findings"]
    assert found["fires_per_year"] == 105_120
    assert found["findings"] == []


def test_explain_what_never_fires() -> None:
    assert "never fires" in run("explain", "0 0 30 2 *", *FROM).stdout


def test_lint_finds() -> None:
    result = run("lint", "*/5 * * * *", "0 9 1 * 1", "--tz", "UTC")
    assert result.exit_code == 7
    assert "*/5 * * * *  (UTC)  ok" in result.stdout
    assert "L002" in result.stdout


def test_lint_finds_nothing() -> None:
    assert run("lint", "*/5 * * * *").exit_code == 0
    assert run("lint", "0 9 * * *", "--tz", "UTC").exit_code == 0
    assert run("lint", "0 9 * * *").exit_code == 7


def test_lint_as_json() -> None:
    result = run("lint", "*/7 * * * *", "--tz", "UTC", "--json")
    assert result.exit_code == 7
    found = json.loads(result.stdout)
    assert [(entry["expression"], entry["findings"][0]["code"]) for entry in found] == [("*/7 * * * *", "L003")]


@pytest.mark.parametrize("command", ["next", "explain", "lint"])
def test_a_wrong_expression_is_pointed_at(command: str) -> None:
    result = run(command, "0 25 * * *")
    assert result.exit_code == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0].startswith("error: hour: 25 is out of range")
    assert lines[1:] == ["  0 25 * * *", "    ^"]


def test_a_wrong_zone_and_a_wrong_time() -> None:
    result = run("next", "* * * * *", "--tz", "Europe/Berln")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Did you mean 'Europe/Berlin'?" in result.stderr
    for text in ("yesterday", "2026-01-01T00:00:00"):
        result = run("next", "* * * * *", "--from", text)
        assert result.exit_code == 2
        assert "--from" in result.stderr


def test_hashed_with_a_name() -> None:
    assert run("next", "H H * * *", *FROM).exit_code == 2
    result = run("next", "H H * * *", "--name", "nightly", "--json", "-n", "1", *FROM)
    assert json.loads(result.stdout)["fires"] == ["2026-03-06T18:42:00+00:00"]


def test_control_characters_do_not_move_the_caret() -> None:
    result = run("next", "0 9\n* * \x1b[31m")
    assert result.exit_code == 2
    assert "\x1b" not in result.stderr


def test_an_expression_with_h_asks_for_the_option_that_names_it() -> None:
    done = run("explain", "H H * * *")
    assert done.exit_code == 2
    assert "Give --name, the name of the schedule\n" in done.stderr
    assert done.stderr.endswith("  H H * * *\n  ^\n")
    assert run("explain", "H H * * *", "--name", "nightly").exit_code == 0
