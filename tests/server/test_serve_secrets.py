"""Secret canaries given to a real service: none of them is in a log, an answer, an event, a command or an error."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from mainspring.cli.main import mainspring
from tests.server.serving_support import bearer, cli, make_key, serving, wait_for

CANARY = "canary-9f31c7"


class Telltale(BaseHTTPRequestHandler):
    """An agent that fails and repeats everything that it was told."""

    protocol_version = "HTTP/1.1"
    seen: list[str]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append(self.headers["X-Api-Key"])
        body = json.dumps(dict(self.headers)).encode()
        self.send_response(500 if len(self.seen) == 1 else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def agent() -> Iterator[str]:
    Telltale.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Telltale)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_no_secret_appears_in_any_output(tmp_path: Path, agent: str) -> None:
    key = make_key(tmp_path)
    secret = key.split("_", 2)[2]
    said: dict[str, str] = {}
    with serving(tmp_path, "--log-level", "debug") as one:
        streamed: list[str] = []

        def follow() -> None:
            with httpx.stream("GET", f"{one.url}/api/events/stream", headers=bearer(key), timeout=60) as response:
                streamed.extend(response.iter_lines())

        stream = threading.Thread(target=follow)
        stream.start()
        wait_for(lambda: ": open" in streamed, "the stream")
        body = {
            "name": "telltale",
            "cronExpression": "0 0 1 1 *",
            "agentId": "a",
            "agentUrl": agent,
            "headers": {"Authorization": f"Bearer {CANARY}-1", "X-Api-Key": f"{CANARY}-2"},
            "retryPolicy": {"maxAttempts": 2, "initialDelayMs": 1},
        }
        with httpx.Client(base_url=one.url, headers=bearer(key), timeout=60) as client:
            made = client.post("/api/schedules", json=body)
            assert made.status_code == 201, made.text
            run = client.post(f"/api/schedules/{made.json()['id']}/trigger", json={}).json()
            wait_for(lambda: client.get(f"/api/executions/{run['id']}").json()["status"] == "success", "success")
            said["create"] = made.text
            for path in (
                "/api/schedules",
                "/api/schedules/telltale",
                "/api/executions",
                f"/api/executions/{run['id']}",
                "/",
            ):
                said[path] = client.get(path).text
            for headers in ({"X-A": f"{CANARY}\r\nX-B: y"}, {"X-A": [CANARY]}, {"webhook-id": CANARY}):
                wrong = client.post("/api/schedules", json=body | {"name": "wrong", "headers": headers})
                assert wrong.status_code == 422, wrong.text
                said[f"refused {list(headers)}"] = wrong.text
            said["update"] = client.put("/api/schedules/telltale", json={"headers": {"X-Api-Key": f"{CANARY}-3"}}).text
            client.get(f"/api/schedules?token={CANARY}")
        assert Telltale.seen == [f"{CANARY}-2"] * 2
        assert one.stop()[0] == 0
        stream.join(30)
        said["log"], said["stream"] = one.text, "\n".join(streamed)
    assert "RunRetrying" in said["stream"]
    for words in (
        ["events", "list"],
        ["ledger", "--json"],
        ["workers"],
        ["key", "list"],
        ["config", "show", "--origin"],
    ):
        done = cli(tmp_path, *words)
        assert done.returncode == 0, done.stderr
        said[" ".join(words)] = done.stdout + done.stderr
    copied = cli(tmp_path, "copy", "sqlite:///mainspring.db", "sqlite:///copy.db")
    assert copied.returncode == 0, copied.stdout + copied.stderr
    said["copy"] = copied.stdout + copied.stderr
    for name in ("mainspring.db", "copy.db"):
        with contextlib.closing(sqlite3.connect(tmp_path / name)) as connection:
            kept = connection.execute("SELECT count(*) FROM kept WHERE instr(data, ?)", (CANARY,)).fetchone()
            dump = [line for line in connection.iterdump() if not line.startswith('INSERT INTO "kept"')]
        assert kept[0] >= 1  # the only place
        said[name] = "\n".join(dump)
    for where, text in said.items():
        assert CANARY not in text, where
        assert secret not in text, where


def test_the_password_of_a_store_is_not_in_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"postgresql://me:{CANARY}@127.0.0.1:9/x?wait=0s"
    for words in (["serve", "--port", "0"], ["key", "list"], ["serve", "--port", "0", "--host", "0.0.0.0"]):
        done = CliRunner().invoke(mainspring, [*words, "--store", url])
        assert done.exit_code == 1, done.output
        assert CANARY not in done.output
    assert CANARY not in CliRunner().invoke(mainspring, ["config", "show"], env={"MAINSPRING_URL": url}).output
