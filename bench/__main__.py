"""python -m bench: run the benchmark, print its tables, judge the targets, write bench/results and bench/README.md.

MAINSPRING_SRC names another checkout's `src` to measure instead of this one's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.chart import chart
from bench.envs import CONTENDERS, PLACE, ROOT
from bench.machine import machine
from bench.plan import Scenario, chosen
from bench.redis_server import Keyspaces
from bench.report import document, markdown, merged, show, store, update_readme
from bench.runner import Results, Runner
from bench.server import Databases, Unavailable
from bench.suites import SUITES, Suite

#: Load average at the start of a run above which a warning is printed.
BUSY = 0.5


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    console = Console(stderr=options.json)
    chosen_suites = {}
    for suite in SUITES.values():
        if not options.part or suite.key in options.part:
            chosen_suites[suite.key] = chosen(
                suite.plan(quick=options.quick, n=options.n), options.only, options.contender
            )
    if not any(chosen_suites.values()):
        print("nothing to run: no scenario of --part and --only has a part of --contender", file=sys.stderr)
        return 2
    documents: list[dict[str, Any]] = []
    bad = False
    for key, scenarios in chosen_suites.items():
        if scenarios:
            found, good = _suite(SUITES[key], scenarios, options, console)
            documents.append(found)
            bad = bad or not good
    if options.json:
        print(json.dumps(merged(documents)))
    return 1 if bad and not options.no_gate else 0


def _suite(
    suite: Suite, scenarios: list[Scenario], options: argparse.Namespace, console: Console
) -> tuple[dict[str, Any], bool]:
    """Run one suite, print it and write its results; return the results and True if every target was met."""
    PLACE.mkdir(exist_ok=True)
    began = time.monotonic()
    databases = Databases()
    with tempfile.TemporaryDirectory(dir=options.dir or PLACE, prefix="scratch-") as scratch:
        # a server writes its files below the temporary folder
        where = Path(tempfile.gettempdir() if suite.on_server or suite.on_redis else scratch)
        about = machine(where) | {"quick": options.quick}
        if about["load_before"] > BUSY:
            console.print(f"[yellow]this machine is busy (load {about['load_before']}): the figures will say little[/]")
        if suite.on_server or suite.on_redis:
            try:
                about["server"] = Keyspaces().about() if suite.on_redis else databases.about()
            except Unavailable as reason:
                console.print(f"[bold red]{reason}[/]")
        results, about["seconds_by_scenario"] = _measure(scenarios, Path(scratch), databases, options, console)
    about["seconds"] = round(time.monotonic() - began)
    judged = suite.verdicts(results)
    found = document(scenarios, results, judged, about)
    if not options.json:
        judged_here = [v for v in judged if v.ok is not None] if options.only or options.contender else judged
        show(console, scenarios, results, judged_here)
        console.print(f"{about['seconds']} s at {about['commit']}; {store(about)}; fdatasync {about['fsync_us']} µs")
    whole = not (options.quick or options.only or options.contender or options.n or options.here)
    if options.write or (whole and not options.no_write):
        folder = ROOT / "bench" / "results"
        folder.mkdir(exist_ok=True)
        path = folder / f"{suite.key}.json"
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        path.with_suffix(".svg").write_text(chart(found, suite.panels, suite.durability), encoding="utf-8")
        update_readme(ROOT / "bench" / "README.md", markdown(scenarios, results, judged, about, suite.key), suite.key)
        console.print(f"written: bench/results/{suite.key}.json, {suite.key}.svg, bench/README.md")
    failed = [
        one
        for parts in results.values()
        for one in parts
        if one.not_run and CONTENDERS[one.part.contender].kind == "ours"
    ]
    for one in failed:
        console.print(f"[bold red]{one.part.label}: {one.not_run}[/]")
    return found, not failed and all(v.ok is not False for v in judged)


def _measure(
    scenarios: list[Scenario], scratch: Path, databases: Databases, options: argparse.Namespace, console: Console
) -> tuple[Results, dict[str, float]]:
    runner = Runner(scratch, here=options.here, reuse=options.reuse, databases=databases)
    steps = sum(len(scenario.parts) * (options.runs or scenario.runs) for scenario in scenarios)
    columns: list[Any] = [BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")]
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("", total=steps)
            results = runner.run(
                scenarios, options.runs, lambda said, done: progress.update(bar, description=said, completed=done)
            )
            return results, runner.seconds
    finally:
        runner.close()


def _options(arguments: list[str] | None) -> argparse.Namespace:
    keys = [scenario.key for suite in SUITES.values() for scenario in suite.plan(quick=True)]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer items and runs, at most four minutes a part")
    parser.add_argument("--part", action="append", choices=list(SUITES), default=[], help="this part; all by default")
    parser.add_argument("--only", action="append", choices=keys, default=[], help="this scenario; may be repeated")
    parser.add_argument(
        "--contender", action="append", choices=list(CONTENDERS), default=[], help="this one; may be repeated"
    )
    parser.add_argument("--runs", type=_positive, help="number of runs of each, instead of the scenario's")
    parser.add_argument("--n", type=_positive, help="number of items, instead of the scenario's")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--no-gate", action="store_true", help="exit with 0 though a target is missed")
    parser.add_argument("--reuse", action="store_true", help="keep prepared files and use those of the last time")
    parser.add_argument(
        "--here", action="store_true", help="use this interpreter for all contenders, make no environments"
    )
    parser.add_argument("--dir", help="where database files are made (default: .bench in the checkout)")
    parser.add_argument("--write", action="store_true", help="write results though this is not a whole run")
    parser.add_argument("--no-write", action="store_true", help="write nothing")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
