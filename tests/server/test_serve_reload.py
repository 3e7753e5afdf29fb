"""A service that is reloaded again and again under load loses nothing."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests.server.serving_support import cli, serving, wait_for

RELOADS = int(os.environ.get("MAINSPRING_RELOADS", "50"))


class Agent(BaseHTTPRequestHandler):
    """Notes the key of every call."""

    protocol_version = "HTTP/1.1"
    calls: list[str]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.calls.append(self.headers["Idempotency-Key"])
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def agent() -> object:
    Agent.calls = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Agent)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", Agent.calls
    server.shutdown()
    thread.join()
    server.server_close()


def test_fifty_hot_reloads_under_load_lose_nothing(tmp_path: Path, agent: tuple[str, list[str]]) -> None:
    """By file and by SIGHUP, good and bad ones, while schedules fire and the API is asked without pause."""
    url, calls = agent
    path = tmp_path / "mainspring.yaml"
    path.write_text("agents: {per_host: 10}\n")
    with serving(tmp_path, env={"MAINSPRING_LIMITS__REQUESTS_PER_SECOND": "100000"}) as one:
        for number in range(5):
            body = {"name": f"s{number}", "intervalMs": 1000, "agentId": "a", "agentUrl": url}
            made = one.post("/api/schedules", json=body)
            assert made.status_code == 201, made.text
        answers: list[int] = []
        triggered: list[str] = []
        stop = threading.Event()

        def ask() -> None:
            with httpx.Client(base_url=one.url, timeout=30) as client:
                while not stop.is_set():
                    made = client.post("/api/schedules/s0/trigger", json={})
                    answers.append(made.status_code)
                    if made.status_code == 201:
                        triggered.append(made.json()["id"])

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            for number in range(RELOADS):
                bad = number % 10 == 9
                path.write_text("agents: {per_hots: 1}\n" if bad else f"agents: {{per_host: {number + 11}}}\n")
                if number % 3 == 0:
                    one.process.send_signal(signal.SIGHUP)
                said = "configuration refused, the old one stays" if bad else f"agents.per_host: .* {number + 11}$"
                count = number // 10 + 1 if bad else 1
                wait_for(lambda said=said, count=count: len(_hits(one.lines, said)) >= count, f"reload {number}")
        finally:
            stop.set()
            asking.join(30)
        assert set(answers) == {201}
        assert len(triggered) >= 20
        wait_for(lambda: set(triggered) <= set(calls), "every triggered call")
        assert one.stop()[0] == 0
        assert "Traceback" not in one.text, one.text
    refused = cli(tmp_path, "ledger")  # the file still has the last wrong content
    assert (refused.returncode, "mainspring.yaml: agents.per_hots" in refused.stderr) == (2, True), refused
    where = ("--store", "sqlite:///mainspring.db")
    book = json.loads(cli(tmp_path, "ledger", "--json", *where).stdout)
    assert book["unexplained"] == 0, book
    assert cli(tmp_path, "events", "verify", *where).returncode == 0
    assert len(calls) == len(set(calls))  # nothing failed, so nothing was called twice


def _hits(lines: list[str], pattern: str) -> list[str]:
    return [line for line in list(lines) if re.search(pattern, line)]


async def test_a_slow_client_is_cut_off(tmp_path: Path) -> None:
    """S27: half a head, half a body, a head without end: closed within the time, and others are served meanwhile."""

    async def talk(port: int, *parts: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
            async with asyncio.timeout(30):
                return await reader.read()
        except ConnectionError:
            return b"closed"
        finally:
            writer.close()

    with serving(tmp_path, env={"MAINSPRING_SERVER__REQUEST_TIMEOUT": "1s"}) as one:
        port = int(one.url.rpartition(":")[2])
        head = b"POST /api/schedules HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        slow = await asyncio.gather(
            talk(port),
            talk(port, b"GET / HT"),
            talk(port, head),
            talk(port, head + b"Content-Length: 100\r\n\r\n{"),
            talk(port, b"GET / HTTP/1.1\r\n", *(b"X-%d: y\r\n" % n for n in range(200)), b"Host: 127.0.0.1\r\n\r\n"),
            talk(port, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", *([b"y" * 8_192] * 20)),
            talk(port, b"GET /" + b"y" * 40_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
            asyncio.to_thread(lambda: one.get("/health").content),
        )
        assert slow[:3] == [b"", b"", b""]
        assert not slow[3].startswith(b"HTTP/1.1 2")
        for answer in slow[4:7]:
            assert answer == b"closed" or answer.startswith(b"HTTP/1.1 400 "), answer[:100]
        assert b"healthy" in slow[7]
        assert one.get("/api/schedules").status_code == 200
        assert "Traceback" not in one.text, one.text


async def test_a_client_that_does_not_read_its_answer_is_cut_off_and_a_slow_reader_is_not(tmp_path: Path) -> None:
    """The server holds an answer only as long as its client reads some of it within the request time-out."""
    with serving(tmp_path, env={"MAINSPRING_SERVER__REQUEST_TIMEOUT": "1s"}) as one:
        body = {"intervalMs": "1h", "agentUrl": "http://127.0.0.1:9/", "payload": "x" * 60_000}
        for number in range(70):
            assert one.post("/api/schedules", json={"name": f"s{number}", **body}).status_code == 201
        port = int(one.url.rpartition(":")[2])
        idle, slow = (socket.socket() for _ in range(2))
        with idle, slow:
            for client in (idle, slow):
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                client.connect(("127.0.0.1", port))
                client.settimeout(20)
                client.sendall(b"GET /api/schedules?limit=500 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            received = 0

            def read_slowly() -> bool:
                nonlocal received
                received += len(slow.recv(8_192))
                return not _is_served(port, idle)

            wait_for(read_slowly, "the end of the connection that is not read")
            while received < 3_000_000:
                part = slow.recv(65_536)
                assert part, received
                received += len(part)
        assert one.get("/health").status_code == 200
        assert "Traceback" not in one.text, one.text


def _is_served(port: int, client: socket.socket) -> bool:
    """Return True while the server's end of a connection is open, by the kernel's table."""
    mine = f":{client.getsockname()[1]:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(f":{port:04X}") and row[2].endswith(mine) and row[3] == "01" for row in rows)


async def test_a_body_that_arrives_together_with_its_head_does_not_count_as_head(tmp_path: Path) -> None:
    """A large but allowed body in the packets of its head gets an answer to the request, not 400."""

    async def post(port: int, name: str) -> bytes:
        body = json.dumps({"name": name, "cronExpression": "0 9 * * *", "agentUrl": "http://127.0.0.1:9/"}).encode()
        body += b" " * 110_000
        lines = (
            "POST /api/schedules HTTP/1.1",
            "Host: 127.0.0.1",
            "Content-Type: application/json",
            "Connection: close",
        )
        head = "\r\n".join((*lines, f"Content-Length: {len(body)}", "", "")).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + body)
        async with asyncio.timeout(30):
            answer = await reader.read()
        writer.close()
        return answer

    with serving(tmp_path) as one:
        port = int(one.url.rpartition(":")[2])
        answers = [await post(port, f"large-{n}") for n in range(20)]
        assert {answer.split(b" ", 2)[1] for answer in answers} == {b"201"}, answers[0][:300]
