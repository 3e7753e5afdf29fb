"""The PostgreSQL part of the benchmark: a tiny run on a durable server, its floor, the judgement of its targets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import envs
from bench.__main__ import main
from bench.chart import chart
from bench.contenders.common import committed
from bench.contenders.postgres.floor import Floor
from bench.contenders.postgres.workers import Tally, race
from bench.envs import CONTENDERS, NotInstalled, interpreter
from bench.plan import Part
from bench.report import MARKS, markdown, merged, update_readme
from bench.runner import Measured, Results, Runner
from bench.server import Databases, Unavailable
from bench.suites import SUITES
from bench.targets import Verdict
from mainspring.backends.postgres import PostgresStore
from mainspring.ledger.verify import verify
from servers.for_tests import database_url

ROOT = Path(__file__).parents[2]
SUITE = SUITES["postgres"]


@pytest.mark.timeout(240)  # a server, four processes and databases, with fsync, on a machine that may be busy
def test_a_tiny_run_on_a_durable_server(tmp_path: Path) -> None:
    database_url()  # skips where there is no server to be had
    asked = ("--here", "--n", "120", "--runs", "1", "--json", "--no-gate", "--dir", str(tmp_path))
    only = ("--part", "postgres", "--only", "pg-drain", "--only", "pg-held")
    contenders = ("--contender", "mainspring-pg", "--contender", "floor-pg")
    done = subprocess.run(
        [sys.executable, "-m", "bench", *asked, *only, *contenders], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    parts = [part for scenario in found["scenarios"].values() for part in scenario["parts"]]
    assert [part["not_run"] for part in parts] == [None] * 4
    for part in parts:
        (run,) = part["runs"]
        assert run["n"] == 120
        assert run["durability"] == "fsync=on, synchronous_commit=on", "as its own session told it"
        assert 1 < run["per_second"] < 1_000_000
        assert 1 < run["cpu_us"] < 1_000_000
    held = found["scenarios"]["pg-held"]["parts"]
    assert [part["runs"][0]["events"] for part in held] == [3 * 240] * 2, "the earlier runs are there"
    assert {name: found["machine"]["server"][name] for name in ("fsync", "synchronous_commit")} == {
        "fsync": "on",
        "synchronous_commit": "on",
    }
    judged = {target["what"]: target["met"] for target in found["targets"]}
    assert judged["drain ÷ floor"] in (True, False)
    assert judged["drain ÷ pgqueuer"] is None, "it was not run, so nothing is said about it"
    assert judged["runs run twice"] is None
    assert chart(found, SUITE.panels, SUITE.durability).count("<rect") == 4


@pytest.mark.tampers  # it verifies the store itself; opening it once more would leave the schema "mainspring" behind
async def test_the_floor_writes_whole_rows_and_their_events() -> None:
    store = PostgresStore(database_url())
    await store.open()
    try:
        floor = await Floor.open(database_url())
        await floor.fill(250)
        assert await floor.drain() == 250
        report = await verify(store)  # the log rebuilds the rows, as it does for a database of ours
        await floor.connection.execute("DROP SCHEMA mainspring CASCADE")
        await floor.connection.close()
    finally:
        await store.close()
    assert report.ok, report.differences
    assert (report.runs, report.events) == (250, 750)


def test_a_server_that_may_lose_a_commit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_POSTGRES_URL", database_url())  # which runs without fsync, for speed
    with pytest.raises(Unavailable, match=r"fsync.*off"):
        Databases().about()
    with pytest.raises(SystemExit, match="synchronous_commit=off; all must have"):
        committed("on", "off")
    assert committed("on", "on") == "fsync=on, synchronous_commit=on"


def test_a_prepared_database_is_filled_once_and_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TEST_POSTGRES_URL", database_url())
    calls: list[tuple[str, dict[str, Any]]] = []

    def spawn(_self: Runner, _contender: str, job: str, _folder: str, parameters: dict[str, Any], _: float) -> Any:
        calls.append((job, parameters))
        return {"first_ms": 7} if job == "fill" else {"per_second": 1}

    monkeypatch.setattr(Runner, "_spawn", spawn)
    runner = Runner(tmp_path)
    part = Part("mainspring-pg", "", "tick", {"seconds": 1}, prepare=("fill", {"n": 3}))
    for _ in range(2):
        runner._run_part(part)
    runner.close()
    assert [job for job, _ in calls] == ["fill", "tick", "tick"]
    assert calls[1][1] == {"url": calls[1][1]["url"], "seconds": 1, "first_ms": 7}
    assert len({parameters["url"] for _, parameters in calls}) == 3, "each has a database of its own"


def _measured(
    contender: str, job: str = "drain", runs: list[dict[str, Any]] | None = None, **parameters: Any
) -> Measured:
    return Measured(Part(contender, contender, job, parameters), runs or [])


def _judged(results: Results) -> dict[str, Verdict]:
    return {verdict.what: verdict for verdict in SUITE.verdicts(results)}


@pytest.mark.parametrize(("behind", "met"), [(1, True), (2, False)])
def test_rounds_ahead_of_a_peer_are_counted(behind: int, met: bool) -> None:
    peer = [{"per_second": 100.0}] * 5
    ours = [{"per_second": 99.0}] * behind + [{"per_second": 150.0}] * (5 - behind)
    judged = _judged({"pg-drain": [_measured("mainspring-pg", runs=ours), _measured("pgqueuer", runs=peer)]})
    assert judged["rounds ahead of pgqueuer"].ok is met
    assert judged["drain ÷ pgqueuer"].measured == "1.50 ×"


def test_one_run_that_ran_twice_is_a_missed_target() -> None:
    def workers(processes: int, rate: float, twice: int) -> Measured:
        return _measured("mainspring-pg", "workers", [{"per_second": rate, "twice": twice}], processes=processes)

    judged = _judged({"pg-workers": [workers(1, 100.0, 0), workers(2, 96.0, 0)]})
    assert (judged["two workers ÷ one, no-op"].ok, judged["runs run twice"].ok) == (True, True)
    assert judged["two workers ÷ one, 1 ms of CPU"].ok is None
    judged = _judged({"pg-workers": [workers(1, 100.0, 0), workers(2, 94.0, 1)]})
    assert (judged["two workers ÷ one, no-op"].ok, judged["runs run twice"].ok) == (False, False)


_WORKER = """
import asyncio
from bench.contenders.common import main
from bench.contenders.postgres.workers import Tally, ready, told

async def worker(folder, place, first):
    tally = Tally(folder, place)
    meter = await ready()
    for number in range(3):
        tally.add(str(first * place + number))
    await told()
    tally.save()
    return {"cpu": meter.cpu()}

main({"worker": lambda **p: asyncio.run(worker(**p))})
"""


@pytest.mark.parametrize(("first", "n", "twice"), [(3, 6, 0), (2, 5, 1)])
async def test_workers_start_together_and_report_their_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, n: int, twice: int
) -> None:
    (tmp_path / "some_worker.py").write_text(_WORKER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")

    async def ended() -> None: ...

    figures = await race("some_worker", str(tmp_path), n, 2, {"first": first}, ended)
    assert (figures["n"], figures["processes"], figures["twice"]) == (n, 2, twice)
    assert figures["least_share"] == 3 / n
    with pytest.raises(SystemExit, match=f"of 4 items {n} were run"):
        await race("some_worker", str(tmp_path), 4, 2, {"first": first}, ended)


def test_a_tally_is_visible_to_every_process_that_maps_its_file(tmp_path: Path) -> None:
    (tmp_path / "tally").write_bytes(bytes(16))
    tally = Tally(str(tmp_path), 1)
    for item in ("a", "b"):
        tally.add(item)
    assert tally.items == ["a", "b"]
    assert (tmp_path / "tally").read_bytes() == bytes(8) + (2).to_bytes(8, "little")


def test_a_python_that_is_too_old_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interpreter((3, 11)) == sys.executable
    monkeypatch.setattr(envs.shutil, "which", lambda _name: None)
    monkeypatch.setattr(envs.Path, "home", lambda: Path("/nowhere"))
    with pytest.raises(NotInstalled, match=r"needs Python ≥ 3\.99"):
        interpreter((3, 99))


def test_every_part_has_its_place_in_the_page_and_a_contender_of_ours(tmp_path: Path) -> None:
    page = (ROOT / "bench" / "README.md").read_text(encoding="utf-8")
    keys: list[str] = []
    for suite in SUITES.values():
        assert all(mark in page for mark in MARKS[suite.key])
        for quick in (False, True):
            for scenario in suite.plan(quick=quick):
                assert any(CONTENDERS[part.contender].kind == "ours" for part in scenario.parts), scenario.key
                here = {
                    (CONTENDERS[part.contender].on_server, CONTENDERS[part.contender].on_redis)
                    for part in scenario.parts
                }
                assert all(postgres <= suite.on_server and redis is suite.on_redis for postgres, redis in here)
        keys += [scenario.key for scenario in suite.plan(quick=True)]
    assert len(keys) == len(set(keys)), "--only names a scenario of one part"
    copy = tmp_path / "README.md"
    copy.write_text(page)
    update_readme(copy, "new", "postgres")
    begin, end = MARKS["postgres"]
    assert f"{begin}\n\nnew\n\n{end}" in copy.read_text()
    assert page.split(begin)[0] == copy.read_text().split(begin)[0]


def test_the_page_shows_the_settings_of_the_server_and_the_json_merges_parts() -> None:
    machine = {"date": "d", "commit": "c", "cores": 2, "cpu": "x", "python": "3", "filesystem": "ext4", "fsync_us": 9}
    server = {"fsync": "on", "synchronous_commit": "on", "server_version": "18.6"}
    said = markdown([], {}, [], machine | {"load_before": 0, "server": server}, "postgres")
    assert "PostgreSQL 18.6 (fsync=on, synchronous_commit=on)" in said
    assert "results/postgres.svg" in said
    one, two = ({"machine": {key: 1}, "scenarios": {key: {}}, "targets": [key]} for key in ("a", "b"))
    assert merged([one, two]) == {"machine": {"a": 1, "b": 1}, "scenarios": {"a": {}, "b": {}}, "targets": ["a", "b"]}


def test_a_part_without_the_scenario_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--part", "postgres", "--only", "drain"]) == 2
    assert "nothing to run" in capsys.readouterr().err
