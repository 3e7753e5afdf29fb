"""Mutants of run logs: a log is removed with its run, and a number never grows against the order of commits."""

from __future__ import annotations

from mutants_kind import Mutant

SQLITE = "tests/backends/sqlite/test_sqlite_store.py::TestSqlite::"
LOGS = "tests/app/test_run_logs.py::"
S = "src/mainspring/"

LOG_MUTANTS = (
    Mutant(
        "log-outlives-run",
        "the log of a run stays when retention removes the run",
        S + "backends/sqlite/purge.py",
        "    remove_logs(db, _texts.decode(db.value(_RUN_IDS, text)))\n",
        "",
        (SQLITE + "test_a_log_is_removed_with_its_run",),
    ),
    Mutant(
        "log-youngest-first",
        "beyond the limit of all logs, those of the youngest runs are removed",
        S + "backends/sqlite/run_logs.py",
        "FROM run_log ORDER BY run_id LIMIT ?1",
        "FROM run_log ORDER BY run_id DESC LIMIT ?1",
        (SQLITE + "test_beyond_the_limit_of_all_logs_those_of_the_oldest_runs_are_removed",),
    ),
    Mutant(
        "log-lost-in-outage",
        "lines are lost while the store is unavailable",
        S + "engine/work/log_writer.py",
        "                    self._put_back(entries[at:])\n",
        "",
        (LOGS + "test_lines_wait_while_the_store_is_away",),
    ),
)
