"""The mutants stay what they are: each fits today's code, names tests that exist, and a few are tried for real."""

from __future__ import annotations

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
def test_it_fits_once(name: str) -> None:
    mutant = BY_NAME[name]
    for file, changed in mutants.applied(mutant, ROOT).items():
        assert changed != (ROOT / file).read_text(encoding="utf-8")
        if file.endswith(".py"):
            compile(changed, file, "exec")


def test_there_are_enough_and_no_two_alike() -> None:
    assert len(BY_NAME) == len(MUTANTS) >= 16
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


def test_the_tests_they_name_exist() -> None:
    options = ("--collect-only", "-q", "-pno:cacheprovider")
    asked = [sys.executable, "-m", "pytest", *options, *mutants.named_tests(MUTANTS)]
    found = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-2_000:] + found.stderr[-2_000:]


@pytest.mark.parametrize("name", ["complete-without-epoch-memory", "sleep-uncapped"])
def test_a_quick_one_is_caught(name: str) -> None:
    outcome = mutants.try_mutant(BY_NAME[name], types=False)
    assert (outcome.status, outcome.by) == ("caught", BY_NAME[name].tests[0]), outcome


def planted(old: str, new: str) -> mutants.Outcome:
    tests = BY_NAME["sleep-uncapped"].tests
    return mutants.try_mutant(Mutant("planted", "", "src/mainspring/engine/service.py", old, new, tests), types=False)


def test_what_shows_nothing_is_no_catch() -> None:
    outcome = planted("MAX_BACKOFF = 2.0", "MAX_BACKOFF = 2.5")
    assert (outcome.status, outcome.said) == ("survived", "1 tests pass with the mistake")
    assert planted("no such text", "").said.endswith("0 times, not once")
    assert planted("self", "this").said.endswith("times, not once")
    assert planted("import asyncio\n", "import asyncioo\n").said.startswith("it cannot be imported: ModuleNotFound")
    outcome = planted("        self.poll = poll\n", "        self.poll = poll / 0\n")
    assert (outcome.status, "ZeroDivisionError" in outcome.said) == ("broken", True)
