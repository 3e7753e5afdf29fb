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
from bench.plan import Scenario, chosen, plan
from bench.report import document, markdown, show, update_readme
from bench.runner import Results, Runner
from bench.targets import verdicts

#: A load average above this when the run begins is worth a word.
BUSY = 0.5


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    console = Console(stderr=options.json)
    scenarios = chosen(plan(quick=options.quick, n=options.n), options.only, options.contender)
    if not scenarios:
        print("nothing to run: no scenario of --only has a part of --contender", file=sys.stderr)
        return 2
    PLACE.mkdir(exist_ok=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=options.dir or PLACE, prefix="scratch-") as scratch:
        about = machine(Path(scratch)) | {"quick": options.quick}
        if about["load_before"] > BUSY:
            console.print(f"[yellow]this machine is busy (load {about['load_before']}): the figures will say little[/]")
        results, about["seconds_by_scenario"] = _measure(scenarios, Path(scratch), options, console)
    about["seconds"] = round(time.monotonic() - began)
    judged = verdicts(results)
    found = document(scenarios, results, judged, about)
    if options.json:
        print(json.dumps(found))
    else:
        judged_here = [v for v in judged if v.ok is not None] if options.only or options.contender else judged
        show(console, scenarios, results, judged_here)
        console.print(f"{about['seconds']} s at {about['commit']}; fdatasync {about['fsync_us']} µs")
    whole = not (options.quick or options.only or options.contender or options.n or options.here)
    if options.write or (whole and not options.no_write):
        folder = ROOT / "bench" / "results"
        folder.mkdir(exist_ok=True)
        (folder / "embedded.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        (folder / "embedded.svg").write_text(chart(found), encoding="utf-8")
        update_readme(ROOT / "bench" / "README.md", markdown(scenarios, results, judged, about))
        console.print("written: bench/results/embedded.json, embedded.svg, bench/README.md")
    missed = [v for v in judged if v.ok is False]
    failed = [one for parts in results.values() for one in parts if one.not_run and one.part.contender == "mainspring"]
    for one in failed:
        console.print(f"[bold red]{one.part.label}: {one.not_run}[/]")
    if options.no_gate:
        return 0
    return 1 if missed or failed else 0


def _measure(
    scenarios: list[Scenario], scratch: Path, options: argparse.Namespace, console: Console
) -> tuple[Results, dict[str, float]]:
    runner = Runner(scratch, here=options.here, reuse=options.reuse)
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
    keys = [scenario.key for scenario in plan(quick=True)]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer items and runs, at most four minutes")
    parser.add_argument("--only", action="append", choices=keys, default=[], help="this scenario; may be repeated")
    parser.add_argument(
        "--contender", action="append", choices=list(CONTENDERS), default=[], help="this one; may be repeated"
    )
    parser.add_argument("--runs", type=_positive, help="so many runs of each, instead of the scenario's number")
    parser.add_argument("--n", type=_positive, help="so many items, instead of the scenario's number")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--no-gate", action="store_true", help="exit with 0 though a target is missed")
    parser.add_argument("--reuse", action="store_true", help="keep prepared files and use those of the last time")
    parser.add_argument("--here", action="store_true", help="use this interpreter for everybody, make no environments")
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
