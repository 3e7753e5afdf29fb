"""The mistakes that are only possible, or only dangerous, on PostgreSQL."""

from __future__ import annotations

from mutants_kind import Mutant

POSTGRES = "tests/contract/test_postgres.py::TestPostgres::"
RACES = "tests/contract/test_postgres_races.py::"
SHARED = "tests/contract/test_postgres_shared.py::"
P = "src/mainspring/stores/postgres/"

POSTGRES_MUTANTS = (
    Mutant(
        "node-clock",
        "leases are judged by the instance's clock, not the server's (PostgreSQL)",
        P + "database.py",
        "return now if now is not None or isinstance(self.clock, SystemClock) else self.clock.now()",
        "return now if now is not None else self.clock.now()",
        (RACES + "test_an_instance_whose_clock_is_ahead_takes_nobodys_lease",),
    ),
    Mutant(
        "transaction-open-while-deciding",
        "due schedules stay locked until the planner has decided (PostgreSQL)",
        P + "due.py",
        """    async with db.single("due") as session:
        sql, soon = (_TOUCHED, 0) if touched else (_DUE_SCHEDULES, ahead)
        records = await session.fetch(sql, db.now(now), limit, hold, soon)
""",
        """    connection = await db.connect()
    await connection.execute("BEGIN")
    sql, soon = (_TOUCHED, 0) if touched else (_DUE_SCHEDULES, ahead)
    records = await connection.fetch(db.place(sql), db.now(now), limit, hold, soon)
    setattr(db, "deciding", connection)
""",
        (RACES + "test_a_planner_that_stops_between_reading_and_writing_delays_its_schedules_by_the_hold",),
    ),
    Mutant(
        "unpark-inside-finish",
        "whoever leaves a gate lets the next in by the same statement, and nobody looks again (PostgreSQL)",
        P + "apply_sql.py",
        """ORDER BY g.name FOR UPDATE)
UPDATE §gate g SET held = greatest(0, g.held - i.times) FROM {given(COUNT_COLUMNS)}, m
WHERE g.name = i.id AND m.name = i.id
""",
        """ORDER BY g.name FOR UPDATE),
u AS (UPDATE §gate g SET held = greatest(0, g.held - i.times) FROM {given(COUNT_COLUMNS)}, m
WHERE g.name = i.id AND m.name = i.id)
UPDATE §run r SET parked_on = NULL FROM m WHERE r.parked_on = m.name AND r.parked_on IS NOT NULL
""",
        (RACES + "test_a_run_that_is_parked_while_its_gate_is_left_is_let_go",),
        also=(
            (
                P + "parked.py",
                "    if not going:\n        return wall, 0\n",
                "    if going or not going:\n        return wall, 0\n",
            ),
        ),
    ),
    Mutant(
        "room-from-rows",
        "a gate's room is counted from run rows, which are as old as the statement (PostgreSQL)",
        P + "claim.py",
        '"SELECT name, max, held, closed_until FROM §gate WHERE name = ANY($1::text[]) ORDER BY name FOR UPDATE"',
        """\"\"\"SELECT g.name, g.max, (
    SELECT count(*)::integer FROM §run r WHERE r.state = 'running' AND position('"' || g.name || '"' IN r.gates) > 0
) AS held, g.closed_until FROM §gate g WHERE g.name = ANY($1::text[]) ORDER BY g.name FOR UPDATE\"\"\"""",
        (RACES + "test_two_that_ask_a_gate_at_the_same_moment_are_not_both_let_in",),
    ),
    Mutant(
        "upsert-postgres",
        "a fire that exists is written over (PostgreSQL)",
        P + "rows.py",
        "ON CONFLICT DO NOTHING RETURNING id\n",
        "ON CONFLICT (schedule_id, fire_key) WHERE schedule_id IS NOT NULL\n"
        "DO UPDATE SET state = excluded.state, created_at = excluded.created_at\n"
        "RETURNING CASE WHEN xmax = 0 THEN id END AS id\n",
        (POSTGRES + "test_planned_run_that_exists_is_skipped",),
        also=(
            (
                P + "births_sql.py",
                "ON CONFLICT DO NOTHING RETURNING id, body),",
                """ON CONFLICT (schedule_id, fire_key) WHERE schedule_id IS NOT NULL
    DO UPDATE SET state = excluded.state, created_at = excluded.created_at
    RETURNING CASE WHEN xmax = 0 THEN id END AS id, body),""",
            ),
        ),
    ),
    Mutant(
        "tail-by-highest-number",
        "who follows the log remembers no holes: what commits late is never seen (PostgreSQL)",
        P + "tail.py",
        "self._holes.append((self.after + 1, event.seq - 1, later))",
        "self._holes += []",
        (SHARED + "test_following_skips_nothing_and_waits_for_nobody",),
    ),
    Mutant(
        "drop-unique-postgres",
        "two runs for one fire time are possible (PostgreSQL)",
        P + "sql/0001_init.sql",
        "CREATE UNIQUE INDEX run_fire ",
        "CREATE INDEX run_fire ",
        (POSTGRES + "test_planned_run_that_exists_is_skipped",),
    ),
    Mutant(
        "cas-without-cursor-postgres",
        "a plan is written although another instance planned meanwhile (PostgreSQL)",
        P + "apply_sql.py",
        " AND s.cursor = i.at_cursor AND s.n = i.at_n\n",
        "\n",
        (POSTGRES + "test_two_planners_one_wins", POSTGRES + "test_schedule_compare_and_set"),
        also=((P + "births_sql.py", " AND s.cursor = i.at_cursor AND s.n = i.at_n\n", "\n"),),
    ),
    Mutant(
        "lost-answer-guessed",
        "a change whose answer was lost is sent again as if it had never been (PostgreSQL)",
        P + "store.py",
        "again=sent is not None)",
        "again=False)",
        ("tests/system/test_postgres_faults.py::test_a_commit_whose_answer_is_lost_is_found_by_its_ids",),
    ),
    Mutant(
        "renew-after-the-end",
        "a lease that has ended is renewed (PostgreSQL)",
        P + "claim.py",
        " AND r.owner = $2 AND r.lease_until > t.now",
        " AND r.owner = $2",
        (POSTGRES + "test_an_ended_lease_is_lost_even_if_nobody_took_it",),
    ),
)
