"""kill -9: what a handler wrote with `ctx.log` is in the store, from which other processes read it, on every store."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mainspring import Mainspring
from mainspring.engine.work.log_writer import FLUSH_SECONDS
from servers import for_tests_redis
from servers.for_tests import fresh_url

PROGRAM = """
import os, sys, time
from mainspring import Context, Mainspring

ms = Mainspring(os.environ["PLACE"])

@ms.task(executor=os.environ["EXECUTOR"], capture="print")
def talk(ctx: Context) -> None:
    ctx.log("the last words of attempt %d", ctx.attempt)
    print("printed")
    parent = os.getppid()
    while os.getppid() == parent:  # a child process of the program ends after it
        time.sleep(0.05)

if __name__ == "__main__":
    run = talk.sync.enqueue()
    sys.stderr.write(run.id + "\\n")
    sys.stderr.flush()
    ms.run()
"""
PLACES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder}/x.db",
    "postgresql": lambda _: fresh_url(),
    "redis": lambda _: for_tests_redis.fresh_url(),
}


@pytest.mark.parametrize(
    ("place", "executor"), [("sqlite", "thread"), ("sqlite", "process"), ("postgresql", "thread"), ("redis", "thread")]
)
def test_lines_are_readable_while_the_handler_runs_and_after_kill_9(place: str, executor: str, tmp_path: Path) -> None:
    assert FLUSH_SECONDS <= 0.5, "a line is stored well within a second"
    url = PLACES[place](tmp_path)
    (tmp_path / "app.py").write_text(PROGRAM, encoding="utf-8")
    command, env = [sys.executable, str(tmp_path / "app.py")], {**os.environ, "PLACE": url, "EXECUTOR": executor}
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env) as process:
        try:
            assert process.stderr is not None
            run_id = process.stderr.readline().strip()
            ms = Mainspring(url)
            wanted = [("log", "the last words of attempt 1"), ("print", "printed")]
            until = time.monotonic() + 30
            while [(line.source, line.text) for line in ms.sync.logs(run_id)] != wanted:
                assert time.monotonic() < until
                time.sleep(0.05)
            assert ms.sync.find_by_id(run_id).state == "running"
        finally:
            process.kill()
    assert [(line.source, line.text) for line in ms.sync.logs(run_id)] == wanted
    ms.sync.close()
