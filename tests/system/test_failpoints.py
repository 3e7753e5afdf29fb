"""Failpoints: the list is complete, production knows nothing of it, and no point can break the books."""

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
from mainspring.testing.failpoints import EXIT, FAILPOINTS, MEANINGS, MODES, VARIABLE, Fuse

MATRIX = Path(__file__).with_name("failpoint_matrix.py")
SOURCE = Path(mainspring.__file__).parent
#: Which times a point is met, e.g. "1,2,4"; `make chaos` asks for more.
NTH = os.environ.get("MAINSPRING_FAILPOINT_NTH", "1")
#: "all" points on PostgreSQL, or the few where something is committed and somebody does not know.
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
NO_SERVER = 3
#: The same on Redis, where a script is one step.
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
    assert cases >= len(FAILPOINTS) * len(MODES) >= 18 * 3


@pytest.mark.chaos
@pytest.mark.timeout(1_800 if ON_POSTGRES == "all" else 300)
def test_the_same_on_postgresql() -> None:
    specs = () if ON_POSTGRES == "all" else CHOICE
    done = matrix("--postgres", "--jobs=4", *specs, seconds=1_700 if ON_POSTGRES == "all" else 280)
    if done.returncode == NO_SERVER and os.environ.get("CI") != "true":
        pytest.skip(done.stdout)
    print(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]


@pytest.mark.chaos
@pytest.mark.timeout(1_800 if ON_REDIS == "all" else 300)
def test_the_same_on_redis() -> None:
    specs = () if ON_REDIS == "all" else CHOICE_ON_REDIS
    done = matrix("--redis", "--jobs=4", *specs, seconds=1_700 if ON_REDIS == "all" else 280)
    if done.returncode == NO_SERVER and os.environ.get("CI") != "true":
        pytest.skip(done.stdout)
    print(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]


def test_on_redis_every_point_but_those_inside_a_script_is_reached() -> None:
    done = matrix("--redis", "--reach", seconds=60)
    if done.returncode == NO_SERVER and os.environ.get("CI") != "true":
        pytest.skip(done.stdout)
    assert set(json.loads(done.stdout)["named"]) == set(FAILPOINTS) - INSIDE


def test_the_list_is_what_a_process_reaches() -> None:
    reached = json.loads(matrix("--reach", seconds=60).stdout)
    assert set(reached["named"]) == set(FAILPOINTS)
    assert set(reached["raw"]) == points_in_the_source()
    assert len(FAILPOINTS) >= 18
    assert all(MEANINGS.values())


def points_in_the_source() -> set[str]:
    """What the SQLite store's own text says: points by name, and two for each kind of transaction.

    Not those of `restore`, which no worker calls: the tests of `mainspring copy` cut it at every commit. Nor those of
    kept things, which have no part in the life of a run.
    """
    others = {"restore.py", "kept.py"}
    paths = [path for path in (SOURCE / "stores" / "sqlite").glob("*.py") if path.name not in others]
    text = "".join(path.read_text() for path in paths)
    named = set(re.findall(r'reach\("([a-z_:]+)"\)', text))
    verbs = set(re.findall(r'\.write\("([a-z_]+)"\)', text))
    return named | {f"{verb}:{step}" for verb in verbs for step in ("before_commit", "after_commit")}


def test_production_code_knows_neither_the_names_nor_the_variable() -> None:
    for path in SOURCE.rglob("*.py"):
        if "testing" not in path.parts:
            text = path.read_text()
            assert VARIABLE not in text, path
            assert "failpoints" not in text, path
    loaded = "import sys, mainspring.app, mainspring.stores.sqlite; sys.exit('mainspring.testing' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded], check=False).returncode == 0


def test_a_fuse_blows_once_at_the_time_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "claim:before:raise@2")
    fuse = Fuse.from_environment()
    fuse.reach("claim:before")
    with pytest.raises(StoreUnavailable, match="injected at claim:before"):
        fuse.reach("claim:before")
    fuse.reach("claim:before")
    assert fuse.blown
    deaths: list[int] = []
    fuse = Fuse("claim:before:crash", die=deaths.append)
    fuse.reach("claim:before")
    assert deaths == [EXIT]
    fuse = Fuse("claim:before:crash_after", die=deaths.append)
    fuse.reach("claim:before")
    assert deaths == [EXIT]
    fuse.reach("due:unlisted")
    assert deaths == [EXIT]
    fuse.reach("start:before")
    assert deaths == [EXIT, EXIT]
    monkeypatch.delenv(VARIABLE)
    assert Fuse.from_environment().point == ""


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
def test_a_wrong_variable_says_what_would_be_right(spec: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=VARIABLE) as caught:
        Fuse(spec)
    assert says in str(caught.value)
