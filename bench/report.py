"""Reports of the results: tables for the terminal and for bench/README.md, JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.plan import Scenario
from bench.runner import Measured, Results
from bench.stats import median, spread
from bench.targets import Verdict

BEGIN, END = "<!-- results: written by `make bench` -->", "<!-- end of results -->"
#: Marks in bench/README.md between which the results of each suite are written.
MARKS = {
    "embedded": (BEGIN, END),
    "service": ("<!-- results of the service: written by `make bench` -->", "<!-- end of results of the service -->"),
    "postgres": ("<!-- results on PostgreSQL: written by `make bench` -->", "<!-- end of results on PostgreSQL -->"),
    "redis": ("<!-- results on Redis: written by `make bench` -->", "<!-- end of results on Redis -->"),
}


def cell(runs: Sequence[dict[str, Any]], figure: str, digits: int) -> str:
    """Format a median, with the range of the runs if they differ."""
    middle, ends = median(runs, figure), spread(runs, figure)
    if middle is None or ends is None:
        return "–"
    low, high = (f"{end:,.{digits}f}" for end in ends)
    said = f"{middle:,.{digits}f}"
    return said if low == high else f"{said} ({low}–{high})"


def _durability(measured: Sequence[Measured]) -> str | None:
    """Return the durability that all parts have in common; None if they differ."""
    said = {str(run.get("durability")) for one in measured for run in one.runs}
    return said.pop() if len(said) == 1 else None


def _note(scenario: Scenario, measured: Sequence[Measured]) -> str:
    same = _durability(measured)
    return f"{scenario.note} Durability of all: {same}.".strip() if same else scenario.note


def _rows(scenario: Scenario, measured: Sequence[Measured]) -> list[list[str]]:
    each = _durability(measured) is None
    rows = []
    for one in measured:
        if one.not_run is not None and not one.runs:
            rows.append([f"{one.part.label}: not run ({one.not_run})", *[""] * (len(scenario.columns) + 1 + each)])
            continue
        cells = [cell(one.runs, figure, digits) for figure, _, digits in scenario.columns]
        durability = [str(one.runs[0].get("durability", "–"))] if each else []
        failed = "" if one.not_run is None else f" (then a run failed: {one.not_run})"
        rows.append([one.part.label + failed, str(len(one.runs)), *cells, *durability])
    return rows


def _heads(scenario: Scenario, measured: Sequence[Measured]) -> list[str]:
    each = ["durability"] if _durability(measured) is None else []
    return ["", "runs", *(head for _, head, _ in scenario.columns), *each]


def _mark(verdict: Verdict) -> str:
    return {True: "yes", False: "NO", None: "–"}[verdict.ok]


def show(console: Console, plan: Sequence[Scenario], results: Results, verdicts: Sequence[Verdict]) -> None:
    """Print all tables to the terminal."""
    for scenario in plan:
        measured = results[scenario.key]
        table = Table(title=scenario.title, title_justify="left", caption=_note(scenario, measured))
        table.caption_justify = "left"
        for number, head in enumerate(_heads(scenario, measured)):
            table.add_column(head, justify="left" if number == 0 else "right")
        for row in _rows(scenario, measured):
            table.add_row(*row)
        console.print(table)
    if not verdicts:
        return
    table = Table(title="Targets", title_justify="left")
    for head in ("target", "goal", "measured", "met"):
        table.add_column(head, justify="left" if head == "target" else "right")
    for verdict in verdicts:
        style = {True: "green", False: "bold red", None: "dim"}[verdict.ok]
        table.add_row(verdict.what, verdict.goal, verdict.measured, f"[{style}]{_mark(verdict)}[/]")
    console.print(table)


def markdown(
    plan: Sequence[Scenario],
    results: Results,
    verdicts: Sequence[Verdict],
    machine: dict[str, Any],
    suite: str = "embedded",
) -> str:
    """Return all tables as Markdown."""
    about = (
        f"Run of {machine['date']} at {machine['commit']}: {machine['cores']} cores ({machine['cpu']}), "
        f"Python {machine['python']}, {store(machine)}, {machine['filesystem']}, "
        f"4 KiB append + fdatasync {machine['fsync_us']} µs, load before {machine['load_before']}."
    )
    lines = [
        about,
        "",
        f"![drain, enqueue and CPU per fire](results/{suite}.svg)",
        "",
        *_table(["target", "goal", "measured", "met"], [[v.what, v.goal, v.measured, _mark(v)] for v in verdicts]),
    ]
    for scenario in plan:
        lines += ["", f"### {scenario.title}", ""]
        measured = results[scenario.key]
        lines += [note, ""] if (note := _note(scenario, measured)) else []
        lines += _table(_heads(scenario, measured), _rows(scenario, measured))
    return "\n".join(lines)


def store(machine: dict[str, Any]) -> str:
    """Describe the store of the rows and the settings of its server."""
    server = machine.get("server")
    if server is None:
        return f"SQLite {machine['sqlite']}"
    known = ("name", "server_version", "data")
    set_to = ", ".join(f"{name}={value}" for name, value in server.items() if name not in known)
    return f"{server.get('name', 'PostgreSQL')} {server['server_version']} ({set_to})"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    align = ["---", *["---:"] * (len(heads) - 1)]
    return [f"| {' | '.join(row)} |" for row in (heads, align, *rows)]


def update_readme(path: Path, text: str, suite: str = "embedded") -> None:
    """Replace the text between the marks; raise an error for a page without them."""
    first, last = MARKS[suite]
    page = path.read_text(encoding="utf-8")
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"{path} lacks its marks: put {first!r} and {last!r} where the results belong")
    path.write_text(f"{before}{first}\n\n{text}\n\n{last}{after}", encoding="utf-8")


def document(
    plan: Sequence[Scenario], results: Results, verdicts: Sequence[Verdict], machine: dict[str, Any]
) -> dict[str, Any]:
    """Return all results as a JSON document."""
    return {
        "machine": machine,
        "scenarios": {
            scenario.key: {
                "title": scenario.title,
                "parts": [
                    {
                        "contender": one.part.contender,
                        "label": one.part.label,
                        "parameters": one.part.parameters,
                        "not_run": one.not_run,
                        "medians": {key: median(one.runs, key) for key in _figures(one)},
                        "runs": one.runs,
                    }
                    for one in results[scenario.key]
                ],
            }
            for scenario in plan
        },
        "targets": [
            {"scenario": v.scenario, "what": v.what, "goal": v.goal, "measured": v.measured, "met": v.ok}
            for v in verdicts
        ],
    }


def merged(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the documents of several suites, whose scenarios have different names."""
    whole: dict[str, Any] = {"machine": {}, "scenarios": {}, "targets": []}
    for one in documents:
        whole["machine"] |= one["machine"]
        whole["scenarios"] |= one["scenarios"]
        whole["targets"] += one["targets"]
    return whole


def _figures(one: Measured) -> list[str]:
    first = one.runs[0] if one.runs else {}
    return [key for key, value in first.items() if isinstance(value, int | float)]
