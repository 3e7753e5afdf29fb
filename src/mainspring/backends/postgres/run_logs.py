"""The store's `append_log`, its queries of run logs, and their removal together with the runs.

Every transaction that writes logs locks the row of `log_total` before any other row of a log, so logs are written by
one transaction at a time. Why: the numbers of lines then grow in the order of commits, so a reader misses none, and no
two writers deadlock. A process writes logs twice a second at most.
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.backends.postgres.database import Database, Session
from mainspring.backends.postgres.rows import column_arrays, storable_text, unnest_columns
from mainspring.model.ids import RunId
from mainspring.model.run_log import LogEntry
from mainspring.ports.store import LoggedRuns, RunLogs
from mainspring.rules.run_logs import MAX_REMOVED_LOGS, LogSize, admit_lines, logs_to_remove

_LOCK_TOTAL = "SELECT n, bytes FROM §log_total FOR UPDATE"
#: Parameters: number of the last line, bytes of all logs.
_SET_TOTAL = "UPDATE §log_total SET n = $1, bytes = $2"
#: Parameter: run ids. Returns id, bytes and is_cut for those of the runs that exist.
_SIZES = """
SELECT r.id, coalesce(l.bytes, 0) AS bytes, coalesce(l.is_cut, false) AS is_cut
FROM §run r LEFT JOIN §run_log l ON l.run_id = r.id WHERE r.id = ANY ($1::text[])
"""
_LINE_COLUMNS = {
    "run_id": "text",
    "n": "bigint",
    "attempt": "integer",
    "at": "bigint",
    "level": "text",
    "source": "text",
    "text": "text",
}
_INSERT_LINES = f"""
INSERT INTO §log_line ({", ".join(_LINE_COLUMNS)})
SELECT {", ".join(f"i.{name}" for name in _LINE_COLUMNS)} FROM {unnest_columns(_LINE_COLUMNS)}
"""  # noqa: S608 - column names, no input
_SIZE_COLUMNS = {"run_id": "text", "bytes": "bigint", "is_cut": "boolean"}
_PUT_SIZES = f"""
INSERT INTO §run_log (run_id, bytes, is_cut)
SELECT i.run_id, i.bytes, i.is_cut FROM {unnest_columns(_SIZE_COLUMNS)}
ON CONFLICT (run_id) DO UPDATE SET bytes = excluded.bytes, is_cut = excluded.is_cut
"""  # noqa: S608
_DELETE_LINES = "DELETE FROM §log_line WHERE run_id = ANY ($1::text[])"
_DELETE_SIZES = "DELETE FROM §run_log WHERE run_id = ANY ($1::text[]) RETURNING bytes"
#: Parameters: run id, number of a line, attempt or NULL, limit.
_FIND = """
SELECT n, attempt, at, level, source, text FROM §log_line
WHERE run_id = $1 AND n > $2 AND ($3::integer IS NULL OR attempt = $3) ORDER BY n LIMIT $4
"""


async def append_log(db: Database, entries: Sequence[LogEntry], limit: int) -> None:
    """Append lines to the logs of the runs that exist; beyond `limit` bytes of all logs, remove the oldest logs."""
    async with db.transaction("append_log") as session:
        last, total = await session.row(_LOCK_TOTAL)
        rows = await session.fetch(_SIZES, list({entry.run_id: None for entry in entries}))
        sizes = {row["id"]: LogSize(row["bytes"], row["is_cut"]) for row in rows}
        stored, grown = admit_lines(entries, sizes)
        if not stored:
            return
        lines = [
            (x.run_id, n, x.attempt, x.at, x.level, storable_text(x.source), storable_text(x.text))
            for n, x in enumerate(stored, last + 1)
        ]
        await session.fetch(_INSERT_LINES, *column_arrays(lines, len(_LINE_COLUMNS)))
        new_sizes = [(run_id, size.bytes, size.is_cut) for run_id, size in grown.items()]
        await session.fetch(_PUT_SIZES, *column_arrays(new_sizes, len(_SIZE_COLUMNS)))
        total += sum(size.bytes - sizes[run_id].bytes for run_id, size in grown.items())
        if total > limit:
            sql = "SELECT run_id, bytes FROM §run_log ORDER BY run_id LIMIT $1"
            oldest = [tuple(row) for row in await session.fetch(sql, MAX_REMOVED_LOGS)]
            removed = logs_to_remove(oldest, total - limit)
            total -= await _delete_logs(session, [run_id for run_id, _ in removed])
        await session.fetch(_SET_TOTAL, last + len(stored), total)


async def remove_logs(session: Session, run_ids: Sequence[RunId]) -> None:
    """Delete the logs of these runs, of which some or all may have none, in the session's transaction."""
    sql = "SELECT 1 FROM §run_log WHERE run_id = ANY ($1::text[]) LIMIT 1"
    if await session.value(sql, list(run_ids)) is None:
        return
    last, total = await session.row(_LOCK_TOTAL)
    await session.fetch(_SET_TOTAL, last, total - await _delete_logs(session, run_ids))


async def _delete_logs(session: Session, run_ids: Sequence[RunId]) -> int:
    """Delete logs, and return how many bytes they had. The caller has locked the total, and sets it after that."""
    await session.fetch(_DELETE_LINES, list(run_ids))
    return sum(row["bytes"] for row in await session.fetch(_DELETE_SIZES, list(run_ids)))


async def find(db: Database, session: Session, q: RunLogs) -> list[LogEntry]:
    """Return lines of a run's log, in the order of their numbers."""
    rows = await session.fetch(_FIND, storable_text(q.run_id), int(q.after or 0), q.attempt, q.limit)
    return [LogEntry(run_id=q.run_id, **dict(row)) for row in rows]


async def find_logged_runs(db: Database, session: Session, q: LoggedRuns) -> list[RunId]:
    """Return the ids of runs that have a log, in their order."""
    sql = "SELECT run_id FROM §run_log WHERE run_id > $1 ORDER BY run_id LIMIT $2"
    return [row["run_id"] for row in await session.fetch(sql, storable_text(q.after or ""), q.limit)]
