"""`mainspring runs logs`: the log of a run as text and JSON, and followed until the run has ended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mainspring import Context, Mainspring, Retry, RunNotSuccessful
from mainspring.cli import runs
from mainspring.cli.main import mainspring

WAIT = "20s"


def cli(*words: str) -> Result:
    return CliRunner().invoke(mainspring, words, env={"MAINSPRING_URL": None})


def make_app(url: str) -> Mainspring:
    ms = Mainspring(url)

    @ms.task(name="talk", retry=Retry(max_attempts=2, initial="1ms"))
    async def talk(ctx: Context) -> None:
        ctx.log("begun \x1b[31mred")
        if ctx.attempt == 1:
            raise ValueError

    return ms


@pytest.fixture
async def run(tmp_path: Path) -> tuple[str, str]:
    """Return the URL of a store and the id of a run in it that has written lines in two attempts."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    ms = make_app(url)
    async with ms.running():
        handle = await ms.tasks["talk"].enqueue()
        await handle.result(timeout=WAIT)
    await ms.close()
    return url, handle.id


def test_a_log_is_printed(run: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "PAGE_LINES", 1)
    url, run_id = run
    done = cli("runs", "logs", run_id, "--store", url)
    assert done.exit_code == 0, done.output
    first, second = done.output.splitlines()
    assert first.endswith(" #1 info    log: begun \\x1b[31mred")
    assert " #2 " in second
    done = cli("runs", "logs", run_id, "--store", url, "--json", "--attempt", "2")
    (line,) = map(json.loads, done.output.splitlines())
    assert (line["attempt"], line["text"]) == (2, "begun \x1b[31mred")
    done = cli("runs", "logs", "none", "--store", url)
    assert (done.exit_code, "there is no run 'none'" in done.output) == (1, True)


@pytest.fixture
async def ended(tmp_path: Path) -> tuple[str, str, str]:
    """Return the URL of a store, and the ids of a failed run and of a successful run without lines."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    ms = Mainspring(url)

    @ms.task(retry=Retry(max_attempts=2, initial="1ms"))
    async def quiet(fails: bool) -> None:
        if fails:
            raise ValueError("boom\x1b[31m")

    async with ms.running():
        failed, done = await quiet.enqueue(True), await quiet.enqueue(False)
        with pytest.raises(RunNotSuccessful):
            await failed.result(timeout=WAIT)
        await done.result(timeout=WAIT)
    await ms.close()
    return url, failed.id, done.id


def test_a_log_without_lines_says_what_became_of_the_run(ended: tuple[str, str, str]) -> None:
    url, failed, good = ended
    done = cli("runs", "logs", failed, "--store", url)
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "no lines; state of the run: failed; last error: ValueError: boom\\x1b[31m\n"
    assert cli("runs", "logs", good, "--store", url).stderr == "no lines; state of the run: succeeded\n"
    assert cli("runs", "logs", failed, "--store", url, "--json", "--follow").stdout == ""


def test_the_log_of_a_failed_run_ends_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(FAILING)
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    made = subprocess.run(
        [sys.executable, "app.py", url], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=True
    )
    done = cli("runs", "logs", made.stdout.strip(), "--store", url)
    assert "begun" in done.stdout
    assert done.stderr == "state of the run: failed; last error: ValueError: boom\n"


FAILING = """
import sys
from mainspring import Context, Mainspring, Retry

ms = Mainspring(sys.argv[1])

@ms.task(retry=Retry(max_attempts=1))
def talk(ctx: Context) -> None:
    ctx.log("begun")
    raise ValueError("boom")

print(talk.sync.enqueue().id, flush=True)
ms.run(until_idle=True)
"""
PROGRAM = """
import os, sys
from mainspring import Context, Mainspring

ms = Mainspring(sys.argv[1])

@ms.task
def talk(ctx: Context) -> None:
    ctx.log("begun")
    sys.stdin.readline()
    ctx.log("going on")

print(talk.sync.enqueue().id, flush=True)
ms.run(until_idle=True)
"""


def test_a_log_is_followed_until_the_run_of_another_process_ends(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    (tmp_path / "app.py").write_text(PROGRAM, encoding="utf-8")
    worker = subprocess.Popen(
        [sys.executable, str(tmp_path / "app.py"), url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        run_id = worker.stdout.readline().strip()
        command = [
            sys.executable,
            "-c",
            "from mainspring.cli.main import main; main()",
            "runs",
            "logs",
            run_id,
            "--follow",
            "--store",
            url,
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline().endswith("log: begun\n")
            worker.stdin.write("go on\n")
            worker.stdin.flush()
            assert [line.partition(" log: ")[2] for line in follower.stdout] == ["going on\n"]
            assert follower.wait() == 0
