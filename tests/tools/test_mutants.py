"""The tables of mutants fit today's code and name tests that exist; a few mutants are tried for real."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import mutants  # noqa: E402
from mutants_kind import Mutant  # noqa: E402
from mutants_table import MUTANTS  # noqa: E402

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


@pytest.mark.parametrize("name", BY_NAME)
def test_each_mutant_fits_exactly_once(name: str) -> None:
    """The text of a mutant occurs once in its file; the changed file is Python and has no private name that is new."""
    mutant = BY_NAME[name]
    for file, changed in mutants.mutated_texts(mutant, ROOT).items():
        original = (ROOT / file).read_text(encoding="utf-8")
        assert changed != original
        if file.endswith(".py"):
            assert private_names(changed) <= private_names(original)  # else it fails by a name, not by its mistake


def private_names(code: str) -> set[str]:
    """Return the names and attributes in Python code that begin with an underscore."""
    nodes = list(ast.walk(ast.parse(code)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return {name for name in names if name.startswith("_")}


def test_names_and_changes_are_unique() -> None:
    assert len(BY_NAME) == len(MUTANTS) >= 16
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


def test_every_test_named_by_a_mutant_exists(request: pytest.FixtureRequest) -> None:
    """Tests that this session collected exist; the others are collected by a session of their own."""
    collected = {name for item in request.session.items for name in (item.nodeid, item.nodeid.partition("[")[0])}
    missing = [test for test in mutants.named_tests(MUTANTS) if test not in collected]
    if not missing:
        return
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *missing]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-2_000:] + found.stderr[-2_000:]


@pytest.mark.parametrize("name", ["complete-without-epoch-memory", "sleep-uncapped"])
def test_a_quick_mutant_is_caught(name: str) -> None:
    outcome = mutants.try_mutant(BY_NAME[name], types=False)
    assert (outcome.status, outcome.by) == ("caught", BY_NAME[name].tests[0]), outcome


def try_in_loop(old: str, new: str) -> mutants.Outcome:
    """Try a mutant that replaces `old` with `new` in engine/loop.py."""
    tests = BY_NAME["sleep-uncapped"].tests
    return mutants.try_mutant(Mutant("planted", "", "src/mainspring/engine/loop.py", old, new, tests), types=False)


def test_a_mutant_whose_tests_pass_survives() -> None:
    outcome = try_in_loop("MAX_STORE_BACKOFF_SECONDS = 2.0", "MAX_STORE_BACKOFF_SECONDS = 2.5")
    assert (outcome.status, outcome.detail) == ("survived", "1 tests pass with the mistake")


def test_a_mutant_that_does_not_fit_or_cannot_be_imported_is_broken() -> None:
    assert try_in_loop("no such text", "").detail.endswith("0 times, not once")
    assert try_in_loop("self", "this").detail.endswith("times, not once")
    outcome = try_in_loop("import asyncio\n", "import asyncioo\n")
    assert outcome.detail.startswith("it cannot be imported: ModuleNotFound")


def test_an_error_that_is_no_failed_assertion_is_no_catch() -> None:
    outcome = try_in_loop("        self.poll = poll\n", "        self.poll = poll / 0\n")
    assert (outcome.status, "ZeroDivisionError" in outcome.detail) == ("broken", True)
