"""The mistakes that become possible when fires are planned and claimed in one commit, and gates passed unread."""

from __future__ import annotations

from mutants_kind import Mutant

BEGUN = "tests/contract/test_sqlite_begun.py::"
SQLITE = "tests/contract/test_sqlite.py::TestSqlite::"
S = "src/mainspring/"

BEGUN_MUTANTS = (
    Mutant(
        "own-gate-passed-though-held",
        "a claim of runs that all pass takes a schedule's own gate though another run holds it (SQLite)",
        S + "stores/sqlite/claim.py",
        " AND j.value NOT IN (SELECT h.name FROM gate_held h)\n",
        "\n",
        (BEGUN + "test_the_way_is_left_where_a_claim_would_take_others[behind_a_gate_that_is_held]",),
    ),
    Mutant(
        "own-gate-passed-though-shut",
        "a claim of runs that all pass does not ask whether a schedule's own gate is closed (SQLite)",
        S + "stores/sqlite/claim.py",
        "WHERE s.name = j.value AND (s.closed_until > 0 OR s.max < 1))",
        "WHERE s.name IS NULL AND (s.closed_until > 0 OR s.max < 1))",
        (SQLITE + "test_a_closed_gate_admits_none_until_its_time",),
    ),
    Mutant(
        "parked-unseen",
        "whoever leaves a gate believes that nobody waits at one (SQLite)",
        S + "stores/sqlite/apply.py",
        " or db.value(sql.ANY_PARKED) == 1\n",
        "\n",
        ("tests/contract/test_sqlite_short_lives.py::test_whoever_leaves_a_gate_is_told_whether_anybody_waits_at_one",),
    ),
    Mutant(
        "begun-before-others",
        "a fire that is planned goes before a run that waits already (SQLite)",
        S + "stores/sqlite/begun.py",
        "    if next_at is not None and next_at <= wall + offer.ahead:\n        return None",
        "    if next_at is not None and next_at <= 0:\n        return None",
        (BEGUN + "test_the_way_is_left_where_a_claim_would_take_others[waits_before]",),
    ),
    Mutant(
        "begun-though-moved",
        "a fire begins though its schedule was changed meanwhile (SQLite)",
        S + "stores/sqlite/begun.py",
        "    if db.run_rows(sql.MOVE_SCHEDULES, moved, mark) < len(changes):\n        raise Surprised\n",
        "    db.run_rows(sql.MOVE_SCHEDULES, moved, mark)\n",
        (BEGUN + "test_a_schedule_that_was_changed_meanwhile_is_refused_alone",),
    ),
    Mutant(
        "begun-without-start",
        "a fire that is planned and claimed at once has no RunStarted (SQLite)",
        S + "stores/sqlite/begun.py",
        "    write_started(db, pack(rids))\n",
        "",
        (BEGUN + "test_they_are_given_and_written_alike",),
    ),
    Mutant(
        "begun-beyond-the-slots",
        "more fires begin than the worker wished for (SQLite)",
        S + "stores/sqlite/begun.py",
        "    if len(runs) > wish.limit or not all(",
        "    if not all(",
        (BEGUN + "test_the_way_is_left_where_a_claim_would_take_others[no_room]",),
    ),
)
