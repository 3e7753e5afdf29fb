"""The benchmark: a tiny run, the floor that it compares with, its statistics, and the judgement of its targets."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.chart import chart
from bench.contenders.floor import Floor, schema
from bench.contenders.rows import cell_bytes
from bench.plan import Part, Scenario, plan
from bench.report import BEGIN, END, cell, update_readme
from bench.runner import Failed, Measured, Results, Runner
from bench.stats import condensed, median, percentile, spread
from bench.suites import SUITES
from bench.targets import Verdict, verdicts
from mainspring.backends.sqlite import SqliteStore
from mainspring.backends.sqlite.schema import APPLICATION_ID
from mainspring.ledger.verify import verify

ROOT = Path(__file__).parents[2]


def test_a_tiny_run_yields_sane_figures(tmp_path: Path) -> None:
    asked = ("--here", "--only", "drain", "--n", "200", "--runs", "1", "--json", "--no-gate", "--dir", str(tmp_path))
    contenders = ("--contender", "mainspring", "--contender", "floor")
    done = subprocess.run(
        [sys.executable, "-m", "bench", *asked, *contenders], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    ours, floor = found["scenarios"]["drain"]["parts"]
    assert (ours["contender"], floor["contender"]) == ("mainspring", "floor")
    for part in (ours, floor):
        assert part["not_run"] is None
        assert len(part["runs"]) == 1
        for run in part["runs"]:
            assert run["n"] == 200
            assert run["durability"] == "WAL, synchronous=FULL"
            assert 1 < run["per_second"] < 1_000_000
            assert 1 < run["cpu_us"] < 1_000_000
    assert all(run["events"] == 600 for run in ours["runs"])
    assert found["machine"]["fsync_us"] > 0
    judged = {target["what"]: target["met"] for target in found["targets"]}
    assert judged["row of an empty RunStarted event"] is True
    assert judged["row of an empty RunSucceeded event"] is True
    assert judged["drain ÷ floor"] in (True, False)
    assert judged["drain ÷ SqliteHuey"] is None, "it was not run, so nothing is said about it"
    embedded = SUITES["embedded"]
    assert chart(found, embedded.panels, embedded.durability).count("<rect") == 2


async def test_the_floor_writes_whole_rows_and_their_events(tmp_path: Path) -> None:
    path = str(tmp_path / "floor.db")
    floor = Floor(path)
    floor.fill(250)
    assert floor.drain() == 250
    floor.db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    floor.db.execute(f"PRAGMA user_version = {len(list(schema().glob('*.sql')))}")
    floor.db.close()
    store = SqliteStore(path)
    await store.open()
    report = await verify(store)  # the log rebuilds the rows, as it does for a file of ours
    await store.close()
    assert report.ok, report.differences
    assert (report.runs, report.events) == (250, 750)


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(1, 101)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile(values, 1) == 100
    assert percentile([7.0], 0.99) == 7
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_a_list_of_milliseconds_is_condensed_to_percentiles() -> None:
    seen = condensed({"n": 4, "ms": [30.0, 1.0, 10.0, 2.0]})
    assert seen == {"n": 4, "p50_ms": 2.0, "p99_ms": 30.0, "max_ms": 30.0, "within_10ms": 3}


def test_medians_and_their_range() -> None:
    runs = [{"x": 3}, {"x": 10}, {"x": 4}, {"y": 1}]
    assert (median(runs, "x"), spread(runs, "x")) == (4, (3, 10))
    assert (median(runs, "z"), spread(runs, "z")) == (None, None)
    assert cell(runs, "x", 0) == "4 (3–10)"
    assert cell(runs, "y", 1) == "1.0"
    assert cell(runs, "z", 1) == "–"


def test_a_record_has_the_size_that_sqlite_gives_it() -> None:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a, b, c)")
    row = (5_000_000_000_000, "x" * 150, 1)
    db.execute("INSERT INTO t VALUES (1000, ?, ?, ?)", row)
    page = db.serialize()[db.execute("PRAGMA page_size").fetchone()[0] :]
    offset = int.from_bytes(page[8:10], "big")  # of the only cell, from the page's directory
    assert cell_bytes(1000, (None, *row)) == 2 + len(page) - offset


def _measured(contender: str, label: str = "", job: str = "drain", **figures: Any) -> Measured:
    return Measured(Part(contender, label or contender, job), [figures])


def _judged(results: Results) -> dict[str, Verdict]:
    return {verdict.what: verdict for verdict in verdicts(results)}


def test_a_target_is_judged_by_the_best_setting_of_a_peer() -> None:
    ours = _measured("mainspring", per_second=10_000, cpu_us=60)
    slow, fast = (_measured("huey", label, per_second=value) for label, value in (("1", 1_000), ("4", 2_001)))
    judged = _judged({"drain": [ours, slow, fast]})
    assert judged["drain ÷ SqliteHuey"].ok is False
    assert judged["drain ÷ SqliteHuey"].measured == "5.00 ×"
    assert judged["CPU per run"].ok is True
    assert judged["drain ÷ floor"].ok is None


def test_one_missing_or_doubled_fire_is_a_missed_target() -> None:
    figures = {"expected": 60, "fires": 60, "doubled": 0, "within_10ms": 58, "max_ms": 150.0}
    good, bad = dict(figures), figures | {"fires": 59, "doubled": 1, "within_10ms": 57, "max_ms": 201.0}
    names = ("cron, 60 s: fires", "cron: doubled", "cron: within 10 ms", "cron: latest")
    for runs, met in (([good], True), ([bad], False)):
        judged = _judged({"cron": [Measured(Part("mainspring", "", "cron"), runs)]})
        assert [judged[name].ok for name in names] == [met] * 4


def test_contenders_take_turns_and_the_slow_ones_may_take_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def spawn(_self: Runner, contender: str, *_: Any) -> dict[str, Any]:
        calls.append(contender)
        return {"per_second": len(calls)}

    monkeypatch.setattr(Runner, "_spawn", spawn)
    parts = (Part("mainspring", "", "x"), Part("floor", "", "x"), Part("huey", "", "x", runs=1))
    results = Runner(tmp_path).run([Scenario("x", "x", parts, (), runs=1)], 3, lambda *_: None)
    assert calls == ["mainspring", "floor", "huey", *["mainspring", "floor"] * 2]
    assert [median(one.runs, "per_second") for one in results["x"]] == [4, 5, 3]


def test_a_contender_that_fails_is_reported_with_its_reason(tmp_path: Path) -> None:
    scenario = Scenario("x", "x", (Part("floor", "floor", "no-such-job"),), ())
    results = Runner(tmp_path, here=True).run([scenario], 1, lambda *_: None)
    assert results["x"][0].runs == []
    assert "no scenario 'no-such-job' here" in str(results["x"][0].not_run)


def test_the_disk_is_quiet_before_a_contender_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    run = subprocess.run

    def started(*given: Any, **options: Any) -> Any:
        order.append("starts")
        return run(*given, **options)

    monkeypatch.setattr("bench.runner.os.sync", lambda: order.append("flushed"))
    monkeypatch.setattr("bench.runner.subprocess.run", started)
    runner = Runner(tmp_path, here=True)
    with pytest.raises(Failed):
        runner._spawn("floor", "nothing", str(tmp_path), {}, 60)
    assert order[-2:] == ["flushed", "starts"]


def test_only_the_text_between_the_marks_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    update_readme(page, "new")
    assert page.read_text() == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(ValueError, match="lacks its marks"):
        update_readme(page, "new")


def test_every_scenario_has_a_part_of_ours_and_its_page_has_the_marks() -> None:
    for quick in (False, True):
        for scenario in plan(quick=quick):
            assert any(part.contender == "mainspring" for part in scenario.parts), scenario.key
    page = (ROOT / "bench" / "README.md").read_text(encoding="utf-8")
    assert BEGIN in page
    assert END in page
