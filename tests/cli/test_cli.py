"""The command line: help, errors in one line, exit codes, JSON shapes; looking creates nothing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mainspring import Mainspring, Retry
from mainspring.backends.sqlite.store import SqliteStore
from mainspring.cli.main import COMMANDS, mainspring
from mainspring.model.schedule import ScheduleSpec
from mainspring.model.trigger import CronSpec
from mainspring.testing.contract.factories import T0
from proof.scenario import Scenario

COLUMNS = ["planned", "ended", "open", "skipped", "missed", "behind", "unexplained"]


def cli(*words: str, env: dict[str, str] | None = None) -> Result:
    done = CliRunner().invoke(mainspring, words, env={"MAINSPRING_URL": None, **(env or {})})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.fixture
def url(tmp_path: Path) -> str:
    async def history() -> None:
        store = SqliteStore(tmp_path / "ms.db")
        await store.open()
        s = Scenario(store)
        sid = await s.create(ScheduleSpec(CronSpec("* * * * *"), "t", end=T0 + 300_000), T0)
        await s.settle(sid, T0 + 60_000)
        await s.work(T0 + 60_000)
        await s.settle(sid, T0 + 300_000)
        await s.enqueue(T0 + 300_000)
        await store.close()

    asyncio.run(history())
    return f"sqlite:///{tmp_path / 'ms.db'}"


def test_help_lists_every_command() -> None:
    done = cli("--help")
    assert done.exit_code == 0
    assert all(f"  {name} " in done.output for name in COMMANDS)
    assert cli("ledger", "--help").exit_code == 0
    assert cli("events", "verify", "--help").exit_code == 0
    assert cli("events", "list", "-h").exit_code == 0


def test_help_imports_no_command() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from mainspring.cli.main import mainspring; "
        "assert CliRunner().invoke(mainspring, ['--help']).exit_code == 0; "
        "print([m for m in sys.modules if m.startswith(('rich', 'mainspring.cli.')) and m != 'mainspring.cli.main'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_version() -> None:
    done = cli("--version")
    assert done.exit_code == 0
    assert done.output.startswith("mainspring ")


def test_an_unknown_command_is_answered_with_the_nearest() -> None:
    done = cli("ledgr")
    assert done.exit_code == 2
    assert "No such command 'ledgr'. Did you mean 'ledger'?" in done.stderr


@pytest.mark.parametrize("words", [("ledger",), ("events", "verify"), ("events", "list")])
def test_a_missing_file_is_named_and_not_created(tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "none.db"
    done = cli(*words, "--store", f"sqlite:///{path}")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {path} does not exist")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_default_store(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    done = cli("ledger")
    assert done.exit_code == 1
    assert "mainspring.db does not exist" in done.stderr
    assert cli("ledger", env={"MAINSPRING_URL": url}).exit_code == 0
    monkeypatch.chdir(tmp_path)
    assert cli("ledger", "--store", "sqlite:///ms.db").exit_code == 0


@pytest.mark.parametrize("bad", ["nonsense", "nosuch://x", "memory://", "sqlite://", "sqlite:///"])
def test_a_bad_url(bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli("ledger", "--store", bad)
    assert done.exit_code in (1, 2)
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"this is not a database, by any means" * 100])
def test_a_file_that_is_no_store_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.db"
    path.write_bytes(content)
    done = cli("ledger", "--store", f"sqlite:///{path}")
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert path.read_bytes() == content


def test_ledger_json(url: str) -> None:
    done = cli("ledger", "--store", url, "--json")
    assert done.exit_code == 0
    book = json.loads(done.stdout)
    assert list(book)[:7] == COLUMNS
    assert book["planned"] == 5
    assert book["planned"] == book["ended"] + book["open"] + sum(book["skipped"].values()) + book["missed"]
    assert book["unexplained"] == 0
    assert book["ad_hoc"] == {"enqueued": 1, "ended": 0, "open": 1, "unexplained": 0, "differences": []}
    assert [line["name"] for line in book["schedules"]] == ["nightly"]
    assert book["since"] is None


def test_ledger_table(url: str) -> None:
    done = cli("ledger", "--store", url, "--all")
    assert done.exit_code == 0
    assert all(column in done.stdout for column in COLUMNS)
    assert "nightly (" in done.stdout
    assert "ad hoc: 1 enqueued = 0 ended + 1 open" in done.stdout


@pytest.mark.parametrize("since", ["7d", "1h30m", "2024-01-01T00:03:00Z"])
def test_ledger_since(url: str, since: str) -> None:
    done = cli("ledger", "--store", url, "--since", since, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["planned"] == (3 if since.startswith("2024") else 0)


@pytest.mark.parametrize("since", ["soon", "7", "7x", "2024-01-01", "2024-01-01T00:00:00"])
def test_a_bad_time_is_a_usage_error(url: str, since: str) -> None:
    done = cli("ledger", "--store", url, "--since", since)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: --since: ")
    assert "Write a duration ago such as 30m, 12h or 7d, or a time such as 2026-03-01T09:00:00Z" in done.stderr


def test_verify_json(url: str) -> None:
    done = cli("events", "verify", "--store", url, "--json")
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    assert report["ok"] is True
    assert report["differences"] == []
    assert report["events"] > 5
    assert "ok" in cli("events", "verify", "--store", url).stdout


def test_events_list(url: str) -> None:
    everything = json.loads(cli("events", "list", "--store", url, "--json").stdout)
    assert [event["seq"] for event in everything] == sorted(event["seq"] for event in everything)
    assert everything[0]["type"] == "ScheduleCreated"
    assert everything[0]["at"] == "2024-01-01T00:00:00Z"
    assert everything[0]["data"]["name"] == "nightly"
    births = json.loads(cli("events", "list", "--store", url, "--type", "RunScheduled", "--json").stdout)
    assert {event["type"] for event in births} == {"RunScheduled"}
    run = births[0]["run_id"]
    own = cli("events", "list", "--store", url, "--run", run).stdout.splitlines()
    assert [line.split()[2] for line in own] == ["RunScheduled", "RunStarted", "RunSucceeded"]
    of_schedule = json.loads(cli("events", "list", "--store", url, "--schedule", "nightly", "--json").stdout)
    assert len(of_schedule) == len(everything) - 1
    assert len(json.loads(cli("events", "list", "--store", url, "--limit", "2", "--json").stdout)) == 2
    until = cli("events", "list", "--store", url, "--until", "2024-01-01T00:01:00Z").stdout
    assert len(until.splitlines()) == 1
    assert cli("events", "list", "--store", url, "--since", "1h").stdout == "no events\n"


def test_the_last_events_are_listed_in_the_order_of_the_log(url: str) -> None:
    everything = json.loads(cli("events", "list", "--store", url, "--json").stdout)
    last = json.loads(cli("events", "list", "--store", url, "--last", "3", "--json").stdout)
    assert last == everything[-3:]
    started = json.loads(cli("events", "list", "--store", url, "--type", "RunStarted", "--last", "1", "--json").stdout)
    assert started == [event for event in everything if event["type"] == "RunStarted"][-1:]
    assert "there may be more" not in cli("events", "list", "--store", url, "--last", "1").stderr


def test_times_in_the_data_of_events_are_text(url: str) -> None:
    born = json.loads(cli("events", "list", "--store", url, "--type", "RunScheduled", "--json").stdout)[0]
    assert born["data"]["due_at"] == "2024-01-01T00:01:00Z"
    assert "due_at=2024-01-01T00:01:00Z" in cli("events", "list", "--store", url, "--type", "RunScheduled").stdout


def test_events_list_refuses_what_does_not_exist(url: str) -> None:
    done = cli("events", "list", "--store", url, "--type", "RunFaild")
    assert (done.exit_code, done.stderr) == (
        2,
        "error: --type: 'RunFaild' is not an event. Did you mean 'RunFailed'?\n",
    )
    done = cli("events", "list", "--store", url, "--schedule", "nightlyy")
    assert done.exit_code == 1
    assert "Did you mean 'nightly'?" in done.stderr


def test_a_listed_event_is_one_line_without_escape_sequences(tmp_path: Path) -> None:
    ms = Mainspring(f"sqlite:///{tmp_path / 'ms.db'}")

    @ms.task(retry=Retry(max_attempts=1))
    def fail() -> None:
        raise ValueError("\x1b[2J\nall is well\r")

    fail.sync.enqueue()
    ms.run(until_idle=True)
    done = cli("events", "list", "--type", "RunFailed", "--store", ms.url)
    (line,) = done.output.splitlines()
    assert "\\x1b[2J\\nall is well\\r" in line
    assert not set("\x1b\r") & set(done.output)
