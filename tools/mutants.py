"""Apply each mutant (one deliberate mistake) to a copy of the code and check that the tests it names fail.

    python tools/mutants.py                    every mutant, with a table at the end
    python tools/mutants.py --only NAME        one of them (may be given again)
    python tools/mutants.py --part core        those of one part of `make chaos`
    python tools/mutants.py --by TEST          run this test instead of those that the table names
    python tools/mutants.py --json FILE        the results as JSON (- for standard output)

A mutant is caught when a test that passes without the mistake fails with an assertion; the table names that test. It
is broken when its text does not occur exactly once, when the changed module cannot be imported or is refused by mypy,
or when a test cannot be collected: any of these would otherwise look like a catch. The exit code is 1 unless every
mutant is caught.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from mutants_kind import Mutant
from mutants_table import MUTANTS
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT = Path(__file__).parents[1]
COPIED = ("src", "proof", "tests", "servers", "pyproject.toml")
MYPY_CACHE = ".mypy"
MAX_MUTANT_SECONDS = 300
PARTS = ("core", "postgres", "redis", "service")

#: A pytest plugin for the copy: reports which tests failed and how, and stops at the first failed assertion.
PLUGIN = """
import json, os
import pytest

found = {"assertions": [], "errors": [], "passed": 0}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.passed and report.when == "call":
        found["passed"] += 1
    if report.failed:
        error = call.excinfo.type
        said = f"{error.__name__}: {call.excinfo.value}".splitlines()[0][:200]
        asserts = issubclass(error, (AssertionError, pytest.fail.Exception))
        found["assertions" if asserts else "errors"].append([item.nodeid, said])
        if asserts:
            item.session.shouldstop = "caught"
    return report


def pytest_collectreport(report):
    if report.failed:
        found["errors"].append([report.nodeid, "cannot be collected: " + str(report.longrepr)[-300:]])


def pytest_sessionfinish():
    with open(os.environ["MUTANT_REPORT"], "w") as file:
        json.dump(found, file)
"""


class BrokenMutant(Exception):
    """A mutant that proves nothing: it does not fit, does not run, or its tests cannot run."""


@dataclass
class Outcome:
    """The result of trying one mutant: its status, the test that caught it, and the failure or the reason."""

    name: str
    mistake: str
    file: str
    status: str  # caught, survived, broken
    by: str = ""
    detail: str = ""
    seconds: float = 0.0


@dataclass
class Report:
    """The result of one pytest run in a copy; the pairs are (test id, first line of the error)."""

    assertions: list[tuple[str, str]]
    errors: list[tuple[str, str]]
    passed: int
    output: str


def copy_tree(to: Path, origin: Path = ROOT) -> None:
    """Copy what the tests need from `origin`; from another copy, copy its mypy cache as well."""
    for name in COPIED if origin == ROOT else (*COPIED, MYPY_CACHE):
        source = origin / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, to / name)
    (to / "mutant_report.py").write_text(PLUGIN, encoding="utf-8")


def mutated_texts(mutant: Mutant, tree: Path) -> dict[str, str]:
    """Return path → text, with the mistake applied, for each file of `tree` that the mutant changes."""
    texts: dict[str, str] = {}
    for file, old, new in mutant.edits:
        text = texts.get(file) or (tree / file).read_text(encoding="utf-8")
        times = text.count(old)
        if times != 1:
            raise BrokenMutant(f"the text to change is in {file} {times} times, not once")
        if old == new:
            raise BrokenMutant("it changes nothing")
        texts[file] = text.replace(old, new)
    return texts


def environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree}", "PYTHONDONTWRITEBYTECODE": "1"}


def check_code(tree: Path, file: str, *, types: bool) -> None:
    """Import the mutated module and, if `types`, check it with mypy; raise BrokenMutant if either fails."""
    if not file.endswith(".py"):
        return
    module = file.removeprefix("src/").removesuffix(".py").replace("/", ".")
    code = f"import {module} as m; assert m.__file__.startswith({str(tree)!r}), m.__file__"
    asked = subprocess.run(
        [sys.executable, "-c", code], cwd=tree, env=environment(tree), capture_output=True, text=True, check=False
    )
    if asked.returncode:
        raise BrokenMutant(f"it cannot be imported: {asked.stderr.strip().splitlines()[-1]}")
    if types:
        check_types(tree, file)


def check_types(tree: Path, what: str) -> None:
    """Run mypy on `what` in the copy; raise BrokenMutant with its first complaint."""
    asked = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", MYPY_CACHE, what],
        cwd=tree,
        env=environment(tree),
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode:
        raise BrokenMutant(f"mypy refuses it: {asked.stdout.strip().splitlines()[0]}")


def named_tests(mutants: Iterable[Mutant]) -> list[str]:
    """Return the tests that any of the mutants names, without repetitions."""
    return list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))


def run_tests(tree: Path, tests: Iterable[str]) -> Report:
    """Run the tests in the copy `tree`; raise BrokenMutant if pytest does not get as far as its report."""
    where = tree / "report.json"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--tb=short", "-pmutant_report", "-pno:cacheprovider", *tests],
            cwd=tree,
            env={**environment(tree), "MUTANT_REPORT": str(where)},
            capture_output=True,
            text=True,
            timeout=MAX_MUTANT_SECONDS,
            check=False,
        )
        output = done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        raise BrokenMutant(f"the tests took more than {MAX_MUTANT_SECONDS} s") from None
    if not where.exists():
        raise BrokenMutant(f"pytest did not come to its end: {output.strip()[-300:]}")
    found = json.loads(where.read_text())
    where.unlink()
    as_pairs = {key: [(test, said) for test, said in found[key]] for key in ("assertions", "errors")}
    return Report(**as_pairs, passed=found["passed"], output=output)


def try_mutant(mutant: Mutant, origin: Path = ROOT, *, types: bool = True) -> Outcome:
    """Apply one mutant to a fresh copy of `origin`, run the tests it names there, and return the outcome."""
    begun = time.monotonic()
    outcome = Outcome(mutant.name, mutant.mistake, mutant.file, "broken")
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder)
        copy_tree(tree, origin)
        try:
            for file, text in mutated_texts(mutant, tree).items():
                (tree / file).write_text(text, encoding="utf-8")
                check_code(tree, file, types=types)
            report = run_tests(tree, mutant.tests)
            if report.assertions:
                outcome.status = "caught"
                outcome.by, outcome.detail = report.assertions[0]
            elif report.errors:
                raise BrokenMutant("no assertion failed, but {} says {}".format(*report.errors[0]))
            elif not report.passed:
                raise BrokenMutant(f"no test ran: {report.output.strip()[-300:]}")
            else:
                outcome.status, outcome.detail = "survived", f"{report.passed} tests pass with the mistake"
        except BrokenMutant as error:
            outcome.detail = str(error)
    outcome.seconds = round(time.monotonic() - begun, 1)
    return outcome


def check_baseline(tree: Path, mutants: list[Mutant], *, types: bool) -> str | None:
    """Run mypy and every named test without a mistake; return None if all pass, else what is wrong."""
    tests = named_tests(mutants)
    copy_tree(tree)
    try:
        if types:
            check_types(tree, "src")
        report = run_tests(tree, tests)
    except BrokenMutant as error:
        return f"without a mistake: {error}"
    failed = [*report.assertions, *report.errors]
    if failed:
        return "without a mistake, {} fails: {}".format(*failed[0])
    return None if report.passed >= len(tests) else f"{report.passed} tests ran for {len(tests)} names: {report.output}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="try this mutant only")
    parser.add_argument("--part", choices=PARTS, help="try the mutants of this part of `make chaos` only")
    parser.add_argument("--by", action="append", metavar="TEST", help="run this test instead of those in the table")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at once")
    parser.add_argument("--no-types", action="store_true", help="do not ask mypy")
    options = parser.parse_args()
    console = Console(stderr=True)
    names = [mutant.name for mutant in MUTANTS]
    for name in options.only or ():
        if name not in names:
            console.print(f"[red]no mutant is called {name!r}[/]; there are: {', '.join(names)}", highlight=False)
            return 2
    chosen = [mutant for mutant in MUTANTS if not options.only or mutant.name in options.only]
    chosen = [mutant for mutant in chosen if not options.part or mutant.part == options.part]
    if options.by:
        chosen = [mutant._replace(tests=tuple(options.by)) for mutant in chosen]
    types = not options.no_types
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        wrong = check_baseline(Path(folder), chosen, types=types)
        if wrong is not None:
            console.print(wrong, style="red", markup=False)
            return 1
        outcomes = try_all(chosen, Path(folder), options.jobs, types=types, console=console)
    Console(width=None if sys.stdout.isatty() else 200).print(table_of(outcomes))
    caught = sum(outcome.status == "caught" for outcome in outcomes)
    print(f"mutants: {caught} of {len(outcomes)} caught")
    if options.json:
        text = json.dumps([asdict(outcome) for outcome in outcomes], indent=2)
        print(text) if options.json == "-" else Path(options.json).write_text(text + "\n", encoding="utf-8")
    return 0 if caught == len(outcomes) else 1


def try_all(mutants: list[Mutant], origin: Path, jobs: int, *, types: bool, console: Console) -> list[Outcome]:
    """Try all mutants, `jobs` at a time, and return their outcomes in the order of the table."""
    columns = (
        TextColumn("mutants"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    found: dict[str, Outcome] = {}
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(jobs) as pool:
        bar = progress.add_task("", total=len(mutants))
        for future in as_completed([pool.submit(try_mutant, mutant, origin, types=types) for mutant in mutants]):
            outcome = future.result()
            found[outcome.name] = outcome
            progress.update(bar, advance=1, description=f"{outcome.name}: {outcome.status}")
    return [found[mutant.name] for mutant in mutants]


def table_of(outcomes: list[Outcome]) -> Table:
    """Return the printed table: one row per mutant."""
    table = Table("mutant", "the mistake", "", "seen by", "s")
    colours = {"caught": "green", "survived": "red", "broken": "yellow"}
    for outcome in outcomes:
        status = f"[{colours[outcome.status]}]{outcome.status}[/]"
        seen = outcome.by or outcome.detail
        table.add_row(outcome.name, outcome.mistake, status, seen.replace("[", "\\["), f"{outcome.seconds:.0f}")
    return table


if __name__ == "__main__":
    sys.exit(main())
