"""Failpoints: the list is complete, production code contains none of it, and a fault at any point loses nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mainspring
from mainspring.model.errors import InvalidInput, StoreUnavailable
from proof.failpoints import (
    FAILPOINT_EXIT_CODE,
    FAILPOINT_MEANINGS,
    FAILPOINT_MODES,
    FAILPOINT_VARIABLE,
    FAILPOINTS,
    FailpointTrigger,
)
from tests.system.scripts import NO_SERVER_EXIT_CODE

MATRIX = Path(__file__).with_name("failpoint_matrix.py")
SOURCE = Path(mainspring.__file__).parent
#: At which visits of a point its fault is triggered, for example "1,2,4"; `make chaos` sets more.
NTH = os.environ.get("MAINSPRING_FAILPOINT_NTH", "1")
#: On PostgreSQL "all" points, or the "few" of CHOICE: transactions cut in the middle, and answers lost after commits.
ON_POSTGRES = os.environ.get("MAINSPRING_PG_FAILPOINTS", "few")
CHOICE = (
    "enqueue:ack_lost:raise",
    "materialise:after_cas:crash",
    "materialise:ack_lost:raise",
    "claim:before_commit:crash",
    "claim:ack_lost:crash",
    "complete:after_guard:crash",
    "complete:ack_lost:raise",
    "rescue:ack_lost:crash",
)

#: On Redis "all" points or a "few"; a script is one step, so it has no points inside.
ON_REDIS = os.environ.get("MAINSPRING_REDIS_FAILPOINTS", "few")
CHOICE_ON_REDIS = tuple(one for one in CHOICE if ":after_" not in one)
INSIDE = {
    "open:after_migrate",
    *(f"materialise:after_{step}" for step in ("cas", "fires", "event")),
    *(f"claim:after_{step}" for step in ("update", "event")),
    *(f"complete:after_{step}" for step in ("guard", "rows", "event")),
}


def matrix(*arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(MATRIX), *arguments], capture_output=True, text=True, timeout=seconds, check=False
    )


@pytest.mark.chaos
@pytest.mark.timeout(300 * (1 + NTH.count(",")))
def test_a_crash_or_failure_at_every_point_heals_with_nothing_lost_or_doubled() -> None:
    done = matrix("--nth", NTH, seconds=280 * (1 + NTH.count(",")))
    print(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    cases = int(done.stdout.split()[-7])
    assert cases >= len(FAILPOINTS) * len(FAILPOINT_MODES) >= 18 * 3


@pytest.mark.chaos
@pytest.mark.timeout(1_800 if ON_POSTGRES == "all" else 300)
def test_the_same_on_postgresql() -> None:
    specs = () if ON_POSTGRES == "all" else CHOICE
    done = matrix("--postgres", "--jobs=4", *specs, seconds=1_700 if ON_POSTGRES == "all" else 280)
    if done.returncode == NO_SERVER_EXIT_CODE and os.environ.get("CI") != "true":
        pytest.skip(done.stdout)
    print(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]


@pytest.mark.chaos
@pytest.mark.timeout(1_800 if ON_REDIS == "all" else 300)
def test_the_same_on_redis() -> None:
    specs = () if ON_REDIS == "all" else CHOICE_ON_REDIS
    done = matrix("--redis", "--jobs=4", *specs, seconds=1_700 if ON_REDIS == "all" else 280)
    if done.returncode == NO_SERVER_EXIT_CODE and os.environ.get("CI") != "true":
        pytest.skip(done.stdout)
    print(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]


def test_on_redis_every_point_but_those_inside_a_script_is_reached() -> None:
    done = matrix("--redis", "--reach", seconds=60)
    if done.returncode == NO_SERVER_EXIT_CODE and os.environ.get("CI") != "true":
        pytest.skip(done.stdout)
    assert set(json.loads(done.stdout)["named"]) == set(FAILPOINTS) - INSIDE


def test_a_process_reaches_every_failpoint_of_the_list() -> None:
    reached = json.loads(matrix("--reach", seconds=60).stdout)
    assert set(reached["named"]) == set(FAILPOINTS)
    assert set(reached["raw"]) == points_in_the_source()
    assert len(FAILPOINTS) >= 18
    assert all(FAILPOINT_MEANINGS.values())


def points_in_the_source() -> set[str]:
    """Return the points in the source text of the SQLite store: those by name, and two for each kind of transaction.

    Left out are `restore`, which no worker calls (the tests of `mainspring copy` cut it at every commit), and the
    removal of key-value entries, which has no part in the life of a run.
    """
    paths = [path for path in (SOURCE / "backends" / "sqlite").rglob("*.py") if path.name != "restore.py"]
    text = "".join(path.read_text() for path in paths)
    named = set(re.findall(r'reach\("([a-z_:]+)"\)', text))
    verbs = set(re.findall(r'\.write\("([a-z_]+)"\)', text)) - {"forget"}
    return named | {f"{verb}:{step}" for verb in verbs for step in ("before_commit", "after_commit")}


def test_production_code_contains_neither_the_names_nor_the_variable() -> None:
    for path in SOURCE.rglob("*.py"):
        if "testing" not in path.parts:
            text = path.read_text()
            assert FAILPOINT_VARIABLE not in text, path
            assert "failpoints" not in text, path
    imports = "import sys, mainspring.app.mainspring, mainspring.backends.sqlite"
    loaded = f"{imports}; sys.exit('mainspring.testing' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded], check=False).returncode == 0


def test_a_failpoint_triggers_once_at_its_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FAILPOINT_VARIABLE, "claim:before:raise@2")
    trigger = FailpointTrigger.from_environment()
    trigger.reach("claim:before")
    with pytest.raises(StoreUnavailable, match="injected at claim:before"):
        trigger.reach("claim:before")
    trigger.reach("claim:before")
    assert trigger.has_fired
    deaths: list[int] = []
    trigger = FailpointTrigger("claim:before:crash", die=deaths.append)
    trigger.reach("claim:before")
    assert deaths == [FAILPOINT_EXIT_CODE]
    trigger = FailpointTrigger("claim:before:crash_after", die=deaths.append)
    trigger.reach("claim:before")
    assert deaths == [FAILPOINT_EXIT_CODE]
    trigger.reach("due:unlisted")
    assert deaths == [FAILPOINT_EXIT_CODE]
    trigger.reach("start:before")
    assert deaths == [FAILPOINT_EXIT_CODE, FAILPOINT_EXIT_CODE]
    monkeypatch.delenv(FAILPOINT_VARIABLE)
    assert FailpointTrigger.from_environment().point == ""


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("clam:before:crash", "claim:before"),
        ("claim:before", "is no failpoint"),
        ("claim:before:explode", "crash, crash_after, raise"),
        ("claim:before:crash@zero", "@2"),
        ("claim:before:crash@0", "@2"),
    ],
)
def test_a_wrong_variable_is_refused_with_a_suggestion(spec: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=FAILPOINT_VARIABLE) as caught:
        FailpointTrigger(spec)
    assert says in str(caught.value)
