"""The store's `append_log`, and its queries of run logs. The log of a run is a Redis stream of lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mainspring.backends.redis.database import Argument, Database
from mainspring.backends.redis.scripts import load
from mainspring.model.ids import RunId
from mainspring.model.run_log import CUT_SOURCE, CUT_TEXT, MAX_RUN_LOG_BYTES, LogEntry
from mainspring.ports.store import LoggedRuns, RunLogs
from mainspring.rules.run_logs import MAX_REMOVED_LOGS

_APPEND = load("append_log")
#: How many lines are read in one call, when only those of one attempt are wanted.
_PAGE_LINES = 1_000
_decode_line = msgspec.msgpack.Decoder(tuple[int, int, str, str, str]).decode
#: The line that says that a log was cut, for its size.
_CUT = LogEntry(run_id="", attempt=0, at=0, level="warning", source=CUT_SOURCE, text=CUT_TEXT)


async def append_log(db: Database, entries: Sequence[LogEntry], limit: int) -> None:
    """Append lines to the logs of the runs that exist; beyond `limit` bytes of all logs, remove the oldest logs.

    Raises: StoreNearlyFull from 90 % of the server's `maxmemory` on.
    """
    await db.memory.check_room_for_logs(db)
    words: list[Argument] = [MAX_RUN_LOG_BYTES, limit, MAX_REMOVED_LOGS, _CUT.size, _CUT.level, CUT_SOURCE, CUT_TEXT]
    for x in entries:
        words += (x.run_id, x.size, msgspec.msgpack.encode((x.attempt, x.at, x.level, x.source, x.text)))
    await db.run_write(_APPEND, *words)


async def find(db: Database, q: RunLogs) -> list[LogEntry]:
    """Return lines of a run's log, in the order of their numbers."""
    found: list[LogEntry] = []
    after = int(q.after or 0)
    size = q.limit if q.attempt is None else max(q.limit, _PAGE_LINES)
    while len(found) < q.limit:
        command = ("XRANGE", f"{db.key_prefix}lines:{q.run_id}", f"({after}-0", "+", "COUNT", size)
        (rows,) = await db.run_commands(command)
        page = [_parse_line(q.run_id, name, fields) for name, fields in rows]
        found += [line for line in page if q.attempt in (None, line.attempt)]
        if len(page) < size:
            break
        after = page[-1].n
    return found[: q.limit]


def _parse_line(run_id: RunId, name: bytes, fields: Any) -> LogEntry:
    """Return a line of a log. `name`: its id in the stream; `fields`: the entry's fields, as a list or dictionary."""
    packed = fields[b"line"] if isinstance(fields, dict) else fields[1]
    attempt, at, level, source, text = _decode_line(packed)
    n = int(name.partition(b"-")[0])
    return LogEntry(run_id=run_id, attempt=attempt, at=at, level=level, source=source, text=text, n=n)


async def find_logged_runs(db: Database, q: LoggedRuns) -> list[RunId]:
    """Return the ids of runs that have a log, in their order."""
    start = f"({q.after}" if q.after else "-"
    command = ("ZRANGEBYLEX", f"{db.key_prefix}logged:runs", start, "+", "LIMIT", 0, q.limit)
    (names,) = await db.run_commands(command)
    return [name.decode() for name in names]
