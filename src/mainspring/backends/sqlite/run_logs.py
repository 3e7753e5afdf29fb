"""The store's `append_log`, its queries of run logs, and their removal together with the runs."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.backends.sqlite.database import Database
from mainspring.backends.sqlite.rows import WITH_ROWS, item, pack
from mainspring.model.ids import RunId
from mainspring.model.run_log import LogEntry
from mainspring.ports.store import LoggedRuns, RunLogs
from mainspring.rules.run_logs import MAX_REMOVED_LOGS, LogSize, admit_lines, logs_to_remove

#: Parameter: run ids. Returns id, bytes and is_cut for those of the runs that exist.
_SIZES = """
SELECT r.id, ifnull(l.bytes, 0), ifnull(l.is_cut, 0)
FROM json_each(?1) j CROSS JOIN run r ON r.id = j.value LEFT JOIN run_log l ON l.run_id = r.id
"""
#: Rows: [run id, n, attempt, at, level, source, text].
_INSERT_LINES = f"""
{WITH_ROWS}
INSERT INTO log_line (run_id, n, attempt, at, level, source, text)
SELECT {", ".join(map(item, range(7)))} FROM j
"""  # noqa: S608
#: Rows: [run id, bytes, is_cut].
_PUT_SIZES = f"""
{WITH_ROWS}
INSERT INTO run_log (run_id, bytes, is_cut) SELECT {", ".join(map(item, range(3)))} FROM j WHERE true
ON CONFLICT DO UPDATE SET bytes = excluded.bytes, is_cut = excluded.is_cut
"""  # noqa: S608
#: Parameters: number of the last line, bytes by which the logs grew.
_UPDATE_TOTAL = "UPDATE log_total SET n = ?1, bytes = bytes + ?2"
#: Parameters: run id, number of a line, attempt or NULL, limit.
_FIND = """
SELECT n, attempt, at, level, source, text FROM log_line
WHERE run_id = ?1 AND n > ?2 AND (?3 IS NULL OR attempt = ?3) ORDER BY n LIMIT ?4
"""
#: Statements with run ids as parameter: subtract the logs of these runs from the total, and delete them.
_REMOVE = (
    """UPDATE log_total SET bytes = bytes - (
           SELECT ifnull(sum(l.bytes), 0) FROM json_each(?1) j CROSS JOIN run_log l ON l.run_id = j.value)""",
    "DELETE FROM log_line WHERE run_id IN (SELECT value FROM json_each(?1))",
    "DELETE FROM run_log WHERE run_id IN (SELECT value FROM json_each(?1))",
)


def append_log(db: Database, entries: Sequence[LogEntry], limit: int) -> None:
    """Append lines to the logs of the runs that exist; beyond `limit` bytes of all logs, remove the oldest logs."""
    with db.write("append_log"):
        rows = db.run(_SIZES, pack(list({entry.run_id: None for entry in entries}))).fetchall()
        sizes = {run_id: LogSize(size, bool(is_cut)) for run_id, size, is_cut in rows}
        stored, grown = admit_lines(entries, sizes)
        if not stored:
            return
        ((last, total),) = db.run("SELECT n, bytes FROM log_total").fetchall()
        lines = [(x.run_id, n, x.attempt, x.at, x.level, x.source, x.text) for n, x in enumerate(stored, last + 1)]
        db.run(_INSERT_LINES, pack(lines))
        db.run(_PUT_SIZES, pack([(run_id, size.bytes, int(size.is_cut)) for run_id, size in grown.items()]))
        added = sum(size.bytes - sizes[run_id].bytes for run_id, size in grown.items())
        db.run(_UPDATE_TOTAL, last + len(stored), added)
        if total + added > limit:
            oldest = db.run("SELECT run_id, bytes FROM run_log ORDER BY run_id LIMIT ?1", MAX_REMOVED_LOGS).fetchall()
            remove_logs(db, [run_id for run_id, _ in logs_to_remove(oldest, total + added - limit)])


def remove_logs(db: Database, run_ids: Sequence[RunId]) -> None:
    """Delete the logs of these runs, of which some or all may have none. To be called inside `db.write()`."""
    if run_ids and db.value("SELECT 1 FROM run_log LIMIT 1"):
        text = pack(list(run_ids))
        for statement in _REMOVE:
            db.run(statement, text)


def find(db: Database, q: RunLogs) -> list[LogEntry]:
    """Return lines of a run's log, in the order of their numbers. To be called inside `db.read()`."""
    rows = db.run(_FIND, q.run_id, int(q.after or 0), q.attempt, q.limit)
    return [
        LogEntry(run_id=q.run_id, attempt=attempt, at=at, level=level, source=source, text=text, n=n)
        for n, attempt, at, level, source, text in rows
    ]


def find_logged_runs(db: Database, q: LoggedRuns) -> list[RunId]:
    """Return the ids of runs that have a log, in their order. To be called inside `db.read()`."""
    sql = "SELECT run_id FROM run_log WHERE run_id > ?1 ORDER BY run_id LIMIT ?2"
    return [run_id for (run_id,) in db.run(sql, q.after or "", q.limit)]
