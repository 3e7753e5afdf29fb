"""`mainspring serve` as a process: start, roles, what is wrong at the start, stop under load."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from mainspring.cli.main import mainspring
from tests.server.serving_support import Served, bearer, cli, make_key, serving, wait_for

PROGRAM = """
import asyncio, time
from mainspring import Mainspring
ms = Mainspring("sqlite:///own.db")

@ms.task
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"

@ms.every("1s")
async def tick() -> None:
    with open("ticks", "a") as file:
        file.write(f"{time.time()}\\n")
"""


def test_it_serves_on_sqlite_and_prints_its_address_and_a_next_command(tmp_path: Path) -> None:
    with serving(tmp_path) as one:
        assert one.url.startswith("http://127.0.0.1:")
        assert f"Next: curl {one.url}/api/schedules" in one.line("^Next: ").string
        assert (tmp_path / "mainspring.db").exists()
        assert one.get("/api/health").json()["status"] == "healthy"
        page = one.get("/")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "'unsafe-inline'" not in page.headers["content-security-policy"]
        code, seconds = one.stop()
        assert code == 0, one.text
        assert seconds < 25
        assert "stopped cleanly" in one.text
        assert "Traceback" not in one.text


def test_the_next_command_that_it_prints_works(tmp_path: Path) -> None:
    import shlex

    with serving(tmp_path) as one:
        words = shlex.split(one.line("^Next: ").string.removeprefix("Next: "))
        assert words[0] == "curl"
        made = one.post("/api/schedules", content=words[-1], headers={"Content-Type": "application/json"})
        assert made.status_code == 201, made.text
        assert [row["name"] for row in one.get("/api/schedules").json()] == ["first"]


def test_the_first_schedule_succeeds_and_its_response_is_what_the_echo_agent_received(tmp_path: Path) -> None:
    import shlex

    with serving(tmp_path) as one:
        words = shlex.split(one.line("^Next: ").string.removeprefix("Next: "))
        made = one.post("/api/schedules", content=words[-1], headers={"Content-Type": "application/json"}).json()
        run = one.post("/api/schedules/first/trigger").json()
        ended = wait_for(lambda: _ended(one.get(f"/api/executions/{run['id']}").json()), "the end of the run")
        assert ended["status"] == "success", ended
        answer = json.loads(ended["response"]["body"])
        assert answer["echo"] == {"say": "hello"}
        assert (answer["scheduleId"], answer["attempt"]) == (made["id"], "1")


def _ended(run: dict[str, Any]) -> dict[str, Any] | None:
    return run if run["status"] in ("success", "failed") else None


def test_a_service_behind_a_proxy_does_not_let_its_callers_reach_this_machine(tmp_path: Path) -> None:
    """The deployment of docs/serving.md: bound to loopback, a key is needed, the proxy forwards strangers."""
    (tmp_path / "mainspring.yaml").write_text("server: {require_key: true, public_url: 'https://cron.example'}\n")
    key = make_key(tmp_path)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    with serving(tmp_path, port=str(port)):
        url = f"http://127.0.0.1:{port}/api/schedules"
        body = {"name": "spy", "intervalMs": "1h", "agentUrl": "http://127.0.0.1/admin"}
        proxied = {"Host": "cron.example", "X-Forwarded-For": "203.0.113.9", **bearer(key)}
        refused = httpx.post(url, json=body, headers=proxied)
        assert refused.status_code == 422, refused.text
        assert "is a loopback or private address" in refused.text
        body["agentUrl"] = "http://example.com:22/"
        refused = httpx.post(url, json=body, headers=proxied)
        assert (refused.status_code, "port 22 is not allowed" in refused.text) == (422, True), refused.text


def test_the_next_command_of_a_service_that_may_not_call_itself_only_lists(tmp_path: Path) -> None:
    with serving(tmp_path, env={"MAINSPRING_AGENTS__ALLOW_PRIVATE": "false"}) as one:
        assert one.line("^Next: ").string.strip() == f"Next: curl {one.url}/api/schedules"


WRONG = [
    (("--store", "sqlite:////no/such/place/x.db"), "directory /no/such/place does not exist. Create it: mkdir -p", 1),
    (("--store", "postgresql://u@127.0.0.1:9/x?wait=0s"), "127.0.0.1:9", 1),
    (("--store", "mongodb://x"), "--store: ", 2),
    (("--config", "none.yaml"), "none.yaml: does not exist", 2),
    (("--port", "99999"), "--port: 99999 is out of range", 2),
    (("--host", "no.such.host.invalid"), "has no address", 2),
    (("--host", "192.0.2.1"), "is no address of this machine", 1),
    (("--app", "no_such_module:ms"), "no_such_module", 2),
    (("--role", "leader"), "'leader' is not one of", 2),
]


@pytest.mark.parametrize(("args", "said", "code"), WRONG, ids=[args[1] for args, _, _ in WRONG])
def test_an_error_at_the_start_is_one_line_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], said: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(mainspring, ["serve", *(() if "--port" in args else ("--port", "0")), *args])
    assert done.exit_code == code, done.output
    assert said in done.output
    errors = [line for line in done.output.splitlines() if line.lower().startswith("error")]
    assert len(errors) == 1, done.output
    assert "Traceback" not in done.output


def test_a_port_in_use_is_reported_with_another_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        one = Served(tmp_path, "--port", str(port))
        assert one.end() == 1
        one.kill()
    expected = (
        f"error: port {port} of 127.0.0.1 is in use. Stop the program that uses it, or give another: --port {port + 1}"
    )
    assert one.lines == [expected]
    assert not (tmp_path / "mainspring.db").exists()


def test_a_python_program_runs_behind_the_api(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with serving(tmp_path, "--app", "program:ms") as one:
        wait_for(lambda: (tmp_path / "ticks").exists(), "a tick of the program's own schedule")
        assert "tick" in [row["name"] for row in one.get("/api/schedules").json()]
        assert (tmp_path / "own.db").exists()
        assert not (tmp_path / "mainspring.db").exists()


def test_roles_share_one_store(tmp_path: Path) -> None:
    """A planner plans and does not work, a worker works and does not plan, the API does neither."""
    (tmp_path / "program.py").write_text(PROGRAM)
    with serving(tmp_path, "--app", "program:ms", "--role", "planner") as planner:
        wait_for(lambda: _runs(tmp_path) >= 2 and _states(tmp_path) <= {"waiting", "skipped"}, "runs that wait")
        assert not (tmp_path / "ticks").exists()
        assert planner.get("/api/schedules").status_code == 404
        assert set(planner.get("/ready").json()["components"]) == {"store", "planner", "api"}
        with serving(tmp_path, "--store", "sqlite:///own.db", "--role", "api") as api:
            assert set(api.get("/ready").json()["components"]) == {"store", "api"}
            assert api.get("/ready").status_code == 200
            assert [row["name"] for row in api.get("/api/schedules").json()] == ["tick"]
            with serving(tmp_path, "--app", "program:ms", "--role", "worker") as worker:
                wait_for(lambda: (tmp_path / "ticks").exists(), "work done")
                assert set(worker.get("/ready").json()["components"]) == {"store", "worker", "api"}
                roles = {
                    row["role"]
                    for row in json.loads(cli(tmp_path, "workers", "--json", "--store", "sqlite:///own.db").stdout)
                }
                assert roles == {"planner", "worker"}
                before = _runs(tmp_path)
                assert planner.stop()[0] == 0
                after = _runs(tmp_path)
                assert before <= after
                wait_for(
                    lambda: "running" not in _states(tmp_path) and "waiting" not in _states(tmp_path), "an empty queue"
                )
                assert _runs(tmp_path) == after  # no instance plans any more


def _rows(folder: Path, sql: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(f"file:{folder / 'own.db'}?mode=ro", uri=True, timeout=10)
    try:
        return connection.execute(sql).fetchall()
    except sqlite3.OperationalError:
        return []
    finally:
        connection.close()


def _runs(folder: Path) -> int:
    found = _rows(folder, "SELECT count(*) FROM run")
    return int(str(found[0][0])) if found else 0


def _states(folder: Path) -> set[str]:
    return {str(row[0]) for row in _rows(folder, "SELECT DISTINCT state FROM run")}


def test_stopping_under_load_is_in_order_and_in_time(tmp_path: Path) -> None:
    """Requests, an event stream and long handlers under way: exit code 0 within 25 s, every request answered."""
    (tmp_path / "program.py").write_text(PROGRAM)
    with serving(tmp_path, "--app", "program:ms", env={"MAINSPRING_SCHEDULER__SHUTDOWN_TIMEOUT": "2s"}) as one:
        naps = {"task": "nap", "at": "2999-01-01T00:00:00Z", "payload": {"seconds": 60}}
        for number in range(5):
            made = one.post("/api/schedules", json={"name": f"nap {number}", **naps})
            assert made.status_code == 201, made.text
            assert one.post(f"/api/schedules/{made.json()['id']}/trigger", json={}).status_code == 201
        wait_for(lambda: _rows(tmp_path, "SELECT 1 FROM run WHERE state = 'running' AND task = 'nap'"), "a nap")
        answers: list[int] = []
        streamed: list[str] = []
        stop = threading.Event()

        def ask() -> None:
            with httpx.Client(base_url=one.url, timeout=30) as client:
                while not stop.is_set():
                    try:
                        answers.append(client.get("/api/schedules").status_code)
                    except httpx.ConnectError:
                        return  # it listens no more
                    except httpx.TransportError as error:
                        if not isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
                            raise
                        return  # a kept connection was closed between two requests

        def follow() -> None:
            with httpx.stream("GET", f"{one.url}/api/events/stream", timeout=30) as response:
                for line in response.iter_lines():
                    streamed.append(line)

        threads = [threading.Thread(target=ask) for _ in range(4)] + [threading.Thread(target=follow)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(answers) > 50 and streamed, "traffic")
        code, seconds = one.stop()
        stop.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert code == 0, one.text
        assert seconds < 25
        assert set(answers) == {200}
        assert "Traceback" not in one.text, one.text
    left = _rows(tmp_path, "SELECT DISTINCT state FROM run WHERE task = 'nap'")
    assert left == [("waiting",)]  # handed back, so the next instance goes on at once


def test_the_second_signal_stops_at_once(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with serving(tmp_path, "--app", "program:ms") as one:
        made = one.post(
            "/api/schedules",
            json={"name": "nap", "task": "nap", "at": "2999-01-01T00:00:00Z", "payload": {"seconds": 90}},
        )
        assert one.post(f"/api/schedules/{made.json()['id']}/trigger", json={}).status_code == 201
        wait_for(lambda: _rows(tmp_path, "SELECT 1 FROM run WHERE state = 'running' AND task = 'nap'"), "a nap")
        one.process.send_signal(signal.SIGTERM)
        wait_for(lambda: one.process.poll() is not None or not _listens(one.url), "no more listening")
        code, seconds = one.stop(signal.SIGINT)
        assert code == 0, one.text
        assert seconds < 15


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("scheme", ["postgresql", "redis"])
def test_a_signal_ends_the_wait_for_a_server_that_does_not_answer(
    tmp_path: Path, scheme: str, number: signal.Signals
) -> None:
    """Before, the service waited for the server for the rest of its 30 s."""
    one = Served(tmp_path, "--store", f"{scheme}://127.0.0.1:1/0", "--port", "0")
    try:
        one.line("does not answer.*next try in")
        code, seconds = one.stop(number)
    finally:
        one.kill()
    assert code == 0, one.text
    assert seconds < 5
    assert "stopped before the start was complete" in one.text
    assert "Traceback" not in one.text


def _listens(url: str) -> bool:
    try:
        httpx.get(f"{url}/health", timeout=5)
    except httpx.TransportError:
        return False
    return True


def test_systemd_is_notified(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(30)
        with serving(tmp_path, env={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as one:
            assert heard.recv(100) == b"READY=1"
            assert one.get("/ready").status_code == 200
            one.stop()
            assert heard.recv(100) == b"STOPPING=1"


def test_log_lines_are_json_if_configured(tmp_path: Path) -> None:
    with serving(tmp_path, env={"MAINSPRING_LOGGING__FORMAT": "json"}) as one:
        assert one.get("/api/schedules?secret=canary").status_code in (200, 422)
        line = json.loads(one.line('"mainspring.access"').string)
        assert (line["level"], line["logger"]) == ("info", "mainspring.access")
        assert "GET /api/schedules " in line["message"]
        assert "canary" not in one.text
        assert json.loads(one.line("Mainspring serves at").string)["level"] == "info"
        assert json.loads(one.line("Next: ").string)["logger"] == "mainspring"


def test_the_access_log_can_be_turned_off_and_holds_no_forged_lines(tmp_path: Path) -> None:
    key = make_key(tmp_path)
    with serving(tmp_path) as one:
        one.get("/api/x%0aFORGED%20line", headers=bearer(key))
        hit = one.line(r"mainspring\.access: 127\.0\.0\.1 ci GET (\S+) 404 ")
        assert hit[1] == "/api/x%0aFORGED%20line"
        assert not any(line.startswith("FORGED") for line in one.lines)
        assert key not in one.text
        assert key.split("_", 2)[2] not in one.text
    with serving(tmp_path, env={"MAINSPRING_SERVER__ACCESS_LOG": "false"}) as one:
        assert one.get("/api/schedules").status_code == 200
        one.stop()
        assert "mainspring.access" not in one.text
