"""Bad configuration files: each gives one line that names the file, the key and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from mainspring.cli.main import mainspring

#: Name of the file, content, what the line must say: where, and what to do.
BAD: list[tuple[str, str | bytes, str, str]] = [
    ("a.yaml", "server:\n  prot: 3000\n", "server.prot: there is no such key", "Did you mean 'server.port'?"),
    ("a.yaml", "sever:\n  port: 3000\n", "sever: there is no such key", "Did you mean 'server'?"),
    ("a.yaml", "port: 3000\n", "port: there is no such key", "Write it as server.port"),
    ("a.yaml", "workers: 3\n", "workers: there is no such key", "Write it as scheduler.workers"),
    ("a.yaml", "scheduler:\n  worker: 3\n", "scheduler.worker: there is no such key", "'scheduler.workers'"),
    ("a.yaml", "zzz: 1\n", "zzz: there is no such key", "The sections are"),
    ("a.yaml", "agents:\n  zzz: 1\n", "agents.zzz: there is no such key", "agents has allow_hosts"),
    ("a.yaml", "server:\n  port: 99999\n", "server.port: 99999 is out of range", "from 0 to 65535"),
    ("a.yaml", "server:\n  port: http\n", "server.port: 'http' is not a whole number", "from 0 to 65535"),
    ("a.yaml", "server:\n  port: 3000.5\n", "server.port: 3000.5 is not a whole number", "whole number"),
    ("a.yaml", "server:\n  port: true\n", "server.port: True is not a whole number", "whole number"),
    ("a.yaml", "server:\n  port: [1, 2]\n", "server.port: [1, 2] is not a whole number", "whole number"),
    ("a.yaml", "server: 3000\n", "server: is a section", "Write the keys of server under it"),
    ("a.yaml", "server:\n  host: on\n", "server.host: True is not a text", "between quotes"),
    ("a.yaml", "server:\n  host: http://x\n", "server.host: 'http://x' is not an address", "Write 127.0.0.1"),
    ("a.yaml", "server:\n  public_url: example.com\n", "server.public_url", "https://scheduler.example.com"),
    ("a.yaml", "server:\n  insecure_no_auth: maybe\n", "server.insecure_no_auth: 'maybe' is neither", "true or false"),
    ("a.yaml", "role: leader\n", "role: 'leader' is not one of all, api, planner, worker", ""),
    ("a.yaml", "role: workr\n", "role: 'workr' is not one of", "Did you mean 'worker'?"),
    ("a.yaml", "store: postgre://x/y\n", "store: 'postgre://' is not the scheme of a store", "Did you mean 'postgres"),
    ("a.yaml", "store: sqlite://data.db\n", "store: 'sqlite://data.db' has no third slash", "sqlite:///"),
    ("a.yaml", "store:\n  ulr: memory://\n", "store.ulr: there is no such key", "'store.url'"),
    ("a.yaml", "server:\n  port: 1\n   host: x\n", "line 3", "Write `key: value`"),
    ("a.yaml", "app: 'app py'\n", "app: 'app py' names no program", "MODULE:APP"),
    ("a.yaml", "retry:\n  max_attempts: 0\n", "retry.max_attempts: 0 is out of range", "from 1"),
    ("a.yaml", "retry:\n  backoff_strategy: exponental\n", "retry.backoff_strategy", "Did you mean 'exponential'?"),
    (
        "a.yaml",
        "retry:\n  initial_delay_ms: 5s\n",
        "retry.initial_delay_ms: '5s' is not a whole number",
        "milliseconds",
    ),
    (
        "a.yaml",
        "retry:\n  initial_delay_ms: 5000\n  max_delay: 1s\n",
        "retry.initial_delay: the first delay",
        "max_delay",
    ),
    (
        "a.yaml",
        "retry:\n  initial_delay: 1s\n  initial_delay_ms: 5\n",
        "retry.initial_delay_ms: means the same",
        "Remove",
    ),
    ("a.yaml", "scheduler:\n  poll_interval: fast\n", "scheduler.poll_interval: 'fast' is not a duration", "30s"),
    ("a.yaml", "scheduler:\n  poll_interval: -1s\n", "scheduler.poll_interval: '-1s' is negative", "must not"),
    ("a.yaml", "scheduler:\n  lease_ttl: 100ms\n", "scheduler.lease_ttl: 100ms is out of range", "Use 300ms"),
    ("a.yaml", "scheduler:\n  payload_limit: 2MiB\n", "scheduler.payload_limit: 2097152 bytes", "64KiB"),
    ("a.yaml", "storage:\n  type: mongo\n", "storage.type: 'mongo' is not one of", "postgres"),
    ("a.yaml", "storage:\n  json_file: {path: x}\n", "storage.type: is missing", "sqlite"),
    ("a.yaml", "storage:\n  type: postgres\n", "storage.postgres.url: is missing", "postgresql://"),
    ("a.yaml", "store: memory://\nstorage:\n  type: in_memory\n", "storage.type: names a store", "Remove one"),
    ("a.yaml", "broker:\n  type: sqs\n", "broker.type: this version has no sqs broker", "redis or in_memory"),
    ("a.yaml", "broker:\n  type: redis\n", "broker.redis.url: is missing", "redis://"),
    ("a.yaml", "broker:\n  type: rabbit\n", "broker.type: 'rabbit' is not one of", "redis"),
    ("a.yaml", "broker: rabbit://x\n", "broker: 'rabbit://' is not the scheme of a broker", "memory, redis"),
    ("a.yaml", "broker: redis://h:x/0\n", "broker: 'h:x' is no host and port", "redis://user:password@host:6379/0"),
    ("a.yaml", "agents:\n  allow_ports: [80, x]\n", "agents.allow_ports[1]: 'x' is not a whole number", "65535"),
    (
        "a.yaml",
        "agents:\n  keep_response: 64KiB\n  max_response: 1KiB\n",
        "agents.keep_response: more bytes are kept",
        "max_response",
    ),
    (
        "a.yaml",
        "limits:\n  burst: 5\n  requests_per_second: null\n",
        "limits.burst: needs limits.requests_per_second",
        "both",
    ),
    (
        "a.yaml",
        "server:\n  trusted_proxies: [proxy]\n",
        "server.trusted_proxies[0]: 'proxy' is not an address",
        "10.0.0.0/8",
    ),
    ("a.yaml", "limits:\n  min_interval: soon\n", "limits.min_interval: 'soon' is not a duration", "30s"),
    ("a.yaml", "logging:\n  level: chatty\n", "logging.level: 'chatty' is not one of debug", ""),
    ("a.yaml", "server:\n\tport: 1\n", "line 2", "spaces"),
    ("a.yaml", "server:\n  port: 1\n  port: 2\n", "line 3: 'port' is given twice", "Remove one"),
    ("a.yaml", "a: &x 1\nserver: {port: *x}\n", "line 2: uses a reference", "Write the value itself"),
    ("a.yaml", "app: !!python/object:os.system {}\n", "line 1: is not YAML", "key: value"),
    ("a.yaml", "- one\n- two\n", "holds no keys", "server"),
    ("a.yaml", "server:\n  host: ${NO_SUCH_THING}\n", "server.host: ${NO_SUCH_THING} is not set", "a default"),
    ("a.yaml", "server:\n  host: ${OPEN\n", "server.host", "${NAME}"),
    ("a.yaml", b"server:\n  host: caf\xe9\n", "line 2: is not UTF-8", "Save the file as UTF-8"),
    ("a.yaml", "3: x\n", "3: is not a text", "word"),
    ("a.yaml", "x: 2026-99-99\n", "is not YAML", "quotes"),
    ("a.yaml", "server: {host: \x01}\n", "is not YAML: special characters are not allowed", "key: value"),
    ("a.yaml", "x: " + "[" * 5_000 + "\n", "is not YAML", "quotes"),
    ("a.yaml", "x: " + "9" * 5_000 + "\n", "is not YAML", "quotes"),
    ("a.toml", "[server]\nport = " + "9" * 5_000 + "\n", "is not TOML", "between quotes"),
    ("a.toml", "x = " + "[" * 5_000 + "\n", "is not TOML", "nest less"),
    ("a.toml", "[server]\nport = \n", "line 2: is not TOML", "quotes"),
    ("a.toml", "[server]\nprot = 1\n", "server.prot: there is no such key", "'server.port'"),
    ("a.toml", "server.host = 1\n", "server.host: 1 is not a text", "quotes"),
    ("a.ini", "[server]\nport=1\n", ".ini is not a known format", ".yaml, .yml or .toml"),
]


@pytest.mark.parametrize(
    ("name", "content", "what", "fix"), BAD, ids=[f"{n}-{what[:40]}" for n, (_, _, what, _) in enumerate(BAD)]
)
def test_a_bad_file_is_one_line_that_names_the_key_and_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str | bytes, what: str, fix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    done = CliRunner().invoke(mainspring, ["config", "check", str(path)])
    assert done.exit_code == 2, done.output
    lines = done.output.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"error: {path}: "), lines[0]
    assert what in lines[0], lines[0]
    assert fix in lines[0], lines[0]


def test_there_are_forty_bad_files() -> None:
    assert len(BAD) >= 40


@pytest.mark.parametrize("kind", ["missing", "directory", "unreadable", "large"])
def test_an_unreadable_file_is_reported(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.yaml"
    if kind == "directory":
        path.mkdir()
    elif kind == "large":
        path.write_text("#" * 2_000_000)
    elif kind == "unreadable":
        path.symlink_to(path)
    done = CliRunner().invoke(mainspring, ["config", "check", str(path)])
    said = {
        "missing": "does not exist",
        "directory": "is a directory",
        "unreadable": "cannot be read",
        "large": "is larger than",
    }
    assert (done.exit_code, len(done.output.splitlines())) == (2, 1)
    assert f"{path}: {said[kind]}" in done.output


def test_a_device_without_an_end_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.symlink_to("/dev/zero")
    done = CliRunner().invoke(mainspring, ["config", "check", str(path)])
    assert (done.exit_code, len(done.output.splitlines())) == (2, 1)
    assert f"{path}: is larger than" in done.output


def test_two_files_in_one_place_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mainspring.yaml").touch()
    (tmp_path / "mainspring.toml").touch()
    done = CliRunner().invoke(mainspring, ["config", "check"])
    assert done.exit_code == 2
    assert "there are mainspring.yaml and mainspring.toml" in done.output
