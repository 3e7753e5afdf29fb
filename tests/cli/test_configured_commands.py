"""`run`, `worker`, `migrate`, `key`, `config`, `ledger` and `from_config` read one configuration, as `serve` does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from mainspring import InvalidInput, Mainspring
from mainspring.app.configuration import configure_program
from mainspring.config.resolve import Sources, resolve

COMMAND = (sys.executable, "-m", "mainspring.cli.main")
PROGRAM = """
from mainspring import Mainspring
ms = Mainspring("sqlite:///own.db", concurrency=3)

@ms.every("1h")
def tick() -> None: ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app1.py").write_text(PROGRAM)
    return tmp_path


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], cwd=folder, env=_environment(variables), capture_output=True, text=True, timeout=60
    )


def _environment(variables: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    return {**kept, **variables}


def databases(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.db")}


def test_run_uses_the_programs_own_store_when_none_is_configured(folder: Path) -> None:
    done = run(folder, "run", "app1:ms", "--until-idle")
    assert done.returncode == 0, done.stderr
    assert databases(folder) == {"own.db"}


@pytest.mark.parametrize(
    ("words", "variables", "content"),
    [
        (("--store", "sqlite:///other.db"), {}, None),
        ((), {"MAINSPRING_URL": "sqlite:///other.db"}, None),
        ((), {}, "store: sqlite:///other.db"),
        (("--config", "more.yaml"), {}, None),
    ],
    ids=["option", "variable", "file", "named-file"],
)
def test_run_uses_the_configured_store_in_place_of_the_programs(
    folder: Path, words: tuple[str, ...], variables: dict[str, str], content: str | None
) -> None:
    (folder / "more.yaml").write_text("store: sqlite:///other.db")
    if content is not None:
        (folder / "mainspring.yaml").write_text(content)
    done = run(folder, "run", "app1:ms", "--until-idle", *words, **variables)
    assert done.returncode == 0, done.stderr
    assert databases(folder) == {"other.db"}


def test_run_takes_the_program_from_the_configuration(folder: Path) -> None:
    (folder / "mainspring.yaml").write_text("app: app1:ms\nlogging: {format: json}\n")
    done = run(folder, "run", "--until-idle")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith('{"at"'), done.stderr
    missing = run(folder, "run", "--config", "none.yaml")
    assert (missing.returncode, "none.yaml: does not exist" in missing.stderr) == (2, True)
    (folder / "mainspring.yaml").unlink()
    assert "set `app:` in the configuration" in run(folder, "run").stderr


def test_key_config_and_ledger_mean_the_store_of_the_program_that_serve_serves(folder: Path) -> None:
    (folder / "mainspring.yaml").write_text("app: app1:ms\nserver: {require_key: true}\n")
    made = run(folder, "key", "create", "ci")
    assert made.returncode == 0, made.stderr
    assert databases(folder) == {"own.db"}
    shown = run(folder, "config", "show", "--origin")
    assert "sqlite:///own.db" in shown.stdout
    assert "program app1:ms" in shown.stdout
    assert run(folder, "ledger").returncode == 0
    assert "ci" in run(folder, "key", "list").stdout
    (folder / "mainspring.yaml").unlink()
    assert "ci" in run(folder, "key", "list", "--app", "app1:ms").stdout
    refused = run(folder, "key", "list")
    assert (refused.returncode, "mainspring.db does not exist" in refused.stderr) == (1, True)
    assert databases(folder) == {"own.db"}


def test_migrate_takes_the_store_from_the_configuration(folder: Path) -> None:
    (folder / "mainspring.toml").write_text('store = "redis://127.0.0.1:1/0"')
    assert "a Redis or Valkey store has no schema" in run(folder, "migrate").stdout


def test_a_configuration_before_the_command_counts_for_it_and_alone_it_serves(folder: Path) -> None:
    (folder / "more.yaml").write_text("store: sqlite:///other.db\nserver: {port: 0}\n")
    assert run(folder, "--config", "more.yaml", "run", "app1:ms", "--until-idle").returncode == 0
    assert databases(folder) == {"other.db"}
    lines = _lines_of(folder, "--config", "more.yaml")
    assert "other.db" in next(line for line in lines if line.startswith("Mainspring serves at "))
    lines.close()


def _lines_of(folder: Path, *words: str) -> Generator[str, None, None]:
    """Start a command, yield its lines of output, and stop it when the reader is done."""
    process = subprocess.Popen(
        [*COMMAND, *words],
        cwd=folder,
        env=_environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    killer = threading.Timer(50, process.kill)
    killer.start()
    try:
        for line in process.stdout:  # noqa: UP028 - `yield from` would close the pipe with the generator
            yield line
    finally:
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        process.wait(20)
        process.stdout.close()
        killer.cancel()


def test_run_reload_starts_the_program_anew_when_its_file_changes(folder: Path) -> None:
    lines = _lines_of(folder, "run", "app1:ms", "--reload")
    next(line for line in lines if "1 task, 1 schedule declared" in line)
    (folder / "app1.py").write_text(PROGRAM.replace("own.db", "second.db"))
    assert next((line for line in lines if "app1.py changed; starting anew" in line), None)
    assert next((line for line in lines if "second.db" in line), None)
    lines.close()
    assert databases(folder) == {"own.db", "second.db"}


def test_a_program_that_fails_to_import_shows_its_own_lines_only(folder: Path) -> None:
    (folder / "broken.py").write_text("import json\n\nraise RuntimeError('no settings')\n")
    done = run(folder, "run", "broken:ms")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == "error: the program 'broken' cannot be imported:"
    assert lines[-1] == "RuntimeError: no settings"
    assert "importlib" not in done.stderr
    assert len(lines) <= 5, done.stderr


def test_from_config_takes_configured_settings_before_the_programs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("MAINSPRING_")]:
        monkeypatch.delenv(name)
    own = Mainspring.from_config(url="sqlite:///own.db", concurrency=3)
    assert (own.url, own.settings.concurrency) == ("sqlite:///own.db", 3)
    (tmp_path / "mainspring.yaml").write_text(
        "store: sqlite:///other.db\nscheduler: {name: shop, namespace: team-a, lease_ttl: 60s, history: 3d}\n"
    )
    monkeypatch.setenv("MAINSPRING_SCHEDULER__WORKERS", "7")
    found = Mainspring.from_config(url="sqlite:///own.db", concurrency=3, poll_interval="2s")
    settings = found.settings
    assert (found.url, settings.app, settings.namespace) == ("sqlite:///other.db", "shop", "team-a")
    assert (settings.concurrency, settings.poll, settings.lease_ttl, settings.heartbeat) == (7, 2_000, 60_000, 20_000)
    assert settings.history == 3 * 86_400_000
    with pytest.raises(InvalidInput, match=r"none.toml: does not exist"):
        Mainspring.from_config("none.toml")


def test_a_configured_lease_must_fit_the_programs_heartbeat() -> None:
    ms = Mainspring("memory://", lease_ttl="30s", heartbeat="5s")
    sources = Sources(variables={"MAINSPRING_SCHEDULER__LEASE_TTL": "9s"}, folder=Path("/nonexistent"))
    with pytest.raises(InvalidInput, match=r"scheduler.lease_ttl: 9s is less than 3 of the program's heartbeats of 5s"):
        configure_program(ms, resolve(sources))
    assert ms.settings.lease_ttl == 30_000
