"""Mutants that are only possible, or only dangerous, on PostgreSQL."""

from __future__ import annotations

from mutants_kind import Mutant

POSTGRES = "tests/backends/postgres/test_postgres_store.py::TestPostgres::"
RACES = "tests/backends/postgres/test_postgres_races.py::"
SHARED = "tests/backends/postgres/test_postgres_shared.py::"
P = "src/mainspring/backends/postgres/"

POSTGRES_MUTANTS = (
    Mutant(
        "node-clock",
        "leases are judged by the instance's clock, not the server's (PostgreSQL)",
        P + "database.py",
        "return now if now is not None or isinstance(self.clock, SystemClock) else self.clock.now()",
        "return now if now is not None else self.clock.now()",
        (RACES + "test_an_instance_whose_clock_is_ahead_takes_no_held_lease",),
    ),
    Mutant(
        "transaction-open-while-deciding",
        "due schedules stay locked until the planner has decided (PostgreSQL)",
        P + "due.py",
        """    async with db.single_statement("due") as session:
        records = await session.fetch(statement, db.now(now), limit, hold, ahead)
""",
        """    connection = await db.connect()
    await connection.execute("BEGIN")
    records = await connection.fetch(db.qualify(statement), db.now(now), limit, hold, ahead)
    setattr(db, "deciding", connection)
""",
        (RACES + "test_a_planner_that_stops_between_reading_and_writing_delays_its_schedules_by_the_hold",),
    ),
    Mutant(
        "unpark-inside-finish",
        "a run leaves a gate and unparks the next in one statement, and the gate is not checked again (PostgreSQL)",
        P + "apply_sql.py",
        """ORDER BY g.name FOR UPDATE)
UPDATE §gate g SET held = greatest(0, g.held - i.times) FROM {unnest_columns(COUNT_COLUMNS)}, m
WHERE g.name = i.id AND m.name = i.id
""",
        """ORDER BY g.name FOR UPDATE),
u AS (UPDATE §gate g SET held = greatest(0, g.held - i.times) FROM {unnest_columns(COUNT_COLUMNS)}, m
WHERE g.name = i.id AND m.name = i.id)
UPDATE §run r SET parked_on = NULL FROM m WHERE r.parked_on = m.name AND r.parked_on IS NOT NULL
""",
        (RACES + "test_a_run_parked_while_its_gate_is_left_is_unparked",),
        also=(
            (
                P + "unpark.py",
                "    if not counts:\n        return wall, 0\n",
                "    if counts or not counts:\n        return wall, 0\n",
            ),
        ),
    ),
    Mutant(
        "room-from-rows",
        "a gate's room is counted from run rows, which are as old as the statement (PostgreSQL)",
        P + "claim_sql.py",
        '"SELECT name, max, held, closed_until FROM §gate WHERE name = ANY($1::text[]) ORDER BY name FOR UPDATE"',
        """\"\"\"SELECT g.name, g.max, (
    SELECT count(*)::integer FROM §run r WHERE r.state = 'running' AND position('"' || g.name || '"' IN r.gates) > 0
) AS held, g.closed_until FROM §gate g WHERE g.name = ANY($1::text[]) ORDER BY g.name FOR UPDATE\"\"\"""",
        (RACES + "test_a_gate_with_room_for_one_admits_one_of_two_concurrent_claims",),
    ),
    Mutant(
        "upsert-postgres",
        "an existing fire is overwritten (PostgreSQL)",
        P + "rows.py",
        "ON CONFLICT DO NOTHING RETURNING id\n",
        "ON CONFLICT (schedule_id, fire_key) WHERE schedule_id IS NOT NULL\n"
        "DO UPDATE SET state = excluded.state, created_at = excluded.created_at\n"
        "RETURNING CASE WHEN xmax = 0 THEN id END AS id\n",
        (POSTGRES + "test_planned_run_that_exists_is_skipped",),
        also=(
            (
                P + "fast/insert_runs_sql.py",
                "ON CONFLICT DO NOTHING RETURNING id, body),",
                """ON CONFLICT (schedule_id, fire_key) WHERE schedule_id IS NOT NULL
    DO UPDATE SET state = excluded.state, created_at = excluded.created_at
    RETURNING CASE WHEN xmax = 0 THEN id END AS id, body),""",
            ),
        ),
    ),
    Mutant(
        "tail-by-highest-number",
        "a log cursor stores no gaps: an event that commits late is never returned (PostgreSQL)",
        P + "log_cursor.py",
        "self._gaps.append(_Gap(self.after + 1, seq - 1, transaction))",
        "self._gaps += []",
        (SHARED + "test_a_log_cursor_skips_no_event_and_waits_for_no_transaction",),
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
        also=((P + "fast/insert_runs_sql.py", " AND s.cursor = i.at_cursor AND s.n = i.at_n\n", "\n"),),
    ),
    Mutant(
        "lost-answer-guessed",
        "a change whose answer was lost is sent again without a check whether it took effect (PostgreSQL)",
        P + "store.py",
        "resent=resent), self.settings.where",
        "resent=False), self.settings.where",
        ("tests/system/test_postgres_faults.py::test_a_commit_whose_answer_is_lost_is_found_by_its_ids",),
    ),
    Mutant(
        "renew-after-the-end",
        "a lease that has ended is renewed (PostgreSQL)",
        P + "run_leases.py",
        " AND r.owner = $2 AND r.lease_until > t.now",
        " AND r.owner = $2",
        (POSTGRES + "test_an_expired_lease_is_lost_before_any_rescue",),
    ),
)
