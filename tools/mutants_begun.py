"""Mutants of commits that plan and claim fires together, and of claims that pass gates without reading them."""

from __future__ import annotations

from mutants_kind import Mutant

BEGUN = "tests/backends/sqlite/test_sqlite_plan_and_claim.py::"
SQLITE = "tests/backends/sqlite/test_sqlite_store.py::TestSqlite::"
S = "src/mainspring/"

BEGUN_MUTANTS = (
    Mutant(
        "own-gate-passed-though-held",
        "the claim of runs at open gates passes a schedule's own gate that another run holds (SQLite)",
        S + "backends/sqlite/claim.py",
        " AND j.value NOT IN (SELECT h.name FROM gate_held h)\n",
        "\n",
        (BEGUN + "test_the_fast_path_is_not_taken_where_a_claim_would_take_other_runs[behind_a_gate_that_is_held]",),
    ),
    Mutant(
        "own-gate-passed-though-shut",
        "the claim of runs at open gates does not check whether a schedule's own gate is closed (SQLite)",
        S + "backends/sqlite/claim.py",
        "WHERE s.name = j.value AND (s.closed_until > 0 OR s.max < 1))",
        "WHERE s.name IS NULL AND (s.closed_until > 0 OR s.max < 1))",
        (SQLITE + "test_a_closed_gate_admits_none_until_its_time",),
    ),
    Mutant(
        "parked-unseen",
        "a run that leaves a gate reports that no run is parked although one is (SQLite)",
        S + "backends/sqlite/apply.py",
        " or db.value(sql.ANY_PARKED) == 1\n",
        "\n",
        ("tests/backends/sqlite/test_sqlite_fast_claims.py::test_a_release_answers_whether_any_run_is_parked",),
    ),
    Mutant(
        "begun-before-others",
        "a planned fire is claimed before a run that already waits (SQLite)",
        S + "backends/sqlite/fast/plan_and_claim.py",
        "    if next_at is not None and next_at <= wall + offer.ahead:\n        return None",
        "    if next_at is not None and next_at <= 0:\n        return None",
        (BEGUN + "test_the_fast_path_is_not_taken_where_a_claim_would_take_other_runs[waits_before]",),
    ),
    Mutant(
        "begun-though-moved",
        "a fire is claimed although its schedule was changed meanwhile (SQLite)",
        S + "backends/sqlite/fast/plan_and_claim.py",
        "    if db.run_rows(sql.MOVE_SCHEDULES, plans.moved, mark) < len(plans.moved):\n        raise FastPathMissed\n",
        "    db.run_rows(sql.MOVE_SCHEDULES, plans.moved, mark)\n",
        (BEGUN + "test_only_the_plan_of_a_changed_schedule_is_refused",),
    ),
    Mutant(
        "begun-without-start",
        "a fire that is planned and claimed in one commit has no RunStarted (SQLite)",
        S + "backends/sqlite/fast/plan_and_claim.py",
        "    append_started(db, pack(rids))\n",
        "",
        (BEGUN + "test_fires_are_leased_and_written_as_by_planning_and_claiming_separately",),
    ),
    Mutant(
        "begun-beyond-the-slots",
        "more fires are claimed than the worker requested (SQLite)",
        S + "backends/sqlite/fast/plan_and_claim.py",
        "    if len(runs) > claim_request.limit or not all(",
        "    if not all(",
        (BEGUN + "test_the_fast_path_is_not_taken_where_a_claim_would_take_other_runs[no_room]",),
    ),
)
