"""The engine beside real synchronous programs: ends of processes, Ctrl-C, forks, gunicorn, Flask's reloader."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mainspring import Mainspring, Run, State
from mainspring.model.events import InstanceJoined, InstanceLeft, RunHandedBack

LONG = 30.0
HEAD = """
    import asyncio, multiprocessing, os, signal, sys, threading, time
    from mainspring import Mainspring

    ms = Mainspring("sqlite:///x.db", shutdown_timeout="20s", lease_ttl="10m")

    def say(*words):
        os.write(1, (" ".join(map(str, words)) + "\\n").encode())

    @ms.task
    async def work(mark: str = "") -> int:
        say("began", mark)
        while mark and not os.path.exists(mark):
            await asyncio.sleep(0.01)
        return os.getpid()
"""


class Script:
    """A process of the program `HEAD` and `body`, in `folder`."""

    def __init__(self, folder: Path, body: str) -> None:
        path = folder / "script.py"
        path.write_text(textwrap.dedent(HEAD) + textwrap.dedent(body))
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore::DeprecationWarning", str(path)],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, line: str) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            if text.strip() == line:
                return
        raise AssertionError(f"ended without saying {line!r}: {self.process.communicate()[1]}")

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; return the exit code, the rest of the output, and the error output."""
        out, errors = self.process.communicate(timeout=LONG)
        return self.process.returncode, out, errors


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Mainspring]:
    """The same store, seen from the test."""
    ms = Mainspring(f"sqlite:///{tmp_path}/x.db")
    yield ms
    ms.sync.close()


@contextlib.contextmanager
def script(folder: Path, body: str) -> Iterator[Script]:
    one = Script(folder, body)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


def until(fact: Callable[[], object]) -> None:
    end = time.monotonic() + LONG
    while not fact():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)


def count(app: Mainspring, kind: type) -> int:
    return len(app.sync.events(types=[kind]))


def only_run(app: Mainspring) -> Run:
    (run,) = app.sync.runs()
    return run


# ── the end of the process ─────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["the last line", "sys.exit(3)", "an error"])
def test_at_the_end_of_the_program_the_engine_ends_in_order(tmp_path: Path, app: Mainspring, how: str) -> None:
    """Also a handler that needs a further thread ends: `asyncio.to_thread` works until the engine has stopped."""
    last = {"the last line": "", "sys.exit(3)": "sys.exit(3)", "an error": "raise ValueError('the end')"}[how]
    body = f"""
        @ms.task
        async def late() -> str:
            say("late began")
            await asyncio.sleep(0.2)
            return await asyncio.to_thread(lambda: "in a thread")

        engine = ms.start_background()
        late.sync.enqueue()
        while not ms.sync.runs(state="running"):
            time.sleep(0.01)
        {last}
    """
    with script(tmp_path, body) as program:
        code, _, errors = program.end()
    assert code == {"the last line": 0, "sys.exit(3)": 3, "an error": 1}[how]
    assert "stopping: waits up to 20 s for 1 run (late)" in errors
    assert (only_run(app).state, only_run(app).result) == (State.SUCCEEDED, "in a thread")
    assert (count(app, InstanceJoined), count(app, InstanceLeft)) == (1, 1)


@pytest.mark.parametrize(
    "wait",
    [
        "with ms.background():\n    time.sleep(60)",
        "ms.start_background()\ntime.sleep(60)",
    ],
    ids=["block", "call"],
)
def test_ctrl_c_lets_runs_end_and_a_second_one_hands_them_back(tmp_path: Path, app: Mainspring, wait: str) -> None:
    body = "work.sync.enqueue(mark='go')\n" + wait
    with script(tmp_path, body) as program:
        program.wait_for("began go")
        program.process.send_signal(signal.SIGINT)
        assert program.process.stderr is not None
        lines: list[str] = []
        while not any("stopping: waits up to 20 s for 1 run (work); press Ctrl-C again" in line for line in lines):
            lines.append(program.process.stderr.readline())
            assert lines[-1], lines
        program.process.send_signal(signal.SIGINT)
        began = time.monotonic()
        code, _, errors = program.end()
        assert time.monotonic() - began < 15  # not the 20 s of the time-out
    assert "KeyboardInterrupt" in "".join(lines) + errors  # Python's own end, as without an engine
    assert code in (-signal.SIGINT, 1)
    run = only_run(app)
    assert (run.state, run.worker, run.failures, run.crashes) == (State.WAITING, None, 0, 0)
    assert count(app, RunHandedBack) == 1
    assert count(app, InstanceLeft) == 1


def test_one_ctrl_c_and_the_run_ends(tmp_path: Path, app: Mainspring) -> None:
    with script(tmp_path, "work.sync.enqueue(mark='go')\nwith ms.background():\n    time.sleep(60)") as program:
        program.wait_for("began go")
        program.process.send_signal(signal.SIGINT)
        (tmp_path / "go").touch()
        program.end()
    assert (only_run(app).state, count(app, RunHandedBack)) == (State.SUCCEEDED, 0)


def test_ms_run_says_what_it_waits_for(tmp_path: Path, app: Mainspring) -> None:
    with script(tmp_path, "work.sync.enqueue(mark='go')\nms.run()") as program:
        program.wait_for("began go")
        program.process.send_signal(signal.SIGINT)
        assert program.process.stderr is not None
        line = program.process.stderr.readline()
        assert line == "stopping: waits up to 20 s for 1 run (work); press Ctrl-C again to end now\n"
        (tmp_path / "go").touch()
        assert program.end()[0] == 0
    assert only_run(app).state is State.SUCCEEDED


@pytest.mark.parametrize("command", ["run script:ms", "worker script:ms", "serve --app script:ms --port 0"])
def test_the_commands_say_what_they_wait_for(tmp_path: Path, app: Mainspring, command: str) -> None:
    @app.task
    async def work(mark: str) -> None: ...

    (tmp_path / "script.py").write_text(textwrap.dedent(HEAD))
    run = work.sync.enqueue("go")
    process = subprocess.Popen(
        [sys.executable, "-m", "mainspring.cli.main", *command.split()],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any("began go" in line for line in lines)
        process.send_signal(signal.SIGINT)
        said = next(line for line in lines if "stopping: waits" in line)
        assert "s for 1 run (work); press Ctrl-C again to end now" in said
        (tmp_path / "go").touch()
        assert process.wait(LONG) == 0
    finally:
        process.kill()
        process.communicate()
    assert run.state() is State.SUCCEEDED


# ── forks ──────────────────────────────────────────────────────────────────


def test_a_forked_child_does_not_run_the_engine_and_can_start_its_own(tmp_path: Path, app: Mainspring) -> None:
    body = """
        ms.start_background()
        first = work.sync.enqueue().result("20s")

        def child():
            assert not ms.is_running
            assert ms.health().status == "stopped"
            assert not ms._background.is_running
            ms.stop()                      # does nothing: the engine is the parent's
            ms._background.stop()
            ms.start_background()
            assert ms.is_running
            pids = {work.sync.enqueue().result("20s") for _ in range(5)}
            say("child ran", pids <= {os.getpid(), os.getppid()})

        for _ in range(2):
            process = multiprocessing.get_context("fork").Process(target=child)
            process.start()
            process.join(25)
            say("exit", process.exitcode)
        assert ms.is_running
        assert first == work.sync.enqueue().result("20s") == os.getpid()
        say("parent ran")
    """
    with script(tmp_path, body) as program:
        code, out, errors = program.end()
    assert code == 0, errors
    assert [line for line in out.splitlines() if not line.startswith("began")] == [
        "child ran True",
        "exit 0",
        "child ran True",
        "exit 0",
        "parent ran",
    ], errors
    assert "Traceback" not in errors
    assert (count(app, InstanceJoined), count(app, InstanceLeft)) == (3, 3)
    assert all(run.state is State.SUCCEEDED for run in app.sync.runs())


def test_a_child_that_never_starts_an_engine_leaves_that_of_its_parent_alone(tmp_path: Path, app: Mainspring) -> None:
    body = """
        ms.start_background()
        child = os.fork()
        if not child:
            work.sync.enqueue()
            sys.exit(0)                    # runs the functions that Python calls at the end of a process
        say("exit", os.waitpid(child, 0)[1])
        while ms.sync.runs(state=["waiting", "running"]):
            time.sleep(0.01)
        say("running", ms.is_running)
    """
    with script(tmp_path, body) as program:
        code, out, errors = program.end()
    assert (code, [line for line in out.splitlines() if "began" not in line]) == (0, ["exit 0", "running True"]), errors
    assert (count(app, InstanceJoined), count(app, InstanceLeft)) == (1, 1)


# ── gunicorn and Flask ─────────────────────────────────────────────────────

WEB = """
    from flask import Flask

    app = Flask(__name__)

    @ms.every("200ms", name="beat")
    async def beat() -> str:
        return f"{os.getpid()} {VERSION}"

    @app.get("/")
    def index():
        return {"pid": os.getpid(), "parent": os.getppid(), "running": ms.is_running}

    @app.get("/work")
    def enqueue():
        return {"ran in": work.sync.enqueue().result("20s")}
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def get(port: int, path: str = "/") -> dict[str, object] | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=25) as answer:
            found: dict[str, object] = json.load(answer)
            return found
    except urllib.error.HTTPError:
        return {}
    except OSError:
        return None


@contextlib.contextmanager
def server(folder: Path, port: int, *command: str) -> Iterator[subprocess.Popen[str]]:
    """A server that answers on `port`. At the end it gets SIGTERM."""
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-m", *command],
            cwd=folder,
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        )
        try:
            until(lambda: get(port) is not None or process.poll() is not None)
            yield process
            process.terminate()
            process.wait(LONG)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(LONG)


def beats(app: Mainspring) -> list[str]:
    return [run.result for run in app.sync.runs(schedule="beat", state="succeeded") if run.result]


def write_web(folder: Path, tail: str, version: int = 1) -> None:
    source = textwrap.dedent(HEAD) + f"VERSION = {version}\n" + textwrap.dedent(WEB) + textwrap.dedent(tail)
    (folder / "web.py").write_text(source)


GUNICORN = ("gunicorn", "web:app", "--workers", "2", "--graceful-timeout", "25")


@pytest.mark.parametrize("preload", [False, True], ids=["each worker imports", "preload and post_worker_init"])
def test_gunicorn_with_an_engine_in_each_worker(tmp_path: Path, app: Mainspring, preload: bool) -> None:
    """Without preload the import starts the engine; with it, a hook does that in each worker, after the fork."""
    write_web(tmp_path, "" if preload else "ms.start_background()")
    hook = "def post_worker_init(worker):\n    from web import ms\n    ms.start_background()\n"
    (tmp_path / "gunicorn.conf.py").write_text(hook if preload else "")
    port = free_port()
    options = ["--preload"] if preload else []
    with server(tmp_path, port, *GUNICORN, *options, "--bind", f"127.0.0.1:{port}") as process:
        until(lambda: count(app, InstanceJoined) == 2)
        one = get(port)
        assert one is not None, (tmp_path / "server.log").read_text()
        assert (one["running"], one["parent"]) == (True, process.pid)
        assert get(port, "/work")
        until(lambda: len(beats(app)) >= 3)
    text = (tmp_path / "server.log").read_text()
    assert "Traceback" not in text, text
    assert count(app, InstanceLeft) == 2, text  # both ended in order
    fires = [run.fire_time for run in app.sync.runs(schedule="beat", limit=1000)]
    assert len(fires) == len(set(fires))  # two engines on one store: each fire once
    assert app.sync.runs(state="running") == []


def test_gunicorn_with_preload_and_an_engine_in_the_master_only(tmp_path: Path, app: Mainspring) -> None:
    """Started at import and then forked: the master's engine runs on, the workers have none and enqueue."""
    write_web(tmp_path, "ms.start_background()")
    port = free_port()
    with server(tmp_path, port, *GUNICORN, "--preload", "--bind", f"127.0.0.1:{port}") as process:
        one = get(port)
        assert one is not None, (tmp_path / "server.log").read_text()
        assert (one["running"], one["parent"]) == (False, process.pid)
        assert get(port, "/work") == {"ran in": process.pid}
        until(lambda: len(beats(app)) >= 3)
        assert {beat.split()[0] for beat in beats(app)} == {str(process.pid)}
        assert count(app, InstanceJoined) == 1
    text = (tmp_path / "server.log").read_text()
    assert "Traceback" not in text, text
    assert count(app, InstanceLeft) == 1, text


def test_the_reloader_of_flask_runs_the_new_code_and_each_fire_once(tmp_path: Path, app: Mainspring) -> None:
    tail = """
        from werkzeug.serving import is_running_from_reloader

        if not app.debug or is_running_from_reloader():
            ms.start_background()
    """
    write_web(tmp_path, tail)
    port = free_port()
    command = ("flask", "--app", "web", "run", "--debug", "--port", str(port))
    with server(tmp_path, port, *command):
        until(lambda: len(beats(app)) >= 2)
        assert {beat.split()[1] for beat in beats(app)} == {"1"}
        write_web(tmp_path, tail, version=2)
        until(lambda: any(beat.endswith(" 2") for beat in beats(app)))
    fires = [run.fire_time for run in app.sync.runs(schedule="beat", limit=1000)]
    assert len(fires) == len(set(fires))
    versions = [beat.split()[1] for beat in reversed(beats(app))]
    assert versions == sorted(versions)  # the old code ran nothing once the new code ran
    assert count(app, InstanceJoined) == 2
