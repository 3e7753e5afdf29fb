"""The layers of the configuration: what is read, in which order, and how it is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mainspring.app.configuration import agent_settings
from mainspring.cli.main import mainspring
from mainspring.config.environment import read_dotenv
from mainspring.config.redaction import format_all
from mainspring.config.resolve import Resolved, Sources, resolve, select_live
from mainspring.config.schema import KEYS, get_value, variable_name
from mainspring.config.settings import ServeSettings
from mainspring.model.errors import InvalidInput

#: As source 000 writes it, §5.1.
SOURCE_000 = """
scheduler:
  name: "production-scheduler"
  workers: 10
  poll_interval_ms: 1000
  shutdown_timeout_secs: 30

broker:
  type: in_memory # in_memory | redis | sqs
  redis:
    url: "redis://localhost:6379"
    stream_name: "scheduler-events"

storage:
  type: json_file # in_memory | json_file | postgres
  json_file:
    path: "./data/tasks.json"
    auto_save_interval_secs: 60

retry:
  max_attempts: 3
  backoff_strategy: exponential
  initial_delay_ms: 1000
  max_delay_ms: 60000

logging:
  level: info
  format: json

metrics:
  enabled: true
  port: 9090
"""

Look = Callable[..., Resolved]


@pytest.fixture
def look(tmp_path: Path) -> Look:
    def resolved(content: str = "", name: str = "mainspring.yaml", **more: Any) -> Resolved:
        if content:
            (tmp_path / name).write_text(content)
        return resolve(Sources(folder=tmp_path, **more))

    return resolved


def test_without_any_source_the_defaults_apply(look: Look) -> None:
    found = look()
    assert found.settings == ServeSettings()
    assert set(found.origins.values()) == {"default"}
    settings = found.settings
    assert (settings.store, settings.server.host, settings.server.port) == (
        "sqlite:///mainspring.db",
        "127.0.0.1",
        3000,
    )


def test_every_key_has_a_place_in_the_settings() -> None:
    for key in KEYS:
        get_value(ServeSettings(), key)


def test_the_file_of_source_000_is_understood(look: Look) -> None:
    found = look(SOURCE_000)
    settings = found.settings
    assert (settings.scheduler.name, settings.scheduler.workers) == ("production-scheduler", 10)
    assert (settings.scheduler.poll_interval, settings.scheduler.shutdown_timeout) == (1_000, 30_000)
    assert settings.store == "sqlite:///data/tasks.db"
    assert (settings.retry.max_attempts, settings.retry.initial, settings.retry.max_delay) == (3, 1_000, 60_000)
    assert (settings.logging.level, settings.logging.format) == ("info", "json")
    assert (settings.metrics.enabled, settings.metrics.port) == (True, 9090)
    assert any("json_file is stored as SQLite" in note for note in found.notes)


def test_the_broker_of_source_000_is_understood(look: Look) -> None:
    found = look(SOURCE_000.replace("type: in_memory # in_memory | redis", "type: redis # in_memory | redis"))
    assert found.settings.broker == "redis://localhost:6379?stream=scheduler-events"
    assert look(SOURCE_000).settings.broker is None
    assert look("broker: {type: redis, redis: {url: 'valkey://h:1/2?prefix=a'}}").settings.broker == (
        "valkey://h:1/2?prefix=a"
    )


def test_a_brokers_password_is_not_shown(look: Look) -> None:
    found = look("broker: redis://u:secret@h:6379/0\n")
    assert format_all(found.settings)["broker"] == "redis://u:***@h:6379/0"


def test_the_variables_of_source_002_are_understood(look: Look) -> None:
    found = look(
        variables={
            "PORT": "3100",
            "NODE_ENV": "development",
            "POSTGRES_HOST": "localhost",
            "POSTGRES_PORT": "5433",
            "POSTGRES_DB": "scheduler",
            "POSTGRES_USER": "scheduler",
            "POSTGRES_PASSWORD": "p@ss/w",
            "REDIS_HOST": "localhost",
            "REDIS_PORT": "6379",
            "SCHEDULER_TICK_INTERVAL": "500",
            "LOCK_TTL": "20000",
            "MAX_RETRY_ATTEMPTS": "5",
            "RETRY_BACKOFF_BASE": "250",
        }
    )
    settings = found.settings
    assert settings.server.port == 3100
    assert settings.store == "postgresql://scheduler:p%40ss%2Fw@localhost:5433/scheduler"
    assert (settings.scheduler.poll_interval, settings.scheduler.lease_ttl) == (500, 20_000)
    assert (settings.retry.max_attempts, settings.retry.initial) == (5, 250)
    assert found.origins["server.port"] == "env PORT"
    assert any("REDIS_HOST" in note for note in found.notes)


def test_flag_over_env_over_dotenv_over_file_over_default(look: Look, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text('# ours\nexport PORT="3002"  # here\nMAINSPRING_SCHEDULER__WORKERS=7\n')
    file = "server:\n  port: 3001\n  host: 127.0.0.2\nscheduler: {workers: 3}\n"
    everything = {"variables": {"MAINSPRING_SERVER__PORT": "3003"}, "flags": {"server.port": 3004}}
    layers = [
        (look(), 3002, ".env PORT"),
        (look(file), 3002, ".env PORT"),
        (look(variables=everything["variables"]), 3003, "env MAINSPRING_SERVER__PORT"),
        (look(**everything), 3004, "flag --port"),
    ]
    for found, port, origin in layers:
        assert (found.settings.server.port, found.origins["server.port"]) == (port, origin)
    last = layers[-1][0]
    assert (last.settings.server.host, last.settings.scheduler.workers) == ("127.0.0.2", 7)
    assert last.origins["server.host"] == f"file {tmp_path / 'mainspring.yaml'}"
    assert last.origins["scheduler.name"] == "default"
    (tmp_path / ".env").unlink()
    assert look().settings.server.port == 3001


def test_node_env_production_means_json_lines_unless_a_source_gives_the_format(look: Look) -> None:
    production = look(variables={"NODE_ENV": "production"})
    assert (production.settings.logging.format, production.origins["logging.format"]) == ("json", "env NODE_ENV")
    assert look(variables={"NODE_ENV": "development"}).settings.logging.format == "text"
    assert look("logging: {format: text}\n", variables={"NODE_ENV": "production"}).settings.logging.format == "text"


@pytest.mark.parametrize(
    ("content", "private", "ports"),
    [
        ("", True, None),
        ("server: {host: '::1', public_url: 'http://localhost:3000'}", True, None),
        ("server: {require_key: true}", False, (80, 443)),
        ("server: {public_url: 'https://cron.example'}", False, (80, 443)),
        ("server: {host: 0.0.0.0}", False, (80, 443)),
        ("server: {host: 0.0.0.0}\nagents: {allow_private: true, allow_ports: any}", True, ()),
        ("agents: {allow_private: false, allow_ports: [8443]}", False, (8443,)),
    ],
)
def test_a_service_that_others_use_calls_public_web_ports_only(
    look: Look, content: str, private: bool, ports: tuple[int, ...] | None
) -> None:
    found = agent_settings(look(content).settings)
    assert (found.allow_private, found.allow_ports) == (private, ports)


def test_an_empty_list_of_ports_is_refused(look: Look) -> None:
    with pytest.raises(InvalidInput, match=r"agents.allow_ports: is empty\. List the ports, or write any"):
        look("agents: {allow_ports: []}\n")


def test_a_wrong_network_of_agents_is_refused_when_the_configuration_is_read(look: Look) -> None:
    with pytest.raises(InvalidInput, match=r"agents.allow_hosts\[0\]: '10.1.0.0/99' is not a network"):
        look("agents: {allow_hosts: [10.1.0.0/99]}\n")


def test_our_own_name_of_a_variable_wins_over_the_other(look: Look) -> None:
    both = {"PORT": "1", "MAINSPRING_SERVER__PORT": "2", "MAINSPRING_URL": "memory://", "POSTGRES_DB": "x"}
    found = look(variables=both)
    assert (found.settings.server.port, found.settings.store) == (2, "memory://")


@pytest.mark.parametrize("key", KEYS)
def test_every_key_can_be_given_by_a_variable_and_by_a_file(look: Look, key: str) -> None:
    texts = {
        "store": "memory://",
        "broker": "memory://shop",
        "role": "api",
        "app": "my.app:ms",
        "scheduler.name": "x",
        "scheduler.namespace": "x",
        "server.host": "127.0.0.9",
        "server.public_url": "https://x.example",
        "server.allow_hosts": "a.example,b.example",
        "server.trusted_proxies": "10.0.0.0/8",
        "agents.allow_hosts": "10.0.0.0/8",
        "agents.allow_ports": "80,443",
        "retry.backoff_strategy": "linear",
        "logging.level": "debug",
        "logging.format": "json",
        "scheduler.payload_limit": "1KiB",
        "scheduler.logs_limit": "2MiB",
        "agents.max_response": "128KiB",
        "agents.keep_response": "2KiB",
        "retry.jitter": "0.25",
        "limits.requests_per_second": "2.5",
        "retry.backoff_multiplier": "3",
        "limits.burst": "9",
        "scheduler.history": "9d",
    }
    default = get_value(ServeSettings(), key)
    text = texts.get(key) or ({True: "false", False: "true"}[default] if isinstance(default, bool) else "23s")
    if key in ("server.port", "scheduler.workers", "agents.concurrency", "agents.per_host", "metrics.port"):
        text = "77"
    if key in ("retry.max_attempts", "retry.initial_delay", "retry.max_delay"):
        text = "7" if key == "retry.max_attempts" else "17s"
    if key == "agents.allow_private":
        text = "true"
    more = {"MAINSPRING_LIMITS__REQUESTS_PER_SECOND": "1"} if key == "limits.burst" else {}
    by_variable = look(variables={variable_name(key): text, **more})
    assert get_value(by_variable.settings, key) != default
    section, _, name = key.rpartition(".")
    lines = f"{section}:\n  {name}: {text}\n" if section else f"{name}: {text}\n"
    by_file = look(lines + ("  requests_per_second: 1\n" if more else ""))
    assert get_value(by_file.settings, key) == get_value(by_variable.settings, key)


def test_texts_take_variables_and_defaults(look: Look) -> None:
    content = (
        "server:\n  host: ${HERE:-127.0.0.5}\n  allow_hosts: ['${NAME}.example']\nscheduler: {workers: '${N:-4}'}\n"
    )
    found = look(content, variables={"NAME": "a"}).settings
    assert (found.server.host, found.server.allow_hosts, found.scheduler.workers) == ("127.0.0.5", ("a.example",), 4)


def test_secrets_may_come_from_files(look: Look, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("postgresql://u:pw@h/d\n")
    found = look(variables={"MAINSPRING_STORE_FILE": str(tmp_path / "secret")})
    assert found.settings.store == "postgresql://u:pw@h/d"
    (tmp_path / "pw").write_text("s3cret\n")
    found = look(variables={"POSTGRES_HOST": "h", "POSTGRES_DB": "d", "POSTGRES_PASSWORD_FILE": str(tmp_path / "pw")})
    assert found.settings.store == "postgresql://postgres:s3cret@h:5432/d"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"PORT": "abc"}, "PORT: 'abc' is not a whole number"),
        ({"MAINSPRING_SERVER__PROT": "1"}, "Did you mean 'MAINSPRING_SERVER__PORT'?"),
        ({"POSTGRES_HOST": "h", "POSTGRES_PORT": "x"}, "POSTGRES_PORT"),
        ({"MAINSPRING_STORE_FILE": "/nowhere"}, "MAINSPRING_STORE_FILE: /nowhere cannot be read"),
        ({"LOCK_TTL": "5s"}, "LOCK_TTL: '5s' is not a whole number"),
        ({"MAINSPRING_CONFIG": "none.yaml"}, "none.yaml: does not exist"),
    ],
)
def test_a_wrong_variable_is_named(look: Look, variables: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        look(variables=variables)
    assert said in str(refused.value)


def test_a_dotenv_file_that_is_too_large_in_bytes_is_refused_and_not_cut(tmp_path: Path) -> None:
    """40,000 characters of two bytes each: more bytes than allowed, though fewer characters than that number."""
    (tmp_path / ".env").write_text("NAME=" + "é" * 40_000 + "\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match="is larger than 65536 bytes"):
        read_dotenv(tmp_path / ".env")


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("NAME= # text", ""),
        ("NAME=\t# text", ""),
        ("NAME=", ""),
        ("NAME = value  # text", "value"),
        ("NAME=#value", "#value"),
        ("NAME=a#b #c", "a#b"),
        ("NAME= 'a #b' # text", "a #b"),
        ('export NAME="# a"', "# a"),
    ],
)
def test_a_comment_in_dotenv_starts_behind_white_space_outside_quotes(tmp_path: Path, line: str, value: str) -> None:
    (tmp_path / ".env").write_text(f"{line}\n")
    assert read_dotenv(tmp_path / ".env") == {"NAME": value}


@pytest.mark.parametrize("line", ["PORT", "1PORT=3", "PORT='3", 'PORT="3" 4'])
def test_a_wrong_line_of_dotenv_is_named(look: Look, tmp_path: Path, line: str) -> None:
    (tmp_path / ".env").write_text(f"A=1\n{line}\n")
    with pytest.raises(InvalidInput, match=r"\.env: line 2"):
        look()


def test_show_says_where_each_value_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mainspring.toml").write_text(
        'store = "postgresql://me:canary@db.example/app"\n[server]\nport = 3005\n'
    )
    monkeypatch.setenv("LOCK_TTL", "45000")
    format_value = CliRunner().invoke(mainspring, ["config", "show", "--origin"])
    assert format_value.exit_code == 0, format_value.output
    rows = {line.split()[0]: line.split(None, 2)[1:] for line in format_value.output.splitlines()}
    assert rows["server.port"] == ["3005", "file mainspring.toml"]
    assert rows["scheduler.lease_ttl"] == ["45s", "env LOCK_TTL"]
    assert rows["role"] == ["all", "default"]
    assert rows["store"][0] == "postgresql://me:***@db.example/app"
    assert "canary" not in format_value.output
    as_json = CliRunner().invoke(mainspring, ["config", "show", "--origin", "--json"])
    assert json.loads(as_json.output)["server.port"] == {"value": "3005", "origin": "file mainspring.toml"}
    assert set(rows) == set(KEYS)


def test_a_running_service_adopts_live_keys_and_names_the_others(look: Look) -> None:
    old = look("server: {port: 1}\nlimits: {min_interval: 5s}\n").settings
    new = look("server: {port: 2}\nlimits: {min_interval: 7s}\nagents: {per_host: 3}\n").settings
    settings, live, later = select_live(old, new)
    assert (settings.server.port, settings.limits.min_interval, settings.agents.per_host) == (1, 7_000, 3)
    assert (live, later) == (["agents.per_host", "limits.min_interval"], ["server.port"])
