"""Make one mistake at a time in a copy of the code and show that the tests see it.

    python tools/mutants.py                    every mutant, with a table at the end
    python tools/mutants.py --only NAME        one of them (may be given again)
    python tools/mutants.py --by TEST          whether these tests see them, instead of those the table names
    python tools/mutants.py --json FILE        the results as JSON (- for standard output)

Caught means: a test that passes without the mistake failed with an assertion, and which one is told. A patch that does
not fit exactly once, code that cannot be imported or that mypy refuses, a test that cannot be collected: each fails the
script, for it would look like a catch. So does a mutant that no test catches.
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
COPIED = ("src", "tests", "servers", "pyproject.toml")
CACHE = ".mypy"
SECONDS = 300

#: Loaded by pytest in the copy: says which tests failed, how, and stops at the first failed assertion.
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


class Broken(Exception):
    """The mutant itself is wrong: it shows nothing."""


@dataclass
class Outcome:
    """What became of one mutant."""

    name: str
    mistake: str
    file: str
    status: str  # caught, survived, broken
    by: str = ""
    said: str = ""
    seconds: float = 0.0


@dataclass
class Report:
    """What pytest found."""

    assertions: list[tuple[str, str]]
    errors: list[tuple[str, str]]
    passed: int
    output: str


def copy_tree(to: Path, origin: Path = ROOT) -> None:
    """The parts of the checkout that the tests need; from a copy also what mypy remembers of it."""
    for name in COPIED if origin == ROOT else (*COPIED, CACHE):
        source = origin / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, to / name)
    (to / "mutant_report.py").write_text(PLUGIN, encoding="utf-8")


def applied(mutant: Mutant, tree: Path) -> dict[str, str]:
    """The texts of its files with the mistake in them."""
    texts: dict[str, str] = {}
    for file, old, new in mutant.edits:
        text = texts.get(file) or (tree / file).read_text(encoding="utf-8")
        times = text.count(old)
        if times != 1:
            raise Broken(f"the text to change is in {file} {times} times, not once")
        if old == new:
            raise Broken("it changes nothing")
        texts[file] = text.replace(old, new)
    return texts


def environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree}", "PYTHONDONTWRITEBYTECODE": "1"}


def check_code(tree: Path, file: str, *, types: bool) -> None:
    """The mutated module can be imported, and mypy finds nothing wrong with it."""
    if not file.endswith(".py"):
        return
    module = file.removeprefix("src/").removesuffix(".py").replace("/", ".")
    code = f"import {module} as m; assert m.__file__.startswith({str(tree)!r}), m.__file__"
    asked = subprocess.run(
        [sys.executable, "-c", code], cwd=tree, env=environment(tree), capture_output=True, text=True, check=False
    )
    if asked.returncode:
        raise Broken(f"it cannot be imported: {asked.stderr.strip().splitlines()[-1]}")
    if types:
        check_types(tree, file)


def check_types(tree: Path, what: str) -> None:
    """Ask mypy."""
    asked = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", CACHE, what],
        cwd=tree,
        env=environment(tree),
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode:
        raise Broken(f"mypy refuses it: {asked.stdout.strip().splitlines()[0]}")


def named_tests(mutants: Iterable[Mutant]) -> list[str]:
    """Every test that a mutant names, once."""
    return list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))


def run_tests(tree: Path, tests: Iterable[str]) -> Report:
    """Run these tests in the copy."""
    where = tree / "report.json"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--tb=short", "-pmutant_report", "-pno:cacheprovider", *tests],
            cwd=tree,
            env={**environment(tree), "MUTANT_REPORT": str(where)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        output = done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        raise Broken(f"the tests took more than {SECONDS} s") from None
    if not where.exists():
        raise Broken(f"pytest did not come to its end: {output.strip()[-300:]}")
    found = json.loads(where.read_text())
    where.unlink()
    as_pairs = {key: [(test, said) for test, said in found[key]] for key in ("assertions", "errors")}
    return Report(**as_pairs, passed=found["passed"], output=output)


def try_mutant(mutant: Mutant, origin: Path = ROOT, *, types: bool = True) -> Outcome:
    """Apply one mutant to a copy of its own and run its tests there."""
    begun = time.monotonic()
    outcome = Outcome(mutant.name, mutant.mistake, mutant.file, "broken")
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder)
        copy_tree(tree, origin)
        try:
            for file, text in applied(mutant, tree).items():
                (tree / file).write_text(text, encoding="utf-8")
                check_code(tree, file, types=types)
            report = run_tests(tree, mutant.tests)
            if report.assertions:
                outcome.status = "caught"
                outcome.by, outcome.said = report.assertions[0]
            elif report.errors:
                raise Broken("no assertion failed, but {} says {}".format(*report.errors[0]))
            elif not report.passed:
                raise Broken(f"no test ran: {report.output.strip()[-300:]}")
            else:
                outcome.status, outcome.said = "survived", f"{report.passed} tests pass with the mistake"
        except Broken as error:
            outcome.said = str(error)
    outcome.seconds = round(time.monotonic() - begun, 1)
    return outcome


def check_baseline(tree: Path, mutants: list[Mutant], *, types: bool) -> str | None:
    """Without a mistake every test that is named must pass, and mypy too; else what is wrong."""
    tests = named_tests(mutants)
    copy_tree(tree)
    try:
        if types:
            check_types(tree, "src")
        report = run_tests(tree, tests)
    except Broken as error:
        return f"without a mistake: {error}"
    failed = [*report.assertions, *report.errors]
    if failed:
        return "without a mistake, {} fails: {}".format(*failed[0])
    return None if report.passed >= len(tests) else f"{report.passed} tests ran for {len(tests)} names: {report.output}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="try this mutant only")
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
    """All of them, some at once; the outcomes in the order of the table."""
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
    """One line for each mutant."""
    table = Table("mutant", "the mistake", "", "seen by", "s")
    colours = {"caught": "green", "survived": "red", "broken": "yellow"}
    for outcome in outcomes:
        status = f"[{colours[outcome.status]}]{outcome.status}[/]"
        seen = outcome.by or outcome.said
        table.add_row(outcome.name, outcome.mistake, status, seen.replace("[", "\\["), f"{outcome.seconds:.0f}")
    return table


if __name__ == "__main__":
    sys.exit(main())
